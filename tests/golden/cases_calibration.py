"""Mechanisms calibrated to a target, noise scales in closed form, step sizes, sensitivities."""

from functools import partial

import numpy as np

import dpjax
from dpjax import accounting
from dpjax import sensitivity as of
from dpjax.bayes import conjugate, regression, sgmcmc
from experiments.published import langevin
from experiments.published.regression import sheffet_degrees_of_freedom
from golden.cases_certificates import (
    ADD,
    BOTH,
    KINDS,
    REPLACE,
    chain,
    fixed,
    poisson,
    regression_mechanism,
    statistic,
)

TARGETS = {
    "poisson, epsilon 1": (poisson(1.0, 0.01, 100, ADD), {"epsilon": 1.0, "delta": 1e-5}),
    "poisson, epsilon 8": (poisson(1.0, 0.1, 20, ADD), {"epsilon": 8.0, "delta": 1e-5}),
    "poisson, replace one": (poisson(1.0, 0.05, 50, REPLACE), {"epsilon": 3.0, "delta": 1e-6}),
    "poisson, advantage": (poisson(1.0, 0.02, 50, ADD), {"advantage": 0.1}),
    "poisson, true positives": (
        poisson(1.0, 0.02, 50, ADD),
        {"true_positive_rate": 0.02, "false_positive_rate": 0.001},
    ),
    "fixed size": (fixed(1000, 100, 2.0, 20), {"epsilon": 2.0, "delta": 1e-5}),
    "laplace": (statistic("laplace", 1.0, 1.0, ADD), {"epsilon": 0.5, "delta": 1e-6}),
    "discrete gaussian": (
        statistic("discrete_gaussian", 1.0, 2.0, ADD),
        {"epsilon": 0.7, "delta": 1e-6},
    ),
    "gaussian, advantage": (statistic("gaussian", 2.0, 1.0, REPLACE), {"advantage": 0.2}),
    "randomized response": (
        dpjax.RandomizedResponse(4, 0.5, REPLACE),
        {"epsilon": 1.0, "delta": 1e-9},
    ),
    "sghmc": (chain("sghmc", ADD, steps=10, friction=0.3), {"epsilon": 1.0, "delta": 1e-5}),
}


def noise_of(mechanism):
    """The number or numbers that say how much noise a mechanism adds."""
    names = "noise_multiplier", "scale", "keep_probability", "noise_multipliers", "mu"
    return next(getattr(mechanism, name) for name in names if hasattr(mechanism, name))


def _calibrated(mechanism, target):
    return noise_of(dpjax.calibrate(mechanism, **target))


def _scales_for_epsilon(adjacency):
    def moves(kind):
        norm = KINDS[kind].norm
        return dpjax.Sensitivity(3.0, norm, adjacency, shape=(2,) if norm == "linf" else ())

    targets = (0.1, 1e-5), (1.0, 1e-9), (10.0, 1e-3), (100.0, 1e-6)
    pure = "laplace", "discrete_laplace", "exponential_mechanism", "noisy_max"
    response = dpjax.RandomizedResponse.from_epsilon(5, epsilon=0.3, adjacency=REPLACE)
    return {
        "gaussian": [
            dpjax.Gaussian.from_epsilon(moves("gaussian"), epsilon=epsilon, delta=delta).scale
            for epsilon, delta in targets
        ],
        **{
            kind.replace("_", " "): float(KINDS[kind].from_epsilon(moves(kind), epsilon=0.3).scale)
            for kind in pure
        },
        "randomized response": response.keep_probability,
    }


