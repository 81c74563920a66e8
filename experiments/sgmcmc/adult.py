"""Adult, Bayesian logistic regression, Li et al. (2017): accuracy against epsilon by five methods.

``python -m experiments run sgmcmc_adult``: a minute; three epsilons and three runs of each (seven
and ten in the other profile). Expect 85 % at ε = 1 from all, and at ε = 0.1 between 77 and 84.6 %.
"""

import functools
from collections.abc import Sequence
from decimal import ROUND_CEILING
from typing import Any

import jax
import numpy as np

import dpjax
from dpjax.accounting import epsilon as certified_epsilon
from dpjax.bayes.sgmcmc import PUBLISHED_TEMPERATURE, SGLD, step_size_bound_2017
from dpjax.datasets import Dataset, Split
from experiments.lib.formatting import format_value
from experiments.lib.registry import Experiment, Record, Result, Row, RowContext
from experiments.sgmcmc.adult_figures import figures
from experiments.sgmcmc.adult_methods import (
    DELTA,
    LEAST_LOG_LIKELIHOOD,
    METHODS,
    NUM_STEPS,
    NUTS_STEPS,
    SAMPLING_RATE,
    Runs,
    langevin,
    run_sgld,
)
from experiments.sgmcmc.bounds import CONSTANT

ACCURACY, ERROR, NLL = "test accuracy %", "two standard errors", "NLL"
LAST, TOTAL = "last sample alone %", "Σ η"
CLAIM, TARGET = "ε, slides' formula", "ε of an exact sample"
PLAIN, SOURCE_STEP = "SGLD, no privacy asked", "SGLD, the source's step"
# Step size and temperature of the chains that no budget made.
_GIVEN = {PLAIN: (1.0, 1.0), SOURCE_STEP: (0.1, PUBLISHED_TEMPERATURE)}
_EPSILONS = {"quick": (0.1, 0.3, 1.0), "paper": (0.05, 0.1, 0.2, 0.3, 0.5, 1.0, 2.0)}
_NUM_RUNS = {"quick": 3, "paper": 10}


@functools.cache
def _data() -> Dataset:
    return dpjax.datasets.load("adult")


def _rows(profile: str) -> list[Row]:
    common = {"delta": DELTA, "num_steps": NUM_STEPS, "runs": _NUM_RUNS[profile]}
    given = [
        Row(name, {"method": name, "step": step, "temperature": temperature, **common}, {})
        for name, (step, temperature) in _GIVEN.items()
    ]
    calibrated = [
        Row(f"{name}, ε = {epsilon:g}", {"method": name, "epsilon": epsilon, **common}, {})
        for name in METHODS
        for epsilon in _EPSILONS[profile]
    ]
    return [*given, *calibrated]


def _run_row(row: Row, context: RowContext) -> Result:
    runs = _run(row.settings, _data().train)
    chain = runs.mechanism if isinstance(runs.mechanism, SGLD) else None
    epsilon = certified_epsilon(runs.mechanism.event, DELTA, adjacency="zero_out")
    return Result(
        measured={
            **scores(runs.weights, _data().test),
            **(_of_chain(chain) if chain else {}),
            **({} if runs.is_exact else {TARGET: epsilon}),
        },
        certified={"ε": epsilon} if runs.is_exact else {},
        note=_note(runs),
        certificate=str(runs.mechanism.certificate(DELTA)) if _is_shown(row) else "",
    )


def _run(settings: Any, train: Split) -> Runs:
    method, num_runs, key = settings["method"], settings["runs"], jax.random.key(0)
    if method in METHODS:
        return METHODS[method](train, settings["epsilon"], num_runs, key)
    chain = langevin(train, settings["step"], temperature=settings["temperature"])
    return run_sgld(train, chain, num_runs, key)


def scores(weights: Any, test: Split) -> dict[str, Any]:
    """Means over the runs: of the average prediction, and of the last sample's.

    Args:
      weights: ``(num_runs, num_kept, num_features)``, two runs at least.
      test: the records.

    >>> test = Split(np.array([[1.0], [-1.0]]), np.array([1, 1]))
    >>> found = scores(np.array([[[1.0], [3.0]], [[1.0], [3.0]]]), test)
    >>> found[ACCURACY], found[ERROR], round(found[NLL], 2)
    (50.0, 0.0, 1.01)
    """
    accuracies, likelihoods = _scores(weights, test)
    found = {
        ACCURACY: float(accuracies.mean()),
        ERROR: 2 * float(accuracies.std(ddof=1)) / len(accuracies) ** 0.5,
        NLL: -float(likelihoods.mean()),
    }
    if weights.shape[1] > 1:
        found[LAST] = float(_scores(weights[:, -1:], test)[0].mean())
    return found


def _scores(weights: Any, test: Split) -> tuple[np.ndarray, np.ndarray]:
    """Each run's accuracy (%) and mean log-likelihood."""
    logits = np.asarray(weights, np.float64) @ np.asarray(test.x, np.float64).T
    ones = (1 / (1 + np.exp(-logits))).mean(axis=1)
    is_one = np.asarray(test.y) == 1
    right = (ones > 0.5) == is_one
    of_labels = np.where(is_one, ones, 1 - ones)
    return 100 * right.mean(axis=1), np.log(np.maximum(of_labels, 1e-12)).mean(axis=1)


