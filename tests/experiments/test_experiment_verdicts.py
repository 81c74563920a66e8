import re

import pytest

from experiments.lib.publication import PUBLISHED, load_publication
from experiments.lib.registry import MODULES, PROFILES, VERDICTS, Record, load_experiments
from experiments.lib.tables import finished_records, table_lines
from experiments.lib.verdicts import Comparison, compare_published, direction_finding


def compare(*pairs, tolerance=0.5):
    records = [
        Record("e", "1", "quick", {}, {"accuracy %": published}, {"accuracy %": measured}, {}, 1.0)
        for measured, published in pairs
    ]
    return compare_published(records, "accuracy %", tolerance, "published accuracies", "points")


@pytest.mark.parametrize(
    ("pairs", "verdict", "text"),
    [
        ([(97.6 + 0.5, 97.6), (94.6, 95.0)], "reproduced", r"2 of 2 .* \(.* \+0\.5 points\)"),
        ([(95.5, 95.0), (90.0, 95.0)], "reproduced in part", r"1 of 2 .* \(.* −5 points\)"),
        ([(95.51, 95.0)], "not reproduced", "0 of 1 .* within 0.5 points"),
        ([(84.0, "about 84"), (84.0, None)], "not compared", "there are no published accuracies"),
    ],
)
def test_compare_published_counts_values_within_the_tolerance(pairs, verdict, text):
    comparison = compare(*pairs)
    assert comparison.verdict == verdict
    assert re.search(text, str(comparison))
    finding = comparison.finding("a clause")
    assert finding.verdict == verdict
    assert finding.sentence.endswith("; a clause.")
    assert finding.tolerance == ("" if verdict == "not compared" else "0.5 points")


def test_compare_published_only_counts_shortened_runs():
    records = [Record("e", "1", p, {}, {"a": 1.0}, {"a": 1.0}, {}, 1.0) for p in ("quick", "paper")]
    part = compare_published(records, "a", 0.1, "values", "", lambda r: r.profile == "paper")
    assert part.verdict == "reproduced in part"
    assert str(part).startswith("1 of 2 values are met")
    none = compare_published(records[:1], "a", 0.1, "values", "", lambda r: r.profile == "paper")
    assert none.verdict == "not compared"
    assert "shortened" in str(none)


def test_direction_finding_and_contradicted_claims():
    assert compare((95.0, 95.0)).finding("", True).verdict == "reproduced; claim contradicted"
    assert compare().finding("", True).verdict == "claim contradicted"
    assert direction_finding([True, False], "It is.").verdict == "not reproduced"
    assert direction_finding([True], "It is.").tolerance == "direction only"
    assert direction_finding([], "It is.").verdict == "not compared"
    relative = Comparison("errors", ((1.02, 1.0), (0.5, 0.505)), 1.0, "%")
    assert relative.num_within == 1
    assert "(largest difference +2 %)" in str(relative)


@pytest.mark.parametrize("profile", PROFILES)
@pytest.mark.parametrize("module", MODULES)
def test_finding_of_every_experiment_needs_no_other_row(module, profile):
    """Findings must not depend on rows that an interrupted run lacks."""
    (experiment,) = load_experiments([module])
    records = load_publication(PUBLISHED, experiment.name, profile).records
    finished = finished_records(table_lines(experiment, profile, records))
    for part in [finished, *([record] for record in finished)] if finished else []:
        finding = experiment.finding(part)
        assert set(finding.verdict.split("; ")) <= set(VERDICTS)
        assert finding.sentence
