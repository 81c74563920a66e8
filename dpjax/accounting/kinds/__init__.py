"""Kinds of events, one file each: privacy loss, Rényi divergence, trade-off, lower bound."""

from dpjax.accounting.kinds import (  # noqa: F401 - defining a kind registers it
    approximate_dp,
    discrete_gaussian,
    gaussian,
    laplace,
    random_allocation,
    randomized_response,
    repeated_selection,
    truncated_poisson,
    wishart,
)
