"""One training function: privately, without privacy, with a given step, and resumed."""

import json

import chex
import flax.linen as nn
import jax
import numpy as np
import optax
import pytest

import dpjax
from experiments.data import Dataset, Split
from experiments.lib.models import convolve
from experiments.lib.training import ShuffledEpochs, classification, initialize, train

SIZE, BATCH = 60, 12


@pytest.fixture(scope="module")
def data():
    """Two classes that a line separates."""
    x = np.random.default_rng(0).normal(size=(SIZE, 3)).astype(np.float32)
    split = Split(x, (x[:, 0] > 0).astype(np.int32))
    return Dataset("line", split, split, "memory", True, 2, "A line.")


@pytest.fixture(scope="module")
def problem(data):
    """Key, task and initial parameters of a linear classifier."""
    model = nn.Dense(2)
    key, params = initialize(model, data.train.x[:1], seed=0)
    return key, classification(model, data, optax.sgd(1.0)), params


def mechanism(noise_multiplier=0.1, epochs=3):
    return dpjax.SubsampledGaussian(
        dpjax.PoissonSampling(SIZE, BATCH / SIZE),
        l2_clip=1.0,
        noise_multiplier=noise_multiplier,
        num_steps=epochs * SIZE // BATCH,
        adjacency="zero_out",
    )


@pytest.mark.slow
def test_train_privately_is_dpjax_train_evaluated_after_each_epoch(problem):
    key, task, params = problem
    training = train(key, task, params, mechanism())
    expected = dpjax.train(
        key, task.loss_fn, params, task.examples, task.optimizer, mechanism=mechanism()
    )
    chex.assert_trees_all_equal(training.params, expected.params)
    assert [epoch for epoch, _ in training.curve] == pytest.approx([1.0, 2.0, 3.0])
    assert training.curve[-1][1] == task.evaluate(training.params) > 80
    assert training.certificate(1e-5).epsilon == mechanism().certificate(1e-5).epsilon


@pytest.mark.slow
def test_train_resumes_a_run_killed_before_its_last_report(problem, tmp_path):
    key, task, params = problem
    whole = train(key, task, params, mechanism(), folder=tmp_path)
    path = tmp_path / "curve.json"
    path.write_text(json.dumps(whole.curve[:-1]))
    again = train(key, task, params, mechanism(), folder=tmp_path)
    assert again.curve == whole.curve
    chex.assert_trees_all_equal(again.params, whole.params)


@pytest.mark.slow
def test_train_with_much_noise_learns_nothing(problem):
    key, task, params = problem
    assert train(key, task, params, mechanism(1000.0)).curve[-1][1] < 75


@pytest.mark.slow
def test_train_reports_every_steps_per_report(problem):
    key, task, params = problem
    reports = []
    train(key, task, params, mechanism(), steps_per_report=10, on_report=reports.append)
    assert [report.num_releases for report in reports] == [10, 15]
    assert [len(report.infos.norms) for report in reports] == [10, 5]


def test_train_without_privacy_visits_each_example_once_an_epoch(problem):
    key, task, params = problem
    training = train(key, task, params, ShuffledEpochs(num_epochs=4, batch_size=BATCH))
    assert [epoch for epoch, _ in training.curve] == [1.0, 2.0, 3.0, 4.0]
    assert training.curve[-1][1] > 90
    with pytest.raises(AssertionError, match="without privacy"):
        training.certificate(1e-5)
    # One whole batch is one step of gradient descent, whatever its order.
    once = train(key, task, params, ShuffledEpochs(1, SIZE)).params
    gradient = jax.grad(
        lambda params: jax.vmap(task.loss_fn, (None, 0))(params, task.examples).mean()
    )(params)
    expected = jax.tree.map(lambda leaf, slope: leaf - slope, params, gradient)
    chex.assert_trees_all_close(once, expected, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("size", "channels", "padding"), [(8, 1, ((3, 3), (3, 3))), (4, 3, ((0, 0), (2, 4)))]
)
def test_convolve_is_the_convolution_of_xla(size, channels, padding):
    def by_xla(image, kernel):
        dimensions = ("NHWC", "HWIO", "NHWC")
        return jax.lax.conv_general_dilated(
            image, kernel, (2, 2), padding, dimension_numbers=dimensions
        )

    image_key, kernel_key, weight_key = jax.random.split(jax.random.key(0), 3)
    image = jax.random.normal(image_key, (2, 12, 10, channels))
    kernel = jax.random.normal(kernel_key, (size, size, channels, 5))
    expected, pull = jax.vjp(by_xla, image, kernel)
    output, pull_patches = jax.vjp(lambda x, w: convolve(x, w, (2, 2), padding), image, kernel)
    np.testing.assert_allclose(output, expected, atol=1e-4)
    weights = jax.random.normal(weight_key, expected.shape)
    for gradient, other in zip(pull_patches(weights), pull(weights), strict=True):
        np.testing.assert_allclose(gradient, other, atol=1e-3)
