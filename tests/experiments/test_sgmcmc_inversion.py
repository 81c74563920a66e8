"""Model inversion: the attack, its success by person, and the guarantee of each unit."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments.data import Dataset, Split, load_data
from experiments.lib.registry import Record, Row, RowContext
from experiments.sgmcmc import inversion
from experiments.sgmcmc.inversion import (
    ACCURACY,
    BOUND,
    IDENTIFIED,
    IDENTIFIED_HELD_OUT,
    NOISY_SGD,
    OWN,
    PERSON,
    PICTURE,
    PLAIN,
    Settings,
    class_means,
    invert,
    match_classes,
    smooth,
)

NUM_PEOPLE = 10


@pytest.fixture(scope="module")
def digits() -> Dataset:
    """Seven training and three test images of each digit, the stand-in for the faces."""
    data = load_data("digits")
    parts = [
        Split(
            *(
                np.concatenate([leaf[part.y == label][:size] for label in range(10)])
                for leaf in part
            )
        )
        for part, size in ((data.train, 7), (data.test, 3))
    ]
    return dataclasses.replace(data, train=parts[0], test=parts[1], is_stand_in=True)


def sgd_settings(**changes):
    return dataclasses.replace(Settings(inversion.FACES, NOISY_SGD), **changes)


# The attack.


def test_invert_stops_at_the_confidence():
    params = {"output": 3 * jax.random.normal(jax.random.key(0), (49, 10))}
    pictures = invert(params, 10)
    assert (pictures >= 0).all()
    assert (pictures <= 1).all()
    sure = jnp.diagonal(jax.nn.softmax(inversion.logits(params, pictures)))
    assert (sure >= inversion.CONFIDENCE).all()
    assert (sure < 0.9999).all()


def test_invert_is_algorithm_1_step_by_step():
    """Oracle: Algorithm 1 written as a loop, with the gradient of a softmax by hand."""
    weights = np.asarray(jax.random.normal(jax.random.key(1), (16, 3)))

    def reconstruct(label):
        image, best, lowest, costs = np.full(16, 0.5), None, np.inf, []
        for _ in range(inversion.MAX_STEPS + 1):
            odds = np.exp((image - 0.5) @ weights)
            p = odds / odds.sum()
            costs.append(1 - p[label])
            if costs[-1] < lowest:
                best, lowest = image, costs[-1]
            window = costs[-101:-1]
            if (len(window) == 100 and costs[-1] >= max(window)) or costs[-1] <= 0.01:
                break
            slope = -p[label] * (weights[:, label] - weights @ p)
            image = np.clip(image - 0.1 * slope, 0, 1)
        return best

    expected = np.stack([reconstruct(label) for label in range(3)])
    np.testing.assert_allclose(invert({"output": jnp.asarray(weights)}, 3), expected, atol=1e-3)


def test_invert_returns_grey_without_gradients():
    np.testing.assert_array_equal(invert({"output": jnp.zeros((9, 4))}, 4), np.full((4, 9), 0.5))


def test_match_classes_of_random_images_identifies_one_in_ten():
    rng = np.random.default_rng(0)
    references = rng.random((NUM_PEOPLE, 64))
    rates = [
        match_classes(rng.random((NUM_PEOPLE, 64)), references).identified_percent
        for _ in range(400)
    ]
    # The mean over 400 trials of ten people has a standard error of at most half a point.
    assert abs(np.mean(rates) - 100 / NUM_PEOPLE) < 2.5
    noisy = references + rng.normal(size=references.shape)
    assert match_classes(noisy, references).identified_percent > 30


def test_match_classes_ignores_the_mean_over_classes():
    rng = np.random.default_rng(0)
    pictures, common = rng.random((NUM_PEOPLE, 64)), 100 * rng.random(64)
    one, other = match_classes(pictures, pictures), match_classes(pictures + common, pictures)
    np.testing.assert_allclose(other, one, atol=1e-6)
    assert one.correlation == pytest.approx(1)


def test_smooth_reduces_noise_and_keeps_large_shapes():
    shape = np.zeros((64, 64))
    shape[16:48, 16:48] = 1
    noise = np.random.default_rng(0).normal(size=(64, 64))
    shape_left, noise_left = smooth(np.stack([shape.ravel(), noise.ravel()])).std(axis=1)
    assert shape_left > 0.9 * shape.std()
    assert noise_left < 0.2 * noise.std()


# The models.


def test_records_of_a_person_are_all_of_their_pictures(digits):
    shuffled = np.random.default_rng(0).permutation(len(digits.train.y))
    data = dataclasses.replace(
        digits, train=Split(digits.train.x[shuffled], digits.train.y[shuffled])
    )
    images, labels = inversion.records(data, PERSON)
    assert (labels == np.arange(NUM_PEOPLE)[:, None]).all()
    np.testing.assert_allclose(images.mean(axis=1), class_means(data.train, NUM_PEOPLE), atol=1e-6)
    assert inversion.records(data, PICTURE)[0].shape == (70, 784)


def test_settings_mechanism_has_the_number_of_records_of_the_unit(digits):
    for unit, num_records, name in (
        (PICTURE, 70, "one picture"),
        (PERSON, 10, "one person with 7 pictures"),
    ):
        settings = sgd_settings(unit=unit, epsilon=2.0)
        mechanism = settings.mechanism(digits)
        certificate = mechanism.certificate(settings.delta)
        assert 1.98 < certificate.epsilon <= 2
        assert mechanism.sampling.num_examples == num_records
        assert name in str(certificate)
        assert len(inversion.records(digits, unit)[1]) == num_records
    assert Settings(inversion.FACES, PLAIN).mechanism(digits) is None


def test_fit_changes_by_at_most_the_clip_bound_for_one_person(digits):
    """All seven pictures of one person together, multiplied by a million, are one record."""
    settings = sgd_settings(unit=PERSON, epsilon=1.0, num_steps=1)
    mechanism = settings.mechanism(digits)
    images = digits.train.x.copy()
    images[digits.train.y == 3] *= 1e6
    other = dataclasses.replace(digits, train=Split(images, digits.train.y))
    one, moved = (inversion.fit(settings, data, mechanism)["output"] for data in (digits, other))
    # The same key gives the same noise: the difference is that of the two clipped gradients.
    distance = float(jnp.linalg.norm(one - moved))
    allowed = 2 * settings.learning_rate * settings.l2_clip / NUM_PEOPLE
    assert 0.1 * allowed < distance <= 1.001 * allowed


def test_identification_bound_is_that_of_the_trade_off_function(digits):
    certificates = [
        sgd_settings(unit=PERSON, epsilon=epsilon).mechanism(digits).certificate(1e-5)
        for epsilon in (0.1, 1.0, 10.0)
    ]
    bounds = [inversion.identification_bound(each, 40) for each in certificates]
    assert bounds == sorted(bounds)
    for certificate, bound in zip(certificates, bounds, strict=True):
        # Its slope is at most e^epsilon, and its level at least that of guessing.
        assert 2.5 <= bound <= 2.5 * np.exp(certificate.epsilon) + 100 * 1e-5


# The experiment.


@pytest.fixture(scope="module")
def records(digits, tmp_path_factory):
    """Three rows of the paper profile on the stand-in, one run each."""
    context = RowContext(tmp_path_factory.mktemp("row"), fresh=True, profile="paper")
    rows = {row.name: row for row in inversion.rows("paper")}
    names = ("softmax, no privacy", "softmax, one picture, ε = 1", "softmax, one person, ε = 1")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(inversion, "load_images", lambda name: digits)
        yield [_record(rows[name], context) for name in names]


def _record(row: Row, context: RowContext) -> Record:
    settings = {**row.settings, "runs": 1}
    result = inversion.run_row(Row(row.name, settings, {}), context)
    return Record(
        experiment="sgmcmc_inversion",
        row=row.name,
        profile="paper",
        settings=settings,
        source={},
        seconds=0.0,
        **vars(result),
    )


def test_run_row_without_privacy_identifies_everyone(records):
    plain, _, person = (record.measured for record in records)
    assert plain[ACCURACY] > 60
    assert plain[IDENTIFIED] == 100
    assert plain[IDENTIFIED_HELD_OUT] > 80
    assert plain[OWN] > 0.5
    # One in ten is guessed; eight of ten by guessing have a probability below 1e-6.
    assert person[IDENTIFIED] < 80
    assert person[OWN] < 0.3


def test_run_row_certifies_private_rows_as_run(records):
    plain, picture, person = records
    assert not plain.certified
    assert not plain.certificate
    for record in (picture, person):
        assert 0.99 < record.certified["ε"] <= 1
        assert record.settings["unit"] in record.certificate
    assert BOUND in person.certified
    assert BOUND not in picture.certified