def _of_chain(chain: SGLD) -> dict[str, float]:
    """The time that a chain travels, and the epsilon that the source's formula claims for it."""
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


def _note(runs: Runs) -> str:
    seeded = "Every ε is that of one run. Seeded keys: the noise is reproducible, so these runs are"
    if runs.is_exact:
        return f"{_data().note} {seeded} not private."
    return (
        f"{_data().note} {seeded} not private. One posterior sample is drawn by {NUTS_STEPS} steps"
        " of NUTS, which is not exact: the ε of an exact sample is not certified for it."
    )


def _is_shown(row: Row) -> bool:
    return row.name in ("DP-SGLD, ε = 1", SOURCE_STEP)


def _remarks(records: Sequence[Record]) -> list[str]:
    by_name = {record.row: record for record in records}
    claims = [by_name[SOURCE_STEP]] if SOURCE_STEP in by_name else []
    return [
        *map(_claim_remark, claims),
        *(_last_remark(record) for name, record in by_name.items() if name == "DP-SGLD, ε = 1"),
        *_against_sgd(records),
        *([_NOT_EXACT] if any(TARGET in record.measured for record in records) else []),
    ]


def _claim_remark(record: Record) -> str:
    epsilon = format_value(record.certified["ε"], rounding=ROUND_CEILING)
    return (
        f"SGLD with the source's step 0.1 and noise as printed: its formula (with c = {CONSTANT},"
        f" see sgmcmc_bounds) claims ε = {record.measured[CLAIM]:.2g}; certified is {epsilon}."
    )


def _last_remark(record: Record) -> str:
    return (
        f"{record.row}: averaged over the chain {record.measured[ACCURACY]:.2f} %, from its last"
        f" sample alone {record.measured[LAST]:.2f} %. Both cost the same: every state is counted."
    )


def _against_sgd(records: Sequence[Record]) -> list[str]:
    """What the temperature costs: DP-SGD may take other steps with the same noise."""
    found = {(r.settings["method"], r.settings.get("epsilon")): r.measured for r in records}
    return [
        f"At ε = {epsilon:g} DP-SGLD has {found['DP-SGLD', epsilon][ACCURACY]:.1f} % (NLL"
        f" {found['DP-SGLD', epsilon][NLL]:.3f}) and DP-SGD {sgd[ACCURACY]:.1f} % (NLL"
        f" {sgd[NLL]:.3f}) at the same certified ε."
        for (method, epsilon), sgd in found.items()
        if method == "DP-SGD" and ("DP-SGLD", epsilon) in found
    ]


_NOT_EXACT = (
    "OPS and the hybrid are drawn at what an exact posterior sample would cost. No exact sampler is"
    " known for this posterior, and the end of a Markov chain has no such guarantee: their accuracy"
    " is about what such a sampler would reach, not what a certified run has."
)

EXPERIMENT = Experiment(
    name="sgmcmc_adult",
    title="Bayesian logistic regression on Adult",
    source="Li, Chen and Liu (2017), slides, Adult figure",
    description=(
        "Who earns more than 50,000 dollars? Logistic regression on 123 binary features with a"
        " N(0, I) prior, by the source's methods and DP-SGD, all at δ = 1e-5, neighbours differing"
        " by the presence of one person. The numbers behind the source's figure are not"
        " printed.\n\n"
        f"Chains make {NUM_STEPS} steps from zero on Poisson batches (q = 1/{1 / SAMPLING_RATE:g},"
        " 509 records on average) and predict by the average over 25 states of their second half."
        " DP-SGLD's own noise is its privacy, at temperature 1: its constant step is the largest"
        " that is certified at ε (and at most 1.5, above which chains become unstable). With L = 4"
        " nothing is clipped, as records have norm √14 at most; 'clipped' has L = 1, which allows"
        " larger steps and bends the posterior. A budget buys a sum of steps, Σ η: at small ε a"
        " chain does not get far from where it starts.\n\n"
        f"OPS samples the posterior with each log-likelihood clipped to [{LEAST_LOG_LIKELIHOOD:g},"
        " 0] and raised to the power ε/3 (unclipped it has no bound, and OPS would not be private"
        " at all). The hybrid starts SGLD at such a sample, ε/2 for each. DP-SGD (L = 1, learning"
        " rate 1) gives its last iterate. Learning rate, L, T and the clipping of log-likelihoods"
        " were settled with accuracies of earlier runs on these data in view, which no ε"
        " counts.\n\n"
        "SGLD without a budget takes steps of 1, clips nothing, and has a certified ε all the same."
        " The source's step is 0.1, with its printed noise. Three runs of everything in the quick"
        " profile, ten in the other."
    ),
    rows=_rows,
    run_row=_run_row,
    data=lambda: _data().name,
    figures=figures,
    remarks=_remarks,
)
