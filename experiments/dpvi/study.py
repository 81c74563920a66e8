"""Rows, results, figures, findings and remarks of the logistic regressions of Honkela (2017)."""

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

import dpjax
from experiments.data import Dataset, Scaling
from experiments.dpvi.inference import ADD, REPLACE, Point, compute_epsilons, make_mechanism
from experiments.dpvi.logistic import (
    chain_accuracies,
    make_chain,
    source_accuracies,
    svi_accuracies,
)
from experiments.lib.figures import CERTIFIED, MEASURED, PALETTE, SOURCE, new_figure
from experiments.lib.plots import draw_column
from experiments.lib.registry import Finding, Record, Result, Row, RowContext, Values
from experiments.lib.sweeps import column, mean_and_error
from experiments.lib.verdicts import compare_published, group_by

ACCURACY, ERROR = "accuracy %", "standard error %"
SOURCE_STEP = "accuracy %, source's step"
PLAIN, LANGEVIN = "not private", "DP-SGLD"
_PUBLIC = "public ranges"
_TOLERANCE = 0.5  # points of accuracy
_SEED = 0

# Clip bound c, sampling rate q, σ and number of steps T of a run.
Setting = tuple[float, float, float, int]


@dataclass(frozen=True, eq=False)
class Study:
    """One data set with the published settings and accuracies."""

    data: Callable[[Scaling], Dataset]  # data set for a scaling of the columns
    sampling_rate: float
    clip: float  # c of the main figure, on gradients multiplied by 1/q
    num_steps: int
    sigmas: Mapping[str, Sequence[float]]  # of the main figure, by profile
    at: float  # σ of the row with public ranges; its certificate is shown
    clips: Sequence[Setting]  # settings of the figure on clip bounds
    rates: Sequence[Setting]  # settings of the figure on sampling rates
    step_sizes: Sequence[float]  # of the DP-SGLD chains
    published: Mapping[Setting, float]  # accuracies (%) by setting
    published_plain: float  # accuracy (%) without privacy
    repeats: Mapping[str, int]
    delta: float = 1e-3
    learning_rate: float = 0.1

    def rows(self, profile: str) -> list[Row]:
        """Returns rows on noise, clip bounds, sampling rates, public ranges and DP-SGLD."""

        def main(sigma: float) -> Setting:
            return self.clip, self.sampling_rate, sigma, self.num_steps

        named = [
            (PLAIN, PLAIN, main(0.0)),
            *((f"σ = {sigma:.4g}", "noise", main(sigma)) for sigma in self.sigmas[profile]),
            *((f"c = {each[0]:g}, σ = {each[2]:g}", "clip", each) for each in self.clips),
            *((f"q = {each[1]:g}, σ = {each[2]:g}", "rate", each) for each in self.rates),
            (f"{_PUBLIC}, σ = {self.at:.4g}", _PUBLIC, main(self.at)),
        ]
        rows = [self._row(profile, *each) for each in named]
        settings = {k: value for k, value in rows[0].settings.items() if k != "sigma"}
        chains = [
            Row(
                f"{LANGEVIN}, η = {step_size:g}",
                {**settings, "part": LANGEVIN, "learning_rate": step_size},
                {},
            )
            for step_size in self.step_sizes
        ]
        return rows + chains

    def _row(self, profile: str, name: str, part: str, setting: Setting) -> Row:
        clip, sampling_rate, sigma, num_steps = setting
        settings = {
            "part": part,
            "sigma": sigma,
            "c": clip,
            "sampling_rate": sampling_rate,
            "num_steps": num_steps,
            "learning_rate": self.learning_rate,
            "delta": self.delta,
            "repeats": self.repeats[profile],
            "seed": _SEED,
        }
        if part == PLAIN:
            return Row(name, settings, {ACCURACY: self.published_plain})
        known = [
            value for at, value in self.published.items() if np.allclose(at, setting, rtol=1e-3)
        ]
        return Row(name, settings, {ACCURACY: known[0]} if known and part != _PUBLIC else {})

    def run_row(self, row: Row, context: RowContext) -> Result:
        """Runs all repeats of a row; rows of one compiled program run together."""
        settings, part = row.settings, row.settings["part"]
        data = self.data(_scaling(settings))
        if part == LANGEVIN:
            chain = make_chain(
                len(data.train.y),
                l2_clip(settings),
                settings["sampling_rate"],
                settings["num_steps"],
                settings["learning_rate"],
            )
            mechanism = chain.gaussian
            accuracies = chain_accuracies(data, chain, settings["repeats"], settings["seed"])
        else:
            mechanism = row_mechanism(settings, len(data.train.y))
            accuracies = _runs(self, context.profile, _program(settings))[_point(settings)]
        measured = dict(zip((ACCURACY, ERROR), mean_and_error(accuracies), strict=True))
        if part in ("clip", "rate") and ACCURACY in row.source:
            runs = _source_runs(self, context.profile, settings["sampling_rate"])
            measured[SOURCE_STEP] = float(runs[_point(settings)].mean())
        note = (
            f"{data.note} Trained on the first {len(data.train.y):,} records, tested on the other"
            f" {len(data.test.y):,}, as in the published code. Seeded keys: the noise is"
            " reproducible, so these runs are not private. Every ε is that of one run."
        )
        if part == PLAIN:
            return Result(measured, {}, note)
        epsilons = compute_epsilons(mechanism, settings["delta"])
        shown = part == _PUBLIC or (part == "noise" and settings["sigma"] == self.at)
        return Result(
            {**measured, **epsilons.claimed},
            epsilons.certified,
            note,
            certificate=str(mechanism.certificate(settings["delta"])) if shown else "",
        )


