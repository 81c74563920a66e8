"""Per-example gradient clipping by book-keeping (Bu et al. 2022) for any JAX function."""

from dpjax.gradients.bookkeeping.clipped_sum import clipped_sum
from dpjax.gradients.bookkeeping.routes import Explanation, explain

__all__ = ["Explanation", "clipped_sum", "explain"]
