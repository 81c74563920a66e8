"""Dots computed at once, against dp-accounting's own of the same steps."""

import numpy as np
import pytest
from dp_accounting import dp_event
from dp_accounting.pld import privacy_loss_distribution as loss

from dpjax.accounting import loss_distribution
from dpjax.accounting.releases.base import release_of


def subsampled(noise, rate, interval):
    event = dp_event.PoissonSampledDpEvent(rate, dp_event.GaussianDpEvent(noise))
    return release_of(event, "add_remove").pld_builder()(interval)


EPSILONS = np.array([-0.7, -0.1, 0.0, 0.05, 0.4, 2.0])


@pytest.mark.parametrize(("noise", "rate"), [(1.1, 256 / 60_000), (0.5, 0.2), (20.0, 1e-3)])
@pytest.mark.parametrize("count", [1, 300])
def test_sampled_gaussians(noise, rate, count):
    interval = 0.05 * rate / noise
    theirs = loss.from_gaussian_mechanism(
        noise, sampling_prob=rate, value_discretization_interval=interval
    ).self_compose(count)
    ours = subsampled(noise, rate, interval).self_compose(count)
    for direction, pmf in (("add", theirs._pmf_add), ("remove", theirs._pmf_remove)):
        np.testing.assert_allclose(
            loss_distribution.hockey_stick_divergence(ours, EPSILONS, direction),
            pmf.get_delta_for_epsilon(EPSILONS),
            rtol=1e-6,
            atol=1e-12,
        )


@pytest.mark.parametrize("direction", [None, "add", "remove"])
def test_deltas_at_once_are_those_one_by_one(direction):
    total = loss.from_gaussian_mechanism(0.8, sampling_prob=0.1).self_compose(20)
    found = loss_distribution.hockey_stick_divergence(total, EPSILONS.reshape(2, 3), direction)
    each = [
        [pmf.get_delta_for_epsilon(float(e)) for e in EPSILONS]
        for pmf in (total._pmf_add, total._pmf_remove)
    ]
    exact = {None: np.max(each, axis=0), "add": each[0], "remove": each[1]}[direction]
    np.testing.assert_allclose(found, np.reshape(exact, (2, 3)), rtol=1e-9, atol=1e-14)


def test_the_largest_losses_do_not_overflow():
    total = loss.from_gaussian_mechanism(0.02, value_discretization_interval=1.0)
    found = loss_distribution.hockey_stick_divergence(
        total, [-2_000.0, 0.0, 1_250.0, 2_000.0], None
    )
    assert np.all(np.isfinite(found))
    assert found[1] == pytest.approx(1.0)
    assert found[2] == pytest.approx(0.5, abs=0.01)
    assert found[3] == pytest.approx(0.0, abs=1e-9)
