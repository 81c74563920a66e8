import base64
import io
import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from experiments.lib import report
from experiments.lib.publication import load_publication
from experiments.lib.records import encode, records_path
from experiments.lib.registry import PROFILES, Page, Result, load_experiments
from experiments.lib.report import write_report
from experiments.lib.runner import run_experiment

PUBLISHED = Path(__file__).parents[2] / "docs" / "reproduction"


class Parsed(HTMLParser):
    """Every tag with its attributes, the visible text, and the cells of each table row."""

    def __init__(self, html):
        super().__init__()
        self.tags, self.words, self.rows, self.opened = [], [], [], []
        self.feed(html)
        self.close()

    def handle_starttag(self, tag, attrs):
        attributes = dict(attrs)
        self.tags.append((tag, attributes))
        if tag in ("td", "th"):
            self.end_cell()
        if tag not in ("meta", "img", "br"):
            self.opened.append(tag)
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
            self.rows[-1] += ["", *[None] * (int(attributes.get("colspan", 1)) - 1)]

    def end_cell(self):
        """Ends a cell whose end tag, which is optional, is left out."""
        if self.opened[-1] == "td":
            self.opened.pop()

    def handle_endtag(self, tag):
        if tag == "tr":
            self.end_cell()
        assert self.opened.pop() == tag

    def handle_data(self, data):
        text = data.strip()
        if not text or "style" in self.opened:
            return
        self.words.append(text)
        if self.opened[-1] in ("td", "th", "span", "a") and "table" in self.opened:
            index = max(i for i, cell in enumerate(self.rows[-1]) if cell is not None)
            self.rows[-1][index] += text

    @property
    def text(self):
        return " ".join(self.words).replace("\u00a0", " ")

    def body(self):
        return [row for row in self.rows if row[0] in ("1", "2", "3")]


def page(experiments, plan):
    path, _ = write_report(experiments, plan.results)
    return Parsed(path.read_text(encoding="utf-8"))


def test_write_report_shows_finding_table_notes_and_figures(toy, plan):
    run_experiment(toy.experiment, plan)
    report = page([toy.experiment], plan)
    overview, verdicts, groups, names, first, *_ = report.rows
    assert overview == ["experiment", "quick profile"]
    assert verdicts == ["A toy table", "not reproduced"]
    assert groups == ["", "settings", "source", "measured", None, "certified", "", None]
    assert [name.replace("\u00a0", " ") for name in names] == [
        "row", "l2 clip", "accuracy %", "accuracy %", "CLT ε", "ε", "time", "note",
    ]  # fmt: skip
    assert first[:6] == ["1", "1", "91.0", "71.5", "0.8765", "2.235"]
    assert [row[7] for row in report.body()] == ["1", "1", "1"]
    assert report.text.count("toy data & more") == 1

    sentence = "Not reproduced. Rows 1, 2, 3 are 19.5 points below <90>."
    assert report.text.index(sentence) < report.text.index("In every row step size 0.1 epochs 1")
    for part in (
        "No Publication, Table 9",
        "A toy table",
        "First paragraph. Second paragraph.",
        "Quick profile",
        "row 3 claims less than is certified",
        "accuracy per epoch, as a caption",
        "Python 3.",
        "JAX 0.",
        "dpjax 0.",
    ):
        assert part in report.text


def test_write_report_shows_failed_missing_and_stale_rows_without_values(toy, plan):
    toy.raises = {"2": RuntimeError("loss is not finite"), "3": KeyboardInterrupt()}
    with pytest.raises(KeyboardInterrupt):
        run_experiment(toy.experiment, plan)
    report = page([toy.experiment], plan)
    assert {len(row) for row in report.rows[2:]} == {8}
    assert report.body()[1][2:4] == ["92.0", "failed: RuntimeError: loss is not finite"]
    assert report.body()[2][3] == "not run yet"
    assert "not reproduced 1 of 3 rows, 1 failed" in report.text
    assert "row 2 claims" not in report.text
    toy.step_size = 0.2
    report = page([toy.experiment], plan)
    assert report.body()[0][3] == "not run with these settings yet"
    assert "0.8765" not in report.text
    assert not [tag for tag, _ in report.tags if tag == "img"]
    assert report.rows[1] == ["A toy table", ""]
    assert "0 of 3 rows" in report.text


@pytest.mark.slow
def test_write_report_shows_every_experiment_and_profile(toy, plan):
    never = replace(toy.experiment.page, name="never_run", title="Never run")
    for profile in ("paper", "quick"):
        run_experiment(toy.experiment, replace(plan, profile=profile))
    report = page([toy.experiment, replace(toy.experiment, page=never)], plan)
    assert report.rows[:3] == [
        ["experiment", "quick profile", "paper profile"],
        ["A toy table", "not reproduced", "not reproduced"],
        ["Never run", "not run", "not run"],
    ]
    assert "Not run yet: python -m experiments run never_run" in report.text
    assert 0 < report.text.index("Quick profile") < report.text.index("Paper profile")
    figures = sorted(path.name for path in (plan.results / "figures").glob("toy*"))
    assert figures == ["toy_table_paper_accuracy.png", "toy_table_quick_accuracy.png"]

    # Of both profiles' figure the page shows one: that of the published values, and the paper's.
    assert len([tag for tag, _ in report.tags if tag == "img"]) == 2
    assert "Figure of the quick profile: figures/toy_table_quick_accuracy.png" in report.text