class _Program(NamedTuple):
    """Settings shared by rows that run together."""

    scaling: Scaling
    sampling_rate: float
    num_steps: int


def _program(settings: Values) -> _Program:
    return _Program(_scaling(settings), settings["sampling_rate"], settings["num_steps"])


def _scaling(settings: Values) -> Scaling:
    return "public" if settings["part"] == _PUBLIC else "published"


def _point(settings: Values) -> Point:
    return Point(settings["sigma"], l2_clip(settings))


def l2_clip(settings: Values) -> float:
    """Returns the clip bound on unscaled gradients; the source's c is on gradients over q.

    >>> l2_clip({"c": 75, "sampling_rate": 0.005})
    0.375
    """
    return float(settings["c"] * settings["sampling_rate"])


def row_mechanism(settings: Values, num_examples: int) -> dpjax.SubsampledGaussian:
    """Returns the mechanism of a row's runs under add/remove."""
    rate, num_steps = settings["sampling_rate"], settings["num_steps"]
    point = _point(settings)
    return make_mechanism(point.sigma, point.l2_clip, rate, num_steps, num_examples)


@functools.cache
def _runs(study: Study, profile: str, program: _Program) -> dict[Point, np.ndarray]:
    """Returns the accuracies at all points of one program, computed together."""
    points: dict[_Program, list[Point]] = {}
    for row in study.rows(profile):
        if row.settings["part"] != LANGEVIN:
            known = points.setdefault(_program(row.settings), [])
            if _point(row.settings) not in known:
                known.append(_point(row.settings))
    # Padded to one length, so that programs share their compilation.
    spare = max(map(len, points.values())) - len(points[program])
    found = svi_accuracies(
        study.data(program.scaling),
        points[program] + points[program][-1:] * spare,
        sampling_rate=program.sampling_rate,
        num_steps=program.num_steps,
        learning_rate=study.learning_rate,
        repeats=study.repeats[profile],
        seed=_SEED,
    )
    return dict(zip(points[program], found, strict=False))


@functools.cache
def _source_runs(study: Study, profile: str, sampling_rate: float) -> dict[Point, np.ndarray]:
    """Returns the accuracies of the source's own step at the published points of one rate."""
    rows = [row for row in study.rows(profile) if row.settings["part"] in ("clip", "rate")]
    settings = [row.settings for row in rows if row.settings["sampling_rate"] == sampling_rate]
    points = list(dict.fromkeys(_point(each) for each in settings))
    found = source_accuracies(
        study.data("published"),
        points,
        sampling_rate=sampling_rate,
        num_steps=study.num_steps,
        learning_rate=study.learning_rate,
        repeats=study.repeats[profile],
        seed=_SEED,
    )
    return dict(zip(points, found, strict=True))


def figures(records: Sequence[Record]) -> dict[str, Figure]:
    """Draws accuracy against ε by three accountants, clip bound and sampling rate."""
    parts = group_by(records, "part")
    drawn = {}
    if "noise" in parts:
        drawn["accuracy"] = _accuracy_figure(parts)
    if "clip" in parts and "rate" in parts:
        drawn["settings"] = _settings_figure(parts)
    return drawn


def _accuracy_figure(parts: Mapping[str, list[Record]]) -> Figure:
    figure, (left, right) = new_figure(columns=2, width=9.6, height=4.2)
    records = parts["noise"]
    for axes, adjacency in ((left, REPLACE), (right, ADD)):
        for name, colour, label in (
            ("ε", CERTIFIED, "certified"),
            ("MA ε", MEASURED, "moments accountant"),
            ("AC ε", PALETTE[1], "advanced composition"),
        ):
            epsilon = f"{name}, {adjacency}"
            draw_column(axes, records, epsilon, ACCURACY, ERROR, color=colour, label=label)
        if chains := parts.get(LANGEVIN):
            style = {"color": PALETTE[3], "label": f"{LANGEVIN}, certified"}
            draw_column(axes, chains, f"ε, {adjacency}", ACCURACY, ERROR, **style)
        _draw_plain(axes, parts)
        axes.set(xscale="log", xlabel=f"ε, {adjacency}", ylabel="test accuracy (%)")
    if known := [record for record in records if ACCURACY in record.source]:
        accuracies = [record.source[ACCURACY] for record in known]
        epsilons = column(known, f"MA ε, {REPLACE}")
        left.plot(epsilons, accuracies, "x", color=SOURCE, markersize=7, label="published")
    left.legend(loc="lower right")
    right.sharey(left)
    return figure


