"""Bayesian logistic regression on Adult, Li et al. (2017): accuracy against ε by five methods.

``python -m experiments run sgmcmc_adult``: a minute; three epsilons and three runs of each (seven
and ten in the other profile). Expect 85 % at ε = 1 from all, and at ε = 0.1 between 77 and 84.6 %.
"""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from matplotlib.figure import Figure

import dpjax
from dpjax._typing import PyTree
from dpjax.accounting import epsilon as certified_epsilon
from dpjax.bayes.sgmcmc import (
    PUBLISHED_TEMPERATURE,
    SGLD,
    OnePosteriorSample,
    calibrate_step_size,
    hybrid,
    private_chains,
    sample,
)
from dpjax.mechanisms import Mechanism
from experiments.data import Dataset, Split, load_data
from experiments.lib.figures import PALETTE, SOURCE, new_figure
from experiments.lib.plots import draw_curve, draw_error_bars, legend_below, set_log_ticks
from experiments.lib.registry import Finding, Record, Result, Row, RowContext
from experiments.lib.sweeps import column, grid, make_rows
from experiments.lib.verdicts import format_upper_bound, group_by
from experiments.published.langevin import markov_chain_sample, step_size_bound_2017
from experiments.sgmcmc.bounds import CONSTANT

DELTA = 1e-5
SAMPLING_RATE = 1 / 64
NUM_STEPS = 500
# Adult's records have 14 ones at most, so their gradients have norm sqrt(14) at most.
NO_CLIP, CLIP = 4.0, 1.0
LEAST_LOG_LIKELIHOOD = -3.0
# Larger steps are unstable.
_LARGEST_STEP = 1.5
_LEARNING_RATE = 1.0
_START, _THINNING = 0.1, 10
NUTS_STEPS = 40


class Runs(NamedTuple):
    """Several independent runs of one method."""

    # (num_runs, num_kept, num_features)
    weights: np.ndarray
    mechanism: Mechanism  # of one run
    is_exact: bool  # whether the mechanism's guarantee holds for the run


Method = Callable[[Split, float, int, jax.Array], Runs]


def log_likelihood(weights: jax.Array, example: PyTree) -> jax.Array:
    """Log-likelihood of a label, 0 or 1, given features."""
    x, label = example
    logit = x @ weights
    return label * logit - jax.nn.softplus(logit)


def log_prior(weights: jax.Array) -> jax.Array:
    """Log-density of independent N(0, 1) weights, up to a constant."""
    return -0.5 * jnp.sum(weights**2)


def make_sgld(
    train: Split, step_size: float, l2_clip: float = NO_CLIP, temperature: float = 1.0
) -> SGLD:
    """Returns the SGLD mechanism of one chain."""
    sampling = dpjax.PoissonSampling(len(train.y), SAMPLING_RATE)
    return SGLD(
        sampling,
        l2_clip=l2_clip,
        step_size=step_size,
        num_steps=NUM_STEPS,
        adjacency="zero_out",
        temperature=temperature,
        unit="one person",
    )


def run_sgld(train: Split, chain: SGLD, num_runs: int, key: jax.Array) -> Runs:
    """Runs chains from zero, and keeps every tenth state of their second half."""
    result = sample(
        key,
        log_likelihood,
        log_prior,
        jnp.zeros(train.x.shape[1]),
        tuple(train),
        mechanism=dataclasses.replace(chain, num_chains=num_runs),
        burn_in=chain.num_steps // 2,
        thinning=_THINNING,
        progress=False,
    )
    return Runs(result.samples, chain, True)


def dp_sgld(
    train: Split, epsilon: float, num_runs: int, key: jax.Array, l2_clip: float = NO_CLIP
) -> Runs:
    """Runs chains at temperature 1 with the largest stable step size certified at epsilon."""
    chain = calibrate_chain(make_sgld(train, _START, l2_clip), epsilon)
    return run_sgld(train, chain, num_runs, key)


