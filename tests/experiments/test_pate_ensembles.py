"""Ensembles of networks and of forests on small data: answers, accounts, and shared teachers."""

import dataclasses

import numpy as np
import pytest

from dpjax import pate
from experiments.data import Split, load_data
from experiments.lib.registry import RowContext
from experiments.pate import adult, answers, images
from experiments.pate.accounts import EPSILON, PRIVATE, make_mechanism
from experiments.pate.answers import ANSWERS, PLURALITY, RIGHT, STUDENT, TEACHERS

RELEASES = {
    "LNMax": ({"aggregator": "LNMax", "num_queries": 50, "scale": 3.0, "delta": 1e-4}, (98.0, 2.0)),
    "Confident-GNMax": (
        {
            "aggregator": "ConfidentGNMax",
            "num_queries": 100,
            "threshold": 12.0,
            "check_scale": 5.0,
            "scale": 3.0,
            "max_answers": 60,
            "delta": 1e-4,
        },
        (98.0, 2.0, 60),
    ),
}
TEACHERS_SETTINGS = {
    "num_teachers": 20,
    "network": "MLP",
    "epochs": 10,
    "batch_size": 20,
    "augment": False,
    "num_labels": 100,
}
ROWS = images.make_rows(
    "digits",
    {"network": "MLP", "num_epochs": 3, "batch_size": 64},
    99.0,
    TEACHERS_SETTINGS,
    RELEASES,
    {"network": "MLP", "num_steps": 100, "batch_size": 32, "unlabeled_batch_size": 0},
)


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """The result of each row, and the number of trained ensembles."""
    context = RowContext(tmp_path_factory.mktemp("work") / "row", fresh=True, profile="quick")
    train, trained = images._train_and_predict, []

    def count(*arguments):
        trained.append(arguments)
        return train(*arguments)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(images, "_train_and_predict", count)
        found = {row.name: images.run_row(row, context) for row in ROWS}
        images.teacher_labels.cache_clear()  # as in another process
        again = images.run_row(ROWS[1], context)
    assert again == found["LNMax"]
    return found, len(trained)


def test_run_row_trains_one_ensemble_for_all_rows(results):
    assert results[1] == 1


def test_run_row_is_more_accurate_by_plurality_than_by_teacher(results):
    for name in RELEASES:
        measured = results[0][name].measured
        assert measured[TEACHERS] < measured[PLURALITY]
        assert measured[RIGHT] > 60
        assert measured[STUDENT] > 50
    assert results[0]["LNMax"].measured[ANSWERS] == 50
    assert results[0]["Confident-GNMax"].measured[ANSWERS] <= 60
    assert results[0][images.PLAIN_ROW].measured[STUDENT] > 85


def test_run_row_certifies_the_release_for_any_votes(results):
    for name, (settings, _) in RELEASES.items():
        mechanism = make_mechanism(settings, num_teachers=20, num_classes=10)
        found = results[0][name]
        assert found.certified[EPSILON] == pate.certificate(mechanism, 1e-4).epsilon
        assert "NOT PUBLISHABLE" not in found.certificate
        private = [column for column in found.measured if "ε" in column]
        assert private
        assert all(column.startswith(PRIVATE) for column in private)
    assert results[0][images.PLAIN_ROW].certified == {}


def test_teacher_labels_depend_on_settings_and_data(tmp_path, monkeypatch):
    made = []
    monkeypatch.setattr(images, "_train_and_predict", lambda *_: np.full((20, 100), len(made)))
    digits = load_data("digits")
    settings = images.Teachers("digits", **TEACHERS_SETTINGS)
    for name, seed in (("digits", 0), ("digits", 1), ("other", 0), ("digits", 0)):
        images.teacher_labels.cache_clear()
        data = dataclasses.replace(digits, name=name)
        monkeypatch.setattr(images, "load_images", lambda name, data=data: data)
        own = dataclasses.replace(settings, seed=seed)
        made.append(images.teacher_labels(own, tmp_path)[0, 0])
    images.teacher_labels.cache_clear()
    assert made == [0, 1, 2, 0]


def test_answer_queries_takes_at_most_the_images_there_are():
    labels = np.zeros((20, 20), np.int32)
    release = {**RELEASES["Confident-GNMax"][0], "seed": 0}
    found = answers.answer_queries(release, labels, labels[0], num_classes=10)
    assert found.measured[ANSWERS] <= 20
    assert found.measured[RIGHT] == 100


def test_standardize_images_removes_color_brightness_and_contrast():
    x = np.random.default_rng(0).uniform(size=(3, 5, 5, 3)).astype(np.float32)
    found = images.standardize_images(x)
    assert (found.shape, found.dtype) == ((3, 5, 5, 1), np.float32)
    np.testing.assert_allclose(found.mean((1, 2, 3)), 0, atol=1e-6)
    np.testing.assert_allclose(found.std((1, 2, 3)), 1, atol=0.01)
    np.testing.assert_allclose(images.standardize_images(0.5 + x / 2), found, atol=0.02)
    # each image alone: another one changes nothing
    np.testing.assert_array_equal(images.standardize_images(x[:1]), found[:1])
    assert np.all(images.standardize_images(np.ones((1, 5, 5, 3), np.float32)) == 0)


def test_answer_queries_counts_diverged_teachers_as_abstaining():
    truth = np.arange(100, dtype=np.int32) % 10
    labels = np.tile(truth, (20, 1))
    labels[:3] = pate.NO_ANSWER
    for settings, _ in RELEASES.values():
        found = answers.answer_queries({**settings, "seed": 0}, labels, truth, num_classes=10)
        assert found.measured[TEACHERS] == 85
        assert found.measured[PLURALITY] == 100
        assert "20 teachers, who may abstain" in " ".join(found.certificate.split())
        # all others agree: the same text and guarantee, whether a teacher abstained or not
        whole = answers.answer_queries(
            {**settings, "seed": 0}, np.tile(truth, (20, 1)), truth, num_classes=10
        )
        assert (whole.certificate, whole.certified) == (found.certificate, found.certified)
    assert answers.abstention_note(labels).endswith("cast no vote: 3 of 20.")
    assert answers.abstention_note(labels[3:]) == ""


def test_run_row_of_forests_answers_and_teaches(monkeypatch, tmp_path):
    digits = load_data("digits")
    train, test = (
        Split(part.x.reshape(len(part.x), -1), (part.y >= 5).astype(np.int32))
        for part in (digits.train, digits.test)
    )
    binary = dataclasses.replace(digits, train=train, test=test, num_classes=2)
    monkeypatch.setattr(adult, "data_set", lambda: binary)
    adult._teacher_labels.cache_clear()
    rows = {row.name: row for row in adult.rows("quick")}
    context = RowContext(tmp_path, fresh=True, profile="quick")
    row = rows["LNMax, 500 queries"]
    changes = {"num_teachers": 20, "num_trees": 5, "scale": 2.0, "num_queries": 150}
    small = dataclasses.replace(row, settings={**row.settings, **changes})
    result = adult.run_row(small, context)
    adult._teacher_labels.cache_clear()
    assert result.measured[ANSWERS] == 150
    assert result.measured[STUDENT] > 65
    assert result.measured[TEACHERS] < result.measured[PLURALITY]
    mechanism = make_mechanism(small.settings, num_teachers=20, num_classes=2)
    assert result.certified[EPSILON] == pate.certificate(mechanism, 1e-5).epsilon
