"""Time that the rows without a result will take, extrapolated from the records of other runs."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from experiments.lib.records import encode, find_record
from experiments.lib.registry import PROFILES, Experiment, Record
from experiments.lib.tables import Line, lines_of

# Settings to which a row's time is proportional; those of one group add up.
_COUNTS = (
    ("num_steps",),
    ("epochs",),
    ("num_train",),
    ("runs",),
    ("repeats",),
    ("num_repeats",),
    ("seeds",),
    ("trials",),
    ("losses",),
    ("releases",),
    ("num_data_sets",),
    ("num_draws", "num_warmup"),
)


class Forecast(NamedTuple):
    """A row of the table, and the time it takes.

    Attributes:
      line: the row and whether it is done.
      seconds: measured where the row is done, else extrapolated; None where nothing allows that.
      origin: of extrapolated seconds, in words.
    """

    line: Line
    seconds: float | None
    origin: str = ""

    @property
    def is_done(self) -> bool:
        """Whether the row has a result."""
        return self.line.state == "done"


def cost_ratio(settings: Mapping[str, Any], measured: Mapping[str, Any]) -> float | None:
    """The work of a row over that of a run with other settings: steps, repetitions, records.

    Args:
      settings: of the row.
      measured: of the run.

    Returns:
      The product of the ratios of those settings that count work; None where others differ too.

    >>> cost_ratio({"epochs": 60, "delta": 1e-5}, {"epochs": 3, "delta": 1e-5})
    20.0
    >>> cost_ratio({"epochs": 60, "network": "CNN"}, {"epochs": 3, "network": "MLP"}) is None
    True
    """
    row, run = encode(settings), encode(measured)
    differing = {name for name in {*row, *run} if row.get(name) != run.get(name)}
    ratio = 1.0
    for group in _COUNTS:
        if differing & set(group):
            counts = [[each.get(name) for name in group] for each in (row, run)]
            if not all(isinstance(count, int) and count > 0 for part in counts for count in part):
                return None
            ratio *= sum(counts[0]) / sum(counts[1])
            differing -= set(group)
    return None if differing else ratio


def forecast(experiment: Experiment, profile: str, records: Sequence[Record]) -> list[Forecast]:
    """The time of every row of an experiment under a profile.

    A row without a result takes the seconds of its record, of this profile or else of the quick
    one, times the ratio of their work. Compilation and accounting, whose time does not grow with
    the work, are extrapolated like the rest.
    """
    return [_forecast(line, profile, records) for line in lines_of(experiment, profile, records)]


def _forecast(line: Line, profile: str, records: Sequence[Record]) -> Forecast:
    if line.record and line.state == "done":
        return Forecast(line, line.record.seconds)
    for measured in dict.fromkeys((profile, PROFILES[0])):
        record = find_record(records, line.row, measured)
        ratio = cost_ratio(line.row.settings, record.settings) if record else None
        if record and record.finished and ratio is not None:
            return Forecast(line, ratio * record.seconds, f"{measured} profile × {ratio:.4g}")
    return Forecast(line, None)


def summary(forecasts: Sequence[Forecast]) -> str:
    """How many rows are done, the hours of the others, and how many were never measured."""
    times = [each.seconds for each in forecasts if not each.is_done]
    known = [seconds for seconds in times if seconds is not None]
    text = f"{len(forecasts) - len(times)} of {len(forecasts)} rows done"
    if known:
        text += f", {sum(known) / 3600:.2f} hours left"
    unknown = len(times) - len(known)
    return text + (f", {unknown} not measured" if unknown else "")