def calibrate_chain(chain: SGLD, epsilon: float) -> SGLD:
    """Returns the chain with the largest certified step size, at most the largest stable one."""
    scaled = calibrate_step_size(chain, epsilon=epsilon, delta=DELTA)
    return dataclasses.replace(scaled, step_size=min(float(scaled.step_sizes[0]), _LARGEST_STEP))


def dp_sgd(train: Split, epsilon: float, num_runs: int, key: jax.Array) -> Runs:
    """Returns the last iterates of DP-SGD with calibrated noise."""
    sampling = dpjax.PoissonSampling(len(train.y), SAMPLING_RATE)
    one = dpjax.SubsampledGaussian(
        sampling,
        l2_clip=CLIP,
        noise_multiplier=1.0,
        num_steps=NUM_STEPS,
        adjacency="zero_out",
        unit="one person",
    )
    mechanism = dpjax.calibrate(one, epsilon=epsilon, delta=DELTA)

    def run(key: jax.Array) -> PyTree:
        return dpjax.train(
            key,
            lambda weights, example: -log_likelihood(weights, example),
            jnp.zeros(train.x.shape[1]),
            tuple(train),
            optax.sgd(_LEARNING_RATE),
            mechanism=mechanism,
            steps_per_call=NUM_STEPS,
            progress=False,
        ).params

    weights = np.stack([run(one_key) for one_key in jax.random.split(key, num_runs)])
    return Runs(weights[:, None], mechanism, True)


def one_posterior_sample(train: Split, epsilon: float, num_runs: int, key: jax.Array) -> Runs:
    """Returns one approximate sample per run of the tempered posterior, by NUTS."""
    mechanism = _one_sample(epsilon)
    return Runs(_draws(train, mechanism, num_runs, key)[:, None], mechanism, False)


def run_hybrid(train: Split, epsilon: float, num_runs: int, key: jax.Array) -> Runs:
    """Runs chains from one posterior sample each, with half of epsilon for each part."""
    both = hybrid(_one_sample(epsilon), make_sgld(train, _START), epsilon=epsilon, delta=DELTA)
    start, chain = both.mechanisms
    assert isinstance(start, OnePosteriorSample)
    assert isinstance(chain, SGLD)
    start_key, chain_key = jax.random.split(key)
    starts = jnp.asarray(_draws(train, start, num_runs, start_key))
    return Runs(_chains_from(starts, train, chain, chain_key), both, False)


def _one_sample(epsilon: float) -> OnePosteriorSample:
    return OnePosteriorSample(
        epsilon, low=LEAST_LOG_LIKELIHOOD, high=0.0, adjacency="zero_out", unit="one person"
    )


def _draws(train: Split, mechanism: OnePosteriorSample, num_runs: int, key: jax.Array) -> Any:
    """Returns one sample per run, ``(num_runs, num_features)``, by preconditioned NUTS."""
    x = np.asarray(train.x, np.float64)
    curvature = mechanism.scale * x.T @ x / 4 + np.eye(x.shape[1])
    back = np.linalg.inv(np.linalg.cholesky(curvature)).T

    # The data are arguments, since the compiler would fold constants.
    def draw(key: jax.Array, data: PyTree, back: jax.Array) -> jax.Array:
        drawn = markov_chain_sample(
            key,
            log_likelihood,
            lambda inner: log_prior(back @ inner),
            jnp.zeros(len(back)),
            data,
            mechanism,
            num_steps=NUTS_STEPS,
        )
        return back @ drawn

    keys = jax.random.split(key, num_runs)
    data = jnp.asarray(x @ back, jnp.float32), jnp.asarray(train.y)
    drawn = jax.jit(jax.vmap(draw, (0, None, None)))(keys, data, jnp.asarray(back, jnp.float32))
    return np.asarray(drawn)


