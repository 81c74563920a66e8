import sys
from dataclasses import replace
from pathlib import Path

import pytest

from experiments.lib.publication import publish
from experiments.lib.registry import MODULES, load_experiments
from experiments.lib.runner import run_experiment
from experiments.lib.tables import table_cells, table_columns

sys.path.append(str(Path(__file__).parents[2] / "docs"))
import reproduction_pages as pages


@pytest.fixture
def folder(toy, plan, tmp_path, monkeypatch):
    """A folder with the toy's records of the quick profile."""
    monkeypatch.setattr(pages, "BUILT", tmp_path / "built")
    run_experiment(toy.experiment, plan)
    publish(toy.experiment, "quick", plan.results, tmp_path / "published")
    return tmp_path / "published"


def render(toy, folder):
    return pages.render_page(
        "experiments.toy", toy.experiment, pages.load_blocks(toy.experiment, folder)
    )


def cells(text):
    """Returns the cells of the first list-table of a page, row by row."""
    table = text.partition("{list-table}")[2].partition("```")[0]
    rows = []
    for line in table.splitlines():
        if line.startswith("* - "):
            rows.append([])
        if line.startswith(("* - ", "  - ")):
            rows[-1].append(line[4:])
    return rows


def test_render_page_has_the_finding_and_the_table_first(toy, folder):
    text = render(toy, folder)
    finding = "**Quick profile: not reproduced.** Rows 1, 2, 3 are 19.5 points below \\<90\\>."
    assert text.index(finding) < text.index("{list-table}") < text.index("First paragraph")
    assert "**Paper profile: not run.**" in text
    assert "{download}`experiments/toy.py <../../experiments/toy.py>`" in text
    assert 'python -m experiments check toy_table --profile quick --row "1"' in text
    assert "row 2 claims less than is certified" in text
    assert "figures/toy_table_quick_accuracy.png" in text
    groups, names, first, *_ = cells(text)
    assert [group for group in groups if group.strip()] == [
        "source", "measured", "certified", "run",
    ]  # fmt: skip
    assert names == ["row", "accuracy %", "accuracy %", "CLT ε", "ε", "time, quick"]
    assert first[:5] == ["1", "91.0", "71.5", "0.8765", "2.235"]


@pytest.fixture
def longer(toy):
    """The toy with another accuracy, to be run under the paper profile."""

    def run_row(row, context):
        measured = {"accuracy %": 90.0, "CLT ε": 0.8765}
        return replace(toy.run_row(row, context), measured=measured)

    return replace(toy.experiment, run_row=run_row)


def test_render_page_has_both_profiles_where_they_differ(toy, longer, plan, folder):
    run_experiment(longer, replace(plan, profile="paper"))
    publish(longer, "paper", plan.results, folder)
    _, names, first, second, _ = cells(render(toy, folder))
    assert names[:6] == [
        "row", "accuracy %", "accuracy %, quick", "accuracy %, paper", "CLT ε", "ε",
    ]  # fmt: skip
    assert first[1:5] == ["91.0", "71.5", "90.0", "0.8765"]
    assert second[1:5] == ["92.0", "72.5", "90.0", "0.8765"]


def test_render_results_transposes_a_table_much_wider_than_long(toy, longer, plan, folder):
    names = [f"a long heading of value {i}" for i in range(30)]
    wide = replace(
        toy.experiment,
        rows=lambda profile: toy.rows(profile)[:2],
        run_row=lambda row, context: replace(
            toy.run_row(row, context), measured=dict.fromkeys(names, 1.0)
        ),
    )
    run_experiment(wide, replace(plan, fresh=True))
    publish(wide, "quick", plan.results, folder)
    assert cells(pages.render_results(pages.load_blocks(wide, folder))) == [
        ["row", "1", "2"],
        ["**source**", "", ""],
        ["accuracy %", "91.0", "92.0"],
        ["**measured**", "", ""],
        *([name, "1", "1"] for name in names),
        ["**certified**", "", ""],
        ["ε", "2.235", "3.235"],
        ["**run**", "", ""],
        ["time, quick", "0.0 s", "0.0 s"],
    ]


