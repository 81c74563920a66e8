"""Bookkeeping against the reference on randomly generated networks."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers.bookkeeping_checks import (
    assert_norms_not_below,
    assert_same,
    different_ways,
    side_by_side,
)
from helpers.random_programs import case_of, programs
from helpers.zoo_case import BATCH, Case, floats
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

_SETTINGS = settings(
    derandomize=True,
    deadline=None,
    database=None,
    phases=[Phase.generate],  # a program that fails is printed as it is: shrinking would compile
    suppress_health_check=list(HealthCheck),
)


def _in_precision(program, dtype):
    case = case_of(program)
    return Case(case.loss, floats(case.params, dtype), floats(case.batch, dtype))


@pytest.mark.slow
@settings(_SETTINGS, max_examples=4)
@given(programs(), st.floats(0.3, 3.0))
def test_agrees_on_a_few_random_networks(program, strictness):
    _check_agreement(program, strictness)


@pytest.mark.slow
@settings(_SETTINGS, max_examples=20)
@given(programs(), st.floats(0.3, 3.0))
def test_agrees_on_random_networks(program, strictness):
    _check_agreement(program, strictness)


def _check_agreement(program, strictness):
    with jax.enable_x64(True):
        case = _in_precision(program, jnp.float64)
        run = side_by_side(case, different_ways(case))
        mask = np.arange(BATCH) != 1
        norms = run(1.0, case.params, case.batch, mask)[0][1].norms
        clip = strictness * jnp.max(norms) + 1e-3
        expected, found = run(clip, case.params, case.batch, mask)
        for result in found:
            assert_same(result, expected, 1e-9)
            assert_norms_not_below(result[1].norms, expected[1].norms, 1e-12)
