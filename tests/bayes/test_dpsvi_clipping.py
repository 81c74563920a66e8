"""Clipping in the latent variables is clipping in the guide's parameters, with fewer numbers."""

from dataclasses import replace
from functools import cache, partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from dpsvi_cases import (
    FULL_RANK,
    MIXED,
    RECORDS,
    flat,
    mixture,
    private,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from numpyro.infer import Trace_ELBO
from numpyro.infer.autoguide import (
    AutoLowRankMultivariateNormal,
    AutoMultivariateNormal,
    AutoNormal,
)

from dpjax.bayes.variational.model_args import with_positions
from dpjax.bayes.variational.step import (
    ClippingSpace,
    choose_clipping_space,
    parameter_space,
)
from dpjax.gradients import clipped_grad

KEY = jax.random.key(2)
MASK = np.arange(RECORDS) % 3 > 0
LOW_RANK = AutoLowRankMultivariateNormal(mixture)
GUIDES = {"full rank": FULL_RANK, "low rank": LOW_RANK}
with_each = pytest.mark.parametrize("guide", GUIDES.values(), ids=GUIDES)


@cache
def started(guide):
    """The terms of the ELBO, and parameters away from where the guide starts."""
    svi = private(mixture, guide)
    state = svi.init(KEY, MIXED)
    start = svi.optim.get_params(state.optim_state)
    shifted = {name: np.array(leaf) for name, leaf in start.items()}
    for leaf in shifted.values():
        leaf += 1 + np.cos(np.arange(leaf.size, dtype=np.float32)).reshape(leaf.shape)
    return svi._step_of(state, (MIXED,), {})[0].terms, shifted


@cache
def sums(guide):
    """Clipped sums ``f(x, mask, l2_clip)`` in few numbers and in many."""
    started(guide)  # outside of jit: a guide keeps what it makes
    return [jax.jit(partial(_sum, choose, guide)) for choose in (in_few, in_many)]


def in_few(terms, params):
    space = choose_clipping_space(terms, 1.0, params, [], KEY)
    assert space.point.shape == (3,)
    return space


def in_many(terms, params):
    return parameter_space(terms, params, [], KEY)


def _sum(choose, guide, x, mask, l2_clip):
    space = choose(*started(guide))
    summed, info = clipped_grad(space.loss, l2_clip)(space.point, with_positions([x]), mask)
    return space.to_params(summed), info


def without_lengths(terms, params):
    """Broken: clips the gradient in the latent variables themselves."""
    space = in_few(terms, params)
    lengths = 1 / space.to_params(jnp.ones_like(space.point))["auto_loc"]
    return ClippingSpace(
        lambda point, example: space.loss(point / lengths, example),
        space.point,
        lambda summed: space.to_params(lengths * summed),
    )


BROKEN = jax.jit(partial(_sum, without_lengths, FULL_RANK))


@pytest.mark.slow
@with_each
@pytest.mark.parametrize("l2_clip", [0.5, 1e6])
def test_it_is_the_sum_of_gradients_formed_and_clipped_in_the_parameters(guide, l2_clip):
    x = MIXED.copy()
    x[1], x[3] = np.nan, np.nan  # one that counts, one that is masked out
    few, many = (f(x, MASK, l2_clip) for f in sums(guide))
    close = partial(np.testing.assert_allclose, rtol=1e-4)
    assert jax.tree.structure(few) == jax.tree.structure(many)
    close(flat(few[0]), flat(many[0]), atol=1e-5 * np.abs(flat(many[0])).max())
    close(few[1].norms, many[1].norms)
    close(few[1].losses, many[1].losses)
    assert int(few[1].num_nonfinite) == int(many[1].num_nonfinite) == 1
    binding = np.mean(many[1].norms[MASK] > l2_clip)
    assert binding == 0 if l2_clip > 1 else 0.2 < binding < 1
    if guide is FULL_RANK:
        norms = BROKEN(x, MASK, l2_clip)[1].norms
        assert not np.allclose(norms, many[1].norms, rtol=1e-2, equal_nan=True)  # power


def moved(clipped_sum, record):
    """How far record 5 moves the sum."""
    x, everyone, without = MIXED.copy(), np.ones(RECORDS, bool), np.ones(RECORDS, bool)
    x[5], without[5] = record, False
    first, second = (flat(clipped_sum(x, mask, 0.5)[0]) for mask in (everyone, without))
    return np.linalg.norm(first - second)


@pytest.mark.slow
@with_each
@settings(max_examples=25)
@given(record=st.floats(-1e4, 1e4, width=32))
def test_a_record_moves_the_sum_by_at_most_the_bound(guide, record):
    assert moved(sums(guide)[0], record) <= 0.5 * (1 + 1e-4)


@with_each
def test_the_bound_is_reached(guide):
    assert moved(sums(guide)[0], 50.0) == pytest.approx(0.5, rel=1e-4)


def test_the_bound_is_passed_where_lengths_are_left_out():
    assert moved(BROKEN, 50.0) > 0.5 * (1 + 1e-2)


class Subclass(AutoMultivariateNormal):
    """Might share parameters between latent variables."""


def test_everything_else_is_clipped_in_the_parameters():
    terms, params = started(FULL_RANK)
    groups = {"auto_loc": 1.0, "auto_scale_tril": 1.0}
    of_the_model = {**params, "slope": np.ones(())}
    cases = [
        (replace(terms, guide=Subclass(mixture)), 1.0, params),
        (replace(terms, guide=AutoNormal(mixture)), 1.0, params),
        (replace(terms, loss=Trace_ELBO(num_particles=2)), 1.0, params),
        (terms, groups, params),
        (terms, 1.0, of_the_model),
    ]
    for given_terms, l2_clip, point in cases:
        chosen = choose_clipping_space(given_terms, l2_clip, point, [], KEY)
        assert chosen.point is point
