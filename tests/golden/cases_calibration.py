"""Mechanisms calibrated to a target, noise scales in closed form, step sizes, sensitivities."""

from functools import partial

from golden import api
from golden.cases_certificates import ADD, BOTH, REPLACE, chain, fixed, poisson

TARGETS = {
    "poisson, epsilon 1": (lambda: poisson(1.0, 0.01, 100, ADD), {"epsilon": 1.0, "delta": 1e-5}),
    "poisson, epsilon 8": (lambda: poisson(1.0, 0.1, 20, ADD), {"epsilon": 8.0, "delta": 1e-5}),
    "poisson, replace one": (
        lambda: poisson(1.0, 0.05, 50, REPLACE),
        {"epsilon": 3.0, "delta": 1e-6},
    ),
    "poisson, advantage": (lambda: poisson(1.0, 0.02, 50, ADD), {"advantage": 0.1}),
    "poisson, true positives": (
        lambda: poisson(1.0, 0.02, 50, ADD),
        {"true_positive_rate": 0.02, "false_positive_rate": 0.001},
    ),
    "fixed size": (lambda: fixed(1000, 100, 2.0, 20), {"epsilon": 2.0, "delta": 1e-5}),
    "laplace": (
        lambda: api.laplace(api.sensitivity(1.0, "l1", ADD), scale=1.0),
        {"epsilon": 0.5, "delta": 1e-6},
    ),
    "discrete gaussian": (
        lambda: api.discrete_gaussian(api.sensitivity(1.0, "l2", ADD), scale=2.0),
        {"epsilon": 0.7, "delta": 1e-6},
    ),
    "gaussian, advantage": (
        lambda: api.gaussian(api.sensitivity(2.0, "l2", REPLACE), scale=1.0),
        {"advantage": 0.2},
    ),
    "randomized response": (
        lambda: api.randomized_response(4, keep=0.5),
        {"epsilon": 1.0, "delta": 1e-9},
    ),
    "sghmc": (
        lambda: chain("sghmc", ADD, steps=10, friction=0.3),
        {"epsilon": 1.0, "delta": 1e-5},
    ),
}


def _calibrated(make, target):
    return api.noise_of(api.calibrate(make(), **target))


def _scale(kind, *args, **kwargs):
    return api.noise_of(api.from_epsilon(kind, *args, **kwargs))


def _scales_for_epsilon(adjacency):
    moves = {norm: api.sensitivity(3.0, norm, adjacency) for norm in ("l1", "l2", "linf")}
    return {
        "gaussian": [
            _scale("gaussian", moves["l2"], epsilon, delta)
            for epsilon, delta in ((0.1, 1e-5), (1.0, 1e-9), (10.0, 1e-3), (100.0, 1e-6))
        ],
        "laplace": _scale("laplace", moves["l1"], 0.3),
        "discrete laplace": float(_scale("discrete laplace", moves["l1"], 0.3)),
        "exponential mechanism": _scale("exponential mechanism", moves["linf"], 0.3),
        "noisy max": _scale("noisy max", moves["linf"], 0.3),
        "randomized response": _scale("randomized response", 5, 0.3, "replace_one"),
    }


def _steps_within():
    mechanism = poisson(1.2, 0.02, 400, ADD)
    return {
        "epsilon": api.steps_within(mechanism, epsilon=1.0, delta=1e-5),
        "advantage": api.steps_within(mechanism, advantage=0.1),
    }


def _chain_numbers(kind, **row):
    return api.chain_numbers(chain(kind, ADD, steps=4, floor=3.0, **row))


def _chain_for(how):
    start = chain("sgld", ADD, step_size=api.decreasing(0.5, 0.4), steps=4)
    return api.chain_numbers(api.chain_for(how, start, epsilon=0.5, delta=1e-5))


def _regression(adjacency):
    options = {"epsilon": 0.8, "delta": 1e-5, "adjacency": adjacency}
    laplace = options | {"delta": 0.0}
    return {
        "gaussian": api.regression_scales(api.regression_mechanism("perturbed", **options)),
        "laplace": api.regression_scales(api.regression_mechanism("perturbed", **laplace)),
        "known noise": api.noise_of(api.regression_mechanism("adassp", **options)),
        "wishart": api.wishart_numbers(**options),
    }


CASES = {
    **{name: partial(_calibrated, make, target) for name, (make, target) in TARGETS.items()},
    **{f"for epsilon {a}": partial(_scales_for_epsilon, a) for a in BOTH},
    **{f"sensitivities {a}": partial(api.statistic_sensitivities, a) for a in BOTH},
    **{f"regression {a}": partial(_regression, a) for a in BOTH},
    "steps within a budget": _steps_within,
    "sgld": partial(_chain_numbers, "sgld", step_size=api.decreasing(0.5, 0.4)),
    "sghmc numbers": partial(_chain_numbers, "sghmc", friction=0.2),
    "psgld": partial(_chain_numbers, "psgld", gains=(0.1, 5.0)),
    "chain, noise added": partial(_chain_for, "add noise"),
    "chain, steps scaled": partial(_chain_for, "scale steps"),
    "published step sizes": partial(
        api.published_step_size_bounds, epsilon=1.0, delta=1e-5, n=5000, steps=100, clip=2.0
    ),
}
