"""What the search for doctests leaves out: the modules of the worker, for they need torch."""

collect_ignore = ["torch_networks.py", "torch_worker.py"]
