"""Published epsilons from the votes released with Papernot et al. (2018)."""

import dataclasses
import os
from pathlib import Path

import jax
import numpy as np
import pytest

from dpjax import pate
from dpjax.pate import ConfidentGNMax, LNMax
from experiments.published.pate import published_epsilon

COMMON = {"num_teachers": 250, "num_classes": 10, "adjacency": "replace_one"}


@pytest.fixture(scope="module")
def votes():
    """Votes of 250 teachers by name; skipped where DPJAX_DATA_DIR has no folder pate_votes."""
    folder = Path(os.environ.get("DPJAX_DATA_DIR") or ".") / "pate_votes"
    if not folder.is_dir():
        pytest.skip(f"{folder} does not exist: set DPJAX_DATA_DIR to a folder with pate_votes")
    return {name: np.load(folder / f"{name}_250_teachers.npy") for name in ("mnist", "svhn")}


@pytest.mark.parametrize(
    ("name", "rows", "delta", "expected"),
    [
        ("mnist", slice(700, 800), 1e-5, 2.049),  # the rows of the source are not stated
        ("svhn", slice(0, 500), 1e-6, 5.041),
        ("svhn", slice(0, 1000), 1e-6, 8.192),
    ],
)
def test_published_laplace_epsilons(votes, name, rows, delta, expected):
    """With gamma 0.1, the default of the source's script, in place of the stated 0.05."""
    chosen = votes[name][rows]
    mechanism = LNMax(scale=10.0, num_queries=len(chosen), **COMMON)
    published = published_epsilon(mechanism, chosen, delta)
    (both,) = pate.data_dependent_analyses(mechanism, chosen, delta)
    assert published == pytest.approx(expected, abs=6e-4)
    assert both.epsilon < published


@pytest.mark.parametrize(
    ("name", "settings", "num_queries", "delta", "expected", "answers", "exact", "tight"),
    [
        ("mnist", (200.0, 150.0, 40.0), 640, 1e-5, 2.00, 286, 2.54, 2.155),
        ("svhn", (300.0, 200.0, 40.0), 8500, 1e-6, 4.92, 3098, 11.1, 9.13),
    ],
)
def test_published_confident_epsilons(
    votes, name, settings, num_queries, delta, expected, answers, exact, tight
):
    threshold, threshold_scale, scale = settings
    mechanism = ConfidentGNMax(
        threshold=threshold,
        threshold_scale=threshold_scale,
        scale=scale,
        max_answers=answers,
        num_queries=num_queries,
        **COMMON,
    )
    chosen = votes[name][:num_queries]
    released = mechanism.release(jax.random.key(0), chosen)
    found = pate.certificate(mechanism, delta, votes=chosen, answered=np.asarray(released.answered))
    assert [row.kind for row in found.data_dependent] == ["bound", "realized"]
    both, realized = (row.epsilon for row in found.data_dependent)
    assert published_epsilon(mechanism, chosen, delta) == pytest.approx(expected, abs=0.006)
    assert realized < both < found.epsilon
    assert found.dp_certificate.epsilon == pytest.approx(exact, rel=4e-3)
    assert found.epsilon == pytest.approx(tight, rel=2e-3)
    # 283 and 2,969 are expected to be answered, with standard deviations 12 and 43
    mean, deviation = {"mnist": (283, 12), "svhn": (2969, 43)}[name]
    uncapped = dataclasses.replace(mechanism, max_answers=num_queries)
    count = int(np.sum(uncapped.release(jax.random.key(1), chosen).answered))
    assert abs(count - mean) < 6 * deviation
