"""Samplers as optax transformations of clipped sums, their noise included and described once."""

from collections.abc import Callable
from typing import Any

import optax

from dpjax._validation import as_key, check_count, check_non_negative, check_positive
from dpjax.bayes.sgmcmc.description import own_noise_multiplier
from dpjax.bayes.sgmcmc.schedules import StepSize
from dpjax.transforms.chains import step_on_sum
from dpjax.transforms.description import PrivateTransformation
from dpjax.transforms.noise import add_noise


def noise_schedule(
    step_size: StepSize, at_least: float, **noise: Any
) -> float | Callable[[Any], Any]:
    """Returns the noise multiplier of each step: the chain's own, or ``at_least`` if larger."""
    check_non_negative("at_least", at_least)
    check_positive("temperature", noise["temperature"])
    check_count("num_data", noise["num_data"])
    check_positive("expected_batch_size", noise["expected_batch_size"])
    if not callable(step_size):
        check_positive("step_size", step_size)
        return max(own_noise_multiplier(step_size, **noise), at_least)

    def multiplier(step: Any) -> Any:
        own = own_noise_multiplier(step_size(step), **noise)
        return own + (own < at_least) * (at_least - own)

    return multiplier


def on_clipped_sum(
    noise_multiplier: Any,
    l2_clip: Any,
    expected_batch_size: float,
    drift: optax.GradientTransformation,
    key: Any,
) -> PrivateTransformation:
    """Returns noise, division by the expected batch size and ``drift``, with its description."""
    noise = add_noise(noise_multiplier, l2_clip, as_key(key))
    chain = step_on_sum(noise, expected_batch_size, drift)
    description = noise.description._replace(divisor="public constant")
    return PrivateTransformation.of(chain.init, chain.update, description)
