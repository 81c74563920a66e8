"""Excludes the torch worker from doctest collection, since it needs torch."""

collect_ignore = ["torch_worker.py"]
