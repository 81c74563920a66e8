"""Norms without per-example gradients, for any JAX function."""

from dpjax.gradients.bookkeeping.clipped_sum import clipped_sum
from dpjax.gradients.bookkeeping.explain import Explanation, explain

__all__ = ["Explanation", "clipped_sum", "explain"]
