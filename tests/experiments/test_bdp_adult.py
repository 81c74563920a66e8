"""The variational rows of Table 1: what their noise is worth, and what the source's was."""

import pytest

from dpjax.accounting import log_moments
from experiments.bdp import abalone, adult
from experiments.dpvi.inference import make_mechanism
from experiments.lib.registry import experiment_of, profile_rows


@pytest.mark.parametrize(
    ("module", "num_examples", "promised"), [(abalone, 3_341, 0.61), (adult, 39_073, 0.2)]
)
def test_rows_end_with_noise_for_the_published_bdp_epsilon_under_dp(module, num_examples, promised):
    settings = profile_rows(experiment_of(module), "quick")[-1].settings
    run = [settings[name] for name in ("sigma", "l2_clip", "sampling_rate", "num_steps")]
    epsilon = make_mechanism(*run, num_examples).certificate(1e-10).epsilon
    assert promised - 0.01 < epsilon <= promised


def test_rows_with_source_noise_have_the_published_dp_epsilon():
    abalone_row, adult_row = (
        profile_rows(experiment_of(module), "quick")[2].settings for module in (abalone, adult)
    )
    for row, delta, published in (
        (abalone_row, 5e-4, 7.6),
        (adult_row, 5e-4, 0.5),
        (adult_row, 1e-3, 0.5),
    ):
        read = log_moments.compute_epsilon(
            row["sigma"], row["sampling_rate"], row["num_steps"], delta
        )
        assert round(float(read), 1) == published
