"""Shared code of the experiments: registry, records, report, tables, figures, models."""
