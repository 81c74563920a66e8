import json

import pytest

from experiments.lib.publication import PUBLISHED, load_publication
from experiments.lib.records import encode
from experiments.lib.registry import (
    MODULES,
    PROFILES,
    Experiment,
    Finding,
    Page,
    Record,
    Result,
    Row,
    fill_in,
    load_experiments,
    profile_rows,
    read_page,
    select,
    select_rows,
)


def make(name="some_name", rows=lambda profile: [Row("1", {}, {"a": 1})]):
    finding = Finding("not compared", "Nothing is published.")
    page = Page(name, "t", "s", ("d",))
    return Experiment(page, rows, lambda row, context: Result({}, {}), lambda records: finding)


@pytest.mark.parametrize("name", ["", "Upper", "with space", "../up", "1st", "a-b", "name\n"])
def test_page_refuses_names_that_are_no_file_stem(name):
    with pytest.raises(ValueError, match="name must be lower-case letters"):
        make(name)
    with pytest.raises(ValueError, match="name must be lower-case letters"):
        Page("name", "t", "s", ("d",), {name: "caption"})


PAGE = """# A title

Source: someone (2020),
Table 1

One
paragraph.

Another one.

## Remarks

ε is
{rows[1][certified][ε]:up}.

## Figures

### errors

Left: one. Right:
another.

### accuracy

By epoch.
"""


def test_read_page_joins_lines_and_finds_captions(tmp_path):
    (tmp_path / "rates.md").write_text(PAGE, encoding="utf-8")
    page = read_page(tmp_path / "rates.py")
    assert page == Page(
        f"{tmp_path.name}_rates".lower(),
        "A title",
        "someone (2020), Table 1",
        ("One paragraph.", "Another one."),
        {"errors": "Left: one. Right: another.", "accuracy": "By epoch."},
        ("ε is {rows[1][certified][ε]:up}.",),
    )


def test_fill_in_leaves_out_rows_that_are_not_there():
    measured, certified = {"accuracy %": 95.0, "ε by n": [0.5, 1.23411]}, {"ε": 1.23411}
    record = Record("toy", "1", "quick", {}, {}, measured, certified, 1.0)
    templates = [
        "{rows[1][measured][accuracy %]} %, {rows[1][measured][ε by n][-1]:.1f}",
        "{rows[1][certified][ε]:up}, {rows[1][certified][ε]:down}, {rows[1][certified][ε]}",
        "{rows[2][certified][ε]}",
    ]
    assert fill_in(templates, [record]) == ["95.0 %, 1.2", "1.235, 1.234, 1.234"]


@pytest.mark.parametrize("text", ["", "A title", "# A title\n\nNo source.", "Source: a\n\n# b"])
def test_read_page_refuses_other_beginnings(tmp_path, text):
    (tmp_path / "rates.md").write_text(text, encoding="utf-8")
    with pytest.raises(ValueError, match=r"beginning of rates.md must be '# Title', then"):
        read_page(tmp_path / "rates.py")


def test_select_keeps_the_registry_order_and_names_each_once():
    one, two = make("one"), make("two")
    assert select(["two", "one", "two"], [one, two]) == (one, two)
    assert select(["all"], [one, two]) == (one, two)
    assert select(["two"], [one, two]) == (two,)
    with pytest.raises(ValueError, match=r"experiment must be one of 'all', 'one', 'two', got 'x'"):
        select(["x"], [one, two])


def test_select_rows_refuses_unknown_names_and_profiles():
    experiment = make(rows=lambda profile: [Row(name, {}, {}) for name in ("a", "b")])
    assert [row.name for row in select_rows(experiment, "quick")] == ["a", "b"]
    assert [row.name for row in select_rows(experiment, "quick", "b")] == ["b"]
    with pytest.raises(ValueError, match="row must be one of 'a', 'b', got 'c'"):
        select_rows(experiment, "quick", "c")
    with pytest.raises(ValueError, match="profile must be one of 'quick', 'paper', got 'slow'"):
        select_rows(experiment, "slow")
    for names in ([], ["1", "1"]):
        experiment = make(rows=lambda profile, names=names: [Row(name, {}, {}) for name in names])
        with pytest.raises(ValueError, match="row names of some_name must be"):
            profile_rows(experiment, "quick")


@pytest.mark.parametrize(
    ("verdict", "sentence", "name"),
    [
        ("confirmed", "It is.", "verdict"),
        ("reproduced; true", "It is.", "verdict"),
        ("", "It is.", "verdict"),
        ("reproduced", "It is", "sentence"),
        ("reproduced", "It is. It was.", "sentence"),
    ],
)
def test_finding_has_a_known_verdict_and_one_sentence(verdict, sentence, name):
    with pytest.raises(ValueError, match=f"^{name} must be"):
        Finding(verdict, sentence)
    assert Finding("reproduced; claim contradicted", "Both, by 0.5 points.")


def test_load_experiments_imports_modules_in_order(tmp_path, monkeypatch):
    for name in ("toy_b", "toy_a"):
        (tmp_path / f"{name}.py").write_text("rows = run_row = finding = print")
        (tmp_path / f"{name}.md").write_text("# Toy\n\nSource: none")
    monkeypatch.syspath_prepend(tmp_path)
    toys = load_experiments(["toy_b", "toy_a"])
    assert [toy.name.removeprefix(f"{tmp_path.name}_") for toy in toys] == ["toy_b", "toy_a"]
    names = [experiment.name for experiment in load_experiments()]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize("module", MODULES)
def test_registered_experiments_have_a_page_and_rows_of_plain_json(module):
    (experiment,) = load_experiments([module])
    assert all((experiment.page.title, experiment.page.source, experiment.page.paragraphs))
    quick, paper = (profile_rows(experiment, profile) for profile in PROFILES)
    for row in (*quick, *paper):
        assert isinstance(row.name, str)
        assert row.name
        assert row.settings
        for part in (row.settings, row.source):
            # Plain JSON, as it stands: what is encoded is what a stored record compares with.
            assert json.loads(json.dumps(encode(part), allow_nan=False)) == encode(part)

    # Both profiles have the same source.
    sources = {row.name: row.source for row in paper}
    assert all(sources.get(row.name, row.source) == row.source for row in quick)

    # Every remark of the page has the values of its rows.
    records = load_publication(PUBLISHED, experiment.name, "paper").records
    assert len(fill_in(experiment.page.remarks, records)) == len(experiment.page.remarks)
