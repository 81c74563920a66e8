"""Nothing is released whose shape is not the one that the sensitivity is stated for.

The column of records in place of its mean would publish every record with the noise of one mean.
"""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import dpjax
from dpjax import pate
from dpjax.bayes import conjugate, regression
from dpjax.federated import ClippedGradientSum, FederatedSum, Parties
from dpjax.mechanisms import (
    ClippedSum,
    Composition,
    DiscreteGaussian,
    DiscreteLaplace,
    ExponentialMechanism,
    Gaussian,
    Laplace,
    NoisyMax,
    PermuteAndFlip,
    SubsampledGaussian,
    SumPart,
)
from dpjax.mechanisms.additive import AdditiveNoise
from dpjax.mechanisms.record_sum import release_sum
from dpjax.mechanisms.selection import Selection
from dpjax.sampling import PoissonSampling
from dpjax.sensitivity import (
    Sensitivity,
    of_count,
    of_histogram,
    of_mean,
    of_quantile_counts,
    of_second_moment,
    of_second_moment_in_box,
    of_sum,
)

KEY = jax.random.key(0)
AGES = np.array([31, 47, 25, 62, 58])  # the records
BOX = (np.zeros(3), np.full(3, 2.0))
UNIT = regression.RegressionBounds(x_norm_bound=1.0, y_bound=1.0)
BY_NORM = {
    "l1": (Laplace, DiscreteLaplace),
    "l2": (Gaussian, DiscreteGaussian),
    "linf": (NoisyMax, ExponentialMechanism, PermuteAndFlip),
}
SCALAR_LIKE = [AGES, AGES[:, None], AGES[:1], [31, 47], {"a": 1, "b": 2}, [AGES, 2], []]
VECTOR_LIKE = [AGES, AGES[0], AGES[:3, None], AGES[None, :3], [31, 47, 25], (AGES[:3], 4)]


def of_tree(norm):
    return Sensitivity(2.0, norm, "add_remove", shape=((3,), ()))


# A statistic's sensitivity in each norm, a value of its shape, and values of others.
STATISTICS = {
    "count": (lambda norm: of_count(norm=norm, adjacency="add_remove"), 5, SCALAR_LIKE),
    "sum": (lambda norm: of_sum((0, 99), norm=norm, adjacency="add_remove"), 99, SCALAR_LIKE),
    "mean": (lambda norm: of_mean((0, 5), 5, norm=norm, adjacency="zero_out"), 4, SCALAR_LIKE),
    "counts": (
        lambda norm: of_count(3, norm=norm, adjacency="zero_out"),
        AGES[:3],
        VECTOR_LIKE,
    ),
    "vector sum": (
        lambda norm: of_sum(BOX, norm=norm, adjacency="add_remove"),
        AGES[:3],
        VECTOR_LIKE,
    ),
    "vector mean": (
        lambda norm: of_mean(BOX, 1, norm=norm, adjacency="replace_one"),
        AGES[:3],
        VECTOR_LIKE,
    ),
    "histogram": (
        lambda norm: of_histogram(3, norm=norm, adjacency="zero_out"),
        AGES[:3],
        VECTOR_LIKE,
    ),
    "quantile counts": (
        lambda norm: of_quantile_counts(3, norm=norm, adjacency="add_remove"),
        AGES[:3],
        VECTOR_LIKE,
    ),
    "tree": (of_tree, {"a": AGES[:3], "b": 7}, [{"a": 7, "b": AGES[:3]}, AGES[:3], AGES[:4]]),
    "by hand": (lambda norm: Sensitivity(1.0, norm, "add_remove"), 4, SCALAR_LIKE),
}


def mechanisms(statistic, norm):
    """Each mechanism of this norm by its constructor and by ``from_epsilon``."""
    moves = STATISTICS[statistic][0](norm)
    if norm == "l1":  # discrete noise needs whole numbers
        moves = replace(moves, value=float(np.ceil(moves.value)))
    targets = {"epsilon": 1.0} | ({"delta": 1e-5} if norm == "l2" else {})
    made = [cls(moves, 2.0) for cls in BY_NORM[norm]]
    calibrated = [cls for cls in BY_NORM[norm] if cls is not DiscreteGaussian]
    return made + [cls.from_epsilon(moves, **targets) for cls in calibrated]


