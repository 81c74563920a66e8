"""Bookkeeping against the reference on every loss of the zoo, by every route a leaf can take."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers.bookkeeping_checks import (
    a_clip,
    assert_norms_not_below,
    assert_same,
    bookkeeping,
    by_stored_values,
    different_ways,
    fast_jit,
    side_by_side,
)
from helpers.zoo import BATCH, ZOO, build, poisoned

MASK = np.array([True, True, True, False])
WITHOUT_FIRST = np.array([False, True, True, False])

IN_SINGLE_PRECISION = (
    "mlp regularised tied_embedding two_branches mixture_of_experts image_network attention"
    " lstm_by_hand layer_norm custom_rules two_views_of_one_leaf stacked_layers remat_layers"
    " units_of_images"
).split()
OF_PAIRS = ["ranked_pairs", "siamese_dense", "siamese_recurrent", "triplet_of_rows"]
WITH_ONE_PRODUCT_SITE = (
    "mlp batched_products odd_einsums image_network attention stacked_layers remat_layers"
    " recurrent_decoder nested_stacks"
).split()
WITH_REMAT = (
    "remat remat_layers remat_in_loops lengths_zero_and_one custom_rules_on_the_way"
    " linen_remat_stack nnx_remat_stack"
).split()


@pytest.mark.slow
@pytest.mark.parametrize("name", ZOO)
def test_agrees_in_double_precision(name):
    with jax.enable_x64(True):
        case = build(name, jnp.float64)
        run = side_by_side(case, different_ways(case))
        _compare(run, case, sums=1e-10, below=1e-12)
        _assert_nan_stays_at_home(run, case)


@pytest.mark.slow
@pytest.mark.parametrize("name", WITH_ONE_PRODUCT_SITE)
def test_agrees_where_gradients_are_instantiated_sequentially(name):
    with jax.enable_x64(True):
        case = build(name, jnp.float64)
        run = side_by_side(case, different_ways(case, ("sequential",)))
        _compare(run, case, sums=1e-10, below=1e-12)
        _assert_nan_stays_at_home(run, case)


@pytest.mark.parametrize("name", IN_SINGLE_PRECISION)
def test_agrees_in_single_precision(name):
    case = build(name, jnp.float32)
    run = side_by_side(case, different_ways(case, ("ghost",)))
    _compare(run, case, sums=1e-5, below=1e-6)


@pytest.mark.parametrize("name", OF_PAIRS)
def test_agrees_in_single_precision_where_terms_cancel(name):
    """Terms are a hundred times larger than the gradient, as is its rounding in the reference."""
    case = build(name, jnp.float32)
    run = side_by_side(case, different_ways(case, ("ghost",)))
    _compare(run, case, sums=1e-4, below=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("name", WITH_REMAT)
def test_agrees_where_layers_under_remat_store_their_values(name):
    with jax.enable_x64(True):
        case = build(name, jnp.float64)
        parts = [by_stored_values(size, case.loss) for size in (None, 1, 3, BATCH)]
        run = side_by_side(case, parts)
        _compare(run, case, sums=1e-10, below=1e-12)
        _assert_nan_stays_at_home(run, case)


@pytest.mark.parametrize("name", ["remat_layers", "nnx_remat_stack"])
def test_agrees_in_single_precision_by_stored_values(name):
    case = build(name, jnp.float32)
    run = side_by_side(case, [by_stored_values(3, case.loss)])
    _compare(run, case, sums=1e-5, below=1e-6)


@pytest.mark.parametrize("name", ["stacked_layers", "remat_layers"])
def test_batches_of_none_and_of_one_in_loops(name):
    case = build(name, jnp.float32)
    one = jax.tree.map(lambda leaf: leaf[:1], case.batch)
    _compare(
        side_by_side(case, different_ways(case, ("ghost",))), case._replace(batch=one), 1e-5, 1e-6
    )
    none = jax.tree.map(lambda leaf: leaf[:0], case.batch)
    summed, info = fast_jit(bookkeeping(case.loss, 1.0))(case.params, none)
    assert info.norms.shape == (0,)
    assert not any(np.any(leaf) for leaf in jax.tree.leaves(summed))


def _compare(run, case, sums, below):
    mask = MASK[: len(jax.tree.leaves(case.batch)[0])]
    (_, info), _ = run(1.0, case.params, case.batch, mask)
    expected, found = run(a_clip(info.norms), case.params, case.batch, mask)
    for result in found:
        assert_same(result, expected, sums)
        assert_norms_not_below(result[1].norms, expected[1].norms, below)


def _assert_nan_stays_at_home(run, case):
    """NaN in an example changes the sum as masking it out does; masked out, it changes nothing."""
    spoilt = poisoned(case.batch, 0)
    expected = run(1.0, case.params, case.batch, WITHOUT_FIRST)[1]
    masked = run(1.0, case.params, spoilt, WITHOUT_FIRST)[1]
    counted = run(1.0, case.params, spoilt, MASK)[1]
    for clean, hidden, seen in zip(expected, masked, counted, strict=True):
        assert_same(hidden, clean, 1e-10)
        if not np.isfinite(seen[1].norms[0]):
            assert seen[1].num_nonfinite == 1
            assert_same((seen[0], hidden[1]), clean, 1e-10)
