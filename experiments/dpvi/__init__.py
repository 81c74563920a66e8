"""Source 001, second half: differentially private variational inference."""
