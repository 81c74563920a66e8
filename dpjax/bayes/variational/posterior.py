"""What is made of a fitted guide: it was released, so all of this is free."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
from numpyro.infer import Predictive

from dpjax._validation import check_count


def draw_latents(
    guide: Callable[..., Any],
    params: Any,
    names: Sequence[str],
    rng_key: jax.Array,
    num_samples: int,
    arguments: tuple[Any, Any],
) -> dict[str, jax.Array]:
    """Returns draws of the latent variables ``names``, ``(1, num_samples, ...)``: one chain."""
    check_count("num_samples", num_samples)
    args, kwargs = arguments
    draw = Predictive(
        guide, params=params, num_samples=num_samples, return_sites=list(names), parallel=True
    )
    return {name: draws[None] for name, draws in draw(rng_key, *args, **kwargs).items()}


def draw_predictions(
    model: Callable[..., Any],
    guide: Callable[..., Any],
    params: Any,
    rng_key: jax.Array,
    num_samples: int,
    arguments: tuple[Any, Any],
) -> dict[str, jax.Array]:
    """Returns draws of every observed or deterministic site, ``(num_samples, ...)``."""
    check_count("num_samples", num_samples)
    args, kwargs = arguments
    draw = Predictive(model, guide=guide, params=params, num_samples=num_samples, parallel=True)
    return draw(rng_key, *args, **kwargs)
