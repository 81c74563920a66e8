"""Plans, refusals and messages that several tests share."""

import numpy as np
import pytest

from dpjax.bayes.conjugate import (
    BetaBinomial,
    DirichletMultinomial,
    NormalUnknownVariance,
    SufficientStatisticsMechanism,
)
from dpjax.bayes.regression import PerturbedStatistics, RegressionBounds
from dpjax.federated import (
    ClippedGradientSum,
    FederatedSum,
    Parties,
    ProtocolError,
    received_draws,
)
from dpjax.federated.messages import ANALYST, Message
from dpjax.mechanisms import Gaussian, SubsampledGaussian
from dpjax.sampling import PoissonSampling

ADJACENCIES = ("add_remove", "replace_one", "zero_out")


def statistic_release(family, *, scale=4.0, adjacency="add_remove"):
    moves = family.sensitivity(norm="l2", adjacency=adjacency)
    return SufficientStatisticsMechanism(family, Gaussian(moves, scale=scale * moves.value))


def count_release(**options):
    return statistic_release(BetaBinomial(alpha=1.0, beta=1.0), **options)


def histogram_release(**options):
    return statistic_release(DirichletMultinomial((1.0,) * 5), **options)


def moments_release(**options):
    family = NormalUnknownVariance(
        (-4.0, 6.0), prior_mean=1.0, prior_strength=10.0, prior_shape=10.0, prior_scale=9.0
    )
    return statistic_release(family, **options)


def regression_release(*, epsilon=1.0, adjacency="replace_one", num_features=3, split=None):
    return PerturbedStatistics.from_epsilon(
        RegressionBounds(x_norm_bound=1.5, y_bound=2.0),
        epsilon=epsilon,
        delta=1e-5,
        adjacency=adjacency,
        num_features=num_features,
        split=split,
    )


def plan_of(mechanism, *, num_holders=5, num_nodes=3, grid_bits=16, **parties):
    return FederatedSum(
        mechanism,
        Parties(num_holders=num_holders, num_nodes=num_nodes, **parties),
        grid_bits=grid_bits,
    )


def regression_records(rng, num_examples, num_features=3):
    x = rng.normal(size=(num_examples, num_features)) / num_features
    return x, x.sum(axis=1) + 0.1 * rng.normal(size=num_examples)


RECORDS = {
    "count": (count_release, lambda rng, n: (rng.integers(0, 2, n),)),
    "histogram": (histogram_release, lambda rng, n: (rng.integers(0, 5, n),)),
    "moments": (moments_release, lambda rng, n: (rng.normal(1.0, 2.0, n).astype(np.float32),)),
    "regression": (regression_release, regression_records),
}


def code_of(call, *args, **options):
    """The code by which a call is refused, and nothing else in the error."""
    with pytest.raises(ProtocolError) as raised:
        call(*args, **options)
    assert raised.value.args == (raised.value.code,)
    assert raised.value.__context__ is None or raised.value.__suppress_context__
    return raised.value.code


def from_analyst(plan, kind, node, draws=(), round_number=0):
    """A message of the analyst to a node, as bytes."""
    message = Message(
        kind=kind, sender=ANALYST, receiver=node, round_number=round_number, draws=dict(draws)
    )
    return plan.message_format.to_bytes(message)


def draws_of(plan, state, holders, round_number=0):
    """The draws that a node has of holders, an invented one where it has none."""
    received = received_draws(plan, state, round_number=round_number)
    return {holder: received.get(holder, 1) for holder in holders}


def gradient_plan(
    num_parameters,
    *,
    noise_multiplier=1.0,
    num_steps=30,
    l2_clip=1.0,
    adjacency="add_remove",
):
    sampling = PoissonSampling(1000, 0.2, expected_batch_size=200.0)
    steps = SubsampledGaussian(
        sampling,
        l2_clip=l2_clip,
        noise_multiplier=noise_multiplier,
        num_steps=num_steps,
        adjacency=adjacency,
    )
    return plan_of(ClippedGradientSum(steps, num_parameters), num_holders=4)
