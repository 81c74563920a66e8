"""Experiments on private training that are not those of one publication."""
