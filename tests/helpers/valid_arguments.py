"""A valid call of every public callable, and what is known of arguments that may be accepted.

A valid argument is looked up by "callable: parameter", then by the parameter's name. A new public
callable whose parameters are not here makes the tests of wrong arguments fail.
"""

import functools
import inspect
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from dp_accounting import GaussianDpEvent

import dpjax
from dpjax import audit, bdp, federated, pate
from dpjax import statistics as table_statistics
from dpjax.accounting import tradeoff
from dpjax.bayes import conjugate, regression, sgmcmc
from helpers.public_callables import PublicCallable, public_names

KEY = jax.random.key(7)
VOTES = np.array([[8, 1, 1], [2, 5, 3], [0, 10, 0]])


def loss(params: Any, example: Any) -> jax.Array:
    return jnp.sum((params - example) ** 2)


def log_likelihood(params: Any, example: Any) -> jax.Array:
    return -loss(params, example)


def log_prior(params: Any) -> jax.Array:
    return -jnp.sum(params**2)


def model(data: Any = None) -> None:
    import numpyro
    from numpyro import distributions as dist

    mean = numpyro.sample("mean", dist.Normal(0.0, 1.0))
    with numpyro.plate("records", 8, subsample_size=None):
        numpyro.sample("x", dist.Normal(mean, 1.0), obs=data)


@functools.cache
def poisson() -> dpjax.PoissonSampling:
    return dpjax.PoissonSampling(8, 0.5)


@functools.cache
def steps() -> dpjax.SubsampledGaussian:
    return dpjax.SubsampledGaussian(
        poisson(), l2_clip=1.0, noise_multiplier=1.0, num_steps=3, adjacency="zero_out"
    )


def bound_of(norm: str, *shape: int) -> dpjax.Sensitivity:
    return dpjax.Sensitivity(1.0, norm=norm, adjacency="zero_out", shape=shape)


@functools.cache
def statistics_plan() -> table_statistics.StatisticsPlan:
    query = table_statistics.mean("x", bounds=(-1.0, 1.0))
    return table_statistics.plan([query], epsilon=1.0, delta=1e-5, adjacency="zero_out")


@functools.cache
def gaussian() -> dpjax.Gaussian:
    return dpjax.Gaussian(bound_of("l2"), scale=4.0)


@functools.cache
def statistic_release() -> conjugate.SufficientStatisticsMechanism:
    family = conjugate.BetaBinomial(alpha=1.0, beta=1.0)
    moves = family.sensitivity(norm="l2", adjacency="zero_out")
    return conjugate.SufficientStatisticsMechanism(family, dpjax.Gaussian(moves, scale=4.0))


@functools.cache
def plan() -> federated.FederatedSum:
    return federated.FederatedSum(
        statistic_release(), federated.Parties(num_holders=3, num_nodes=2)
    )


@functools.cache
def messages() -> list[list[bytes]]:
    statistic = plan().mechanism.sum_records(np.ones(4))
    return [federated.holder_messages(plan(), holder, statistic) for holder in range(3)]


@functools.cache
def node_states() -> list[federated.NodeState]:
    states = [federated.NodeState(node) for node in range(2)]
    for holder, sent in enumerate(messages()):
        states = [
            federated.receive(plan(), state, data, holder=holder)
            for state, data in zip(states, sent, strict=True)
        ]
    return states


@functools.cache
def draws() -> dict[int, int]:
    received = [federated.received_draws(plan(), state) for state in node_states()]
    return federated.agreed_draws(received, threshold=2)


@functools.cache
def openings() -> dict[int, bytes]:
    return {
        node: federated.open_sum(plan(), state, draws())[1]
        for node, state in enumerate(node_states())
    }


@functools.cache
def regression_bounds() -> regression.RegressionBounds:
    return regression.RegressionBounds(x_norm_bound=1.0, y_bound=1.0)


@functools.cache
def perturbed() -> regression.PerturbedStatistics:
    return regression.PerturbedStatistics.from_epsilon(
        regression_bounds(), epsilon=1.0, delta=1e-5, adjacency="zero_out", num_features=2
    )


@functools.cache
def released_by_group() -> table_statistics.StatisticsRelease:
    query = table_statistics.mean("x", bounds=(-1.0, 1.0), by="arm", categories=["a", "b"])
    made = table_statistics.plan([query], epsilon=1.0, delta=1e-5, adjacency="zero_out")
    return made.release(KEY, {"x": np.ones(4), "arm": np.array(["a", "a", "b", "b"])})


def statistics() -> regression.RegressionStatistics:
    return regression.RegressionStatistics(
        xtx=8.0 * jnp.eye(2), xty=jnp.ones(2), yty=jnp.asarray(4.0)
    )


@functools.cache
def regression_draws() -> regression.RegressionDraws:
    return regression.RegressionDraws(jnp.ones((5, 2)), jnp.ones(5))


@functools.cache
def accountant_state() -> bdp.AccountantState:
    return bdp.update_worst_case(
        bdp.init(steps(), orders=(2, 4), failure_probability=1e-9), num_steps=2
    )


@functools.cache
def chain() -> sgmcmc.SGLD:
    return sgmcmc.SGLD(poisson(), l2_clip=1.0, step_size=1e-3, num_steps=3, adjacency="zero_out")


@functools.cache
def one_sample() -> sgmcmc.OnePosteriorSample:
    return sgmcmc.OnePosteriorSample(target_epsilon=1.0, low=-1.0, high=0.0, adjacency="zero_out")


@functools.cache
def gnmax() -> pate.GNMax:
    return pate.GNMax(
        scale=4.0, num_teachers=10, num_classes=3, num_queries=3, adjacency="replace_one"
    )


@functools.cache
def confident() -> pate.ConfidentGNMax:
    return pate.ConfidentGNMax(
        scale=4.0,
        num_teachers=10,
        num_classes=3,
        num_queries=3,
        adjacency="replace_one",
        threshold=5.0,
        threshold_scale=6.0,
        max_answers=2,
        student_confidence=0.5,
    )


@functools.cache
def smooth_release() -> pate.SmoothRDPRelease:
    return pate.SmoothRDPRelease(
        mechanism=gnmax(), order=3.0, beta=0.2, noise_scale=10.0, failure_probability=1e-6
    )


