"""Model inversion: the attack, and scores that separate memorised images from class averages."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from matplotlib.figure import Figure

import dpjax
from experiments.lib.registry import Record, Row, RowContext
from experiments.sgmcmc import inversion
from experiments.sgmcmc.inversion import (
    Images,
    Settings,
    class_means,
    correlations,
    invert,
    split_images,
)


def test_the_attack_reaches_the_confidence_and_stops_there():
    weights = jax.random.normal(jax.random.key(0), (49, 10))
    pictures = invert(weights)
    assert (pictures >= 0).all()
    assert (pictures <= 1).all()
    sure = jnp.diagonal(jax.nn.softmax(pictures @ weights))
    assert (sure >= 0.99).all()
    assert (sure < 0.999).all()
    assert (jnp.diagonal(jax.nn.softmax(invert(weights, 0.5) @ weights)) < 0.9).all()


def test_the_attack_draws_what_a_template_knows():
    templates = (np.random.default_rng(0).random((10, 49)) < 0.3).astype(np.float32)
    pictures = invert(jnp.asarray(templates.T - templates.mean(axis=0)[:, None]))
    found = correlations(pictures, templates)
    assert (found.argmax(axis=1) == np.arange(10)).all()
    assert np.diagonal(found).mean() > 0.6


def test_success_tells_memory_from_knowledge_of_the_class():
    rng = np.random.default_rng(0)
    classes, labels = rng.random((10, 49)), np.repeat(np.arange(10), 5)
    own, others = (Images(classes[labels] + rng.normal(size=(50, 49)), labels) for _ in range(2))
    memory = inversion.success(class_means(*own), own, others)
    knowledge = inversion.success(classes, own, others)
    assert memory[inversion.OWN] == pytest.approx(1)
    assert memory[inversion.OWN] - memory[inversion.OTHERS] > 0.3
    assert abs(knowledge[inversion.OWN] - knowledge[inversion.OTHERS]) < 0.1
    assert memory[inversion.NEAREST_OWN] - memory[inversion.NEAREST_OTHER] > 0.2
    assert knowledge[inversion.RECOGNISED] == 100
    assert inversion.success(rng.random((10, 49)), own, others)[inversion.OWN] < 0.3


def test_the_two_groups_are_equal_in_size_and_disjoint():
    data = dpjax.datasets.load("digits")
    own, others = split_images(data, 10)
    assert (np.bincount(own.y) == 10).all()
    assert (np.bincount(others.y) == 10).all()
    assert not {image.tobytes() for image in own.x} & {image.tobytes() for image in others.x}
    most, _ = split_images(data, 10_000)
    assert len(set(np.bincount(most.y))) == 1


@pytest.fixture(scope="module")
def records(tmp_path_factory):
    """The two rows of few images, on the small stand-in and shortened."""
    stand_in = dataclasses.replace(dpjax.datasets.load("digits"), is_stand_in=True)
    context = RowContext(tmp_path_factory.mktemp("row"), fresh=True, profile="quick")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(inversion, "load_images", lambda: stand_in)
        return [_record(row, context) for row in inversion.EXPERIMENT.rows("quick")[:2]]


def _record(row: Row, context: RowContext) -> Record:
    settings = {**row.settings, "num_steps": min(40, row.settings["num_steps"])}
    result = inversion.EXPERIMENT.run_row(Row(row.name, settings, {}), context)
    return Record(
        experiment="sgmcmc_inversion",
        row=row.name,
        profile="quick",
        settings=settings,
        source={},
        seconds=0.0,
        **vars(result),
    )


def test_only_the_model_without_privacy_remembers(records):
    plain, private = (record.measured for record in records)
    assert plain["test accuracy %"] > 75
    assert plain[inversion.OWN] - plain[inversion.OTHERS] > 0.03
    assert plain[inversion.OWN] > 0.5
    assert private[inversion.OWN] < 0.3
    assert private["test accuracy %"] < 50  # so few images drown in the noise of epsilon = 1


def test_the_private_row_is_certified_as_run(records):
    plain, private = records
    assert not plain.certified
    assert 0.99 < private.certified["ε"] <= 1
    chain = Settings(**private.settings).chain(100)
    assert private.certified["ε"] == chain.certificate(1e-5).epsilon
    assert "one image" in private.certificate


def test_the_report_has_its_pictures_and_says_what_they_show(records):
    figures = inversion.EXPERIMENT.figures(records)
    assert isinstance(figures["pictures"][0], Figure)
    assert len(figures["pictures"][0].axes) == 15
    first, last = inversion.EXPERIMENT.remarks(records)
    assert "10 images a class" in first
    assert "does not protect" in last
    # Of rows that are there: one alone is no pair.
    assert len(inversion.EXPERIMENT.remarks(records[:1])) == 1


def test_quick_and_paper_differ_in_the_large_group_alone():
    quick, paper = inversion.EXPERIMENT.rows("quick"), inversion.EXPERIMENT.rows("paper")
    assert [row.settings for row in quick[:2]] == [row.settings for row in paper[:2]]
    assert quick[2].settings["per_class"] < paper[2].settings["per_class"]
