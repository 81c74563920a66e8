"""One record changes the sum by at most the bound, whether latents or parameters are clipped."""

from dataclasses import replace
from functools import cache, partial

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from helpers.dpsvi_cases import (
    FULL_RANK,
    MIXED,
    RECORDS,
    X,
    Y,
    flat,
    logistic,
    logistic_guide,
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
from dpjax.sampling import PoissonSampling

KEY = jax.random.key(2)
CLIP = 0.5
MASK = np.arange(RECORDS) % 3 > 0
EVERYONE = np.ones(RECORDS, bool)


def shared_scale(x, y=None):
    loc = numpyro.param("loc", jnp.zeros(x.shape[1]))
    scale = numpyro.param("scale", 0.1, constraint=dist.constraints.positive)
    numpyro.sample("w", dist.Normal(loc, scale).to_event(1))


# The first is clipped in the parameters, the others in the latent variables.
CASES = {
    "shared scale": (logistic, shared_scale, (X, Y)),
    "by hand": (logistic, logistic_guide, (X, Y)),
    "mean field": (mixture, AutoNormal(mixture), (MIXED,)),
    "full rank": (mixture, FULL_RANK, (MIXED,)),
    "low rank": (mixture, AutoLowRankMultivariateNormal(mixture), (MIXED,)),
}
with_each = pytest.mark.parametrize("name", CASES)


@cache
def started(name):
    """The terms of the ELBO, and parameters away from where the guide starts."""
    model, guide, records = CASES[name]
    svi = private(model, guide)
    state = svi.init(KEY, *records)
    start = svi.optim.get_params(state.optim_state)
    shifted = {name: np.array(leaf) for name, leaf in start.items()}
    for leaf in shifted.values():
        leaf += 1 + np.cos(np.arange(leaf.size, dtype=np.float32)).reshape(leaf.shape)
    return svi._step_of(state, records, {})[0].terms, shifted


def chosen_space(terms, params):
    return choose_clipping_space(terms, 1.0, params, [], KEY)


def in_parameters(terms, params):
    return parameter_space(terms, params, [], KEY)


def without_lengths(terms, params):
    """Broken: clips the gradient in the latent variables themselves."""
    space = chosen_space(terms, params)
    mapped = space.to_params(jax.tree.map(jnp.ones_like, space.point))
    lengths = {name: 1 / mapped[name] for name in space.point}
    return ClippingSpace(
        lambda phi, example: space.loss(jax.tree.map(jnp.divide, phi, lengths), example),
        space.point,
        lambda summed: space.to_params(jax.tree.map(jnp.multiply, lengths, summed)),
    )


@cache
def sums(name, choose=chosen_space):
    """``f(records, mask, l2_clip)``: the clipped sum before any noise, and its info."""
    terms, params = started(name)  # outside of jit: a guide keeps what it makes

    def clipped_sum(records, mask, l2_clip):
        space = choose(terms, params)
        summed, info = clipped_grad(space.loss, l2_clip)(space.point, with_positions(records), mask)
        return space.to_params(summed), info

    return jax.jit(clipped_sum)


def sum_with(name, record, choose=chosen_space):
    """The sum with ``record`` in the place of record 5; without record 5 where it is None."""
    records, mask = [leaf.copy() for leaf in CASES[name][2]], EVERYONE.copy()
    mask[5] = record is not None
    for leaf, value in zip(records, record or (), strict=False):
        leaf[5] = value
    return flat(sums(name, choose)(records, mask, CLIP)[0])


def change(name, record, choose=chosen_space):
    """How far one record changes the sum."""
    return np.linalg.norm(sum_with(name, record, choose) - sum_with(name, None, choose))


FAR = {
    name: ([50.0, -50.0, 50.0], 0.0) if len(case[2]) == 2 else (50.0,)
    for name, case in CASES.items()
}
NUMBER = st.floats(-1e4, 1e4, width=32)
LABELLED = st.tuples(st.lists(NUMBER, min_size=3, max_size=3), st.sampled_from([0.0, 1.0]))
RECORD = {
    name: LABELLED if len(case[2]) == 2 else st.tuples(NUMBER) for name, case in CASES.items()
}


@pytest.mark.parametrize(
    "name",
    [*list(CASES)[:2], *(pytest.param(n, marks=pytest.mark.slow) for n in list(CASES)[2:])],
)
def test_clipped_sum_changes_by_at_most_the_bound(name):
    @settings(max_examples=25)
    @given(RECORD[name])
    def check(record):
        assert change(name, record) <= CLIP * (1 + 1e-4)

    check()


@pytest.mark.slow
@with_each
def test_clipped_sum_reaches_the_bound(name):
    assert change(name, FAR[name]) == pytest.approx(CLIP, rel=1e-4)


@pytest.mark.slow
def test_power_clipped_sum_without_lengths_exceeds_the_bound():
    assert change("full rank", FAR["full rank"], without_lengths) > CLIP * (1 + 1e-2)


def test_clipped_sum_of_a_replaced_record_changes_by_two_bounds():
    """Both labels of a record are clipped, in opposite directions."""
    one, other = (sum_with("by hand", ([3.0, -3.0, 3.0], label)) for label in (0.0, 1.0))
    sampling = PoissonSampling(RECORDS, 0.1)
    stated = {
        adjacency: private(sampling=sampling, l2_clip=CLIP, adjacency=adjacency).mechanism
        for adjacency in ("replace_one", "add_remove")
    }
    changed = np.linalg.norm(one - other)
    assert changed == pytest.approx(stated["replace_one"].sensitivity, rel=1e-3)
    assert changed > 1.9 * stated["add_remove"].sensitivity  # power


def test_clipped_sum_ignores_nonfinite_records_and_empty_batches():
    nan = ([np.nan, 1.0, 1.0], 0.0)
    np.testing.assert_array_equal(sum_with("by hand", nan), sum_with("by hand", None))
    assert not flat(sums("by hand")([X, Y], ~EVERYONE, CLIP)[0]).any()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["mean field", "full rank", "low rank"])
