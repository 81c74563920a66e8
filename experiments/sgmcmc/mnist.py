"""MNIST and SVHN, the slides' table: private Langevin chains, claimed and certified ε.

``python -m experiments run sgmcmc_mnist``: on two CPU cores a minute and a half (``quick``: an MLP
and 1,000 steps) or three hours (``paper``: a CNN and 10,000 steps; of each MNIST row three runs, of
each SVHN row, whose steps take three times as long, one).
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure

import dpjax
from dpjax.bayes.sgmcmc import POSTERIOR_TEMPERATURE, PUBLISHED_TEMPERATURE
from experiments.data import Dataset
from experiments.lib.figures import CERTIFIED, MEASURED, PALETTE, SOURCE, new_figure
from experiments.lib.plots import draw_bars
from experiments.lib.records import find_record, load_records
from experiments.lib.registry import (
    Finding,
    Record,
    Result,
    Row,
    RowContext,
    experiment_of,
    select_rows,
)
from experiments.lib.runner import Plan, run_experiment
from experiments.lib.verdicts import (
    compare_claim,
    compare_published,
    format_upper_bound,
    remarks_on_rows,
)
from experiments.pate import mnist as pate_mnist
from experiments.pate import svhn as pate_svhn
from experiments.pate.accounts import BOTH, EPSILON
from experiments.pate.answers import STUDENT
from experiments.sgmcmc.mnist_chains import (
    HAMILTONIAN,
    LANGEVIN,
    NOISY_SGD,
    PLAIN,
    PUBLISHED_SIZES,
    PUBLISHED_STEPS,
    Predictions,
    Settings,
    auroc_percent,
    calibration_error_percent,
    entropies,
    epsilon_by_batch,
    load_images,
    negative_log_likelihood,
    noisy_sgd_mechanism,
    published_epsilon,
    reliability,
    run,
)

ACCURACY, DEVIATION = "test accuracy %", "accuracy, s.d."
LAST, NLL, NLL_LAST = "last state %", "NLL", "NLL, last state"
AUROC = "AUROC, no digit %"
AS_RUN, PUBLISHED = "ε, as run", "ε, published T"
DEPENDENT = "PATE: ε of the votes (not publishable)"
FRONTIER = "frontier, "
_RELIABILITY, _ENTROPY = "reliability", "mean entropy"
_SGLD, _NOISY_SGD = "MNIST: DP-SGLD, temperature 1", "MNIST: DP-SGD"

_QUICK: dict[str, Any] = {"network": "MLP", "num_steps": 1_000, "num_kept": 10}
_PAPER: dict[str, Any] = {
    "network": "CNN",
    "num_steps": PUBLISHED_STEPS,
    "num_kept": 100,
    "runs": 3,
}
# Of DP-SGD. In the paper profile that of Bu et al. (2020) for this network, batch size and clip
# bound at noise multiplier 1.28, and a twelfth of it at 15.8.
_LEARNING_RATES = {
    "quick": {"MNIST: DP-SGD": 0.5, "MNIST: DP-SGD at ε = 0.1": 0.25},
    "paper": {"MNIST: DP-SGD": 0.15, "MNIST: DP-SGD at ε = 0.1": 0.012},
}
_TARGETS = {"quick": (0.1, 0.3, 2.0), "paper": (0.1, 0.3, 1.0, 3.0)}
_SGHMC = {"method": HAMILTONIAN, "step_size": 0.01}

# By row: changed settings, and the published accuracy and epsilon.
_MNIST: dict[str, tuple[dict[str, Any], tuple[float, ...]]] = {
    "MNIST: non-private": ({"method": PLAIN}, (99.23,)),
    "MNIST: PATE(100)": ({}, (98.00, 2.04)),
    "MNIST: PATE(1000)": ({}, (98.10, 8.03)),
    "MNIST: DP-SGLD": ({"temperature": PUBLISHED_TEMPERATURE}, (99.12, 0.10)),
    "MNIST: DP-SGLD, temperature 1": ({}, ()),
    "MNIST: DP-SGHMC": ({**_SGHMC, "temperature": PUBLISHED_TEMPERATURE}, (99.28, 0.24)),
    "MNIST: DP-SGHMC, temperature 1": (_SGHMC, ()),
    "MNIST: DP-SGD": ({"method": NOISY_SGD}, ()),
    "MNIST: DP-SGD at ε = 0.1": ({"method": NOISY_SGD, "target": 0.1}, ()),
}
_SVHN: dict[str, tuple[dict[str, Any], tuple[float, ...]]] = {
    "SVHN: non-private": ({"method": PLAIN}, (92.80,)),
    "SVHN: PATE(100)": ({}, (82.76, 5.04)),
    "SVHN: PATE(1000)": ({}, (90.66, 8.19)),
    "SVHN: DP-SGLD": ({"temperature": PUBLISHED_TEMPERATURE}, (92.14, 0.12)),
    "SVHN: DP-SGHMC": ({**_SGHMC, "temperature": PUBLISHED_TEMPERATURE}, (92.84, 0.43)),
}
# Experiment and row that the rows of PATE are taken from.
_ENSEMBLES = {
    "MNIST: PATE(100)": (pate_mnist, "LNMax, 100 queries"),
    "MNIST: PATE(1000)": (pate_mnist, "LNMax, 1,000 queries"),
    "SVHN: PATE(100)": (pate_svhn, "LNMax, 500 queries"),
    "SVHN: PATE(1000)": (pate_svhn, "LNMax, 1,000 queries"),
}
# Labels of rows in the calibration figure.
_COMPARED = {
    "MNIST: non-private": "non-private",
    _NOISY_SGD: "DP-SGD",
    _SGLD: "DP-SGLD, whole chain",
}
# Series of the frontier figure: rows, colour and marker.
_GROUPS: dict[str, tuple[Callable[[str], bool], str, str]] = {
    "DP-SGLD, temperature 1": (
        lambda row: row.startswith((FRONTIER, "MNIST: DP-SGLD, ")),
        CERTIFIED,
        "o",
    ),
    "DP-SGD": (lambda row: row.startswith(_NOISY_SGD), PALETTE[1], "D"),
    "DP-SGLD, noise as printed": (lambda row: row == "MNIST: DP-SGLD", MEASURED, "s"),
    "DP-SGHMC, temperature 1": (
        lambda row: row.startswith("MNIST: DP-SGHMC, "),
        PALETTE[3],
        "^",
    ),
    "PATE, any votes": (lambda row: row.startswith("MNIST: PATE"), PALETTE[5], "P"),
    "DP-SGHMC, noise as printed": (lambda row: row == "MNIST: DP-SGHMC", PALETTE[4], "v"),
}


def rows(profile: str) -> list[Row]:
    size = _QUICK if profile == "quick" else _PAPER
    mnist = Settings(LANGEVIN, "mnist", delta=1e-5, **size)
    svhn = Settings(LANGEVIN, "svhn", delta=1e-6, **{**size, "runs": 1})
    frontier = {f"{FRONTIER}ε = {at:g}": ({"target": at}, ()) for at in _TARGETS[profile]}

    def settings_of(name: str, common: Settings, changes: dict[str, Any]) -> dict[str, Any]:
        if name in _ENSEMBLES:
            return _ensemble_settings(name, profile)
        rate = _LEARNING_RATES[profile].get(name, common.learning_rate)
        return dataclasses.asdict(dataclasses.replace(common, learning_rate=rate, **changes))

    return [
        Row(
            name,
            settings_of(name, settings, changes),
            dict(zip((ACCURACY, "ε"), printed, strict=False)),
        )
        for settings, table in ((mnist, _MNIST), (svhn, _SVHN), (mnist, frontier))
        for name, (changes, printed) in table.items()
    ]


def _ensemble_settings(name: str, profile: str) -> dict[str, Any]:
    """Returns the settings of the row of `pate_mnist` or `pate_svhn`, and its name."""
    module, row = _ENSEMBLES[name]
    experiment = experiment_of(module)
    (chosen,) = select_rows(experiment, profile, row)
    return {"experiment": experiment.name, "row": row, **chosen.settings}


def run_row(row: Row, context: RowContext) -> Result:
    if row.name in _ENSEMBLES:
        return _run_ensemble(row.name, context)
    settings = Settings(**row.settings)
    data = load_images(settings.data)
    found = [
        _score(settings, data.test.y, run(each, data, context.folder / f"seed_{each.seed}"))
        for each in _single_runs(settings)
    ]
    measured, series, note = _mean([run for run, _ in found]), found[0][1], _note(settings, data)
    if not settings.is_private:
        return Result(measured, {}, note, series)
    chain = settings.chain(len(data.train.y), settings.num_steps)
    mechanism: dpjax.Mechanism = chain if settings.is_chain else noisy_sgd_mechanism(chain)
    certificate = mechanism.certificate(settings.delta)
    certified = {AS_RUN: certificate.epsilon}
    if settings.is_chain and settings.target is not None:
        measured["step size"] = float(chain.step_sizes[0])
    elif settings.is_chain:
        certified[PUBLISHED] = published_epsilon(settings)
    return Result(measured, certified, note, series, str(certificate))


def _run_ensemble(name: str, context: RowContext) -> Result:
    """Returns the record of a row of PATE, which is run first if there is none."""
    module, row = _ENSEMBLES[name]
    experiment = experiment_of(module)
    results = context.folder.parents[2]
    plan = Plan(context.profile, results, fresh=False)
    if not run_experiment(experiment, plan, row):
        raise RuntimeError(f"the row {row} of {experiment.name} failed")
    (chosen,) = select_rows(experiment, context.profile, row)
    record = find_record(load_records(results, experiment.name), chosen, context.profile)
    assert record is not None, "run above"
    return Result(
        {ACCURACY: record.measured[STUDENT], DEPENDENT: record.measured[BOTH]},
        {AS_RUN: record.certified[EPSILON]},
        f"{name}: the row {row} of {experiment.name}. {record.note}",
        certificate=record.certificate,
    )


def _single_runs(settings: Settings) -> list[Settings]:
    """Returns the settings of each run."""
    seeds = range(settings.seed, settings.seed + settings.runs)
    return [dataclasses.replace(settings, seed=seed, runs=1) for seed in seeds]


def _mean(runs: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Returns the measured values' means over runs, and the deviation of the accuracy.

    >>> _mean([{ACCURACY: 90.0}, {ACCURACY: 92.0}])
    {'test accuracy %': 91.0, 'accuracy, s.d.': 1.4142135623730951}
    """
    means = {name: float(np.mean([run[name] for run in runs])) for name in runs[0]}
    if len(runs) > 1:
        means[DEVIATION] = float(np.std([run[ACCURACY] for run in runs], ddof=1))
    return means


