"""Training of one network with and without privacy over several seeds (Adult and IMDb)."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import flax.linen as nn
import numpy as np
import optax
from matplotlib.figure import Figure

import dpjax
from experiments.data import Dataset, Split
from experiments.lib.figures import CERTIFIED, MEASURED, PALETTE, SOURCE, new_figure
from experiments.lib.formatting import format_value
from experiments.lib.models import accuracy_percent
from experiments.lib.plots import draw_curve, set_epoch_axis
from experiments.lib.registry import Finding, Record, Result, Values
from experiments.lib.training import (
    ShuffledEpochs,
    Training,
    classification,
    initialize,
    stack_curves,
    train,
)
from experiments.lib.verdicts import Comparison, compare_claim, format_upper_bound, join_row_names


def compute_accounts(
    mechanism: dpjax.SubsampledGaussian, delta: float
) -> tuple[dict[str, Any], float]:
    """Returns epsilon by the source's accountants, by column, and the certified epsilon.

    >>> sampling = dpjax.PoissonSampling(29_305, 256 / 29_305)
    >>> mechanism = dpjax.SubsampledGaussian(
    ...     sampling, l2_clip=1.0, noise_multiplier=0.55, num_steps=2060, adjacency="zero_out"
    ... )
    >>> costs, certified = compute_accounts(mechanism, delta=1e-5)
    >>> round(costs["CLT μ"], 2), round(costs["CLT ε"], 2), round(certified, 2)
    (2.03, 10.2, 11.81)
    """
    certificate = mechanism.certificate(delta)
    epsilon = {estimate.method: estimate.epsilon for estimate in certificate.estimates}
    costs = {
        "CLT μ": float(dpjax.accounting.gdp.mu_of_event(mechanism.event, mechanism.adjacency)),
        "CLT ε": epsilon["gdp_clt"],
        "MA ε": epsilon["moments"],
        "Rényi ε, improved": epsilon["rdp"],
    }
    return costs, certificate.epsilon


def account_remarks(row: str, clt: float, costs: Values, certified: float) -> list[str]:
    """Compares the source's accountants of one row with the certified epsilon."""
    return [
        f"{row}: the source's CLT ε = {clt:.2f}, an approximation, {compare_claim(clt, certified)}"
        f" the certified ε = {format_upper_bound(certified)}.",
        f"{row}: the moments accountant is loose because of its conversion from Rényi DP: ε ="
        f" {costs['MA ε']:.2f}, or {costs['Rényi ε, improved']:.2f} with the improved conversion.",
    ]


def account_finding(
    comparison: Comparison, records: Sequence[Record], certified: str, remark: str = ""
) -> Finding:
    """Returns a comparison's finding, with rows whose published CLT ε is below the certified."""
    claims = [r for r in records if "CLT ε" in r.source and certified in r.certified]
    low = join_row_names(claims, lambda r: r.source["CLT ε"] < r.certified[certified])
    limit = (
        f"the published CLT ε is below the certified ε, hence no upper bound (rows: {low})"
        if low
        else "the published CLT ε is not below the certified ε in any row"
    )
    return comparison.finding("; ".join(filter(None, [remark, limit])), bool(low))


ACCURACY = "test accuracy %"
CERTIFIED_EPSILON = "ε, published size"
_ACCURACY_CURVES, _EPSILON_CURVES = "accuracy % by epoch, each seed", "ε by epoch"


@dataclass(frozen=True)
class PrivateSettings:
    """Settings of DP-SGD with Poisson batches, one run for each seed."""

    learning_rate: float
    l2_clip: float
    noise_multiplier: float
    epochs: int
    expected_batch_size: int
    delta: float = 1e-5
    seeds: tuple[int, ...] = (0, 1, 2)

    def mechanism(self, num_examples: int, unit: str) -> dpjax.SubsampledGaussian:
        """Returns the mechanism of ``floor(epochs n / B)`` steps, under zero-out."""
        return dpjax.SubsampledGaussian(
            sampling=dpjax.PoissonSampling(num_examples, self.expected_batch_size / num_examples),
            l2_clip=self.l2_clip,
            noise_multiplier=self.noise_multiplier,
            num_steps=self.epochs * num_examples // self.expected_batch_size,
            adjacency="zero_out",
            unit=unit,
        )


@dataclass(frozen=True)
class PlainSettings:
    """Settings of SGD without privacy on shuffled batches, one run for each seed."""

    learning_rate: float
    epochs: int
    batch_size: int
    seeds: tuple[int, ...] = (0, 1, 2)


class Problem(NamedTuple):
    """A classification problem."""

    model: nn.Module  # from features to logits
    optimizer: Callable[[float], optax.GradientTransformation]  # from a learning rate
    data: Dataset  # to train and to test on
    unit: str  # the unit of privacy, in words
    published_size: int  # number of training records that the source had
    # further parts to test on, by column of the table
    other_tests: Mapping[str, Split] = MappingProxyType({})


