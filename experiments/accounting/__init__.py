"""Experiments on accounting alone: certified ε beside computations of their own."""
