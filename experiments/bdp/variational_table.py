"""What the variational rows of Table 1 (Abalone, Adult) show alike: rows, results, remarks."""

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from matplotlib.figure import Figure

from dpjax import bdp
from dpjax.datasets import Dataset
from experiments.bdp import variational_source
from experiments.bdp.classifiers import ORDERS
from experiments.bdp.table import ACCURACY, BDP, BDP_ATTACK, DP, DP_ATTACK, published_row
from experiments.bdp.variational_runs import Watched, score, watched_runs
from experiments.dpvi.accounts import mechanism
from experiments.dpvi.sweep import Point
from experiments.lib.figures import CERTIFIED, MEASURED, PALETTE, new_figure
from experiments.lib.registry import Record, Result, Row, RowContext

PLAIN, SOURCE_WAY = "not private", "source's protocol (reconstructed)"
_DELTA, _POPULATION_DELTA = 1e-5, 1e-10
_SEED = 0
_ABOVE, _LARGEST = "norms above the clip %", "largest norm"

DESCRIPTION = (
    "DP ε is certified (PLD) for every record at δ = 1e-5; BDP ε is that of the same steps for"
    " 99.999 % of the records drawn like the data, by the Bayesian accountant at δ_μ = 1e-10 from"
    " the norms that clipping sees; neighbours differ by the presence of one record. An attacker"
    " with a flat prior is right about one record at most e^ε / (1 + e^ε) of the time. The Bayesian"
    " column says nothing of outliers and rests on the assumptions that its certificate lists.\n\n"
    "“The source's protocol (reconstructed)” adds no noise. Its account takes the randomness of the"
    " weights that each step draws from the variational distribution for the noise, as the source"
    " writes (its code for these rows is not published): per step, the distribution with one record"
    " more against the one without it. That would cover the release of one draw for each step, and"
    " nothing of what the steps start from: the fitted distribution itself, which is not released,"
    " remembers every record, and the composition theorem is for steps whose start is known. So no"
    " outlier has any guarantee (DP ε = ∞), and what its BDP ε promises to others is not proven."
    " Releasing the fitted means would be a release without noise.\n\n"
    "The other rows are dpjax.bayes.variational.DPSVI as in dpvi_abalone and dpvi_adult: noise on"
    " clipped sums, everything that is fitted may be released. Predictions are averages over 100"
    " draws of the weights, as in the source. Columns are standardised with all records' means, as"
    " in the published code: a small leak that no ε here counts."
)


@dataclass(frozen=True, eq=False)
class Table:
    """Two rows of Table 1 for one data set.

    Attributes:
      data: the records.
      l2_clip: bound on one log-likelihood's gradient.
      sampling_rate: of the batches.
      num_steps: of each run.
      sigmas: of the rows with noise, by name; over twice the clip, as in Honkela (2017).
      published: accuracy without privacy, accuracy, then DP's epsilon and attack, and BDP's.
      repeats: of the rows with noise, for their accuracy.
    """

    data: Callable[[], Dataset]
    l2_clip: float
    sampling_rate: float
    num_steps: int
    sigmas: Mapping[str, float]
    published: tuple[float, float, tuple[float, float], tuple[float, float]]
    repeats: int
    learning_rate: float = 0.1

    def rows(self, profile: str) -> list[Row]:
        """Not private, the source's protocol, and each noise."""
        del profile
        plain, private, dp, bdp = self.published
        sources = {PLAIN: published_row(plain), SOURCE_WAY: published_row(private, dp, bdp)}
        sigmas: dict[str, float] = {PLAIN: 0.0, SOURCE_WAY: 0.0, **self.sigmas}
        return [
            Row(name, self._settings(sigma), sources.get(name, {}))
            for name, sigma in sigmas.items()
        ]

    def _settings(self, sigma: float) -> dict[str, Any]:
        return {
            "sigma": sigma,
            "l2_clip": self.l2_clip,
            "sampling_rate": self.sampling_rate,
            "num_steps": self.num_steps,
            "learning_rate": self.learning_rate,
            "repeats": self.repeats,
            "delta": _DELTA,
            "seed": _SEED,
        }

    def run_row(self, row: Row, context: RowContext) -> Result:
        """Runs a row, and reads both accounts of the same steps."""
        del context
        note = (
            f"{self.data().note} The first {len(self.data().train.y):,} records train. Seeded keys:"
            " the noise is reproducible, so these runs are not private."
        )
        if row.name == SOURCE_WAY:
            return _source_result(self, note)
        run = _runs(self)[row.settings["sigma"]]
        measured = {ACCURACY: run.accuracies.mean(), _LARGEST: run.norms[run.mask].max()}
        if row.name == PLAIN:
            return Result(measured, {}, note)
        return _noisy_result(self, row.settings["sigma"], run, measured, note)


@functools.cache
def _runs(table: Table) -> dict[float, Watched]:
    """All rows with noise, and the one without privacy: the first to be asked for runs them."""
    sigmas = [0.0, *table.sigmas.values()]
    runs = watched_runs(
        table.data(),
        [Point(sigma, table.l2_clip) for sigma in sigmas],
        sampling_rate=table.sampling_rate,
        num_steps=table.num_steps,
        learning_rate=table.learning_rate,
        repeats=table.repeats,
        seed=_SEED,
    )
    return dict(zip(sigmas, runs, strict=True))