@functools.cache
def mesh_sharding() -> dpjax.MeshSharding:
    return dpjax.MeshSharding(jax.make_mesh((2,), ("data",)))


@functools.cache
def svi() -> Any:
    import numpyro

    from dpjax.bayes import DPSVI

    def guide(data: Any = None) -> None:
        from numpyro import distributions as dist

        numpyro.sample("mean", dist.Normal(numpyro.param("at", 0.0), 1.0))

    return DPSVI(model, guide, optax.sgd(0.1), mechanism=steps())


def svi_result() -> Any:
    from dpjax.bayes.variational import DPSVIResult

    return DPSVIResult({}, None, np.zeros(3), steps(), False, svi(), None)


LEVEL, LEVELS = 0.9, np.array([0.1, 0.5])
PAIRS = np.array([0.5, 0.25])


# Of each parameter of a function or class, by name; a function is called for each use.
@functools.cache
def certificate() -> dpjax.certificates.Certificate:
    return steps().certificate(1e-5)


@functools.cache
def audit_report() -> audit.AuditReport:
    def release(key: jax.Array, value: float) -> jax.Array:
        return value + jax.random.normal(key)

    return audit.audit(KEY, release, 0.0, 1.0, steps(), delta=1e-5, num_runs=200)


VALUES: dict[str, Any] = {
    # What nearly all have.
    "key": KEY,
    "rng_key": KEY,
    "adjacency": "zero_out",
    "unit": "one record",
    "epsilon": 1.0,
    "delta": 1e-5,
    "level": LEVEL,
    "factor": 2.0,
    "num_canaries": 16,
    "num_examples": 8,
    "num_steps": 3,
    "bands": 2,
    "buffers": 1,
    "decay": 0.5,
    "separation": 2,
    "num_groups": 2,
    "sampling.CyclicPoissonSampling: sampling_rate": 0.25,
    "batch_size": 2,
    "epochs": 2.0,
    "sampling_rate": 0.5,
    "steps_per_epoch": 4,
    "sampling": poisson,
    "mechanism": steps,
    "l2_clip": 1.0,
    "rule": lambda: dpjax.QuantileClip(1.0),
    "gradients.QuantileClip: initial": 1.0,
    "noise_multiplier": 1.0,
    "expected_batch_size": 4.0,
    "loss_fn": lambda: loss,
    "optimizer": lambda: optax.sgd(0.1),
    "params": np.zeros(2, np.float32),
    "data": np.ones((8, 2), np.float32),
    "records": np.ones(4),
    "norm": "l2",
    "bounds": (-1.0, 1.0),
    "scale": 4.0,
    "progress": False,
    "method": "auto",
    # Certificates and risks.
    "accounting.risk.success_probability: baseline": 0.1,
    "certificates.Certificate.to_registry: name": "Counts",
    "certificates.Certificate.to_registry: curators": lambda: ["An office"],
    # Audits.
    "certificates.Certificate.with_audit: report": audit_report,
    # Mechanisms and their statistics.
    "sensitivity": lambda: bound_of("l2"),
    "value": 1.0,
    "num_bins": 3,
    "released": 1.0,
    "mechanisms.Composition: mechanisms": lambda: (gaussian(), gaussian()),
    "utilities": np.array([1.0, 2.0, 3.0]),
    "num_categories": 3,
    "keep_probability": 0.7,
    "answers": np.array([0, 1, 2]),
    "mechanisms.DiscreteLaplace: sensitivity": lambda: bound_of("l1"),
    "mechanisms.DiscreteLaplace.from_epsilon: sensitivity": lambda: bound_of("l1"),
    "mechanisms.Laplace: sensitivity": lambda: bound_of("l1"),
    "mechanisms.Laplace.from_epsilon: sensitivity": lambda: bound_of("l1"),
    "mechanisms.ExponentialMechanism: sensitivity": lambda: bound_of("linf", 3),
    "mechanisms.NoisyMax: sensitivity": lambda: bound_of("linf", 3),
    "mechanisms.PermuteAndFlip: sensitivity": lambda: bound_of("linf", 3),
    "mechanisms.selection.Selection.from_epsilon: sensitivity": lambda: bound_of("linf", 3),
    "mechanisms.RandomizedResponse: adjacency": "replace_one",
    "mechanisms.RandomizedResponse.from_epsilon: adjacency": "replace_one",
    "mechanisms.additive.AdditiveNoise.release: value": np.ones(3),
    "mechanisms.additive.AdditiveNoise.release_symmetric: value": np.eye(2),
    "mechanisms.RandomizedResponse.frequencies: released": np.array([0, 1, 2]),
    "mechanisms.RandomizedResponse.confidence_interval: released": np.array([0, 1, 2]),
    "mechanisms.mechanism_of: optimizer": lambda: dpjax.noisy_sgd(
        0.1, l2_clip=1.0, noise_multiplier=1.0, expected_batch_size=4.0, key=KEY
    ).init(jnp.zeros(2)),
    # Sampling and sensitivity.
    "truncated_batch_size": 6,
    "noise_runs": ((1.0, 3),),
    "indices": np.array([0, 2]),
    "grid": 0.5,
    "sensitivity.clip_norm_to: records": np.ones((4, 2)),
    "mechanisms.record_sum.RecordSum.sum_records: records": (np.ones(4),),
    "mechanisms.ClippedSum.release: records": np.ones((4, 2)),
    "mechanisms.ClippedSum.sum_records: records": (np.ones((4, 2)),),
    "bayes.conjugate.SufficientStatisticsMechanism.sum_records: records": (np.ones(4),),
    "bayes.regression.HistogramBounds.sum_records: records": lambda: (np.ones((4, 2)), np.ones(4)),
    "bayes.regression.PerturbedStatistics.sum_records: records": lambda: (
        np.ones((4, 2)),
        np.ones(4),
    ),
    "federated.ClippedGradientSum.sum_records: records": (np.ones(2),),
    "federated.ClippedGradientSum.multiply: sums": np.ones(2),
    "federated.ClippedGradientSum.solve: released": np.ones(2),
    "federated.ClippedGradientSum.multiply: buffers": np.zeros((0, 2)),
    "federated.ClippedGradientSum.solve: buffers": np.zeros((0, 2)),
    "l2_bound": 1.0,
    "num_thresholds": 3,
    "query": lambda: np.mean,
    # Statistics of tables.
    "column": "x",
    "queries": lambda: [table_statistics.mean("x", bounds=(-1.0, 1.0))],
    "statistics.StatisticsPlan.release: records": {"x": np.ones(4)},
    "statistics.release: records": {"x": np.ones(4)},
    "statistics.StatisticsRelease.difference: statistic": "mean of x by arm",
    "minuend": "a",
    "subtrahend": "b",
    **{
        f"statistics.{name}: {argument}": value
        for name in ("covariance", "correlation")
        for argument, value in {"columns": ("x", "y"), "bounds": ((0.0, 1.0), (0.0, 1.0))}.items()
    },
    "statistics.regression: target": "y",
    "statistics.regression: features": ["x"],
    "statistics.regression: bounds": {"x": (0.0, 1.0), "y": (0.0, 1.0)},
    # Training and transformations.
    "mesh": lambda: jax.make_mesh((2,), ("data",)),
    "sharding": mesh_sharding,
    "physical_batch_size": 4,
    "learning_rate": 0.1,
    "l2_norm_clip": 1.0,
    "batch": np.ones((4, 2), np.float32),
    "mask": np.ones(4, bool),
    "arrays": np.ones((8, 2), np.float32),
    "seeded": True,
    # Accounting.
    "event": lambda: GaussianDpEvent(2.0),
    "epsilons": np.array([0.5, 1.0]),
    "deltas": np.array([0.1, 0.01]),
    "mu": 1.0,
    "alpha": 0.25,
    "beta": 0.5,
    "orders": (2.0, 4.0),
    "curve": lambda: tradeoff.Gaussian(1.0),
    "f": lambda: tradeoff.Gaussian(1.0),
    "g": lambda: tradeoff.Gaussian(2.0),
    "curves": lambda: (tradeoff.Gaussian(1.0),),
    "p": np.array([0.5, 0.5]),
    "q": np.array([0.25, 0.75]),
    "losses": np.array([-0.5, 0.25]),
    "moments": lambda: tradeoff.privacy_loss_moments(tradeoff.Laplace(1.0)),
    "count": 3,
    "size": 2,
    "budget": 1.0,
    "alphas": np.array([0.0, 0.5, 1.0]),
    "betas": np.array([1.0, 0.25, 0.0]),
    "direction": "add",
    "tail": 1e-10,
    "accounting.calibrate: mechanism": steps,
    "accounting.tradeoff.base.TradeOff.epsilon: delta": 0.1,
    # Conjugate families.
    "sums": lambda: conjugate.SufficientStatistics(np.array([3.0]), np.array(5.0)),
    "bayes.conjugate.DirichletMultinomial.posterior: sums": lambda: conjugate.SufficientStatistics(
        np.array([3.0, 2.0]), np.array(5.0)
    ),
    "bayes.conjugate.DirichletMultinomial.log_evidence: sums": lambda: (
        conjugate.SufficientStatistics(np.array([3.0, 2.0]), np.array(5.0))
    ),
    "bayes.conjugate.DirichletMultinomial.repair: sums": lambda: conjugate.SufficientStatistics(
        np.array([3.0, 2.0]), np.array(5.0)
    ),
    **{
        f"bayes.conjugate.NormalUnknownVariance.{name}: sums": lambda: (
            conjugate.SufficientStatistics(np.array([3.0, 4.0]), np.array(5.0))
        )
        for name in ["posterior", "log_evidence", "repair"]
    },
    "family": lambda: conjugate.BetaBinomial(alpha=1.0, beta=1.0),
    "release": statistic_release,
    "concentration": (1.0, 1.0, 1.0),
    "shape": 2.0,
    "rate": 1.0,
    "largest_count": 4,
    "variance": 1.0,
    "prior_mean": 0.0,
    "prior_variance": 1.0,
    "prior_strength": 1.0,
    "prior_shape": 2.0,
    "prior_scale": 1.0,
    "parameters": np.array([0.25, 0.5]),
    "probability": 0.5,
    "num_samples": 3,
    "bayes.augmentation.gibbs_kernel: model": lambda: model,
    "bayes.augmentation.gibbs_kernel: mechanism": lambda: dpjax.Laplace(bound_of("l1"), scale=4.0),
    "bayes.augmentation.gibbs_kernel: statistic": lambda: lambda sites: sites["x"],
    "plate": "records",
    "bayes.conjugate.SufficientStatisticsMechanism: mechanism": lambda: (
        statistic_release().mechanism
    ),
    "bayes.conjugate.naive_posterior: released": np.array([3.0]),
    "bayes.conjugate.noise_aware_posterior: released": np.array([3.0]),
    "bayes.conjugate.SufficientStatisticsMechanism.check_released: released": np.array([3.0]),
    "bayes.conjugate.of_first_two_moments: bounds": (-1.0, 1.0),
    "bayes.conjugate.noise_aware_posterior: num_particles": 100,
    # Regression.
    "x": np.full((4, 2), 0.5),
    "y": np.ones(4),
    "x_norm_bound": 1.0,
    "y_bound": 1.0,
    "x_norm_bounds": (0.5, 1.0, 2.0),
    "y_bounds": (0.5, 1.0, 2.0),
    "quantile": 0.9,
    "num_features": 2,
    "dimension": 3,
    "scales": lambda: regression.RegressionStatistics(4.0, 4.0, 4.0),
    "statistics": statistics,
    "noise_distribution": "gaussian",
    "degrees_of_freedom": 40,
    "coefficient_norm": 1.0,
    "noise_std": 1.0,
    "second_moment": 0.5,
    "floor": 0.5,
    "prior_precision": 1.0,
    "noise_precision": 1.0,
    "noise_shape": 2.0,
    "noise_rate": 1.0,
    "standard_deviations": np.ones((2, 2)),
    "draws": regression_draws,
    "prior": lambda: lambda: (jnp.zeros(2), jnp.ones(())),
    "model": lambda: regression.AssumedModel(coefficient_norm=1.0, noise_std=1.0),
    "sensitivities": lambda: regression.RegressionStatistics(1.0, 1.0, 1.0),
    "row": np.array([0.5, 0.5]),
    **{
        f"bayes.regression.{name}: {parameter}": value
        for name in ["adaptive_ridge", "noise_aware_posterior", "released_regression"]
        for parameter, value in {"mechanism": perturbed, "released": statistics}.items()
    },
    **{
        f"bayes.regression.{name}: bounds": regression_bounds
        for name in [
            "AdaSSP",
            "AdaSSP.from_epsilon",
            "AssumedModel.from_bounds",
            "PerturbedStatistics",
            "PerturbedStatistics.from_epsilon",
            "WishartNoise",
            "WishartNoise.from_epsilon",
            "statistics_sensitivities",
        ]
    },
    "bayes.regression.WishartNoise.debias: released": statistics,
    # SG-MCMC.
    "step_size": 1e-3,
    "log_likelihood": lambda: log_likelihood,
    "log_prior": lambda: log_prior,
    "draw_prior": lambda: lambda key: jax.random.normal(key, (2,)),
    "preconditioner": lambda: sgmcmc.RMSProp(min_value=0.5, max_value=2.0),
    "friction": 0.5,
    "initial": 1e-3,
    "period": 10,
    "target_epsilon": 1.0,
    "low": -1.0,
    "high": 0.0,
    "min_value": 0.5,
    "max_value": 2.0,
    "chain": chain,
    "start": one_sample,
    "temperature": 1.0,
    "constant": 1.0,
    "step": 1,
    "bayes.sgmcmc.sample: mechanism": chain,
    "bayes.sgmcmc.beta_sample: records": np.array([0, 1, 1]),
    **{
        f"bayes.sgmcmc.{name}: mechanism": one_sample
        for name in ["beta_sample", "rejection_sample"]
    },
    # Bayesian differential privacy.
    "state": accountant_state,
    "distances": PAIRS,
    "norms": PAIRS,
    "other_norms": PAIRS,
    "cosines": PAIRS,
    "mean": PAIRS,
    "std": PAIRS,
    "other_mean": PAIRS,
    "other_std": PAIRS,
    "log_moments": np.full((2, 2), 0.01),
    "first": np.ones((2, 2), np.float32),
    "second": np.zeros((2, 2), np.float32),
    "num_pairs": 2,
    **{
        f"bdp.{name}: orders": (2, 4)
        for name in [
            "diagonal_gaussian_log_moments",
            "gaussian_log_moments",
            "laplace_log_moments",
            "replace_one_log_moments",
            "subsampled_gaussian_log_moments",
            "init",
        ]
    },
    "bdp.update_from_log_moments: mask": np.ones(2, bool),
    # Certificates and data.
    "name": "digits",
    "tree": np.ones(3),
    "samples": lambda: {"mean": np.ones((2, 3))},
    # Federated.
    "num_parameters": 2,
    "parties": lambda: federated.Parties(num_holders=3, num_nodes=2),
    "num_contributing": 3,
    "statistic": lambda: plan().mechanism.sum_records(np.ones(4)),
    "num_holders": 3,
    "num_nodes": 2,
    "round_number": 0,
    "plan": plan,
    "holder": 0,
    "seed": 3,
    "nodes": ("localhost:1", "localhost:2"),
    "threshold": 2,
    "received": lambda: [federated.received_draws(plan(), one) for one in node_states()],
    "openings": openings,
    "holders": frozenset({0, 1, 2}),
    "num_bits": 256,
    "node": 0,
    "svi": svi,
    "example": lambda: {"data": np.zeros(())},
    "total": np.array([5, 5]),
    "federated.open_sum: state": lambda: node_states()[0],
    "federated.open_sum: draws": draws,
    "federated.receive: state": lambda: federated.NodeState(0),
    "federated.receive: data": lambda: messages()[0][0],
    "federated.received_draws: state": lambda: node_states()[0],
    "federated.run_round: statistics": lambda: [plan().mechanism.sum_records(np.ones(4))] * 3,
    "federated.FederatedSum: mechanism": statistic_release,
    # Units and views.
    "augment": lambda: lambda key, example: example,
    "num_views": 2,
    "unit_ids": np.array([0, 0, 1, 1, 2, 2, 3, 3]),
    "max_records": 2,
    "gradients.group_by_unit: records": np.ones((8, 2)),
    # PATE.
    "num_teachers": 10,
    "num_classes": 3,
    "num_queries": 3,
    "threshold_scale": 6.0,
    "max_answers": 2,
    "student_confidence": 0.5,
    "votes": VOTES,
    "student_probabilities": np.full((3, 3), 1 / 3),
    "teacher_labels": np.array([[0, 1, 2], [0, 1, 1]]),
    "shard_size": 2,
    "identifiers": lambda: [str(number) for number in range(100)],
    "order": 3.0,
    "noise_scale": 10.0,
    "failure_probability": 1e-6,
    "released_rdp": 0.5,
    "shift": 0.5,
    "pate.gnss_rdp: beta": 0.1,
    "pate.SmoothRDPRelease: beta": 0.1,
    "path": "missing.toml",
    "bdp.update: norms": np.full((1, 2), 0.3),
    "bdp.update: mask": np.ones((1, 2), bool),
    "bdp.update_worst_case: num_steps": 1,
    "bdp.certificate: delta": 1e-2,
    "certificates.certify: guarantee": lambda: steps().guarantee,
    "checked": np.array([8.0, 5.0, 10.0]),
    "log_errors": np.array([-1.0, -2.0]),
    "answer_rdp": np.ones((3, 2)),
    "teacher_preds": np.array([[0, 1, 2], [0, 1, 1]]),
    "noise_eps": 0.1,
    "apply_fn": lambda: lambda params, inputs: inputs @ params,
    "teachers": np.zeros((4, 2, 3), np.float32),
    "inputs": np.ones((5, 2), np.float32),
    "images": np.ones((2, 4, 4, 1), np.float32),
    "labels": np.array([0, 1, 2, 0, 1]),
    "shards": np.ones((3, 4, 2), np.float32),
    "init_fn": lambda: lambda key: jax.random.normal(key, (2,)),
    **{f"pate.{name}: adjacency": "replace_one" for name in ["GNMax", "LNMax", "ConfidentGNMax"]},
    "pate.ConfidentGNMax: threshold": 5.0,
    **{
        f"pate.{name}: mechanism": gnmax
        for name in [
            "SmoothRDPRelease",
            "calibrate",
            "certificate",
            "data_dependent_analyses",
        ]
    },
    "pate.Partition: indices": np.array([[0, 1], [2, 3]]),
    "pate.Partition.draw: num_teachers": 2,
    "pate.Partition.from_hash: num_teachers": 2,
    "pate.sanitized_certificate: release": smooth_release,
    "mechanisms.RepeatedSelection: run": steps,
    "mechanisms.RepeatedSelection: repetitions": lambda: dpjax.TruncatedNegativeBinomial(4.0),
    "mechanisms.RepeatedSelection: score": lambda: dpjax.Laplace(bound_of("l1"), scale=4.0),
    "sampling.TruncatedNegativeBinomial: shape": 1.0,
    **{
        f"sampling.{name}: expected": 4.0
        for name in ("PoissonRepetitions", "TruncatedNegativeBinomial")
    },
    "sampling.repetitions.Repetitions.event: run": lambda: GaussianDpEvent(1.0),
    "sampling.repetitions.Repetitions.quantile: level": 0.5,
}

