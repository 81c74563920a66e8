"""What a run of private variational inference costs: by the source's accounts, and certified.

The source writes its noise as N(0, 4 c^2 sigma^2 I): sigma is over 2c, what *replacing* a record
moves a sum by. A noise multiplier of dpjax is over c, whatever the adjacency: it is 2 sigma here.
"""

import math
from typing import NamedTuple

import dpjax
from dpjax.accounting import epsilon
from dpjax.accounting import moments_accountant as moments

REPLACE, ADD = "replace one", "add/remove"
_SLACK = 4e-5


class Spent(NamedTuple):
    """Epsilons by the name of their column.

    Attributes:
      claimed: by advanced composition and by the moments accountant.
      certified: by the privacy loss distribution, under each adjacency.
    """

    claimed: dict[str, float]
    certified: dict[str, float]


def mechanism(
    sigma: float, l2_clip: float, sampling_rate: float, num_steps: int, num_examples: int
) -> dpjax.SubsampledGaussian:
    """Returns the mechanism of a run whose noise is ``2 sigma l2_clip``, for add/remove.

    >>> mechanism(1.5, 0.25, 0.05, 1_000, 3_341).noise_multiplier
    3.0
    """
    sampling = dpjax.PoissonSampling(num_examples, sampling_rate)
    return dpjax.SubsampledGaussian(
        sampling,
        l2_clip=l2_clip,
        noise_multiplier=2 * sigma,
        num_steps=num_steps,
        adjacency="add_remove",
    )


def spent(mechanism: dpjax.SubsampledGaussian, delta: float) -> Spent:
    """Returns what the mechanism costs under both adjacencies.

    Under replace-one the two claims are the source's, read at ``delta / 2`` as its code does:
    advanced composition by doubling the epsilon of add/remove, the moments accountant with sigma
    in the place of the noise multiplier. Under add/remove both are read at ``delta`` itself.

    >>> one = spent(mechanism(1.2214, 0.25, 0.05, 1_000, 3_341), 1e-3)
    >>> [round(value, 2) for value in one.claimed.values()]
    [252.43, 7.59, 112.61, 2.8]
    >>> [round(value, 2) for value in one.certified.values()]
    [4.32, 1.97]
    """
    rate, steps = _rate(mechanism), mechanism.num_steps
    noise = mechanism.noise_multiplier
    assert not isinstance(noise, tuple)
    claimed = {
        f"AC ε, {REPLACE}": 2 * advanced_composition(noise, rate, steps, delta / 2),
        f"MA ε, {REPLACE}": float(moments.compute_epsilon(noise / 2, rate, steps, delta / 2)),
        f"AC ε, {ADD}": advanced_composition(noise, rate, steps, delta),
        f"MA ε, {ADD}": float(moments.compute_epsilon(noise, rate, steps, delta)),
    }
    certified = {
        f"ε, {REPLACE}": epsilon(mechanism.event, delta, adjacency="replace_one"),
        f"ε, {ADD}": epsilon(mechanism.event, delta, adjacency="add_remove"),
    }
    return Spent(claimed, certified)


def _rate(mechanism: dpjax.SubsampledGaussian) -> float:
    sampling = mechanism.sampling
    return sampling.expected_batch_size / sampling.num_examples


def advanced_composition(
    noise_multiplier: float, sampling_rate: float, num_steps: int, delta: float
) -> float:
    """Returns epsilon as the source computes it before its moments accountant.

    One step by the classical Gaussian mechanism (proven for an epsilon of one step below 1 only),
    amplified by subsampling, then advanced composition with a slack of 4e-5.

    Source: the published code of Jälkö, Dikmen, Honkela 2017.

    >>> round(advanced_composition(2.0, 0.005, 2_000, 1e-3), 2)
    10.8
    """
    delta_of_step = (delta - _SLACK) / (num_steps * sampling_rate)
    whole = math.sqrt(2 * math.log(1.25 / delta_of_step)) / noise_multiplier
    step = math.log1p(sampling_rate * math.expm1(whole))
    first = math.sqrt(2 * num_steps * math.log(1.25 / _SLACK)) * step
    return first + num_steps * step * math.expm1(step)
