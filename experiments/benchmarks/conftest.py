"""Leaves the module of the torch worker out of the search for doctests: it needs torch."""

collect_ignore = ["torch_worker.py"]
