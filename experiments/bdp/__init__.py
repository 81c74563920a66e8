"""Source 000, Bayesian differential privacy: its figures, its limits, its town of incomes."""
