"""The mechanisms of dpjax, each with neighbours as far apart as any and the score of an attack."""

import dataclasses
import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import optax

import dpjax
from dpjax import pate, statistics
from dpjax.adjacency import Adjacency
from dpjax.audit import AuditReport, audit, canary_loss, canary_records
from dpjax.bayes import conjugate, regression, sgmcmc
from dpjax.bayes.sgmcmc.one_posterior_sample import clipped_log_likelihood, rejection_loop
from dpjax.bayes.variational import DPSVI
from dpjax.federated import FederatedSum, Parties, run_round
from dpjax.federated.noise import simulated_entropy
from dpjax.mechanisms.record_sum import ClippedSum
from experiments.published.regression import excludes_record, nonprivate_wishart_noise

DELTA = 1e-5
# What an attack should reach of the certified epsilon: where the canary moves all that is released,
# and elsewhere.
TIGHT, HALF = 0.8, 0.5
_STEPS = 10
# Of releases that no program has together, some milliseconds each: few, so that ratios are lower.
_HOST_RUNS = 1_000
_CANDIDATES = 30
# Of releases that are told apart by a rare one.
_RUNS_OF_RARE = 40_000
# Records at both candidates of a median, and between them: so many that the interval's ends are
# selected with near certainty.
_MEDIAN_RECORDS, _MEDIAN_MIDDLE = (5, 4), 1_000
_UNIT = dpjax.Sensitivity(1.0, "l2", "add_remove")
_UNIT_L1 = dpjax.Sensitivity(1.0, "l1", "add_remove")


@dataclass(frozen=True)
class Attack:
    """An audit of one mechanism, which the code of `release` claims to be.

    Attributes:
      mechanism: whose certificate is audited.
      release: from a mechanism, a key and a data set, what is published.
      first: a data set.
      second: its neighbour.
      score: of what is published, larger for ``second``; ``None`` for that of `audit`.
      num_runs: on each data set.
      vectorize: whether the runs are one program.
      least_ratio: of audited to certified epsilon, at an epsilon of 4.
      refuted_factor: of the noise, with so little of which the code is refuted.
    """

    mechanism: dpjax.Mechanism
    release: Callable[[Any, jax.Array, Any], Any]
    first: Any
    second: Any
    score: Callable[[Any], Any] | None = None
    num_runs: int = 10_000
    vectorize: bool = True
    least_ratio: float = TIGHT
    refuted_factor: float = 0.5

    def report(self, key: jax.Array, *, factor: float = 1.0) -> AuditReport:
        """Returns the audit, of code with ``factor`` times the noise of the mechanism."""
        made = self.mechanism.with_privacy_factor(factor) if factor != 1 else self.mechanism
        return audit(
            key,
            lambda key, data: self.release(made, key, data),
            self.first,
            self.second,
            self.mechanism,
            delta=DELTA,
            score=self.score,
            num_runs=self.num_runs,
            vectorize=self.vectorize,
        )


def _release(mechanism: Any, key: jax.Array, data: Any) -> Any:
    return mechanism.release(key, data)


def _gaussian(epsilon: float) -> Attack:
    return Attack(
        dpjax.Gaussian.from_epsilon(_UNIT, epsilon=epsilon, delta=DELTA), _release, 0.0, 1.0
    )


def _laplace(epsilon: float) -> Attack:
    return Attack(dpjax.Laplace.from_epsilon(_UNIT_L1, epsilon=epsilon), _release, 0.0, 1.0)


def _discrete_gaussian(epsilon: float) -> Attack:
    basic = dpjax.DiscreteGaussian(dpjax.Sensitivity(4.0, "l2", "add_remove"), scale=4.0)
    return Attack(dpjax.calibrate(basic, epsilon=epsilon, delta=DELTA), _release, 0, 4)


def _discrete_laplace(epsilon: float) -> Attack:
    moves = dpjax.Sensitivity(4.0, "l1", "add_remove")
    return Attack(dpjax.DiscreteLaplace.from_epsilon(moves, epsilon=epsilon), _release, 0, 4)


