"""A small experiment whose runs are counted and whose rows fail on demand."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType

import pytest
from matplotlib.figure import Figure

from experiments.lib.figures import new_figure
from experiments.lib.records import load_records
from experiments.lib.registry import (
    Experiment,
    Finding,
    Page,
    Record,
    Result,
    Row,
    RowContext,
    experiment_of,
)
from experiments.lib.runner import Plan, run_experiment

# Their tests run rows in some length, or training steps to be timed, but for those named; tests of
# `run_rows` all do. The quick tests run one short row of most experiments: test_experiment_rows.py.
_SLOW_MODULES = ("bayes", "bdp", "benchmarks", "dpvi", "gdp", "pate", "sgmcmc")
_QUICK = {
    f"test_{name}"
    for name in "bayes_bob bayes_wishart bdp_abalone bdp_adult bdp_distances bdp_incomes bdp_limits"
    " dpvi_codings pate_analysis".split()
}


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    folder = Path(__file__).parent
    for item in items:
        stem = item.path.stem
        if item.path.parent != folder:
            continue
        is_slow = stem.split("_")[1] in _SLOW_MODULES and stem not in _QUICK
        if is_slow or "run_rows" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.slow)


@dataclass
class Toy:
    """Three rows; ``raises`` says what a row raises, ``ran`` which rows ran, with what context."""

    step_size: float = 0.1
    raises: dict[str, BaseException] = field(default_factory=dict)
    ran: list[tuple[str, RowContext]] = field(default_factory=list)

    def rows(self, profile: str) -> list[Row]:
        epochs = {"quick": 1, "paper": 15}[profile]
        common = {"step_size": self.step_size, "epochs": epochs}
        return [
            Row(str(number), {**common, "l2_clip": float(number)}, {"accuracy %": 90.0 + number})
            for number in (1, 2, 3)
        ]

    def run_row(self, row: Row, context: RowContext) -> Result:
        self.ran.append((row.name, context))
        if row.name in self.raises:
            raise self.raises[row.name]
        accuracy = 70.5 + int(row.name)
        return Result(
            measured={"accuracy %": accuracy, "CLT ε": 0.8765},
            certified={"ε": int(row.name) + 1.23411},
            note="toy data & more",
            series={"accuracy": [50.0, accuracy]},
        )

    def figures(self, records: Sequence[Record]) -> Mapping[str, Figure]:
        figure, (axes,) = new_figure()
        for record in records:
            axes.plot(record.series["accuracy"], label=record.row)
        return {"accuracy": figure}

    def remarks(self, records: Sequence[Record]) -> list[str]:
        return [f"row {record.row} claims less than is certified" for record in records]

    def finding(self, records: Sequence[Record]) -> Finding:
        rows = ", ".join(record.row for record in records)
        return Finding("not reproduced", f"Rows {rows} are 19.5 points below <90>.", "2 points")

    @property
    def names(self) -> list[str]:
        return [name for name, _ in self.ran]

    @property
    def experiment(self) -> Experiment:
        return Experiment(
            page=Page(
                "toy_table",
                title="A toy table",
                source="No Publication, Table 9",
                paragraphs=("First paragraph.", "Second paragraph."),
                captions={"accuracy": "accuracy per epoch, as a caption"},
            ),
            rows=self.rows,
            run_row=self.run_row,
            finding=self.finding,
            figures=self.figures,
            remarks=self.remarks,
        )


@pytest.fixture
def toy() -> Toy:
    return Toy()


@pytest.fixture(scope="module")
def run_rows(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., dict[str, Record]]:
    """Runs rows of an experiment's quick profile, all or those named, with other settings."""

    def run(
        experiment: Experiment | ModuleType, *names: str, **settings: object
    ) -> dict[str, Record]:
        if isinstance(experiment, ModuleType):
            experiment = experiment_of(experiment)
        rows = []
        for row in experiment.rows("quick"):
            changes = {name: settings[name] for name in settings.keys() & row.settings.keys()}
            if not names or row.name in names:
                rows.append(dataclasses.replace(row, settings={**row.settings, **changes}))
        some = dataclasses.replace(experiment, rows=lambda profile: rows)
        folder = tmp_path_factory.mktemp("results")
        assert run_experiment(some, Plan("quick", folder, False, print))
        return {record.row: record for record in load_records(folder, experiment.name)}

    return run


@pytest.fixture
def said() -> list[str]:
    return []


@pytest.fixture
def plan(tmp_path: Path, said: list[str]) -> Plan:
    return Plan("quick", tmp_path / "results", False, said.append)
