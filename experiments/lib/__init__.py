"""Shared by the experiments: registry, records, report, tables, figures and models."""