def _randomized_response(epsilon: float) -> Attack:
    mechanism = dpjax.RandomizedResponse.from_epsilon(2, epsilon=epsilon, adjacency="replace_one")
    return Attack(mechanism, _release, 0, 1)


def _selection(kind: Any) -> Callable[[float], Attack]:
    """The first of many candidates is the best or the worst: rarely selected, but at the ratio."""

    def make(epsilon: float) -> Attack:
        moves = dpjax.Sensitivity(1.0, "linf", "replace_one", shape=(_CANDIDATES,))
        first = np.zeros(_CANDIDATES)
        first[0] = 1.0
        return Attack(
            kind.from_epsilon(moves, epsilon=epsilon),
            _release,
            1.0 - first,
            first,
            score=lambda selected: selected == 0,
            num_runs=_RUNS_OF_RARE,
            least_ratio=HALF,
        )

    return make


def _clipped_sum(epsilon: float) -> Attack:
    mechanism = ClippedSum.from_epsilon(
        (0.0, 1.0), epsilon=epsilon, delta=DELTA, adjacency="add_remove"
    )
    first, second = np.zeros((3, 1)), np.array([[0.0], [0.0], [0.0], [9.0]])
    return Attack(
        mechanism, _release, first, second, num_runs=_HOST_RUNS, vectorize=False, least_ratio=HALF
    )


def _statistic(
    query: Any, adjacency: Adjacency, first: Any, second: Any
) -> Callable[[float], Attack]:
    """A statistic of one column, by the estimates that `dpjax.statistics` returns."""

    def make(epsilon: float) -> Attack:
        plan = statistics.plan([query], epsilon=epsilon, delta=DELTA, adjacency=adjacency)

        def estimates(plan: Any, key: jax.Array, records: Any) -> np.ndarray:
            released = plan.release(key, {"x": records})
            return np.array([each.estimate for each in released.estimates])

        return Attack(
            plan,
            estimates,
            np.asarray(first),
            np.asarray(second),
            num_runs=_HOST_RUNS,
            vectorize=False,
            least_ratio=HALF,
        )

    return make


def _quantile(epsilon: float) -> Attack:
    """A median between two candidates, of which the record moves one nearer and one farther.

    The estimate has half of the budget. Of the other half, that of the interval's ends, nothing is
    seen.
    """
    query = statistics.quantile("x", 0.5, bounds=(0, 1), num_candidates=2)
    plan = statistics.plan([query], epsilon=epsilon, delta=DELTA, adjacency="replace_one")
    low, high = _MEDIAN_RECORDS

    def estimate(plan: Any, key: jax.Array, records: Any) -> float:
        return float(plan.release(key, {"x": records}).estimates[0].estimate)

    def records(number_low: int) -> np.ndarray:
        numbers = number_low, _MEDIAN_MIDDLE, low + high - number_low
        return np.repeat([0.0, 0.5, 1.0], numbers)

    return Attack(
        plan,
        estimate,
        records(low),
        records(low - 1),
        num_runs=_HOST_RUNS,
        vectorize=False,
        least_ratio=HALF,
        refuted_factor=0.25,
    )


def _wishart(epsilon: float) -> Attack:
    """The noise along the record is a chi-square variable, which the record moves."""
    bounds = regression.RegressionBounds(x_norm_bound=1.0, y_bound=1.0)
    mechanism = regression.WishartNoise.from_epsilon(
        bounds, epsilon=epsilon, delta=DELTA, adjacency="add_remove", num_features=1
    )
    row = jnp.array([1.0, 1.0])

    def along(released: Any) -> jax.Array:
        xtx, xty, yty = released
        matrix = jnp.array([[xtx[0, 0], xty[0]], [xty[0], yty]])
        return 1 / jnp.vdot(row, jnp.linalg.solve(matrix, row))

    return Attack(mechanism, _release_rows, _rows(0), _rows(1), score=along, least_ratio=HALF)


def _rows(count: int) -> tuple[np.ndarray, np.ndarray]:
    return np.ones((count, 1)), np.ones(count)


def _release_rows(mechanism: Any, key: jax.Array, rows: Any) -> Any:
    return mechanism.release_records(key, *rows)


