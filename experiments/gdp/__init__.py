"""Source 004: Deep Learning with Gaussian Differential Privacy."""