def _statistic_sensitivities(adjacency):
    """The sensitivity of every statistic that dpjax has one for."""
    box = (np.array([-1.0, 0.5]), np.array([2.0, 3.0]))
    found = {
        "count": of.of_count(norm="l1", adjacency=adjacency),
        "sum l1": of.of_sum((-2.0, 3.0), norm="l1", adjacency=adjacency),
        "sum of a box l2": of.of_sum(box, norm="l2", adjacency=adjacency),
        "quantile counts l2": of.of_quantile_counts(9, norm="l2", adjacency=adjacency),
        "second moment": of.of_second_moment(1.5, num_features=2, adjacency=adjacency),
        "second moment in a box": of.of_second_moment_in_box(box, adjacency=adjacency),
    }
    for norm in ("l1", "l2", "linf"):
        found[f"histogram {norm}"] = of.of_histogram(2, norm=norm, adjacency=adjacency)
    bounds = regression.RegressionBounds(x_norm_bound=2.0, y_bound=3.0)
    for norm in ("l1", "l2"):
        moments = conjugate.of_first_two_moments((-1.0, 3.0), norm=norm, adjacency=adjacency)
        found[f"two moments {norm}"] = moments
        parts = regression.statistics_sensitivities(bounds, 4, norm=norm, adjacency=adjacency)
        found |= {f"regression {name} {norm}": one for name, one in parts._asdict().items()}
    return {name: one.value for name, one in found.items()}


def _steps_within():
    steps = partial(accounting.max_num_steps, poisson(1.2, 0.02, 400, ADD))
    return {"epsilon": steps(epsilon=1.0, delta=1e-5), "advantage": steps(advantage=0.1)}


def _chain_numbers(mechanism):
    return {
        "step sizes": mechanism.step_sizes,
        "injected": mechanism.injected_noise_multipliers,
        "used": mechanism.noise_multipliers,
        "excess temperatures": mechanism.excess_temperatures,
    }


DECREASING = sgmcmc.PolynomialDecay(0.5, exponent=0.4)
GAINS = sgmcmc.RMSProp(min_value=0.1, max_value=5.0)


def _numbers_of(kind, **options):
    return _chain_numbers(chain(kind, ADD, steps=4, min_noise_multiplier=3.0, **options))


def _chain_for(calibrate):
    start = chain("sgld", ADD, step_size=DECREASING, steps=4)
    return _chain_numbers(calibrate(start, epsilon=0.5, delta=1e-5))


def _regression(adjacency):
    wishart = regression_mechanism("wishart", 0.8, 1e-5, adjacency)
    return {
        "gaussian": regression_mechanism("perturbed", 0.8, 1e-5, adjacency).noise_scales._asdict(),
        "laplace": regression_mechanism("perturbed", 0.8, 0.0, adjacency).noise_scales._asdict(),
        "known noise": noise_of(regression_mechanism("adassp", 0.8, 1e-5, adjacency)),
        "wishart": {
            "degrees of freedom": wishart.degrees_of_freedom,
            "scale": wishart.scale,
            "published": sheffet_degrees_of_freedom(4, epsilon=0.8, delta=1e-5),
        },
    }


def _published_step_sizes():
    run = {"num_examples": 5000, "num_steps": 100, "l2_clip": 2.0, "epsilon": 1.0, "delta": 1e-5}
    return {
        "2015": langevin.step_size_bound_2015(**run),
        "slides": langevin.step_size_bound_2017(3, constant=1.5, **run),
    }


CASES = {
    **{name: partial(_calibrated, *row) for name, row in TARGETS.items()},
    **{f"for epsilon {a}": partial(_scales_for_epsilon, a) for a in BOTH},
    **{f"sensitivities {a}": partial(_statistic_sensitivities, a) for a in BOTH},
    **{f"regression {a}": partial(_regression, a) for a in BOTH},
    "steps within a budget": _steps_within,
    "sgld": partial(_numbers_of, "sgld", step_size=DECREASING),
    "sghmc numbers": partial(_numbers_of, "sghmc", friction=0.2),
    "psgld": partial(_numbers_of, "psgld", preconditioner=GAINS),
    "chain, noise added": partial(_chain_for, sgmcmc.calibrate_min_noise),
    "chain, steps scaled": partial(_chain_for, sgmcmc.calibrate_step_size),
    "published step sizes": _published_step_sizes,
}