def _regression(epsilon: float) -> Attack:
    bounds = regression.RegressionBounds(x_norm_bound=1.0, y_bound=1.0)
    mechanism = regression.PerturbedStatistics.from_epsilon(
        bounds, epsilon=epsilon, delta=DELTA, adjacency="add_remove", num_features=1
    )
    scales = [np.square(scale) for scale in mechanism.scales]

    def likelihood_ratio(released: Any) -> jax.Array:
        xtx, xty, yty = released
        return xtx[0, 0] / scales[0] + xty[0] / scales[1] + yty / scales[2]

    return Attack(mechanism, _release_rows, _rows(0), _rows(1), score=likelihood_ratio)


def _adaptive_ridge(epsilon: float) -> Attack:
    """AdaSSP on many equal records, so that the eigenvalue it releases is not cut off at zero."""
    bounds = regression.RegressionBounds(x_norm_bound=1.0, y_bound=1.0)
    mechanism = regression.AdaSSP.from_epsilon(
        bounds, epsilon=epsilon, delta=DELTA, adjacency="add_remove", num_features=1
    )
    variances = [part.scale**2 for part in mechanism.parts]

    def likelihood_ratio(released: Any) -> jax.Array:
        xtx, xty, _ = released.statistics
        return (
            xtx[0, 0] / variances[0]
            + xty[0] / variances[1]
            + released.smallest_eigenvalue / variances[2]
        )

    return Attack(mechanism, _release_rows, _rows(100), _rows(101), score=likelihood_ratio)


def _conjugate(epsilon: float) -> Attack:
    family = conjugate.BetaBinomial(alpha=1.0, beta=1.0)
    moves = family.sensitivity(norm="l1", adjacency="replace_one")
    mechanism = conjugate.SufficientStatisticsMechanism(
        family, dpjax.Laplace.from_epsilon(moves, epsilon=epsilon)
    )
    return Attack(mechanism, _release, np.zeros(5, int), np.array([0, 0, 0, 0, 1]))


def _posterior_sample(epsilon: float) -> Attack:
    """A likelihood with two values: one for a small set of parameters, one for the others."""
    small = 1 / _CANDIDATES
    mechanism = sgmcmc.OnePosteriorSample(epsilon, low=-4.0, high=0.0, adjacency="replace_one")

    def log_likelihood(params: jax.Array, record: jax.Array) -> jax.Array:
        return jnp.where((params < small) == (record > 0), 0.0, -4.0)

    def sample(mechanism: Any, key: jax.Array, records: Any) -> jax.Array:
        # The loop of `rejection_sample`, which itself is compiled for every sample.
        clipped = clipped_log_likelihood(log_likelihood, mechanism)
        loop = rejection_loop(
            jax.random.uniform,
            lambda params: mechanism.scale * jnp.sum(clipped(params, records)),
            max_draws=1_000_000,
        )
        return loop(key)[1]

    return Attack(
        mechanism,
        sample,
        np.zeros(1),
        np.ones(1),
        score=lambda params: params < small,
        num_runs=_RUNS_OF_RARE,
        least_ratio=HALF,
    )


def whole_batches(epsilon: float, *, rate: float = 1.0) -> dpjax.SubsampledGaussian:
    """Returns ten steps of DP-SGD, on all or on sampled records, at this ε and `DELTA`."""
    basic = dpjax.SubsampledGaussian(
        dpjax.PoissonSampling(8, rate, physical_batch_size=8),
        l2_clip=1.0,
        noise_multiplier=1.0,
        num_steps=_STEPS,
        adjacency="zero_out",
    )
    return dpjax.calibrate(basic, epsilon=epsilon, delta=DELTA)


def _steps(
    step: dpjax.training.PrivateStep, params: jax.Array, data: jax.Array, num_steps: int
) -> jax.Array:
    """Returns the parameters after every step, ``(num_steps, ...)``, and those at the start."""

    def one(state: Any, _: None) -> tuple[Any, jax.Array]:
        state, _info = step.update(state, data)
        return state, state.params

    return jax.lax.scan(one, step.init(params), None, length=num_steps)[1]