def _chains_from(starts: jax.Array, train: Split, chain: SGLD, key: jax.Array) -> np.ndarray:
    """Returns the states of chains from the given starts, thinned as in `run_sgld`."""
    runs = dataclasses.replace(chain, num_chains=len(starts))
    step = private_chains(key, log_likelihood, log_prior, runs)

    @jax.jit
    def states(starts: jax.Array, data: PyTree) -> jax.Array:
        first = step.init(jnp.zeros(starts.shape[1]))._replace(params=starts)

        def advance(state: PyTree, _: Any) -> tuple[PyTree, PyTree]:
            state = step.update(state, data)[0]
            return state, state.params

        return jax.lax.scan(advance, first, length=chain.num_steps)[1]

    every = np.asarray(states(starts, jax.device_put(tuple(train))))
    kept = every[chain.num_steps // 2 + _THINNING - 1 :: _THINNING]
    return np.moveaxis(kept, 0, 1)


METHODS: dict[str, Method] = {
    "OPS": one_posterior_sample,
    "hybrid": run_hybrid,
    "DP-SGD": dp_sgd,
    "DP-SGLD": dp_sgld,
    "DP-SGLD, clipped": functools.partial(dp_sgld, l2_clip=CLIP),
}


ACCURACY, ERROR, NLL = "test accuracy %", "two standard errors", "NLL"
LAST, TOTAL = "last sample alone %", "Σ η"
CLAIM, TARGET = "ε, slides' formula", "ε of an exact sample"
PLAIN, SOURCE_STEP = "SGLD, no privacy asked", "SGLD, the source's step"
_CHAIN = "DP-SGLD, ε = 1"
# Step size and temperature of the uncalibrated chains.
_GIVEN = {PLAIN: (1.0, 1.0), SOURCE_STEP: (0.1, PUBLISHED_TEMPERATURE)}
_EPSILONS = {"quick": (0.1, 1.0), "paper": (0.05, 0.1, 0.2, 0.3, 0.5, 1.0, 2.0)}
_NUM_RUNS = {"quick": 3, "paper": 10}


@functools.cache
def data_set() -> Dataset:
    return load_data("adult", stand_in=True)


def rows(profile: str) -> list[Row]:
    common = {"delta": DELTA, "num_steps": NUM_STEPS, "runs": _NUM_RUNS[profile]}
    given = [
        Row(name, {"method": name, "step": step, "temperature": temperature, **common}, {})
        for name, (step, temperature) in _GIVEN.items()
    ]
    calibrated = grid(method=METHODS, epsilon=_EPSILONS[profile])
    return [*given, *make_rows("{method}, ε = {epsilon:g}", calibrated, common)]


def run_row(row: Row, context: RowContext) -> Result:
    data, settings = data_set(), row.settings
    method, num_runs, key = settings["method"], settings["runs"], jax.random.key(0)
    if method in METHODS:
        runs = METHODS[method](data.train, settings["epsilon"], num_runs, key)
    else:
        chain = make_sgld(data.train, settings["step"], temperature=settings["temperature"])
        runs = run_sgld(data.train, chain, num_runs, key)
    mechanism = runs.mechanism
    epsilon = certified_epsilon(mechanism.event, DELTA, adjacency="zero_out")
    measured = scores(runs.weights, data.test)
    if isinstance(mechanism, SGLD):
        measured |= _claims(mechanism)
    note = (
        f"{data.note} Every ε is that of one run. Seeded keys: the noise is reproducible, so these"
        " runs are not private."
    )
    if not runs.is_exact:
        measured[TARGET] = epsilon
        note += (
            f" Each posterior sample is drawn by {NUTS_STEPS} steps of NUTS and is not exact, so"
            " the ε of an exact sample is not certified."
        )
    return Result(
        measured=measured,
        certified={"ε": epsilon} if runs.is_exact else {},
        note=note,
        certificate=str(mechanism.certificate(DELTA)) if row.name in (_CHAIN, SOURCE_STEP) else "",
    )


def scores(weights: PyTree, test: Split) -> dict[str, float]:
    """Returns mean scores over runs, of averaged predictions and of the last sample.

    ``weights`` has shape ``(num_runs, num_kept, num_features)``, with at least two runs.

    >>> test = Split(np.array([[1.0], [-1.0]]), np.array([1, 1]))
    >>> found = scores(np.array([[[1.0], [3.0]], [[1.0], [3.0]]]), test)
    >>> found[ACCURACY], found[ERROR], round(found[NLL], 2)
    (50.0, 0.0, 1.01)
    """
    logits = np.asarray(weights, np.float64) @ np.asarray(test.x, np.float64).T
    each, is_one = 1 / (1 + np.exp(-logits)), np.asarray(test.y) == 1

    def accuracies(ones: np.ndarray) -> np.ndarray:
        return 100 * ((ones > 0.5) == is_one).mean(axis=1)

    averaged = each.mean(axis=1)
    of_labels = np.where(is_one, averaged, 1 - averaged)
    right = accuracies(averaged)
    found = {
        ACCURACY: float(right.mean()),
        ERROR: 2 * float(right.std(ddof=1)) / len(right) ** 0.5,
        NLL: -float(np.log(np.maximum(of_labels, 1e-12)).mean(axis=1).mean()),
    }
    if weights.shape[1] > 1:
        found[LAST] = float(accuracies(each[:, -1]).mean())
    return found


def _claims(chain: SGLD) -> dict[str, float]:
    """Returns the sum of a chain's step sizes, and its ε by the source's formula."""
    bound = step_size_bound_2017(
        1,
        epsilon=1.0,
        delta=DELTA,
        num_examples=chain.sampling.num_examples,
        num_steps=chain.num_steps,
        l2_clip=chain.l2_clip,
        constant=CONSTANT,
    )
    claim = float(np.sqrt(chain.step_sizes[0] / bound))
    return {TOTAL: float(chain.step_sizes.sum()), CLAIM: claim}


def figures(records: Sequence[Record]) -> dict[str, Figure]:
    private = [record for record in records if "epsilon" in record.settings]
    if not private:
        return {}
    figure, (left, right) = new_figure(columns=2, width=9.6, height=4.4)
    by_method = group_by(private, "method")
    for (method, group), colour in zip(by_method.items(), PALETTE, strict=False):
        at = [record.certified.get("ε", record.measured.get(TARGET)) for record in group]
        style = "-" if all("ε" in record.certified for record in group) else "--"
        heights, bars, losses = (column(group, name) for name in (ACCURACY, ERROR, NLL))
        draw_error_bars(left, at, heights, bars, color=colour, linestyle=style, label=method)
        draw_curve(right, at, losses, color=colour, linestyle=style)
    for axes, name in ((left, ACCURACY), (right, NLL)):
        for record in records:
            if record.row == PLAIN:
                axes.axhline(record.measured[name], color=SOURCE, linewidth=1)
        set_log_ticks(axes, sorted(group_by(private, "epsilon")))
    left.set(ylabel="test accuracy (%)")
    right.set(ylabel="negative log-likelihood")
    legend_below(figure, [left], ncols=5)
    return {"accuracy": figure}


def remarks(records: Sequence[Record]) -> list[str]:
    # DP-SGLD and DP-SGD at equal ε.
    found = {(r.settings["method"], r.settings.get("epsilon")): r.measured for r in records}
    return [
        f"At ε = {epsilon:g} DP-SGLD has {found['DP-SGLD', epsilon][ACCURACY]:.1f} % (NLL"
        f" {found['DP-SGLD', epsilon][NLL]:.3f}) and DP-SGD {sgd[ACCURACY]:.1f} % (NLL"
        f" {sgd[NLL]:.3f}) at the same certified ε."
        for (method, epsilon), sgd in found.items()
        if method == "DP-SGD" and ("DP-SGLD", epsilon) in found
    ]


def finding(records: Sequence[Record]) -> Finding:
    known = {record.row: record for record in records}
    if SOURCE_STEP not in known:
        return Finding("not compared", "The source's step was not run.")
    chain = known[SOURCE_STEP]
    claimed, certified = chain.measured[CLAIM], chain.certified["ε"]
    return Finding(
        "claim contradicted" if claimed < certified else "not compared",
        "The accuracies of the source's figure are not printed; its step size claims ε ="
        f" {claimed:.2g}, where {format_upper_bound(certified)} is certified.",
    )
