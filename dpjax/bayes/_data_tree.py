"""Data trees for arviz from private posterior draws, without groups that hold private records."""

from collections.abc import Mapping
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from dpjax._checks import check_type
from dpjax._extras import requires_extra

# Draws by name, with axes (chain, draw, ...).
Draws: TypeAlias = Mapping[str, npt.ArrayLike]

# Groups whose variables all have the same chains and draws.
_OF_POSTERIOR = ("posterior", "posterior_predictive", "predictions")
_OF_PRIOR = ("prior", "prior_predictive")
# Other groups of arviz, and what of the private records they hold.
_PRIVATE = {
    "observed_data": "observed values of the records",
    "constant_data": "inputs of the records",
    "log_likelihood": "a log-likelihood of each record at each draw",
    "sample_stats": "energies and losses computed from the records",
}


def make_data_tree(
    posterior: Draws, groups: Mapping[str, Draws], attrs: Mapping[str, str] | None = None
) -> Any:
    """Returns an `xarray.DataTree` of posterior draws and further groups, by arviz's names.

    Args:
      posterior: draws by name, with axes ``(chain, draw, ...)``.
      groups: draws of further groups: ``posterior_predictive`` and ``predictions`` (with the axes
        of the posterior), ``prior`` and ``prior_predictive``.
      attrs: attributes of the group ``posterior``.

    Raises:
      ValueError: a group that holds private records, an unknown one, or draws of other axes.
    """
    data = {"posterior": posterior, **groups}
    for group, draws in data.items():
        _check_group(group)
        check_type(group, draws, Mapping, "a mapping from names to draws")

    # Draws of one row of groups belong together, as those of joint draws.
    for row in (_OF_POSTERIOR, _OF_PRIOR):
        _check_axes({group: data[group] for group in row if group in data})

    with requires_extra("arviz"):
        from arviz_base import from_dict

    trees = {group: dict(draws) for group, draws in data.items()}
    return from_dict(trees, attrs={"posterior": dict(attrs or {})})


def _check_group(group: str) -> None:
    """Refuses groups that hold private records, by name, and names that are no group of draws."""
    public = ", ".join((*_OF_POSTERIOR[1:], *_OF_PRIOR))
    if group in _PRIVATE:
        raise ValueError(
            f"groups must not hold private records, but {group} has {_PRIVATE[group]}, which no"
            f" certificate covers: pass draws at public inputs, as {public}"
        )
    if group not in (*_OF_POSTERIOR, *_OF_PRIOR):
        raise ValueError(f"groups must be of {public}, got {group!r}")


def _check_axes(groups: Mapping[str, Draws]) -> None:
    """All draws must have the axes ``(chain, draw)`` of the first."""
    axes: tuple[int, ...] | None = None
    for group, draws in groups.items():
        for name, values in draws.items():
            shape = np.shape(values)
            axes = shape[:2] if axes is None else axes
            if len(shape) < 2 or shape[:2] != axes:
                raise ValueError(
                    f"{group}[{name!r}] must have leading axes (chain, draw), as all draws of"
                    f" {', '.join(groups)}"
                    + (f", of shape {axes}" if len(axes) == 2 else "")
                    + f", got shape {shape}: numpyro.infer.Predictive with batch_ndims=2 returns"
                    " them"
                )