def test_tables_have_every_mechanism_of_a_statistic():
    public = [getattr(dpjax.mechanisms, name) for name in dpjax.mechanisms.__all__]
    classes = [each for each in public if isinstance(each, type)]
    of_statistics = {cls for cls in classes if issubclass(cls, AdditiveNoise | Selection)}
    assert of_statistics == {cls for classes in BY_NORM.values() for cls in classes}


@pytest.mark.parametrize("norm", BY_NORM)
@pytest.mark.parametrize("statistic", STATISTICS)
def test_release_refuses_other_shapes(statistic, norm):
    stated, right, wrong = STATISTICS[statistic]
    if norm == "linf" and np.ndim(right) != 1:
        with pytest.raises(ValueError, match="sensitivity's shape must be"):
            NoisyMax(stated(norm), 2.0)
        return
    for mechanism in mechanisms(statistic, norm):
        released = mechanism.release(KEY, right)
        if norm != "linf":
            assert jax.tree.map(np.shape, released) == jax.tree.map(np.shape, right)
        for value in wrong:
            if norm == "linf" and isinstance(value, list | tuple):  # utilities may be a list
                continue
            words = "which its sensitivity states, got shape|a tree with at least one array"
            with pytest.raises(ValueError, match=words):
                mechanism.release(KEY, value)


def test_release_error_names_shapes_and_remedy():
    mean = of_mean((0, 99), 5, norm="l2", adjacency="replace_one")
    message = (
        r"value must be of shape \(\), which its sensitivity states, got shape \(5,\): release the"
        r" statistic, not the records .* state .* its shape, Sensitivity\(\.\.\., shape=\.\.\.\)"
    )
    with pytest.raises(ValueError, match=message):
        Gaussian.from_epsilon(mean, epsilon=1.0, delta=1e-5).release(KEY, AGES)
    votes = of_histogram(3, norm="linf", adjacency="zero_out")
    with pytest.raises(ValueError, match=r"utilities must be of shape \(3,\).*got shape \(5,\)"):
        NoisyMax(votes, 1.0).release(KEY, AGES)


@pytest.mark.parametrize("cls", [Laplace, DiscreteGaussian, NoisyMax])
def test_release_shapes_under_jit_and_vmap(cls):
    moves, keys = of_histogram(3, norm=cls.norm, adjacency="zero_out"), jax.random.split(KEY, 4)
    release, values = cls(moves, 2.0).release, jnp.arange(12).reshape(4, 3)
    expected = () if cls is NoisyMax else (3,)
    assert jax.jit(release)(KEY, values[0]).shape == expected
    assert jax.jit(jax.vmap(release))(keys, values).shape == (4, *expected)
    # refused as it is traced, before anything is computed
    with pytest.raises(ValueError, match=r"must be of shape \(3,\)"):
        jax.eval_shape(release, KEY, values)
    with pytest.raises(ValueError, match=r"must be of shape \(3,\)"):
        jax.eval_shape(jax.vmap(release, (0, None)), keys, values)


@pytest.mark.parametrize("adjacency", ["add_remove", "zero_out", "replace_one"])
def test_release_symmetric_shapes(adjacency):
    matrix, stack = np.eye(3), np.ones((2, 3, 3))
    ball, box = (
        of_second_moment(1.0, num_features=3, adjacency=adjacency),
        (-np.ones(3), np.ones(3)),
    )
    for mechanism in (
        Gaussian(ball, 1.0),
        Laplace(of_second_moment_in_box(box, adjacency=adjacency), 1.0),
    ):
        assert mechanism.release_symmetric(KEY, matrix).shape == (3, 3)
        assert mechanism.release(KEY, matrix[np.triu_indices(3)]).shape == (6,)
        for value in (stack, np.eye(2), {"a": matrix, "b": matrix}, np.ones((5, 5))):
            with pytest.raises(ValueError, match=r"upper triangle of value must be .* \(6,\)"):
                mechanism.release_symmetric(KEY, value)
        # noise on all nine entries would cost more than the triangle's sensitivity in L1
        with pytest.raises(ValueError, match=r"value must be of shape \(6,\)"):
            mechanism.release(KEY, matrix)


