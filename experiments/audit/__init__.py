"""Experiments on audits: lower bounds on ε from attacks, beside the certificates."""
