import json
import math
from dataclasses import replace

import pytest
from PIL import Image

from experiments.lib.publication import PUBLISHED, load_publication, publication_path, publish
from experiments.lib.records import load_records, save_record
from experiments.lib.registry import MODULES, PROFILES, Result, load_experiments
from experiments.lib.runner import run_experiment


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "published"


def test_publish_writes_the_records_with_one_line_for_each(toy, plan, folder):
    run_experiment(toy.experiment, plan)
    written = publish(toy.experiment, "quick", plan.results, folder)
    found = load_publication(folder, "toy_table", "quick")
    assert found == written
    assert list(found.records) == load_records(plan.results, "toy_table")
    assert found.missing == {}
    (figure,) = found.figures
    assert figure.caption == "accuracy per epoch, as a caption"
    with Image.open(figure.path) as image:
        assert image.width <= figure.width * 1.1
    assert load_publication(folder, "toy_table", "paper").records == ()

    path = publication_path(folder, "toy_table", "quick")
    text = path.read_text("utf-8")
    content = json.loads(text)
    assert (content["experiment"], content["profile"]) == ("toy_table", "quick")
    fields = set(vars(found.records[0])) - {"experiment", "profile", "error"}
    assert [set(record) for record in content["records"]] == [fields] * 3
    assert sum('"measured"' in line for line in text.splitlines()) == 3
    publish(toy.experiment, "quick", plan.results, folder)
    assert path.read_text("utf-8") == text


def test_publish_names_rows_without_a_record(toy, plan, folder):
    with pytest.raises(ValueError, match="finished rows of toy_table must be at least one"):
        publish(toy.experiment, "quick", plan.results, folder)
    assert not folder.exists()
    toy.raises = {"2": RuntimeError("in /srv/secret/place")}
    run_experiment(toy.experiment, plan)
    publish(toy.experiment, "quick", plan.results, folder)
    found = load_publication(folder, "toy_table", "quick")
    assert [record.row for record in found.records] == ["1", "3"]
    assert found.missing == {"2": "failed"}
    assert "secret" not in publication_path(folder, "toy_table", "quick").read_text("utf-8")


def test_publish_keeps_committed_rows_and_replaces_them_by_newer_ones(toy, plan, folder, tmp_path):
    run_experiment(toy.experiment, plan)
    publish(toy.experiment, "quick", plan.results, folder)
    elsewhere = replace(plan, results=tmp_path / "elsewhere")
    run_experiment(toy.experiment, elsewhere, "2")
    (record,) = load_records(elsewhere.results, "toy_table")
    save_record(elsewhere.results, replace(record, measured={"accuracy %": 1.0}))
    publish(toy.experiment, "quick", elsewhere.results, folder)
    found = load_publication(folder, "toy_table", "quick")
    assert [r.measured["accuracy %"] for r in found.records] == [71.5, 1.0, 73.5]
    # With other settings a committed row no longer counts.
    toy.step_size = 0.2
    run_experiment(toy.experiment, plan, "1")
    publish(toy.experiment, "quick", plan.results, folder)
    found = load_publication(folder, "toy_table", "quick")
    assert [record.row for record in found.records] == ["1"]
    assert found.missing == {"2": "stale", "3": "stale"}


def test_publish_rounds_series_and_nothing_else(toy, plan, folder):
    exact = {"a": 2 / 3, "b": math.inf}
    result = Result(exact, exact, series={"x": [[2 / 3, 1e-30 / 3], [math.nan, 12_345_678]]})
    experiment = replace(
        toy.experiment, run_row=lambda row, context: result, figures=lambda records: {}
    )
    run_experiment(experiment, plan)
    record = publish(experiment, "quick", plan.results, folder).records[0]
    assert record.measured == record.certified == exact
    loaded = load_publication(folder, "toy_table", "quick").records[0]
    assert loaded.measured == exact
    assert loaded.series["x"][0] == [0.666667, 3.33333e-31]
    assert loaded.series["x"][1][1] == 12_345_678


@pytest.mark.parametrize(
    ("note", "published"),
    [
        ("read from DPJAX_DATA_DIR=/home/someone/data, in part", "DPJAX_DATA_DIR=…, in part"),
        ("at /srv/x.y/z.csv.", "at …"),
        ("https://host.org/a/b.zip and 1/N or ε/δ/n", "https://host.org/a/b.zip and 1/N or ε/δ/n"),
    ],
)
def test_publish_leaves_out_paths_of_the_machine(toy, plan, folder, note, published):
    experiment = replace(toy.experiment, run_row=lambda *_: replace(toy.run_row(*_), note=note))
    run_experiment(experiment, plan)
    publish(experiment, "quick", plan.results, folder)
    record = load_publication(folder, "toy_table", "quick").records[0]
    assert record.note.endswith(published)
    assert "someone" not in record.note


@pytest.mark.parametrize("text", ["[]", "{}", "{", '{"experiment": "a", "profile": "quick"}'])
def test_load_publication_names_a_broken_file(folder, text):
    folder.mkdir()
    publication_path(folder, "toy_table", "quick").write_text(text)
    with pytest.raises(ValueError, match=r"toy_table_quick\.json is not a file of published"):
        load_publication(folder, "toy_table", "quick")


def test_committed_records_have_their_figures_and_no_row_twice():
    paths = sorted(PUBLISHED.glob("*.json"))
    names = {experiment.name for experiment in load_experiments(MODULES)}
    assert paths
    for path in paths:
        assert "/home/" not in path.read_text("utf-8")
        name, _, profile = path.stem.rpartition("_")
        assert profile in PROFILES
        found = load_publication(PUBLISHED, name, profile)
        assert name in names
        rows = [record.row for record in found.records]
        assert len(set(rows)) == len(rows)
        assert not set(rows) & set(found.missing)
        assert all(record.finished and record.versions and record.date for record in found.records)
        for figure in found.figures:
            with Image.open(figure.path) as image:
                assert image.mode == "P"
        pictures = set(PUBLISHED.glob(f"figures/{name}_{profile}_*.png"))
        assert pictures == {figure.path for figure in found.figures}
    # The pages that `make docs` writes beside them are not committed.
    committed = [*paths, *PUBLISHED.glob("figures/*.png")]
    assert sum(path.stat().st_size for path in committed) < 10e6
