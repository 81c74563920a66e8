"""Bayesian differential privacy: experiments of Triastcyn and Faltings (2020)."""
