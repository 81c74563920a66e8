"""Run time of the rows without a result, extrapolated from the records of other runs."""

from collections.abc import Sequence
from typing import NamedTuple

from experiments.lib.records import encode, find_record, is_current
from experiments.lib.registry import PROFILES, Experiment, Record, Values
from experiments.lib.tables import Line, table_lines

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
    """A row of the table and its measured or extrapolated run time."""

    line: Line
    # Measured if the row is done, else extrapolated; None if it cannot be extrapolated.
    seconds: float | None
    origin: str = ""  # source of the extrapolated seconds

    @property
    def is_done(self) -> bool:
        """Whether the row has a result."""
        return self.line.state == "done"


def cost_ratio(settings: Values, measured: Values) -> float | None:
    """Ratio of the work of a row to that of a run with the settings ``measured``.

    It is the product of the ratios of the settings in `_COUNTS` (steps, repetitions, records), and
    None if any other setting differs.

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
    """Returns the run time of every row of an experiment under a profile.

    A row without a result takes the seconds of its record under this profile, or else under the
    quick one, times the ratio of their work; compilation and accounting are scaled too. A row whose
    settings are those of a record of the quick profile takes it over and needs no time.
    """
    return [_forecast(line, profile, records) for line in table_lines(experiment, profile, records)]


def _forecast(line: Line, profile: str, records: Sequence[Record]) -> Forecast:
    if line.record and line.state == "done":
        return Forecast(line, line.record.seconds)
    for measured in dict.fromkeys((profile, PROFILES[0])):
        record = find_record(records, line.row, measured)
        ratio = cost_ratio(line.row.settings, record.settings) if record else None
        if record and record.finished and measured != profile and is_current(record, line.row):
            return Forecast(line, 0.0, f"record of the {measured} profile")
        if record and record.finished and ratio is not None:
            return Forecast(line, ratio * record.seconds, f"{measured} profile × {ratio:.4g}")
    return Forecast(line, None)


def summary(forecasts: Sequence[Forecast]) -> str:
    """Returns the number of rows done, the hours left, and the number of rows not measured."""
    times = [each.seconds for each in forecasts if not each.is_done]
    known = [seconds for seconds in times if seconds is not None]
    text = f"{len(forecasts) - len(times)} of {len(forecasts)} rows done"
    if known:
        text += f", {sum(known) / 3600:.2f} hours left"
    unknown = len(times) - len(known)
    return text + (f", {unknown} not measured" if unknown else "")