def _private_step(mechanism: Any, key: jax.Array, data: jax.Array) -> jax.Array:
    step = dpjax.private_step(canary_loss, optax.sgd(1.0), mechanism=mechanism, key=key)
    return _steps(step, jnp.zeros(1), data, _STEPS)[:, 0]


def _training(epsilon: float) -> Attack:
    first, second = canary_records(8, l2_clip=1.0, adjacency="zero_out")
    return Attack(
        whole_batches(epsilon), _private_step, first, second, score=lambda params: -params[-1]
    )


def _sampled_training(epsilon: float) -> Attack:
    """The likelihood ratio of the noisy sums, which the parameters after every step determine."""
    mechanism = whole_batches(epsilon, rate=0.2)
    first, second = canary_records(8, l2_clip=1.0, adjacency="zero_out")
    sigma: Any = mechanism.noise_multiplier
    batch_size = mechanism.sampling.expected_batch_size

    def likelihood_ratio(params: jax.Array) -> jax.Array:
        sums = -batch_size * jnp.diff(params, prepend=0.0)
        return jnp.sum(jnp.log1p(0.2 * jnp.expm1((sums - 0.5) / sigma**2)))

    return Attack(mechanism, _private_step, first, second, score=likelihood_ratio, least_ratio=HALF)


def _allocated_training(epsilon: float) -> Attack:
    """The likelihood ratio of two epochs of noisy sums, of which one in each has the canary."""
    basic = dataclasses.replace(
        whole_batches(epsilon),
        sampling=dpjax.AllocatedSampling(
            8, steps_per_epoch=_STEPS // 2, physical_batch_size=8, expected_batch_size=1.0
        ),
    )
    mechanism = dpjax.calibrate(basic, epsilon=epsilon, delta=DELTA)
    first, second = canary_records(8, l2_clip=1.0, adjacency="zero_out")
    sigma: Any = mechanism.noise_multiplier

    def likelihood_ratio(params: jax.Array) -> jax.Array:
        sums = -jnp.diff(params, prepend=0.0)
        ratios = jnp.exp((sums - 0.5) / sigma**2).reshape(2, -1)
        return jnp.sum(jnp.log(jnp.mean(ratios, axis=1)))

    return Attack(mechanism, _private_step, first, second, score=likelihood_ratio, least_ratio=HALF)


def _sgld(epsilon: float) -> Attack:
    """The sum of all noisy sums, of which the last state of a chain with equal steps is made."""
    basic = sgmcmc.SGLD(
        dpjax.PoissonSampling(8, 1.0, physical_batch_size=8),
        l2_clip=1.0,
        step_size=0.1,
        num_steps=_STEPS,
        adjacency="zero_out",
    )
    mechanism = sgmcmc.calibrate_step_size(basic, epsilon=epsilon, delta=DELTA)
    first, second = canary_records(8, l2_clip=1.0, adjacency="zero_out")

    def chain(mechanism: Any, key: jax.Array, data: jax.Array) -> jax.Array:
        step = sgmcmc.private_chains(
            key, lambda params, record: -canary_loss(params, record), None, mechanism
        )
        return _steps(step, jnp.zeros(1), data, _STEPS)[:, 0, 0]

    return Attack(mechanism, chain, first, second, score=lambda states: -states[-1])


def _variational(epsilon: float) -> Attack:
    """The mean of a normal guide of known scale: the canary's gradient is always clipped."""
    mechanism = dpjax.calibrate(
        dpjax.SubsampledGaussian(
            dpjax.PoissonSampling(2, 1.0, physical_batch_size=2),
            l2_clip=1.0,
            noise_multiplier=1.0,
            num_steps=_STEPS,
            adjacency="replace_one",
        ),
        epsilon=epsilon,
        delta=DELTA,
    )

    def model(x: jax.Array) -> None:
        mean = numpyro.sample("mean", dist.Normal(0, 100))
        with numpyro.plate("records", len(x)):
            numpyro.sample("x", dist.Normal(mean, 1), obs=x)

    def guide(x: jax.Array) -> None:
        numpyro.sample("mean", dist.Normal(numpyro.param("loc", 0.0), 0.01))

    def infer(mechanism: Any, key: jax.Array, records: jax.Array) -> jax.Array:
        svi = DPSVI(model, guide, optax.sgd(1e-4), mechanism=mechanism)
        state, _ = jax.lax.scan(
            lambda state, _: (svi.update(state, records)[0], None),
            svi.init(key, records),
            None,
            length=_STEPS,
        )
        return svi.get_params(state)["loc"]

    return Attack(mechanism, infer, jnp.array([0.0, -1e3]), jnp.array([0.0, 1e3]), num_runs=5_000)


