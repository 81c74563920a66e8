"""Differentially private variational inference: Jälkö, Dikmen and Honkela (2017)."""
