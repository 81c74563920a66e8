"""What a rehearsal returns: the chosen setting, what it will be worth, and what it would take."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np
import numpy.typing as npt
import optax

from dpjax.certificates.figure import new_figure
from dpjax.certificates.render import Report, Table
from dpjax.mechanisms.subsampled_gaussian import SubsampledGaussian
from dpjax.rehearsal.calibration import Calibration
from dpjax.rehearsal.stepped_runs import Setting, Trace

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Array = npt.NDArray[np.float64]

# Settings in the printed table.
_NUM_SHOWN = 5
# Of the gain over a constant result without privacy: what makes a result useful by default.
_USEFUL_SHARE = 0.5
# Regrets count up to this; gains of less than this share of the least error are none.
_MOST_REGRET, _LEAST_GAIN = 2.0, 0.1
# A larger ratio of noise to signal is not measured.
_LARGEST_RATIO = 10.0
# Worlds disagree where the regret of the chosen setting is above this in one of them.
_LARGE_REGRET = 0.5
# Share of clipped records, at which noise-aware posteriors begin to miss.
_LARGEST_CLIPPED = 0.01
_PRIVATE, _CONSTANT, _NOT_PRIVATE = "#0072b2", "#6b6f76", "#009e73"


class Curve(NamedTuple):
    """Error against epsilon, in simulated worlds that were not used to choose the settings.

    Attributes:
      epsilons: increasing; infinite without noise and clipping.
      errors: of each epsilon, by world.
      constants: the error of a constant result, by world; NaN where it is not known.
      noise_multipliers: by epsilon, ``None`` where the method has none.
    """

    epsilons: tuple[float, ...]
    errors: tuple[tuple[float, ...], ...]
    constants: tuple[float, ...]
    noise_multipliers: tuple[float | None, ...]

    def at(self, epsilon: float) -> tuple[float, ...]:
        """Returns the errors at one of the epsilons, by world.

        Args:
          epsilon: one of ``epsilons``.
        """
        return self.errors[self.epsilons.index(epsilon)]


def relative_regrets(errors: Array, constants: Array) -> Array:
    """Returns the errors less the least of their world, in units of what the best gains there.

    That is on a constant result; of the least error itself where none is known. At most two; NaN
    where a setting was not run.

    Args:
      errors: ``(settings, worlds)``, infinite where a run diverged, NaN where there was none.
      constants: errors of a constant result by world, NaN where it is not known.
    """
    least = np.min(np.where(np.isnan(errors), np.inf, errors), 0)
    gain = np.where(np.isnan(constants), np.abs(least), constants - least)
    unit = np.maximum(gain, _LEAST_GAIN * np.abs(least) + 1e-12)
    with np.errstate(invalid="ignore"):
        regrets = np.minimum((errors - least) / unit, _MOST_REGRET)
    return np.where(np.isinf(errors), _MOST_REGRET, regrets)


@dataclass(frozen=True, eq=False, kw_only=True)
class Rehearsal(Report):
    """The result of `dpjax.rehearse`: prints, plots, and holds mechanism and optimiser.

    Attributes:
      num_examples: number of records n.
      epsilon: of the budget.
      delta: of the budget.
      settings: all that were tried.
      errors: of the settings, by world; NaN where they were dropped before.
      constants: errors of a constant result, by world.
      best: number of the chosen setting.
      curve: error by epsilon, in other worlds.
      asked_target: the error that makes a result useful, if it was given.
      trace: what was clipped and noised by step with the chosen setting, ``None`` for a `Release`.
      calibration: ranks of the truth among posterior draws, where there is a posterior.
      step_cost: seconds and bytes of a step as it will be made, compiled; ``None`` for a `Release`.
      seconds: that the rehearsal took.
      is_complete: whether all was simulated in the time allowed.
      mechanism: calibrated to the budget, for `dpjax.train` or `DPSVI`; ``None`` for a `Release`.
      optimizer: at the chosen learning rate.
    """

    caveats_heading: ClassVar[str] = "Warnings and limits"

    num_examples: int
    epsilon: float
    delta: float
    settings: tuple[Any, ...]
    errors: Array = field(repr=False)
    constants: Array = field(repr=False)
    best: int
    curve: Curve
    asked_target: float | None
    trace: Trace | None = field(repr=False)
    calibration: Calibration | None = field(repr=False)
    step_cost: tuple[float, int] | None
    seconds: float
    is_complete: bool
    mechanism: SubsampledGaussian | None
    optimizer: optax.GradientTransformation | None = field(repr=False)

    @property
    def setting(self) -> Any:
        """The chosen setting: a `Setting`, or the arguments of a `Release`."""
        return self.settings[self.best]

    @property
    def regrets(self) -> Array:
        """Of each setting in each world: see `relative_regrets`."""
        return relative_regrets(self.errors, self.constants)

    @property
    def error(self) -> float:
        """Mean error of the chosen setting, in worlds that took no part in the choice."""
        return float(np.mean(self.curve.at(self.epsilon)))

    @property
    def constant_error(self) -> float:
        """Mean error of a constant result; NaN where it is not known."""
        return float(np.mean(self.curve.constants))

    @property
    def target(self) -> float:
        """The error that makes a result useful: as asked for, or half of what can be gained.

        That is halfway from the error of a constant result to the least without privacy (of a
        `Release`: at the largest epsilon simulated).
        """
        if self.asked_target is not None:
            return self.asked_target
        best = float(np.mean(self.curve.errors[-1]))
        return self.constant_error + _USEFUL_SHARE * (best - self.constant_error)

    @property
    def needed_epsilon(self) -> float | None:
        """The least epsilon at which the error is at most ``target``, between those simulated.

        Zero where the least simulated is enough, infinite where the largest is not, ``None`` where
        no constant error is known and no target was given.
        """
        if math.isnan(self.target):
            return None
        finite = [i for i, epsilon in enumerate(self.curve.epsilons) if math.isfinite(epsilon)]
        logs = np.log([self.curve.epsilons[i] for i in finite])
        # The error falls with epsilon; what rises is noise of the simulation.
        means = np.minimum.accumulate([np.mean(self.curve.errors[i]) for i in finite])
        reached = np.flatnonzero(means <= self.target)
        if not len(reached):
            return math.inf
        first = reached[0]
        if first == 0:
            return 0.0
        share = (means[first - 1] - self.target) / (means[first - 1] - means[first])
        return float(np.exp(logs[first - 1] + share * (logs[first] - logs[first - 1])))

    @property
    def needed_records(self) -> float | None:
        """The factor of records at which the asked epsilon would do as well as ``needed_epsilon``.

        With k times the records, sampling rate and steps the same, the noise on a mean gradient is
        divided by k: so k is the ratio of the noise multipliers at both epsilons. ``None`` where
        there is no noise multiplier or the needed epsilon was not simulated.
        """
        needed = self.needed_epsilon
        pairs = [
            (math.log(epsilon), math.log(noise))
            for epsilon, noise in zip(
                self.curve.epsilons, self.curve.noise_multipliers, strict=True
            )
            if noise and math.isfinite(epsilon)
        ]
        if not pairs or needed is None or not 0 < needed < math.inf:
            return None
        logs, noises = zip(*pairs, strict=True)
        asked, at_needed = np.interp([math.log(self.epsilon), math.log(needed)], logs, noises)
        return math.exp(asked - at_needed)

    @property
    def title(self) -> str:
        return (
            f"Rehearsal on simulated records: n = {self.num_examples:,},"
            f" epsilon = {self.epsilon:g}, delta = {self.delta:g}"
        )

    @property
    def tables(self) -> list[Table]:
        rows = [*self._chosen_rows(), *self._expected_rows()]
        tables = [("Chosen setting, and what to expect of it", rows)]
        by_epsilon = [
            ("epsilon", "error, mean (least to largest over worlds)"),
            *(
                (_format_epsilon(epsilon), _format_errors(errors))
                for epsilon, errors in zip(self.curve.epsilons, self.curve.errors, strict=True)
            ),
        ]
        tables.append(("Error by epsilon", by_epsilon))

        # The best of those that ran in all worlds, by mean regret.
        means = np.mean(self.regrets[:, ~np.isnan(self.errors[self.best])], 1)
        order = np.argsort(means, kind="stable")[:_NUM_SHOWN]
        rows = [("regret", "setting")]
        rows += [
            (f"{means[i]:.3f}", _format_setting(self.settings[i]))
            for i in order
            if means[i] < np.inf
        ]
        tables.append((f"Best of {len(self.settings)} settings", rows))
        if self.calibration is not None:
            caption = f"Intervals of 90 %, in {self.calibration.num_worlds} simulated runs"
            tables.append((caption, self._interval_rows()))
        return tables

    def _chosen_rows(self) -> list[tuple[str, str]]:
        rows = [
            (name.replace("_", " "), _format_value(value)) for name, value in _items(self.setting)
        ]
        if self.mechanism is not None:
            rows.append(("noise multiplier", _format_value(self.mechanism.noise_multiplier)))
            rows.append(("steps", f"{self.mechanism.num_steps:,}"))
        return rows

    def _expected_rows(self) -> list[tuple[str, str]]:
        rows = [("error", _format_errors(self.curve.at(self.epsilon)))]
        if math.isinf(self.curve.epsilons[-1]):
            rows.append(("error without privacy", _format_errors(self.curve.errors[-1])))
        if not math.isnan(self.constant_error):
            rows.append(("error of a constant result", _format_errors(self.curve.constants)))
        needed = self.needs
        if needed:
            rows.append(("to be useful", needed))
        if self.trace is not None:
            rows += self._trace_rows()
        if self.step_cost is not None:
            assert self.mechanism is not None
            seconds, size = self.step_cost
            total = seconds * self.mechanism.num_steps
            rows.append(("a step here", f"{1e3 * seconds:.2g} ms, {size / 2**20:.3g} MiB"))
            rows.append(("all steps here", f"{total:.2g} s, compilation not included"))
        rows.append(("time of the rehearsal", f"{self.seconds:.0f} s"))
        return rows

    def _trace_rows(self) -> list[tuple[str, str]]:
        """Clipping and noise in the first and the last quarter of the steps."""
        trace = self.trace
        assert trace is not None
        quarter = max(1, len(trace.clipped_share) // 4)
        texts = []
        for part in (slice(quarter), slice(-quarter, None)):
            noise, noisy = trace.noise_square[part].mean(), trace.noisy_square[part].mean()
            signal = math.sqrt(max(float(noisy - noise), float(noise) / _LARGEST_RATIO**2, 1e-30))
            ratio = math.sqrt(noise) / signal
            texts.append(
                (
                    f"{np.mean(trace.clipped_share[part]):.0%}",
                    f"{np.mean(trace.norm_lost[part]):.0%}",
                    f"{ratio:.2g}" if ratio < _LARGEST_RATIO else f"over {_LARGEST_RATIO:g}",
                )
            )
        names = ("records clipped", "norm lost by clipping", "noise over signal of a step")
        return [
            (name, f"{first} in the first quarter of the steps, {last} in the last")
            for name, first, last in zip(names, *texts, strict=True)
        ]

    def _interval_rows(self) -> list[tuple[str, str]]:
        assert self.calibration is not None
        if not self.calibration.is_tested:
            return [(name, "not tested: too few runs") for name in self.calibration.ranks]
        problems = self.calibration.problems
        return [
            (
                name,
                f"cover {share:.0%} of the truths"
                + (f": {problems[name]}" if name in problems else ""),
            )
            for name, share in self.calibration.coverage().items()
        ]

    @property
    def needs(self) -> str:
        """The epsilon, or the number of records, that reaches the target error, as a sentence."""
        needed, target = self.needed_epsilon, f"an error of {self.target:.4g}"
        if needed is None:
            return ""
        simulated = [epsilon for epsilon in self.curve.epsilons if math.isfinite(epsilon)]
        if needed == 0:
            return f"epsilon = {simulated[0]:.3g} is enough for {target}"
        if math.isinf(needed):
            return f"epsilon = {simulated[-1]:.3g} is not enough for {target}"
        factor = self.needed_records
        if self.error <= self.target or needed <= self.epsilon:
            return f"{target} needs epsilon of {needed:.2g} or more: reached"
        records = "" if factor is None else f", or {factor:.2g} times the records"
        return f"{target} needs epsilon of {needed:.2g} or more at this n{records}"

    @property
    def caveats(self) -> tuple[str, ...]:
        found = []
        errors = self.curve.at(self.epsilon)
        beaten = np.asarray(errors) >= np.asarray(self.curve.constants)
        needed = self.needs
        if beaten.mean() >= 0.5:
            found.append(
                f"No setting beats a constant result at epsilon = {self.epsilon:g}: {needed}."
            )
        elif self.error > self.target:
            found.append(f"The error is above what makes a result useful: {needed}.")
        regrets = self.regrets[self.best]
        if np.nanmax(regrets) > _LARGE_REGRET:
            found.append(
                "The simulated worlds disagree: in the worst the chosen setting loses"
                f" {np.nanmax(regrets):.0%} of what the best gains. Narrow what is simulated, or"
                " try several on the private data and pay for the choice."
            )
        if self.calibration is not None and not self.calibration.is_tested:
            found.append(
                f"The coverage of intervals is not tested: {self.calibration.num_worlds} simulated"
                " runs are too few. Allow more max_seconds or num_calibration_worlds."
            )
        if self.calibration is not None and self.calibration.problems:
            names = ", ".join(self.calibration.problems)
            advice = ""
            if self.trace is not None:
                quarter = max(1, len(self.trace.clipped_share) // 4)
                share = float(np.mean(self.trace.clipped_share[-quarter:]))
                if share > _LARGEST_CLIPPED:
                    advice = (
                        f" In the last steps {share:.0%} of the records are clipped, which biases"
                        " the posterior: try larger values of l2_clip."
                    )
            found.append(
                f"The intervals of {names} do not have their stated coverage: see the table."
                f"{advice}"
            )
        if self.calibration is not None and self.calibration.warned:
            found.append(
                f"{len(self.calibration.warned)} of the {self.calibration.num_worlds} simulated"
                f" posteriors came with warnings, the last: {self.calibration.warned[-1]}"
            )
        if not self.is_complete:
            runs = 0 if self.calibration is None else self.calibration.num_worlds
            found.append(
                "The time ended before all was simulated (worlds of the choice:"
                f" {np.sum(~np.isnan(self.errors[self.best]))}, of the errors:"
                f" {len(self.curve.constants)}, of intervals: {runs}): allow more max_seconds."
            )
        found.append(
            "The worlds are simulated: where the real data are unlike all of them, the error is"
            " another one and other settings may be better. Nothing was released."
        )
        return tuple(found)

    def paragraph(self) -> str:
        """Returns the rehearsal in sentences, for the experimental section of a paper."""
        num_worlds = np.isfinite(self.errors[self.best]).sum()
        return (
            f"The settings ({_format_setting(self.setting)}) were chosen among"
            f" {len(self.settings)} on simulated records, by the least mean regret (worlds:"
            f" {num_worlds}), which costs no privacy. In others ({len(self.curve.constants)}) the"
            f" error at epsilon = {self.epsilon:g} was"
            f" {_format_errors(self.curve.at(self.epsilon))}."
        )

    def to_html(self) -> str:
        """Returns the report as HTML, as a notebook shows it."""
        return self._repr_html_()

    def plot(self) -> "Figure":
        """Returns a matplotlib figure: error by epsilon; regret by clip bound and learning rate."""
        figure = new_figure(9.0, 4.2)
        axes, grid = figure.subplots(1, 2)

        # Left, the error by epsilon, with the range over worlds.
        finite = [i for i, epsilon in enumerate(self.curve.epsilons) if math.isfinite(epsilon)]
        epsilons = [self.curve.epsilons[i] for i in finite]
        table = np.array([self.curve.errors[i] for i in finite], dtype=object)
        means = [np.mean(row) for row in table]
        axes.plot(epsilons, means, "o-", color=_PRIVATE, label="private, mean over worlds")
        low, high = [min(row) for row in table], [max(row) for row in table]
        axes.fill_between(epsilons, low, high, color=_PRIVATE, alpha=0.2, label="least to largest")
        if not math.isnan(self.constant_error):
            axes.axhline(self.constant_error, color=_CONSTANT, ls=":", label="constant result")
        if len(finite) < len(self.curve.epsilons):
            best = np.mean(self.curve.errors[-1])
            axes.axhline(best, color=_NOT_PRIVATE, ls="--", label="without privacy")
        axes.axvline(self.epsilon, color=_CONSTANT, lw=0.8, label="asked epsilon")
        axes.set(xscale="log", xlabel="epsilon", ylabel="error")
        axes.legend(fontsize=8, loc="upper center", bbox_to_anchor=(0.5, -0.15), ncols=2)

        # Right, the regret by clip bound and learning rate, of the chosen batch size and epochs.
        if isinstance(self.setting, Setting):
            shown = [
                i
                for i, each in enumerate(self.settings)
                if each[:2] == self.setting[:2] and not np.isnan(self.errors[i]).all()
            ]
            clips, rates = np.array([self.settings[i][2:] for i in shown]).T
            means = np.nanmean(self.regrets[shown], 1)
            drawn = grid.scatter(clips, rates, c=means, s=120, cmap="viridis_r", marker="s")
            figure.colorbar(drawn, ax=grid, label="regret")
            grid.plot(*self.setting[2:], "o", mfc="none", mec="#d55e00", ms=18, mew=2)
            grid.set(xscale="log", yscale="log", xlabel="clip bound", ylabel="learning rate")
            size, epochs = self.setting[:2]
            grid.set_title(f"batches of {size}, {epochs:g} epochs; circled: chosen", fontsize=9)
        else:
            means = np.nanmean(self.regrets[:, ~np.isnan(self.errors).all(0)], 1)
            shown = np.argsort(means)[:10].tolist()
            grid.barh([_format_setting(self.settings[i]) for i in shown], means[shown])
            grid.set(xlabel="regret")
        return figure

    def _values(self) -> dict[str, Any]:
        constants = [error for error in self.curve.constants if not math.isnan(error)]
        return {
            "num_examples": self.num_examples,
            "epsilon": self.epsilon,
            "delta": self.delta,
            "setting": dict(_items(self.setting)),
            "error": self.error,
            "constant_error": None if math.isnan(self.constant_error) else self.constant_error,
            "target": None if math.isnan(self.target) else self.target,
            "needed_epsilon": self.needed_epsilon,
            "needed_records": self.needed_records,
            "curve": self.curve._replace(constants=tuple(constants)),
            "coverage": None if self.calibration is None else self.calibration.coverage(),
            "step_cost": self.step_cost,
            "seconds": self.seconds,
            "warnings": self.caveats,
        }


def _items(setting: Any) -> list[tuple[str, Any]]:
    return list((setting._asdict() if isinstance(setting, Setting) else setting).items())


def _format_value(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _format_setting(setting: Any) -> str:
    return ", ".join(f"{name} {_format_value(value)}" for name, value in _items(setting))


def _format_epsilon(epsilon: float) -> str:
    return "without privacy" if math.isinf(epsilon) else f"{epsilon:.3g}"


def _format_errors(errors: Sequence[float]) -> str:
    return f"{np.mean(errors):.4g} ({min(errors):.4g} to {max(errors):.4g})"