# The object whose method is called: by class, or by "class.method" where it matters.
INSTANCES: dict[str, Callable[[], Any]] = {
    "audit.AuditReport": lambda: audit_report(),
    "audit.OneRunReport": lambda: audit.one_run(np.arange(20.0), np.arange(20.0), delta=1e-5),
    "audit.StepReport": lambda: audit.StepReport(mechanism=steps(), checks=()),
    "mechanisms.Composition": lambda: dpjax.Composition((gaussian(), gaussian())),
    "mechanisms.base.Mechanism": gaussian,
    "mechanisms.Epochs": lambda: dpjax.mechanisms.Epochs(num_examples=8, batch_size=2, epochs=2.0),
    "mechanisms.DiscreteGaussian": lambda: dpjax.DiscreteGaussian(bound_of("l2"), scale=4.0),
    "mechanisms.DiscreteLaplace": lambda: dpjax.DiscreteLaplace(bound_of("l1"), scale=4.0),
    "mechanisms.ExponentialMechanism": lambda: dpjax.ExponentialMechanism(bound_of("linf", 3), 4.0),
    "mechanisms.PermuteAndFlip": lambda: dpjax.PermuteAndFlip(bound_of("linf", 3), scale=4.0),
    "mechanisms.selection.Selection": lambda: dpjax.NoisyMax(bound_of("linf", 3), scale=4.0),
    "mechanisms.Gaussian": gaussian,
    "mechanisms.additive.AdditiveNoise": lambda: dpjax.Gaussian(bound_of("l2", 3), scale=4.0),
    "mechanisms.Laplace": lambda: dpjax.Laplace(bound_of("l1"), scale=4.0),
    "mechanisms.RandomizedResponse": lambda: dpjax.RandomizedResponse(3, 0.7, "replace_one"),
    "mechanisms.SubsampledGaussian": steps,
    "sampling.FixedSizeSampling": lambda: dpjax.FixedSizeSampling(8, 2),
    "sampling.fixed_size._FixedSize": lambda: dpjax.FixedSizeSampling(8, 2),
    "sampling.base.Sampling": poisson,
    "sampling.CyclicPoissonSampling": lambda: dpjax.CyclicPoissonSampling(8, 0.25, num_groups=2),
    "sampling.PoissonSampling": poisson,
    "sampling.AllocatedSampling": lambda: dpjax.AllocatedSampling(8, steps_per_epoch=4),
    "sampling.ShuffledEpochs": lambda: dpjax.ShuffledEpochs(8, 2),
    "sampling.TruncatedPoissonSampling": lambda: dpjax.TruncatedPoissonSampling(
        8, 0.5, truncated_batch_size=6
    ),
    "gradients.AutomaticClip": lambda: dpjax.AutomaticClip(1.0),
    "gradients.PSACClip": lambda: dpjax.PSACClip(1.0),
    "gradients.QuantileClip": lambda: dpjax.QuantileClip(1.0),
    "gradients.SlackClip": lambda: dpjax.SlackClip(1.0),
    "gradients.clip_rules.AdaptiveClip": lambda: dpjax.QuantileClip(1.0),
    **{
        f"sampling.{name}": lambda: dpjax.TruncatedNegativeBinomial(4.0)
        for name in ("repetitions.Repetitions", "Repetitions", "TruncatedNegativeBinomial")
    },
    "sampling.PoissonRepetitions": lambda: dpjax.PoissonRepetitions(4.0),
    "mechanisms.RepeatedSelection": lambda: dpjax.RepeatedSelection(
        steps(), repetitions=dpjax.TruncatedNegativeBinomial(4.0)
    ),
    "training.MeshSharding": mesh_sharding,
    "transforms.BLT": lambda: dpjax.BLT(2, num_steps=8),
    "transforms.BandedToeplitz": lambda: dpjax.BandedToeplitz(2, num_steps=8),
    "transforms.Dense": lambda: dpjax.Dense(8),
    "transforms.InverseSquareRoot": lambda: dpjax.InverseSquareRoot(2),
    "transforms.LambdaCGD": lambda: dpjax.LambdaCGD(0.5),
    "transforms.correlation.Correlation": lambda: dpjax.LambdaCGD(0.5, num_steps=8),
    "accounting.tradeoff.base.TradeOff": lambda: tradeoff.Gaussian(1.0),
    "bayes.DPSVI": svi,
    "bayes.variational.DPSVIResult": svi_result,
    "bayes.conjugate.BetaBinomial": lambda: conjugate.BetaBinomial(alpha=1.0, beta=1.0),
    "bayes.conjugate.families.BoundedSum": lambda: conjugate.BetaBinomial(alpha=1.0, beta=1.0),
    "bayes.conjugate.families.ConjugateFamily": lambda: conjugate.BetaBinomial(alpha=1.0, beta=1.0),
    "bayes.conjugate.posteriors.Posterior": lambda: conjugate.BetaPosterior(
        np.array(2.0), np.array(3.0)
    ),
    "bayes.conjugate.DirichletMultinomial": lambda: conjugate.DirichletMultinomial((1.0, 1.0)),
    "bayes.conjugate.GammaPoisson": lambda: conjugate.GammaPoisson(
        shape=2.0, rate=1.0, largest_count=4
    ),
    "bayes.conjugate.Mixture": lambda: conjugate.Mixture(
        conjugate.BetaPosterior(np.array([2.0, 3.0]), np.array([3.0, 2.0])), np.array([0.5, 0.5])
    ),
    "bayes.conjugate.NormalInverseGammaPosterior": lambda: conjugate.NormalInverseGammaPosterior(
        *(np.array(value) for value in (0.0, 2.0, 3.0, 1.0))
    ),
    "bayes.conjugate.NormalKnownVariance": lambda: conjugate.NormalKnownVariance(
        bounds=(-1.0, 1.0), variance=1.0, prior_mean=0.0, prior_variance=1.0
    ),
    "bayes.conjugate.NormalUnknownVariance": lambda: conjugate.NormalUnknownVariance(
        bounds=(-1.0, 1.0), prior_mean=0.0, prior_strength=1.0, prior_shape=2.0, prior_scale=1.0
    ),
    "bayes.regression.HistogramBounds": lambda: regression.HistogramBounds(
        x_norm_bounds=(0.5, 1.0), y_bounds=(0.5, 1.0), quantile=0.9, scale=4.0, adjacency="zero_out"
    ),
    "bayes.regression.PrivateBounds": lambda: regression.PrivateBounds(
        x_norm_bounds=(0.5, 1.0),
        y_bounds=(0.5, 1.0),
        quantile=0.9,
        epsilon=1.0,
        adjacency="zero_out",
    ),
    "bayes.regression.Prediction": lambda: regression.Prediction(
        jnp.ones(2), jnp.ones(2), jnp.asarray(5.0)
    ),
    "bayes.regression.RegressionPosterior": lambda: regression.RegressionPosterior(
        jnp.ones(2), jnp.eye(2), jnp.asarray(3.0), jnp.asarray(2.0)
    ),
    "bayes.sgmcmc.PSGLD": lambda: sgmcmc.PSGLD(
        poisson(),
        l2_clip=1.0,
        step_size=1e-3,
        num_steps=3,
        adjacency="zero_out",
        preconditioner=sgmcmc.RMSProp(min_value=0.5, max_value=2.0),
    ),
    "bayes.sgmcmc.SGHMC": lambda: sgmcmc.SGHMC(
        poisson(), l2_clip=1.0, step_size=1e-3, num_steps=3, adjacency="zero_out", friction=0.5
    ),
    "bayes.sgmcmc.RMSProp": lambda: sgmcmc.RMSProp(min_value=0.5, max_value=2.0),
    "bayes.sgmcmc.ChainResult": lambda: sgmcmc.ChainResult(np.zeros((1, 3)), chain(), seeded=False),
    "bayes.sgmcmc.PosteriorDraw": lambda: sgmcmc.PosteriorDraw(np.zeros(2), one_sample()),
    "training.run.RunResult": lambda: dpjax.training.TrainResult(np.zeros(2), steps(), False),
    "certificates.Certificate": certificate,
    "federated.ClippedGradientSum": lambda: federated.ClippedGradientSum(steps(), 2),
    "bayes.conjugate.SufficientStatisticsMechanism": statistic_release,
    "mechanisms.record_sum.RecordSum": statistic_release,
    "bayes.regression.AdaSSP": lambda: regression.AdaSSP.from_epsilon(
        regression_bounds(), epsilon=1.0, delta=1e-5, adjacency="zero_out", num_features=2
    ),
    "bayes.regression.statistics.StatisticsMechanism": perturbed,
    "bayes.regression.PerturbedStatistics": perturbed,
    "bayes.regression.RegressionBounds": regression_bounds,
    "bayes.regression.WishartNoise": lambda: regression.WishartNoise.from_epsilon(
        regression_bounds(), epsilon=1.0, delta=1e-5, adjacency="zero_out", num_features=2
    ),
    "bayes.sgmcmc.langevin.Langevin": chain,
    "bayes.sgmcmc.SGLD": chain,
    "bayes.sgmcmc.OnePosteriorSample": one_sample,
    "federated.FederatedSum": plan,
    "federated.NodeState": lambda: node_states()[0],
    "mechanisms.ClippedSum": lambda: dpjax.mechanisms.ClippedSum(
        (np.zeros(2), np.ones(2)), scale=4.0, adjacency="zero_out"
    ),
    "statistics.StatisticsPlan": statistics_plan,
    "statistics.StatisticsRelease": released_by_group,
    "pate.ConfidentGNMax": confident,
    "pate.mechanisms.VoteAggregation": gnmax,
    "pate.Partition": lambda: pate.Partition(np.array([[0, 1], [2, 3]]), 8),
    "pate.SmoothRDPRelease": smooth_release,
}