class Columns:
    """A sum whose stated shape is not that of what is summed."""

    sum_records = staticmethod(np.asarray)
    from_sum = staticmethod(np.asarray)


def column_sum(records):
    mechanism = Gaussian(of_sum((0, 1), norm="l2", adjacency="add_remove"), 1.0)
    return release_sum(Columns, mechanism, KEY, [records])


def conjugate_release(shape):
    moves = Sensitivity(1.0, "l2", "add_remove", shape=shape)
    return conjugate.SufficientStatisticsMechanism(conjugate.BetaBinomial(), Gaussian(moves, 1.0))


def statistics(d):
    return regression.RegressionStatistics(np.eye(d), np.ones(d), np.asarray(1.0))


def perturbed():
    scales = regression.RegressionStatistics(1.0, 1.0, 1.0)
    return regression.PerturbedStatistics(UNIT, 2, scales, "gaussian", "add_remove")


def gradient_sum():
    steps = SubsampledGaussian(
        PoissonSampling(100, 0.1), l2_clip=1.0, noise_multiplier=1.0, num_steps=2,
        adjacency="zero_out",
    )  # fmt: skip
    return ClippedGradientSum(steps, 4)


def votes():
    return pate.GNMax(
        scale=2.0, num_teachers=5, num_classes=2, num_queries=3, adjacency="replace_one"
    )


ADASSP = regression.AdaSSP(UNIT, 2, mu=1.0, delta=1e-5, adjacency="add_remove")
WISHART = regression.WishartNoise(UNIT, 2, degrees_of_freedom=12, scale=2.0, adjacency="add_remove")
SUM = ClippedSum((0.0, 99.0), scale=1.0, adjacency="add_remove")
PLAN = FederatedSum(SUM, Parties(num_holders=3, num_nodes=3), grid_bits=16)
TWO = np.array([[3, 2], [5, 0], [0, 5]])
# Entry points that derive the statistic, with an argument that fits and one that does not.
ENTRY_POINTS = {
    "ClippedSum": (lambda x: SUM.release(KEY, x), AGES[:, None], AGES),
    "ClippedSum of columns": (lambda x: SUM.release(KEY, x), AGES[:, None], np.ones((5, 2))),
    "release_sum": (column_sum, np.float64(4), AGES),
    "SumPart": (lambda x: SumPart(SUM.mechanism, x), np.ones(1), np.ones(5)),
    "SufficientStatisticsMechanism": (conjugate_release, (2,), ()),
    "SufficientStatisticsMechanism, replaced": (conjugate_release, (2,), (5,)),
    "PerturbedStatistics": (lambda d: perturbed().release(KEY, statistics(d)), 2, 3),
    "PerturbedStatistics of records": (
        lambda d: perturbed().release_records(KEY, np.ones((5, d)), np.ones(5)), 2, 3,
    ),
    "AdaSSP": (lambda d: ADASSP.release(KEY, statistics(d)), 2, 3),
    "WishartNoise": (lambda d: WISHART.release(KEY, statistics(d)), 2, 3),
    "ClippedGradientSum": (lambda x: gradient_sum().sum_records(x), np.ones(4), np.ones(5)),
    "FederatedSum": (PLAN.to_units, np.ones(1), np.ones(5)),
    "GNMax": (lambda x: votes().release(KEY, x), TWO, TWO.T),
    "votes of one query": (
        lambda x: votes().vote_noise.release(KEY, x), TWO[0].astype(float), TWO.astype(float),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", ENTRY_POINTS)
def test_entry_points_refuse_other_shapes(name):
    entry_point, fits, other = ENTRY_POINTS[name]
    entry_point(fits)
    with pytest.raises(ValueError, match=r"must be .*(shape|\(\d|parameters)"):
        entry_point(other)


def test_composed_mechanisms_state_shapes():
    parts = Composition(
        (*perturbed().composition.mechanisms, *ADASSP.composition.mechanisms)
    ).mechanisms
    shapes = [part.sensitivity.shape for part in parts]
    assert shapes == [(3,), (2,), (), (3,), (2,), ()]
    assert [part.mechanism.sensitivity.shape for part in gradient_sum().sum_parts] == [(4,)]