def _score(
    settings: Settings, labels: Any, predictions: Predictions
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Returns the measured values, and the series of the calibration figure."""

    def accuracy(probabilities: np.ndarray) -> float:
        return 100 * float((probabilities.argmax(axis=1) == labels).mean())

    averaged, last = predictions.averaged, predictions.last
    others = {name: entropies(p) for name, p in predictions.out_of_distribution.items()}
    known = entropies(averaged)
    detected = [auroc_percent(known, other) for other in others.values()]
    measured = {
        ACCURACY: accuracy(averaged),
        NLL: negative_log_likelihood(averaged, labels),
        **(
            {LAST: accuracy(last), NLL_LAST: negative_log_likelihood(last, labels)}
            if settings.is_chain
            else {}
        ),
        "ECE %": calibration_error_percent(averaged, labels),
        AUROC: sum(detected) / len(detected),
    }
    bins = reliability(averaged, labels)
    series = {
        _RELIABILITY: {name: values.tolist() for name, values in bins._asdict().items()},
        _ENTROPY: {
            name: float(entropy.mean())
            for name, entropy in {"test images": known, **others}.items()
        },
    }
    return measured, series


def _note(settings: Settings, data: Dataset) -> str:
    words = [data.note, f"The {settings.network} is trained on {len(data.train.y):,} images."]
    if settings.runs > 1:
        words.append(f"Means over {settings.runs} runs; every ε is that of one run.")
    elif settings.num_steps == PUBLISHED_STEPS:
        words.append("One run, since three would take two hours.")
    if settings.is_private:
        words.append("Seeded key: the noise is reproducible, so this run is not private.")
    if settings.num_steps < PUBLISHED_STEPS:
        words.append(f"Shortened: {settings.num_steps:,} of the published 10,000 steps.")
    return " ".join(words)


def figures(records: Sequence[Record]) -> dict[str, Figure]:
    mnist = [record for record in records if "SVHN" not in record.row]
    return {
        "frontier": _frontier_figure(mnist),
        "calibration": _calibration_figure(mnist),
    }


def _frontier_figure(records: Sequence[Record]) -> Figure:
    figure, (axes,) = new_figure(width=7.2, height=4.4)
    for label, (wanted, colour, marker) in _GROUPS.items():
        points = sorted(
            (record.certified[AS_RUN], record.measured[ACCURACY])
            for record in records
            if record.certified and wanted(record.row)
        )
        if points:
            at, heights = zip(*points, strict=True)
            axes.plot(at, heights, color=colour, marker=marker, mfc="none", label=label)
    for record in records:
        if "ε" in record.source:
            place = (record.source["ε"], record.source[ACCURACY])
            axes.plot(*place, "x", color=SOURCE)
            text, offset = record.row.removeprefix("MNIST: "), (5, 4)
            axes.annotate(text, place, offset, textcoords="offset points", color=SOURCE, fontsize=8)
    axes.set(xscale="log", xlim=(0.08, 20), xlabel="ε", ylabel="test accuracy (%)")
    axes.legend(loc="lower right")
    return figure


def _calibration_figure(records: Sequence[Record]) -> Figure:
    figure, (left, right) = new_figure(columns=2, width=9.6)
    compared = [record for record in records if record.row in _COMPARED]
    left.plot([0, 1], [0, 1], ":", color=SOURCE)
    for record, colour in zip(compared, PALETTE, strict=False):
        bins = record.series[_RELIABILITY]
        place = bins["confidence"], bins["accuracy"]
        left.plot(*place, color=colour, label=_COMPARED[record.row])
        left.scatter(*place, 120 * np.sqrt(bins["share"]), color=colour)
    left.set(xlabel="confidence", ylabel="accuracy", xlim=(0, 1.02), ylim=(0, 1.02))
    left.legend(loc="upper left")
    draw_bars(right, {_COMPARED[record.row]: record.series[_ENTROPY] for record in compared})
    right.axhline(np.log(10), color=SOURCE, linestyle=":", linewidth=1)
    right.set(ylabel="mean entropy of predictions (nats)")
    return figure


def remarks(records: Sequence[Record]) -> list[str]:
    claims = [
        record for record in records if "ε" in record.source and PUBLISHED in record.certified
    ]
    printed, true = (
        ", ".join(
            f"{format_upper_bound(epsilon)} ({batch:,})"
            for batch, epsilon in epsilon_by_batch(temperature).items()
        )
        for temperature in (PUBLISHED_TEMPERATURE, POSTERIOR_TEMPERATURE)
    )
    return [
        *map(_claim, claims),
        "The slides' DP-SGLD at claimed ε = 0.1, by batch size, which they do not state: the"
        f" certified ε is {printed} with the printed noise, and {true} at temperature 1. It is"
        " above 0.1 for every batch size.",
        *remarks_on_rows(records, _last_state, _SGLD),
        *remarks_on_rows(records, _compare_with_noisy_sgd, _SGLD, _NOISY_SGD),
        *remarks_on_rows(records, _frontier, f"{FRONTIER}ε = 0.1", f"{_NOISY_SGD} at ε = 0.1"),
    ]


def _claim(record: Record) -> str:
    claim, certified = record.source["ε"], record.certified[PUBLISHED]
    data = record.settings["data"]
    known = "their N, T, L" if data == "mnist" else "MNIST's T and L, the whole training part"
    return (
        f"{record.row}: the slides claim ε = {claim:g}; {known} (N ="
        f" {PUBLISHED_SIZES[data]:,}) and printed noise, at step size"
        f" {record.settings['step_size']:g} and batches of {record.settings['batch_size']},"
        f" have certified ε = {format_upper_bound(certified)}. The claim"
        f" {compare_claim(claim, certified)} the certified value."
    )


def _last_state(record: Record) -> str:
    found = record.measured
    return (
        f"DP-SGLD at temperature 1: accuracy {found[ACCURACY]:.2f} % (NLL {found[NLL]:.3f})"
        f" averaged over the kept states, {found[LAST]:.2f} % ({found[NLL_LAST]:.3f}) with the"
        " last state only. The certified ε covers all states, burn-in included. Releasing only"
        " the last state does not lower it: results on hidden steps (privacy amplification by"
        " iteration) require convexity, which does not hold for a network's loss."
    )


def _compare_with_noisy_sgd(chain: Record, point: Record) -> str:
    one, other = chain.measured, point.measured
    return (
        "Private SGLD is DP-SGD with a noise multiplier determined by the step size, a prior, and"
        " averaging over iterates. At the same certified ε ="
        f" {format_upper_bound(chain.certified[AS_RUN])}: accuracy {one[ACCURACY]:.2f} against"
        f" {other[ACCURACY]:.2f} %, NLL {one[NLL]:.3f} against {other[NLL]:.3f}, ECE"
        f" {one['ECE %']:.1f} against {other['ECE %']:.1f} %. The chain's last state has NLL"
        f" {one[NLL_LAST]:.3f}: its difference from DP-SGD is due to the other settings (clip"
        " bound 4 against 1, step sizes, prior), not to posterior averaging."
    )


def _frontier(chain: Record, point: Record) -> str:
    return (
        f"At ε = 0.1, with {chain.settings['num_steps']:,} steps of the"
        f" {chain.settings['network']}: private SGLD at a certified"
        f" {format_upper_bound(chain.certified[AS_RUN])} needs a step size of"
        f" {chain.measured['step size']:.2g} and reaches {chain.measured[ACCURACY]:.1f} % (last"
        f" state {chain.measured[LAST]:.1f} %); the slides report 99.12 %. DP-SGD, whose learning"
        f" rate does not depend on the noise, reaches {point.measured[ACCURACY]:.1f} % with the"
        " same event. More SGLD steps would not help, since ε nearly determines the sum of step"
        " sizes."
    )


def finding(records: Sequence[Record]) -> Finding:
    claims = [r for r in records if "ε" in r.source and PUBLISHED in r.certified]
    low = [r for r in claims if r.source["ε"] < r.certified[PUBLISHED]]
    found = "; ".join(
        f"{r.row} {r.source['ε']:g} claimed, {format_upper_bound(r.certified[PUBLISHED])} certified"
        for r in low
    )
    comparison = compare_published(
        records,
        ACCURACY,
        0.5,
        "published accuracies",
        "points",
        # The quick profile is shortened, and of SVHN a part of the images may be at hand.
        lambda record: record.profile == "paper" and record.row.startswith("MNIST: "),
    )
    return comparison.finding(
        f"ε of the slides' settings: {found}" if low else "no claimed ε is below the certified one",
        bool(low),
    )


def data() -> str:
    return f"{load_images('mnist').name}, {load_images('svhn').name}"
