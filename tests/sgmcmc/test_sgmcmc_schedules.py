"""Step-size schedules."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from dpjax.bayes.sgmcmc.langevin import (
    CyclicalCosine,
    PolynomialDecay,
    as_schedule,
    evaluate_step_sizes,
)


def test_decreasing_is_the_power():
    sizes = evaluate_step_sizes(PolynomialDecay(0.3), 100)
    np.testing.assert_allclose(sizes, 0.3 * np.arange(1, 101) ** (-1 / 3), rtol=1e-5)
    assert (evaluate_step_sizes(PolynomialDecay(0.3, exponent=0), 5) == np.float32(0.3)).all()


def test_cyclical_repeats_and_stays_above_zero():
    sizes = evaluate_step_sizes(CyclicalCosine(0.3, period=10), 30)
    np.testing.assert_allclose(sizes[:10], sizes[10:20])
    assert sizes[0] == np.float32(0.3)
    assert (np.diff(sizes[:10]) < 0).all()
    assert sizes.min() > 0


@pytest.mark.parametrize(
    "schedule", [PolynomialDecay(0.3), CyclicalCosine(0.3, period=4), optax.constant_schedule(1.0)]
)
def test_schedules_trace_and_agree_with_their_values(schedule):
    sizes = evaluate_step_sizes(schedule, 9)
    traced = jax.jit(as_schedule(tuple(sizes.tolist())))
    np.testing.assert_allclose([traced(jnp.int32(step)) for step in range(9)], sizes, rtol=1e-6)


def test_sizes_are_numbers_under_jit():
    @jax.jit
    def last(x):
        return x * evaluate_step_sizes(PolynomialDecay(0.3), 8)[-1]

    np.testing.assert_allclose(last(jnp.ones(())), 0.15, rtol=1e-6)


def test_bad_schedules_are_refused():
    for schedule, initial, arguments in [
        (PolynomialDecay, 0.0, {}),
        (PolynomialDecay, 1.0, {"exponent": 2.0}),
        (CyclicalCosine, 1.0, {"period": 0}),
    ]:
        with pytest.raises(ValueError, match="must be"):
            schedule(initial, **arguments)