_VOTES: dict[str, Any] = {"num_teachers": 101, "num_classes": 2, "num_queries": 1}
_FIRST, _SECOND = np.array([[51, 50]]), np.array([[50, 51]])


def _gnmax(epsilon: float) -> Attack:
    """Two classes with as many votes: the label is the better test of one teacher's vote."""
    mechanism = dpjax.calibrate(
        pate.GNMax(scale=1.0, adjacency="replace_one", **_VOTES), epsilon=epsilon, delta=DELTA
    )
    return Attack(mechanism, _answer, _FIRST, _SECOND)


def _answer(mechanism: Any, key: jax.Array, votes: Any) -> jax.Array:
    labels, answered = mechanism.release(key, votes)
    return jnp.where(answered[0], labels[0], 0.5)


def _lnmax(epsilon: float) -> Attack:
    mechanism = dpjax.calibrate(
        pate.LNMax(scale=1.0, adjacency="replace_one", **_VOTES), epsilon=epsilon, delta=DELTA
    )
    return Attack(mechanism, _answer, _FIRST, _SECOND, least_ratio=HALF)


def _confident_gnmax(epsilon: float) -> Attack:
    """A check that nearly all queries pass, with little of the budget."""
    mechanism = dpjax.calibrate(
        pate.ConfidentGNMax(
            threshold=-50.0,
            threshold_scale=3.0,
            scale=1.0,
            max_answers=1,
            adjacency="replace_one",
            **_VOTES,
        ),
        epsilon=epsilon,
        delta=DELTA,
    )
    return Attack(mechanism, _answer, _FIRST, _SECOND)


@functools.cache
def _two_holders(trusted: ClippedSum) -> FederatedSum:
    return FederatedSum(trusted, Parties(num_holders=2, num_nodes=2))


def _federated(epsilon: float) -> Attack:
    """Two holders, whose messages are bytes; one record of the second changes."""
    trusted = ClippedSum.from_epsilon(
        (0.0, 1.0), epsilon=epsilon, delta=DELTA, adjacency="zero_out"
    )

    def release(trusted: Any, key: jax.Array, records: Any) -> np.ndarray:
        seed = int.from_bytes(np.asarray(jax.random.key_data(key)).tobytes(), "little") % 2**63
        sums = [trusted.sum_records(each) for each in records]
        return np.asarray(
            run_round(_two_holders(trusted), sums, entropy=simulated_entropy(seed)).released
        )

    first = np.zeros((2, 3, 1))
    second = first.copy()
    second[1, 2] = 1.0
    return Attack(
        trusted, release, first, second, num_runs=_HOST_RUNS, vectorize=False, least_ratio=HALF
    )


