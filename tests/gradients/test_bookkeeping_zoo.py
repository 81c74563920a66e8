"""Book-keeping against the reference: losses of the zoo by every route, devices, random losses."""

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
from helpers.quick import slow_except
from helpers.random_programs import case_of, programs
from helpers.zoo import BATCH, ZOO, build, poisoned
from helpers.zoo_case import Case, floats
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from jax.sharding import AxisType, PartitionSpec

from dpjax.gradients import ClippedGradInfo
from dpjax.gradients._clipped_grad import sum_by_vmap

MASK = np.array([True, True, True, False])
WITHOUT_FIRST = np.array([False, True, True, False])

IN_SINGLE_PRECISION = (
    "mlp regularised tied_embedding two_branches mixture_of_experts image_network attention"
    " lstm_by_hand layer_norm custom_rules two_views_of_one_leaf stacked_layers remat_layers"
    " units_of_images"
).split()
QUICK = "mlp regularised tied_embedding layer_norm two_views_of_one_leaf".split()
OF_PAIRS = ["ranked_pairs", "siamese_dense", "siamese_recurrent", "triplet_of_rows"]
WITH_ONE_PRODUCT_SITE = (
    "mlp batched_products odd_einsums image_network attention stacked_layers remat_layers"
    " recurrent_decoder nested_stacks"
).split()
WITH_REMAT = (
    "remat remat_layers remat_in_loops lengths_zero_and_one custom_rules_on_the_way"
    " linen_remat_stack nnx_remat_stack"
).split()


# Of layers that the other losses have one by one: compared by one route.
COMPOSED = (
    "equinox_layers equinox_stack linen linen_dropout linen_recurrent linen_remat_stack linen_stack"
    " linen_standardized_weights linen_u_net nnx_convolutions nnx_grouped_query_attention"
    " nnx_low_rank_alone nnx_recurrent nnx_remat_stack nnx_state selective_state_space"
    " siamese_network top_two_experts transformer units_of_images units_of_texts"
).split()


def _ways(name, case):
    """Bookkeeping by the routes, and by the values stored under remat, that are compared."""
    if name in WITH_ONE_PRODUCT_SITE:
        wanted = ("ghost", "instantiate", "sequential")
    else:
        wanted = ("ghost",) if name in COMPOSED else ("ghost", "instantiate")
    stored = [by_stored_values(size, case.loss) for size in (None, 3) if name in WITH_REMAT]
    return [*different_ways(case, wanted), *stored]


@pytest.mark.slow
@pytest.mark.parametrize("name", ZOO)
def test_agrees_in_double_precision(name):
    with jax.enable_x64(True):
        case = build(name, jnp.float64)
        run = side_by_side(case, _ways(name, case))
        _compare(run, case, sums=1e-10, below=1e-12)
        _assert_nan_stays_at_home(run, case)


@pytest.mark.parametrize("name", slow_except(QUICK, IN_SINGLE_PRECISION))
def test_agrees_in_single_precision(name):
    case = build(name, jnp.float32)
    run = side_by_side(case, different_ways(case, ("ghost",)))
    _compare(run, case, sums=1e-5, below=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("name", OF_PAIRS)
def test_agrees_in_single_precision_where_terms_cancel(name):
    """Terms are a hundred times larger than the gradient, as is its rounding in the reference."""
    case = build(name, jnp.float32)
    run = side_by_side(case, different_ways(case, ("ghost",)))
    _compare(run, case, sums=1e-4, below=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["remat_layers", "nnx_remat_stack"])
def test_agrees_in_single_precision_by_stored_values(name):
    case = build(name, jnp.float32)
    run = side_by_side(case, [by_stored_values(3, case.loss)])
    _compare(run, case, sums=1e-5, below=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["stacked_layers", "remat_layers"])
def test_batches_of_none_and_of_one_in_loops(name):
    case = build(name, jnp.float32)
    one = jax.tree.map(lambda leaf: leaf[:1], case.batch)
    _compare(
        side_by_side(case, different_ways(case, ("ghost",))), case._replace(batch=one), 1e-5, 1e-6
    )
    none = jax.tree.map(lambda leaf: leaf[:0], case.batch)
    summed, info = fast_jit(bookkeeping(case.loss, 1.0))(case.params, none, None)
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


# The batch split over devices, against the reference on one.

EVERYWHERE, SPLIT = PartitionSpec(), PartitionSpec("data")


def sharded(compute):
    """Each device's examples, then the sum over the devices."""

    def part(params, batch, mask):
        summed, info = compute(params, batch, mask)
        count = jax.lax.psum(info.num_nonfinite, "data")
        return jax.lax.psum(summed, "data"), info._replace(num_nonfinite=count)

    mesh = jax.make_mesh((2,), ("data",), axis_types=(AxisType.Auto,))
    outputs = (EVERYWHERE, ClippedGradInfo(SPLIT, SPLIT, EVERYWHERE))
    inputs = (EVERYWHERE, SPLIT, SPLIT)
    return fast_jit(jax.shard_map(part, mesh=mesh, in_specs=inputs, out_specs=outputs))


SPLIT_NAMES = [
    "embedding",
    "image_network",
    "scan_over_steps",
    "same_layer_on_tokens",
    "tied_embedding",
    "two_branches",
    "stacked_layers",
    "remat_layers",
]


@pytest.mark.slow
@pytest.mark.usefixtures("x64")  # the gradients of remat_layers are ill-conditioned
@pytest.mark.parametrize("name", SPLIT_NAMES)
def test_agrees_over_devices(name):
    case, mask = build(name, jnp.float64), np.arange(BATCH) != 1
    found = sharded(bookkeeping(case.loss, 0.8))(case.params, case.batch, mask)
    reference = fast_jit(sum_by_vmap, static_argnums=0)
    assert_same(found, reference(case.loss, 0.8, case.params, case.batch, mask), 1e-5)


# Randomly generated networks.

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
@settings(_SETTINGS, max_examples=12)
@given(programs(), st.floats(0.3, 3.0))
def test_agrees_on_random_networks(program, strictness):
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
