"""Posterior samples as arviz takes them."""

from collections.abc import Mapping
from typing import Any


def to_arviz(samples: Mapping[str, Any]) -> Any:
    """Samples with axes ``(chain, draw, ...)`` as an ``xarray.DataTree`` for arviz.

    Args:
      samples: what `DPSVI.posterior_samples` returned.

    >>> import numpy as np
    >>> to_arviz({"w": np.zeros((1, 10, 3))}).posterior["w"].dims
    ('chain', 'draw', 'w_dim_0')
    """
    from arviz_base import from_dict  # takes long to import, and few ask for it

    return from_dict({"posterior": dict(samples)})