def test_cut_table_puts_columns_that_do_not_fit_into_tables_of_the_same_rows():
    names = ("", "row", ["a", "b"])
    columns = [("measured", "w" * 60, ["1", "2"]), ("measured", "x" * 60, ["3", "4"])]
    assert len(pages.cut_table([names, *columns])) == 1
    first, second = pages.cut_table([names, *columns, ("certified", "y" * 60, ["5", "6"])])
    assert cells(first) == [
        ["", "measured", ""],
        ["row", "w" * 60, "x" * 60],
        ["a", "1", "3"],
        ["b", "2", "4"],
    ]
    # A row without a value is left out of the tables where it has none.
    lacking = ("certified", "y" * 60, ["5", "–"])
    _, second_without = pages.cut_table([names, *columns, lacking])
    assert cells(second_without)[2:] == [["a", "5"]]
    assert cells(second) == [["", "certified"], ["row", "y" * 60], ["a", "5"], ["b", "6"]]


@pytest.mark.slow
def test_write_pages_shows_an_overview_and_the_figure_of_each_experiment(toy, folder):
    contents = pages.write_pages({"experiments.toy": toy.experiment}, folder)
    order = [
        contents.index(part)
        for part in (
            "built/published_against_measured.png",
            "{list-table}",
            "[![A toy table](figures/toy_table_quick_accuracy.png)](toy_table.md)",
        )
    ]
    assert order == sorted(order)
    assert (pages.BUILT / "published_against_measured.png").exists()


def test_render_page_names_rows_without_a_record(toy, longer, plan, folder):
    run_experiment(longer, replace(plan, profile="paper"), "2")
    publish(longer, "paper", plan.results, folder)
    text = render(toy, folder)
    _, _, first, second, _ = cells(text)
    assert first[1:4] == ["91.0", "71.5", "–"]
    assert second[1:4] == ["92.0", "72.5", "90.0"]
    assert first[-1] == "not run yet"
    assert "Without a record: 1; 3." in text
    table = pages.render_findings([longer], {"toy_table": pages.load_blocks(longer, folder)})
    assert "paper, 1 of 3 rows" in table
    assert "the quick profile of 1 in full and of 0 in part" in table
    assert "the paper profile of 0 in full and of 1 in part" in table


def test_render_page_joins_columns_of_rows_of_one_profile(toy, plan, folder):
    def rows(profile):
        return toy.rows("quick")[: 3 if profile == "quick" else 2]

    shorter = replace(toy.experiment, rows=rows)
    run_experiment(shorter, replace(plan, profile="paper"))
    publish(shorter, "paper", plan.results, folder)
    text = pages.render_page("experiments.toy", shorter, pages.load_blocks(shorter, folder))
    _, names, *_, last = cells(text)
    assert names[1:5] == ["accuracy %", "accuracy %", "CLT ε", "ε"]
    assert last[0] == "3"
    assert last[2] == "73.5"
    assert last[-1] == "no row"


def test_render_page_shows_no_stale_record(toy, folder):
    toy.step_size = 0.2
    text = render(toy, folder)
    assert "**Quick profile: not run.**" in text
    assert "71.5" not in text


@pytest.mark.slow
def test_write_pages_removes_pages_of_removed_experiments(toy, folder):
    for name in ("index.md", "removed.md"):
        (folder / name).write_text("text")
    contents = pages.write_pages({"experiments.toy": toy.experiment}, folder)
    assert {path.name for path in folder.glob("*.md")} == {"index.md", "toy_table.md"}
    assert "[toy_table](toy_table.md)" in contents
    written = (folder / "toy_table.md").stat().st_mtime_ns
    pages.write_pages({"experiments.toy": toy.experiment}, folder)
    assert (folder / "toy_table.md").stat().st_mtime_ns == written


def without_zeros(cell):
    """A page shows as many decimals of a value as of the one beside it, by the other profile."""
    return cell.rstrip("0").rstrip(".") if "." in cell else cell


@pytest.mark.parametrize("module", MODULES)
def test_committed_pages_show_every_certified_value(module):
    (experiment,) = load_experiments([module])
    blocks = pages.load_blocks(experiment)
    text = pages.render_page(module, experiment, blocks)
    assert (Path(__file__).parents[2] / f"{module.replace('.', '/')}.py").exists()
    results = text.partition("## What was run")[0].split("```{list-table}")[1:]
    table = []
    for part in results:
        lines = cells("{list-table}" + part)
        # Transposed, or the row of another part continued.
        table += map(list, zip(*lines, strict=True)) if lines[0][0] == "row" else lines
    for block in blocks:
        columns = table_columns(block.lines, "certified")
        assert not block.problems
        assert block.findings
        for line in block.lines:
            shown = [cell for row in table if row[0] == pages.escape(line.row.name) for cell in row]
            for cell in set(table_cells(line, "certified", columns)) - {"–"}:
                assert without_zeros(pages.escape(cell)) in map(without_zeros, shown)
