"""Private Bayesian learning: Honkela (2017), slides; and course notes (nowave.it, 2021)."""
