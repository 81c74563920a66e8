"""Benchmarks: ``make bench``, or ``python -m experiments.benchmarks [PART...]``.

Every claim is a ratio within one table, whose cases are timed in turn in one run. The results go to
``results/benchmarks_PART.json``, and into the report from there.
"""