# Arguments with a default of which a valid call needs some.
OPTIONAL: dict[str, dict[str, Any]] = {
    "accounting.calibrate": {"epsilon": 1.0, "delta": 1e-5},
    "pate.calibrate": {"epsilon": 1.0, "delta": 1e-5},
    "accounting.max_num_steps": {"epsilon": 1.0, "delta": 1e-5},
    "mechanisms.dpsgd": {"noise_multiplier": 1.0, "epochs": 2.0},
    "mechanisms.mechanism_of": {"num_steps": 3},
    "statistics.histogram": {"edges": [0.0, 1.0, 2.0]},
    "pate.ConfidentGNMax.release": {"student_probabilities": np.full((3, 3), 1 / 3)},
    "bayes.conjugate.naive_posterior": {"num_examples": 8},
    "bayes.conjugate.noise_aware_posterior": {"num_examples": 8},
}

# What the library computed and hands out: it is not an argument of a user's call.
RESULTS = {
    name
    for package, names in {
        "accounting": ["EpsilonBounds", "ProfileBounds"],
        "accounting.gdp": ["GaussianSummary"],
        "audit": [
            "AuditReport",
            "ErrorBounds",
            "Finding",
            "OneRunReport",
            "ProgramReport",
            "StepCheck",
            "StepReport",
        ],
        "accounting.tradeoff": [
            "PrivacyLossMoments",
            "Group",
            "Inverse",
            "Mixture",
            "Symmetrized",
            "TradeOffBounds",
        ],
        "bayes.conjugate": [
            "BetaPosterior",
            "DirichletPosterior",
            "GammaPosterior",
            "Mixture",
            "NormalInverseGammaPosterior",
            "NormalPosterior",
            "SufficientStatistics",
        ],
        "bayes.regression": [
            "AdaSSPRelease",
            "Prediction",
            "RegressionDraws",
            "RegressionPosterior",
            "RegressionStatistics",
        ],
        "bayes.sgmcmc": ["ChainResult", "PosteriorDraw", "RMSProp.average"],
        "bayes.variational": [
            "ClippingReport",
            "CurvatureFit",
            "DPSVIResult",
            "DPSVIState",
            "FullCurvaturePosterior",
            "MeanFieldPosterior",
            "NoiseAwarePosterior",
            "OptimumFit",
        ],
        "bdp": [
            "AccountantState",
            "BDPResult",
            "BDPCertificate",
            "GradientPairs",
        ],
        "certificates": [
            "Certificate",
            "Estimate",
        ],
        "datasets": ["Digits", "Split"],
        "federated": ["Adversary", "NodeState", "Result", "Training"],
        "gradients": ["ClippedGradInfo", "Explanation", "UnitRecords"],
        "mechanisms": [
            "Frequencies",
            "Guarantee",
            "Guarantee.of_run",
            "Guarantee.with_description",
            "Interval",
            "SumPart",
        ],
        "pate": [
            "Answers",
            "PATECertificate",
            "SanitizedCertificate",
        ],
        "rehearsal": [
            "Calibration",
            "Calibration.coverage",
            "Calibration.of",
            "Rehearsal",
            "Setting",
            "World",
        ],
        "sampling": ["Batch"],
        "sensitivity": ["EmpiricalSensitivity"],
        "statistics": ["Estimate", "StatisticsPlan", "StatisticsRelease"],
        "tuning": ["Study", "Study.certificate"],
        "training": [
            "PrivateStep",
            "Report",
            "SplitRecords",
            "StepInfo",
            "TrainResult",
            "TrainState",
        ],
        "transforms": [
            "AddGaussianNoiseState",
            "PrivateTransformation",
            "PrivateTransformation.of",
        ],
    }.items()
    for name in [f"{package}.{one}" for one in names]
}
NOT_CALLED: dict[str, str] = {
    "sampling.Repetitions": "an abstract class",
    **{
        f"sampling.{name}.{method}": "of the accounting of a selection"
        for name in (
            "repetitions.Repetitions",
            "PoissonRepetitions",
            "TruncatedNegativeBinomial",
        )
        for method in ("largest_log_ratio", "select")
    },
    "tuning.tune": "arguments are refused in tests/tuning",
    "gradients.AdaptiveClip": "an abstract class",
    "gradients.GradientAndSlots": "arrays of any shape",
    "transforms.FollowClipBoundState": "a state of a transformation",
    "transforms.ParamsEmaState": "a state of a transformation",
    **{
        f"rehearsal.{name}": "arguments are refused in tests/rehearsal"
        for name in [
            "Inference",
            "PublicRecords",
            "Release",
            "Training",
            "prior_predictive",
            "rehearse",
        ]
    },
    "audit.audit": "data sets may be anything that its release takes: tests/audit/test_worlds.py",
    "audit.check_program": "any function and its arguments: tests/audit/test_program_report.py",
    "audit.check_step": "a step and its records: tests/audit/test_step_checks.py",
    "audit.one_run": "scores of any kind: tests/audit/test_one_run.py",
    "audit.canary_loss": "a loss, traced with arrays",
    "training.Budget": "checked by train",
    "transforms.CorrelationReport": "made by a strategy",
    "sampling.Participation": "made by a sampler",
    **{
        f"transforms.correlation.Correlation.{method}": "in jit, with the noise of a step"
        for method in ("init", "draw", "multiply", "solve")
    },
    "training.MeshSharding.param_specs": "in a step, with its parameters",
    "training.MeshSharding.describe": "in a step, with its parameters",
    "bayes.sgmcmc.Langevin": "an abstract class",
    "pate.VoteAggregation": "an abstract class",
    "training.MeshSharding.batch_spec": "in a step, with its own partitions",
    "bayes.regression.released_regression": "in a numpyro model",
    **{
        f"training.{name}.{method}": "called by the driver of runs"
        for name in ("SplitRecords", "run.TrainingData")
        for method in ("place", "shapes", "compile")
    },
    **{
        f"bayes.conjugate.{family}.{method}": "with the sums that the family made"
        for family, methods in {
            "BetaBinomial": ["posterior", "log_evidence"],
            "DirichletMultinomial": ["posterior", "log_evidence", "repair"],
            "GammaPoisson": ["posterior", "log_evidence"],
            "NormalKnownVariance": ["posterior", "log_evidence"],
            "NormalUnknownVariance": ["posterior", "log_evidence", "repair"],
            "families.ConjugateFamily": ["posterior", "log_evidence", "repair", "encode"],
        }.items()
        for method in methods
    },
    **{
        f"gradients.{rule}.{method}": "in a step, with traced norms"
        for rule, methods in {
            "AutomaticClip": ["factor"],
            "PSACClip": ["factor"],
            "QuantileClip": ["slots", "log_change"],
            "SlackClip": ["slots", "log_change"],
            "clip_rules.AdaptiveClip": ["slots", "log_change", "next_bound", "at", "with_slots"],
        }.items()
        for method in methods
    },
    **{
        f"sampling.{sampler}.{method}": "in jit, with the state or draw of a sampler"
        for sampler, methods in {
            "CyclicPoissonSampling": ["draw", "batch", "members_at", "num_batches"],
            "FixedSizeSampling": ["draw"],
            "PoissonSampling": ["draw", "batch", "members_at", "num_batches"],
            "AllocatedSampling": ["draw", "batch", "members_at", "num_batches"],
            "ShuffledEpochs": ["draw"],
            "TruncatedPoissonSampling": ["draw"],
            "base.Sampling": ["draw", "batch", "members_at", "subset_key", "num_batches"],
        }.items()
        for method in methods
    },
    **{
        f"training.MeshSharding.{method}": "in a step, with the state that it made"
        for method in ["state_specs", "constrain", "place", "place_shards", "sum_over_shards"]
    },
    **{
        f"bayes.DPSVI.{method}": "with a state that it made"
        for method in [
            "update",
            "update_with_info",
            "clipped_sum",
            "update_from_sum",
            "get_params",
            "evaluate",
            "posterior_samples",
            "predict",
            "clipping_report",
        ]
    },
    **{
        f"bayes.{name}": "models and arguments are refused in tests/bayes/test_dpsvi_validate.py"
        for name in ["DPSVI", "DPSVI.init", "DPSVI.run"]
    },
    **dict.fromkeys(
        [
            "bayes.variational.DPSVIResult.averaged_params",
            "bayes.variational.DPSVIResult.posterior_samples",
            "bayes.variational.DPSVIResult.noise_aware_posterior",
            "bayes.variational.FullCurvaturePosterior.posterior_samples",
            "bayes.variational.MeanFieldPosterior.optimum_samples",
            "bayes.variational.MeanFieldPosterior.posterior_samples",
            "bayes.variational.noise_aware.NoiseAwarePosterior.posterior_samples",
            "bayes.variational.noise_aware.NoiseAwarePosterior.predict",
        ],
        "of a run",
    ),
    "federated.svi_training": "with a DPSVI",
    **dict.fromkeys(
        [
            "mechanisms.record_sum.RecordSum.from_sum",
            "mechanisms.ClippedSum.from_sum",
            "bayes.conjugate.SufficientStatisticsMechanism.from_sum",
            "bayes.regression.HistogramBounds.from_sum",
            "bayes.regression.PerturbedStatistics.from_sum",
            "federated.ClippedGradientSum.from_sum",
            "bayes.conjugate.families.ConjugateFamily.decode",
        ],
        "of a release, with the noisy sum that it made",
    ),
    "mechanisms.additive.AdditiveNoise.add_noise": "of `release`, on the host, with random words",
    "mechanisms.selection.Selection.select": "of `release`, on the host, with random words",
    **{
        f"bayes.regression.{name}.add_noise": "of `release`, on the host, with random words"
        for name in [
            "AdaSSP",
            "statistics.StatisticsMechanism",
            "PerturbedStatistics",
            "WishartNoise",
        ]
    },
}
# Where accepted calls take long: only values that must be refused are given.
SLOW = {
    "federated.processes.read_study",  # of a file
    "accounting.calibrate",
    "pate.calibrate",
    "accounting.tradeoff.gaussian_delta",
    "accounting.tradeoff.gaussian_type_two",
    "bayes.regression.noise_aware_posterior",
    "bayes.sgmcmc.hybrid",
    "bayes.sgmcmc.sample",
    "pate.train_teachers",
    "training.train",
}
# Where an error may name another argument: which, and why.
OTHER_NAMES = {
    "accounting.tradeoff.from_profile: epsilons": ("deltas|epsilons", "there is one for each"),
    "accounting.tradeoff.piecewise_linear: alphas": ("betas|alphas", "there is one for each"),
    "federated.FederatedSum.with_privacy_factor: factor": (
        "factor|grid_bits",
        "the noise is on the grid",
    ),
    "bayes.regression.HistogramBounds.sum_records: records": (
        "records|x|y",
        "features and targets",
    ),
    "bayes.regression.PerturbedStatistics.sum_records: records": (
        "records|x|y",
        "features and targets",
    ),
    "mechanisms.RandomizedResponse.from_epsilon: epsilon": (
        "epsilon|keep_probability",
        "the probability that follows from it is one",
    ),
}
# Values that a parameter may take, or that are not tried, beyond those of its type, and why.
ACCEPTED: dict[str, tuple[set[str], str]] = {
    **{name: ({"-1"}, "any finite number") for name in ["prior_mean", "low", "high", "threshold"]},
    "federated.FederatedSum: program": ({"''"}, "no program"),
}
# Values that are not tried, and why.
NOT_TRIED: dict[str, tuple[set[str], str]] = {
    "accounting.log_moments.compute_log_moment: order": ({"2**70"}, "more memory than there is"),
    "bayes.variational.to_arviz: samples": ({"dict"}, "of arviz: the shapes of the draws"),
    "bdp.replace_one_log_moments: norms": ({"2**70"}, "more memory than there is"),
    "bdp.replace_one_log_moments: other_norms": ({"2**70"}, "more memory than there is"),
}