def _draw_plain(axes: Axes, parts: Mapping[str, list[Record]]) -> None:
    for accuracy in column(parts.get(PLAIN, []), ACCURACY):
        axes.axhline(accuracy, color=SOURCE, linewidth=1)


def _settings_figure(parts: Mapping[str, list[Record]]) -> Figure:
    figure, panels = new_figure(columns=2, width=9.6, height=3.8)
    names = (
        ("clip", "c", "clip bound c of the source"),
        ("rate", "sampling_rate", "sampling rate q"),
    )
    for axes, (part, setting, label) in zip(panels, names, strict=True):
        by_sigma = group_by(parts[part], "sigma")
        for (sigma, records), colour in zip(sorted(by_sigma.items()), PALETTE, strict=False):
            style: dict[str, Any] = {"color": colour, "label": f"σ = {sigma:g}"}
            draw_column(axes, records, setting, ACCURACY, ERROR, **style)
            known = [record for record in records if ACCURACY in record.source]
            accuracies = [record.source[ACCURACY] for record in known]
            style = {"color": colour, "alpha": 0.5, "linewidth": 1}
            axes.plot(column(known, setting), accuracies, "x--", **style)
        _draw_plain(axes, parts)
        axes.set(xlabel=label, ylabel="test accuracy (%)")
        axes.set_xticks(sorted(set(column(parts[part], setting))))
        axes.legend(loc="lower right")
    return figure


def remarks(records: Sequence[Record]) -> list[str]:
    """Compares with published accuracies by sampling rate, and claimed with certified ε."""
    published = group_by([r for r in records if ACCURACY in r.source], "sampling_rate")
    gaps = [_gap_remark(group) for _, group in sorted(published.items(), reverse=True)]
    for record in group_by(records, "part").get("noise", [])[:1]:
        claimed, certified = record.measured, record.certified
        gaps.append(
            f"{record.row}: the source's moments accountant gives ε ="
            f" {claimed[f'MA ε, {REPLACE}']:.2f} (replace one, at δ/2), its advanced composition"
            f" {claimed[f'AC ε, {REPLACE}']:.0f}; certified {certified[f'ε, {REPLACE}']:.2f}"
            f" (replace one) and {certified[f'ε, {ADD}']:.2f} (add/remove), at δ, of the same runs."
        )
    return gaps


def _gap_remark(records: Sequence[Record]) -> str:
    gaps = [record.measured[ACCURACY] - record.source[ACCURACY] for record in records]
    farthest = records[int(np.argmax(np.abs(gaps)))]
    remark = (
        f"At q = {farthest.settings['sampling_rate']:g} accuracies differ by {min(gaps):+.1f} to"
        f" {max(gaps):+.1f} points from the {len(records)} published ones; largest difference at"
        f" {farthest.row}."
    )
    steps = _source_step_gaps(records)
    if not steps:
        return remark
    return (
        f"{remark} With the source's own step, which clips the gradients of prior and entropy"
        " together with each record's log-likelihood, so that they are shrunk as much, they differ"
        f" by {min(steps):+.1f} to {max(steps):+.1f} points. dpjax leaves prior and entropy, which"
        " depend on no record, unclipped."
    )


def finding(records: Sequence[Record]) -> Finding:
    """Compares with the published accuracies, and the claimed with the certified ε."""
    claims = [record for record in records if f"MA ε, {REPLACE}" in record.measured]
    below = sum(r.certified[f"ε, {REPLACE}"] <= r.measured[f"MA ε, {REPLACE}"] for r in claims)
    sentence = (
        f"the certified ε is below the source's moments accountant in {below} of {len(claims)} rows"
    )
    if gaps := _source_step_gaps(records):
        close = sum(abs(gap) <= _TOLERANCE for gap in gaps)
        sentence = f"{close} of {len(gaps)} with the source's own step; {sentence}"
    comparison = compare_published(records, ACCURACY, _TOLERANCE, "published accuracies", "points")
    return comparison.finding(sentence)


def _source_step_gaps(records: Sequence[Record]) -> list[float]:
    """Returns accuracies of the source's own step minus the published ones, in points."""
    known = [r for r in records if SOURCE_STEP in r.measured and ACCURACY in r.source]
    return [record.measured[SOURCE_STEP] - record.source[ACCURACY] for record in known]