@pytest.mark.parametrize("l2_clip", [0.5, 1e6])
def test_clipped_sum_in_latents_is_that_in_parameters(name, l2_clip):
    x = MIXED.copy()
    x[1], x[3] = np.nan, np.nan  # one that counts, one that is masked out
    assert flat(chosen_space(*started(name)).point).shape == (3,)
    few, many = (sums(name, space)([x], MASK, l2_clip) for space in (chosen_space, in_parameters))
    close = partial(np.testing.assert_allclose, rtol=1e-4)
    assert jax.tree.structure(few) == jax.tree.structure(many)
    close(flat(few[0]), flat(many[0]), atol=1e-5 * np.abs(flat(many[0])).max())
    close(few[1].norms, many[1].norms)
    close(few[1].losses, many[1].losses)
    assert int(few[1].num_nonfinite) == int(many[1].num_nonfinite) == 1
    binding = np.mean(many[1].norms[MASK] > l2_clip)
    assert binding == 0 if l2_clip > 1 else 0.2 < binding < 1
    norms = sums(name, without_lengths)([x], MASK, l2_clip)[1].norms
    assert not np.allclose(norms, many[1].norms, rtol=1e-2, equal_nan=True)  # power


class Subclass(AutoMultivariateNormal):
    """Might share parameters between latent variables."""


def test_choose_clipping_space_falls_back_to_parameters():
    terms, params = started("full rank")
    groups = {"auto_loc": 1.0, "auto_scale_tril": 1.0}
    of_the_model = {**params, "slope": np.ones(())}
    cases = [
        (replace(terms, guide=Subclass(mixture)), 1.0, params),
        (replace(terms, loss=Trace_ELBO(num_particles=2)), 1.0, params),
        (terms, groups, params),
        (terms, 1.0, of_the_model),
    ]
    shared, point = started("shared scale")
    cases.append((shared, 1.0, point))
    for given_terms, l2_clip, point in cases:
        chosen = choose_clipping_space(given_terms, l2_clip, point, [], KEY)
        assert chosen.point is point