CASES: dict[str, Callable[[float], Attack]] = {
    "Gaussian": _gaussian,
    "Laplace": _laplace,
    "discrete Gaussian": _discrete_gaussian,
    "discrete Laplace": _discrete_laplace,
    "randomized response": _randomized_response,
    "exponential mechanism": _selection(dpjax.ExponentialMechanism),
    "permute and flip": _selection(dpjax.PermuteAndFlip),
    "report noisy max": _selection(dpjax.NoisyMax),
    "clipped sum": _clipped_sum,
    "count": _statistic(statistics.count(), "add_remove", np.zeros(5), np.zeros(6)),
    "mean": _statistic(
        statistics.mean("x", bounds=(0, 1)), "replace_one", [0.0] * 50, [0.0] * 49 + [1.0]
    ),
    "histogram": _statistic(
        statistics.histogram("x", edges=[0.0, 1.0, 2.0]),
        "replace_one",
        [0.5] * 9,
        [0.5] * 8 + [1.5],
    ),
    "quantile": _quantile,
    "Wishart noise": _wishart,
    "regression": _regression,
    "AdaSSP": _adaptive_ridge,
    "conjugate, Laplace": _conjugate,
    "one posterior sample": _posterior_sample,
    "DP-SGD": _training,
    "DP-SGD, sampled": _sampled_training,
    "DP-SGD, allocated": _allocated_training,
    "SGLD": _sgld,
    "DPSVI": _variational,
    "GNMax": _gnmax,
    "LNMax": _lnmax,
    "Confident-GNMax": _confident_gnmax,
    "federated sum": _federated,
}
# Released one after the other, which takes longest.
ON_HOST = "clipped sum", "count", "mean", "histogram", "quantile", "federated sum"


# What was published as private, each beside a mechanism with the guarantee that is claimed.


def _published_wishart(epsilon: float) -> Attack:
    """Wishart(d + 1) noise, Jiang, Xie & Zhang (2016): along the record it is hardly moved."""
    claimed = sgmcmc.OnePosteriorSample(epsilon, low=-1.0, high=0.0, adjacency="add_remove")

    def release(_: Any, key: jax.Array, count: Any) -> jax.Array:
        noise = nonprivate_wishart_noise(key, 1, x_norm_bound=1.0, epsilon=epsilon)
        return noise[0, 0] + count

    return Attack(claimed, release, 0.0, 1.0)


def _published_wishart_support(epsilon: float) -> Attack:
    """Wishart noise of the source for five columns, attacked by whether a record is excluded."""
    claimed = sgmcmc.OnePosteriorSample(epsilon, low=-1.0, high=0.0, adjacency="add_remove")
    row = jnp.full(5, 5**-0.5)

    def release(_: Any, key: jax.Array, count: Any) -> jax.Array:
        noise = nonprivate_wishart_noise(key, 5, x_norm_bound=1.0, epsilon=epsilon)
        return noise + count * jnp.outer(row, row)

    return Attack(
        claimed, release, 0.0, 1.0, score=lambda released: -1.0 * excludes_record(released, row)
    )


def _published_sgld(epsilon: float) -> Attack:
    """SGLD of Li et al. (2017) on MNIST: the first 1,000 of 10,000 steps, in batches of 100.

    Of every step the noisy sum of the canary's coordinate alone is simulated.
    """
    num_examples, batch_size, num_steps, l2_clip = 50_000, 100, 1_000, 4.0
    claimed = dpjax.Gaussian.from_epsilon(
        dpjax.Sensitivity(1.0, "l2", "zero_out"), epsilon=epsilon, delta=DELTA
    )
    rate = batch_size / num_examples
    # The injected noise of variance eta / N, in clip bounds of a sum.
    sigma = batch_size * math.sqrt(1 / (0.1 * num_examples)) / l2_clip

    def noisy_sums(_: Any, key: jax.Array, canary: jax.Array) -> jax.Array:
        batch_key, noise_key = jax.random.split(key)
        is_drawn = jax.random.bernoulli(batch_key, rate, (num_steps,))
        return canary * is_drawn + sigma * jax.random.normal(noise_key, (num_steps,))

    def likelihood_ratio(sums: jax.Array) -> jax.Array:
        return jnp.sum(jnp.log1p(rate * jnp.expm1((sums - 0.5) / sigma**2)))

    return Attack(claimed, noisy_sums, 0.0, 1.0, score=likelihood_ratio, num_runs=5_000)


FAILING: dict[str, tuple[Callable[[float], Attack], float]] = {
    "Wishart(d + 1), sold as ε = 1": (_published_wishart, 1.0),
    "Wishart(d + 1), d = 5, sold as ε = 1": (_published_wishart_support, 1.0),
    "SGLD, sold as ε = 0.1": (_published_sgld, 0.1),
}
