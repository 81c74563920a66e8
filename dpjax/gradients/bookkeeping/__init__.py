"""Per-example gradient clipping by book-keeping (Bu et al. 2022) for any JAX function.

Its modules in the order of the computation: ``program`` reads the loss, ``routes`` chooses how the
norms of each leaf are computed, ``backward`` records what that takes, ``norms`` computes them, and
``sums`` adds the clipped gradients.
"""
