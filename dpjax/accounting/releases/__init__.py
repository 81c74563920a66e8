"""Kinds of releases, one file each: privacy loss, Rényi divergence, trade-off, lower bound."""

from dpjax.accounting.releases import (  # noqa: F401 - defining a kind registers it
    compound,
    discrete_gaussian,
    gaussian,
    laplace,
    randomized_response,
    subsampled_gaussian,
    truncated_poisson,
    wishart,
)
from dpjax.accounting.releases.base import (
    Release,
    RepeatedRelease,
    UnsupportedEventError,
    decompose,
)

__all__ = ["Release", "RepeatedRelease", "UnsupportedEventError", "decompose"]