def fit(
    problem: Problem, settings: PrivateSettings | PlainSettings, folder: Path
) -> list[Training]:
    """Trains the network once for each seed; a private run resumes from ``folder``."""
    data = problem.data
    if isinstance(settings, PlainSettings):
        plan: ShuffledEpochs | dpjax.SubsampledGaussian = ShuffledEpochs(
            settings.epochs, settings.batch_size
        )
    else:
        plan = settings.mechanism(len(data.train.y), problem.unit)
    task = classification(problem.model, data, problem.optimizer(settings.learning_rate))
    runs = []
    for seed in settings.seeds:
        key, params = initialize(problem.model, data.train.x[:1], seed)
        runs.append(train(key, task, params, plan, folder=folder / str(seed)))
    return runs


def summarize(accuracies: Sequence[float]) -> dict[str, Any]:
    """Returns the mean and the range of accuracies, by column.

    >>> summarize([84.0, 85.0])
    {'test accuracy %': 84.5, 'lowest, highest %': [84.0, 85.0]}
    """
    mean = sum(accuracies) / len(accuracies)
    return {ACCURACY: mean, "lowest, highest %": [min(accuracies), max(accuracies)]}


def run(problem: Problem, arguments: Values, folder: Path) -> Result:
    """Trains with a row's settings, privately if they have noise, and returns its result.

    Epsilon by the source's accountants is for the published size; certified epsilon is also for the
    size that was run.
    """
    private = "noise_multiplier" in arguments
    settings = PrivateSettings(**arguments) if private else PlainSettings(**arguments)
    runs, score = fit(problem, settings, folder), accuracy_percent(problem.model)
    accuracies = summarize([training.curve[-1][1] for training in runs])
    for column, part in problem.other_tests.items():
        accuracies[column] = float(np.mean([score(training.params, part) for training in runs]))
    note, curves = problem.data.note, {_ACCURACY_CURVES: stack_curves(runs).tolist()}
    if isinstance(settings, PlainSettings):
        return Result(accuracies, {}, note, curves)
    published = settings.mechanism(problem.published_size, problem.unit)
    as_run = settings.mechanism(len(problem.data.train.y), problem.unit).certificate(settings.delta)
    costs, certified = compute_accounts(published, settings.delta)
    epsilons: dict[str, list[tuple[int, float]]] = {"certified": [], "MA ε": [], "CLT ε": []}
    for epoch in range(1, settings.epochs + 1):
        shorter = dataclasses.replace(settings, epochs=epoch)
        mechanism = shorter.mechanism(problem.published_size, problem.unit)
        values, tight = compute_accounts(mechanism, settings.delta)
        for name, curve in epsilons.items():
            curve.append((epoch, values.get(name, tight)))
    return Result(
        measured={**accuracies, **costs},
        certified={CERTIFIED_EPSILON: certified, "ε, as run": as_run.epsilon},
        note=f"{note} Every ε is that of one run; accuracies are means over seeds. Seeded keys:"
        " the noise is reproducible, so these runs are not private.",
        series={**curves, _EPSILON_CURVES: epsilons},
        certificate=str(as_run),
    )


def training_figure(records: Sequence[Record], published: Mapping[str, float]) -> Figure:
    """Draws accuracy by epoch of the trained rows, and epsilon by epoch of a private one."""
    figure, (left, right) = new_figure(columns=2, width=9.6)
    trained = [record for record in records if _ACCURACY_CURVES in record.series]
    for record, colour in zip(trained, PALETTE, strict=False):
        curves = np.array(record.series[_ACCURACY_CURVES])
        epochs, accuracies = curves[0, :, 0], curves[:, :, 1]
        band = accuracies.min(axis=0), accuracies.max(axis=0)
        style = {"color": colour, "label": record.row, "marker": ""}
        draw_curve(left, epochs, accuracies.mean(axis=0), band, **style)
        if record.row in published:
            left.axhline(published[record.row], color=colour, linestyle=":", linewidth=1)
    left.set_ylabel("test accuracy (%)")
    for record in [record for record in trained if record.certified][:1]:
        colours = {"MA ε": SOURCE, "certified": CERTIFIED, "CLT ε": MEASURED}
        for name, colour in colours.items():
            points = zip(*record.series[_EPSILON_CURVES][name], strict=True)
            right.plot(*points, color=colour, label=name)
        delta = format_value(record.settings["delta"])
        right.set(ylabel=f"{record.row}: ε at δ = {delta}", ylim=(0, None))
    for axes in (left, right):
        axes.legend(loc="lower right")
        set_epoch_axis(axes)
    return figure


def mean_accuracy(record: Record, epoch: int) -> float:
    """Returns the mean test accuracy over seeds at one evaluation."""
    return float(np.mean([curve[epoch][1] for curve in record.series[_ACCURACY_CURVES]]))


def private_remarks(record: Record) -> list[str]:
    """Compares the source's accountants of a private row with the certified epsilon."""
    measured, certified = record.measured, record.certified[CERTIFIED_EPSILON]
    return account_remarks(record.row, measured["CLT ε"], measured, certified)
