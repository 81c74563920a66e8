"""What the two logistic regressions of Honkela (2017) share: their rows, results and remarks."""

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

import dpjax
from dpjax.datasets import Dataset
from dpjax.datasets.preprocessing import Scaling
from experiments.dpvi.accounts import ADD, REPLACE, mechanism, spent
from experiments.dpvi.langevin import chain_accuracies, chain_of
from experiments.dpvi.logistic_runs import accuracies
from experiments.dpvi.sweep import Point
from experiments.lib.registry import Record, Result, Row, RowContext

LANGEVIN_WORDS = (
    "DP-SGLD: dpjax.bayes.sgmcmc.sample at temperature 1, with the same batches, clip and number of"
    " steps, each repeat a chain of its own; its own noise is all that protects, so its step size η"
    " decides ε. Predictions average over every tenth state of the second half. The published"
    " comparison's chains took other steps, noised by a bound of their own."
)
ACCURACY, ERROR = "accuracy %", "standard error %"
PLAIN, LANGEVIN = "not private", "DP-SGLD"
_PUBLIC = "public ranges"
_SEED = 0

Setting = tuple[float, float, float]


@dataclass(frozen=True, eq=False)
class Study:
    """One data set, the published settings, and the accuracies stored with the published code.

    Attributes:
      data: by the way their columns are scaled.
      sampling_rate: q of the main figure.
      clip: c of the main figure, on gradients that the source multiplies by 1/q first.
      num_steps: T of the main figure.
      sigmas: of the main figure, by profile.
      at: the sigma whose certificate is shown, and that public ranges are run with.
      clips: points (c, q, sigma) of the figure on clip bounds.
      clip_steps: T there.
      rates: points (c, q, sigma) of the figure on sampling rates.
      rate_steps: T there.
      step_sizes: of the private Langevin chains beside the main figure's runs.
      published: accuracies (%) by (c, q, sigma, T).
      published_plain: likewise, without privacy.
      repeats: by profile.
    """

    data: Callable[[Scaling], Dataset]
    sampling_rate: float
    clip: float
    num_steps: int
    sigmas: Mapping[str, Sequence[float]]
    at: float
    clips: Sequence[Setting]
    clip_steps: int
    rates: Sequence[Setting]
    rate_steps: int
    step_sizes: Sequence[float]
    published: Mapping[tuple[float, float, float, int], float]
    published_plain: float
    repeats: Mapping[str, int]
    delta: float = 1e-3
    learning_rate: float = 0.1

    def rows(self, profile: str) -> list[Row]:
        """The main figure's rows, then those on clip bounds, sampling rates and public ranges."""
        main = (self.clip, self.sampling_rate)
        sigmas = self.sigmas[profile]
        return [
            self._row(PLAIN, profile, PLAIN, (*main, 0.0), self.num_steps),
            *(
                self._row(f"σ = {sigma:.4g}", profile, "noise", (*main, sigma), self.num_steps)
                for sigma in sigmas
            ),
            *(
                self._row(f"c = {p[0]:g}, σ = {p[2]:g}", profile, "clip", p, self.clip_steps)
                for p in self.clips
            ),
            *(
                self._row(f"q = {p[1]:g}, σ = {p[2]:g}", profile, "rate", p, self.rate_steps)
                for p in self.rates
            ),
            self._row(
                f"{_PUBLIC}, σ = {self.at:.4g}", profile, _PUBLIC, (*main, self.at), self.num_steps
            ),
            *(self._langevin_row(profile, step_size) for step_size in self.step_sizes),
        ]

    def _langevin_row(self, profile: str, step_size: float) -> Row:
        name = f"{LANGEVIN}, η = {step_size:g}"
        point = (self.clip, self.sampling_rate, 0.0)
        row = self._row(name, profile, LANGEVIN, point, self.num_steps)
        own = {name: value for name, value in row.settings.items() if name != "sigma"}
        return Row(name, {**own, "learning_rate": step_size}, {})

    def _row(self, name: str, profile: str, part: str, point: Setting, num_steps: int) -> Row:
        clip, sampling_rate, sigma = point
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
        return Row(name, settings, self._source(part, (*point, num_steps)))

    def _source(self, part: str, key: tuple[float, float, float, int]) -> dict[str, float]:
        if part == PLAIN:
            return {ACCURACY: self.published_plain}
        known = [value for at, value in self.published.items() if np.allclose(at, key, rtol=1e-3)]
        return {ACCURACY: known[0]} if known and part != _PUBLIC else {}

    def run_row(self, row: Row, context: RowContext) -> Result:
        """Runs all repeats of a row."""
        settings = row.settings
        public = settings["part"] == _PUBLIC
        data = self.data(_scaling(settings))
        if settings["part"] == LANGEVIN:
            return _langevin_result(data, settings)
        found = _runs(self, context.profile, _program(settings))[_point(settings)]
        measured, note = _measured(found), _note(data)
        if settings["part"] == PLAIN:
            return Result(measured, {}, note)
        as_run = mechanism_of(settings, len(data.train.y))
        costs = spent(as_run, settings["delta"])
        shown = public or (settings["part"] == "noise" and settings["sigma"] == self.at)
        certificate = str(as_run.certificate(settings["delta"])) if shown else ""
        return Result({**measured, **costs.claimed}, costs.certified, note, certificate=certificate)


