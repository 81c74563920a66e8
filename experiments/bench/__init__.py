"""What privacy costs in time and memory: ``make bench``, or ``python -m experiments.bench``.

Every claim is a ratio within one group, whose cases are timed in turn, so that a noisy machine
disturbs all of them alike. Results go to ``results/bench.json``, and into the report from there.
"""
