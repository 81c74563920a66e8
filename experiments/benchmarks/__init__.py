"""Benchmarks: ``make bench``, or ``python -m experiments.benchmarks [PART...]``.

The cases of a table are timed alternately in one run, so that ratios within a table are meaningful.
Results are written to ``results/benchmarks_PART.json`` and shown in the report.
"""