def _noisy_result(
    table: Table, sigma: float, run: Watched, measured: dict[str, Any], note: str
) -> Result:
    num_examples = len(table.data().train.y)
    as_run = mechanism(sigma, table.l2_clip, table.sampling_rate, table.num_steps, num_examples)
    account = bdp.init(as_run, orders=ORDERS)
    account = bdp.update(account, run.norms, run.mask)
    certificate = bdp.certificate(account, _DELTA)
    above = 100 * float((run.norms[run.mask] >= table.l2_clip).mean())
    return Result(
        # A Bayesian epsilon rests on assumptions: it is measured, never certified.
        measured={
            **measured,
            _ABOVE: above,
            BDP: certificate.epsilon.bdp,
            BDP_ATTACK: certificate.attack_success.bdp,
        },
        certified={
            DP: certificate.epsilon.dp,
            DP_ATTACK: certificate.attack_success.dp,
            "DP ε at δ = 1e-10": bdp.epsilon(account, _POPULATION_DELTA).dp,
            "DP ε at δ = 1e-3": bdp.epsilon(account, 1e-3).dp,
        },
        note=f"{note} Accuracies are means over {table.repeats} runs, every ε is that of one run.",
        certificate=str(certificate),
    )


def _source_result(table: Table, note: str) -> Result:
    data = table.data()
    trail = variational_source.run(
        data,
        l2_clip=table.l2_clip,
        sampling_rate=table.sampling_rate,
        num_steps=table.num_steps,
        learning_rate=table.learning_rate,
        seed=_SEED,
    )
    account = variational_source.account(trail, table.sampling_rate, len(data.train.y), ORDERS)
    epsilon = bdp.epsilon(account, _POPULATION_DELTA)
    params = {"mean": trail.mean[None, None, -1], "scale": trail.scale[None, None, -1]}
    keys = jax.random.split(jax.random.key(_SEED), 1)
    accuracy = float(score(params, tuple(data.test), keys)[0, 0])
    return Result(
        measured={
            ACCURACY: accuracy,
            "reconstructed BDP ε": epsilon.bdp,
            "its attack bound": float(bdp.attack_success(epsilon.bdp)),
        },
        certified={DP: epsilon.dp, DP_ATTACK: 1.0},
        note=f"{note} One run; its BDP ε is measured, not certified: see the description.",
    )


def figures(records: Sequence[Record]) -> dict[str, tuple[Figure, str]]:
    """Accuracy against both epsilons of the rows that have both."""
    noisy = [record for record in records if BDP in record.measured]
    if not noisy:
        return {}
    figure, (axes,) = new_figure(width=8.8)
    epsilons = {
        DP: ([record.certified[DP] for record in noisy], CERTIFIED, "s"),
        BDP: ([record.measured[BDP] for record in noisy], MEASURED, "o"),
    }
    for name, (at, colour, marker) in epsilons.items():
        heights = [record.measured[ACCURACY] for record in noisy]
        axes.plot(at, heights, marker, color=colour, markersize=7, label=f"{name}, with noise")
    for record in records:
        if record.row == PLAIN:
            axes.axhline(record.measured[ACCURACY], color="black", linewidth=1, label=PLAIN)
        if record.row == SOURCE_WAY:
            _draw_source_way(axes, record)
    axes.set(xlabel="ε", ylabel="test accuracy (%)", xscale="log")
    figure.legend(loc="outside right center")
    caption = (
        "Accuracy and both ε of the same runs. Crosses: the source's protocol without noise, by the"
        " published and by the reconstructed account, whose differential ε is infinite."
    )
    return {"accounts": (figure, caption)}


def _draw_source_way(axes: Any, record: Record) -> None:
    points = (
        (record.measured["reconstructed BDP ε"], record.measured[ACCURACY], "reconstructed"),
        (record.source[BDP], record.source[ACCURACY], "published"),
    )
    for (epsilon, accuracy, words), colour in zip(points, PALETTE[3:], strict=False):
        axes.plot(
            epsilon, accuracy, "x", color=colour, markersize=8, label=f"no noise, {words} BDP"
        )


def remarks(records: Sequence[Record]) -> list[str]:
    """What the Bayesian column adds, and what differential privacy alone would have cost."""
    return [_compared(record) for record in records if BDP in record.measured]


def _compared(record: Record) -> str:
    dp, bdp = record.certified[DP], record.measured[BDP]
    verdict = (
        "the Bayesian account says more, of records like the data alone"
        if bdp < dp
        else "the Bayesian account adds nothing"
    )
    return (
        f"{record.row}: {record.measured[ACCURACY]:.1f} % right at DP ε ="
        f" {np.ceil(100 * dp) / 100:.2f} for every record; BDP ε = {np.ceil(100 * bdp) / 100:.2f}"
        f" for 99.999 % of those like the data: {verdict}, with {record.measured[_ABOVE]:.0f} % of"
        " the norms above the clip bound."
    )