@pytest.mark.slow
def test_write_report_joins_profiles_with_the_same_records(toy, plan):
    same = replace(toy.experiment, rows=lambda profile: toy.rows("paper"))
    for profile in PROFILES:
        run_experiment(same, replace(plan, profile=profile))
    joined = page([same], plan)
    assert joined.rows[1] == ["A toy table", "not reproduced", "not reproduced"]
    assert joined.text.count("Quick and paper profile") == 1
    assert len(joined.body()) == 3


@pytest.mark.slow
def test_write_report_shows_equal_certificates_once(toy, plan):
    def run_row(row, context):
        text = "equal certificate" if row.name == "1" else f"{context.profile} certificate"
        return replace(toy.run_row(row, context), certificate=text)

    experiment = replace(toy.experiment, run_row=run_row)
    for profile in PROFILES:
        run_experiment(experiment, replace(plan, profile=profile))
    text = page([experiment], plan).text
    assert text.count("equal certificate") == 1
    assert text.count("quick certificate") == text.count("paper certificate") == 1
    assert text.count("Certificate of rows 2; 3") == 2
    assert text.count("are those of the profile above") == 1


@pytest.mark.slow
def test_write_report_folds_all_but_verdicts_and_picture(toy, plan):
    run_experiment(toy.experiment, plan)
    report = page([toy.experiment], plan)
    tags = [tag for tag, _ in report.tags]
    assert tags.index("table") < tags.index("img") < tags.index("details")
    folds = [attributes for tag, attributes in report.tags if tag == "details"]
    assert len(folds) == 2  # the explanation of the tables, and the experiment
    assert not any("open" in attributes for attributes in folds)


@pytest.mark.slow
def test_report_of_all_committed_records_is_at_most_3_mb(tmp_path, monkeypatch):
    experiments = load_experiments()
    for experiment in experiments:
        records = [
            encode(vars(record))
            for profile in PROFILES
            for record in load_publication(PUBLISHED, experiment.name, profile).records
        ]
        records_path(tmp_path, experiment.name).write_text(json.dumps(records), "utf-8")
    monkeypatch.setattr(
        report,
        "draw_figures",
        lambda experiment, records, folder: (
            load_publication(PUBLISHED, experiment.name, records[0].profile).figures
        ),
    )
    path, complete = write_report(experiments, tmp_path)
    assert complete
    assert path.stat().st_size <= 3_000_000
    parsed = Parsed(path.read_text("utf-8"))
    assert [row[0] for row in parsed.rows[1 : 1 + len(experiments)]] == [
        experiment.page.title for experiment in experiments
    ]


def test_write_report_needs_nothing_from_outside(toy, plan):
    run_experiment(toy.experiment, plan)
    path, _ = write_report([toy.experiment], plan.results)
    html = path.read_text(encoding="utf-8")
    tags = Parsed(html).tags
    links = [
        attributes[name]
        for _, attributes in tags
        for name in ("src", "href", "srcset")
        if name in attributes
    ]
    assert all(link.startswith(("#", "data:image/webp;base64,")) for link in links)
    assert not re.search(r"url\(|@import|http", html)
    assert not {tag for tag, _ in tags} & {"script", "link", "iframe", "object"}

    # Inner links lead somewhere, and the image is that of the figure's file.
    ids = [attributes["id"] for _, attributes in tags if "id" in attributes]
    assert len(ids) == len(set(ids))
    assert {link[1:] for link in links if link.startswith("#")} <= set(ids)
    _, image = [attributes for tag, attributes in tags if tag == "img"]
    shown = Image.open(io.BytesIO(base64.b64decode(image["src"].partition(",")[2])))
    with Image.open(plan.results / "figures" / "toy_table_quick_accuracy.png") as file:
        drawn = np.asarray(file.convert("RGB"), float)
    assert shown.format == "WEBP"
    assert np.abs(np.asarray(shown.convert("RGB")) - drawn).mean() < 2


def test_write_report_escapes_every_text(toy, plan):
    evil = "<script>alert('x')</script>\"><img src=x onerror=y>"

    def run_row(row, context):
        if row.name == "2":
            raise RuntimeError(evil)
        return Result({evil: evil}, {evil: evil}, note=evil)

    def rows(profile):
        return [
            replace(
                row, settings={**row.settings, evil: row.name, "all": evil}, source={evil: evil}
            )
            for row in toy.rows(profile)
        ] + [replace(toy.rows(profile)[0], name=evil)]

    figure = toy.figures([])["accuracy"]
    experiment = replace(
        toy.experiment,
        page=Page("toy_table", evil, evil, (evil,), {"stem": evil}),
        rows=rows,
        run_row=run_row,
        remarks=lambda records: [evil],
        figures=lambda records: {"stem": figure},
    )
    run_experiment(experiment, plan)
    report = page([experiment], plan)
    images = [attributes for tag, attributes in report.tags if tag == "img"]
    assert "script" not in {tag for tag, _ in report.tags}
    assert [set(attributes) for attributes in images] == [{"src", "width", "loading", "alt"}]
    assert report.text.count("alert('x')") >= 15


@pytest.mark.slow
@pytest.mark.parametrize("part", ["figures", "remarks"])
def test_write_report_goes_on_after_a_failing_figure_or_remark(toy, plan, part, capsys):
    def fail(records):
        raise RuntimeError("no such column")

    broken = replace(toy.experiment, **{part: fail})
    sound = replace(
        toy.experiment, page=replace(toy.experiment.page, name="sound_table", title="Sound")
    )
    for experiment in (broken, sound):
        run_experiment(experiment, plan)
    path, complete = write_report([broken, sound], plan.results)
    assert not complete
    text = Parsed(path.read_text(encoding="utf-8")).text
    assert f"The {part} could not be made: RuntimeError: no such column" in text
    assert text.count("2.235") == 2
    assert "Traceback" in capsys.readouterr().err