def _measured(accuracies: np.ndarray) -> dict[str, Any]:
    error = accuracies.std(ddof=1) / np.sqrt(len(accuracies))
    return {ACCURACY: accuracies.mean(), ERROR: error}


def _note(data: Dataset) -> str:
    return (
        f"{data.note} Trained on the first {len(data.train.y):,} records, tested on the other"
        f" {len(data.test.y):,}, as in the published code. Seeded keys: the noise is"
        " reproducible, so these runs are not private. Every ε is that of one run."
    )


def _langevin_result(data: Dataset, settings: Mapping[str, Any]) -> Result:
    chain = chain_of(
        len(data.train.y),
        l2_clip(settings),
        settings["sampling_rate"],
        settings["num_steps"],
        settings["learning_rate"],
    )
    found = chain_accuracies(data, chain, settings["repeats"], settings["seed"])
    costs = spent(chain.gaussian, settings["delta"])
    return Result({**_measured(found), **costs.claimed}, costs.certified, _note(data))


class _Program(NamedTuple):
    """What rows must share to be run together."""

    scaling: Scaling
    sampling_rate: float
    num_steps: int


def _program(settings: Mapping[str, Any]) -> _Program:
    return _Program(_scaling(settings), settings["sampling_rate"], settings["num_steps"])


def _scaling(settings: Mapping[str, Any]) -> Scaling:
    return "public" if settings["part"] == _PUBLIC else "published"


def _point(settings: Mapping[str, Any]) -> Point:
    return Point(settings["sigma"], l2_clip(settings))


@functools.cache
def _runs(study: Study, profile: str, program: _Program) -> dict[Point, np.ndarray]:
    """The accuracies of all rows of one program: the first of them to be asked for runs them."""
    points = _points(study, profile)
    # Points repeated for nothing, so that other data or numbers of steps need no new compilation.
    spare = max(map(len, points.values())) - len(points[program])
    found = accuracies(
        study.data(program.scaling),
        points[program] + points[program][-1:] * spare,
        sampling_rate=program.sampling_rate,
        num_steps=program.num_steps,
        learning_rate=study.learning_rate,
        repeats=study.repeats[profile],
        seed=_SEED,
    )
    return dict(zip(points[program], found, strict=False))


def _points(study: Study, profile: str) -> dict[_Program, list[Point]]:
    """Every program's points, each once."""
    points: dict[_Program, list[Point]] = {}
    for row in study.rows(profile):
        if row.settings["part"] == LANGEVIN:
            continue
        known = points.setdefault(_program(row.settings), [])
        if _point(row.settings) not in known:
            known.append(_point(row.settings))
    return points


def l2_clip(settings: Mapping[str, Any]) -> float:
    """Returns the bound on a plain gradient: the source clips gradients multiplied by 1/q.

    >>> l2_clip({"c": 75, "sampling_rate": 0.005})
    0.375
    """
    return float(settings["c"] * settings["sampling_rate"])


def mechanism_of(settings: Mapping[str, Any], num_examples: int) -> dpjax.SubsampledGaussian:
    """Returns the mechanism of a row's runs, for add/remove."""
    return mechanism(
        settings["sigma"],
        l2_clip(settings),
        settings["sampling_rate"],
        settings["num_steps"],
        num_examples,
    )


def remarks(records: Sequence[Record]) -> list[str]:
    """How far the measured accuracies are from the published ones, and what the accounts differ."""
    noisy = [record for record in records if record.settings["part"] == "noise"]
    return _gaps(records) + [remark for record in noisy[:1] for remark in _accounts_remark(record)]


def _gaps(records: Sequence[Record]) -> list[str]:
    """The distance from the published accuracies, at each sampling rate."""
    known = [record for record in records if ACCURACY in record.source]
    rates = sorted({record.settings["sampling_rate"] for record in known}, reverse=True)
    return [_gap([r for r in known if r.settings["sampling_rate"] == rate]) for rate in rates]


def _gap(records: Sequence[Record]) -> str:
    gaps = [record.measured[ACCURACY] - record.source[ACCURACY] for record in records]
    farthest = records[int(np.argmax(np.abs(gaps)))]
    return (
        f"At q = {farthest.settings['sampling_rate']:g} accuracies are {min(gaps):+.1f} to"
        f" {max(gaps):+.1f} points from the {len(records)} stored with the published code; farthest"
        f" at {farthest.row}."
    )


def _accounts_remark(record: Record) -> list[str]:
    claimed, certified = record.measured, record.certified
    return [
        f"{record.row}: the source's moments accountant reads ε ="
        f" {claimed[f'MA ε, {REPLACE}']:.2f} (replace one, at δ/2), its advanced composition"
        f" {claimed[f'AC ε, {REPLACE}']:.0f}; certified {certified[f'ε, {REPLACE}']:.2f}"
        f" (replace one) and {certified[f'ε, {ADD}']:.2f} (add/remove), at δ, of the same runs."
    ]