def valid_call(name: str, function: PublicCallable) -> tuple[Callable[..., Any], dict[str, Any]]:
    """Returns a public callable, bound to an object where it is a method, with valid arguments."""
    arguments = {}
    for one in function.signature.parameters.values():
        if one.default is not one.empty or one.kind == one.VAR_KEYWORD:
            continue
        key = next((key for key in (f"{name}: {one.name}", one.name) if key in VALUES), None)
        assert key, f"VALUES in {__file__} needs a valid argument {one.name} of {name}"
        value = VALUES[key]
        arguments[one.name] = value() if callable(value) else value
    arguments |= OPTIONAL.get(name, {})

    owner, _, method = name.rpartition(".")
    called = function.value
    if not isinstance(called, type) and "." in called.__qualname__:
        if is_made_by_class(f"dpjax.{owner}", method):
            instance = public_names()[f"dpjax.{owner}"]
        else:
            assert owner in INSTANCES, f"INSTANCES in {__file__} needs an object of {owner}"
            instance = INSTANCES[owner]()
        called = getattr(instance, method)

    positional = []
    if any(one.kind == one.VAR_POSITIONAL for one in function.signature.parameters.values()):
        kinds = (inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.VAR_KEYWORD)
        parameters = function.signature.parameters.values()
        positional = [one.name for one in parameters if one.kind not in kinds]

    def call(**given: Any) -> Any:
        *first, rest = [given.pop(one) for one in positional] or [()]
        return called(*first, *rest, **given)

    return call, arguments


def is_made_by_class(owner: str, method: str) -> bool:
    """Whether a method is called on a public class itself."""
    defined = vars(public_names().get(owner, object)).get(method)
    return isinstance(defined, classmethod | staticmethod)
