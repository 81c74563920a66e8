"""What private inference costs beside what is not private, side by side in one run.

``python -m experiments.bench_inference``
"""
