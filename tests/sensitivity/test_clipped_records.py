"""Clipped records keep their bounds, whatever was in them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from dpjax.sensitivity import clip_norm_to, clip_to, of_sum, to_grid

ANY = st.floats(width=32, allow_nan=True, allow_infinity=True)
ODD = np.array([np.nan, np.inf, -np.inf, 3e38, -3e38, 1e-45, 0.0, 5.0], np.float32)


@example(low=1e-230, width=1.0, records=[0.0] * 4)
@example(low=-1.0 - 1e-40, width=1.0, records=[0.0] * 4)
@given(
    low=st.floats(-1e6, 1e6),
    width=st.floats(0.2, 1e6),
    records=st.lists(ANY, min_size=4, max_size=4),
)
def test_clip_to_keeps_bounds(low, width, records):
    bounds = (low, low + width)
    clipped = np.asarray(clip_to(np.float32(records), bounds), np.float64)
    assert (clipped >= bounds[0]).all()
    assert (clipped <= bounds[1]).all()


# Devices flush subnormal numbers to zero.
WITHIN = st.floats(-3, 7, width=32, allow_subnormal=False)


@example(records=[-3.0, 7.0, 0.0, np.finfo(np.float32).tiny])
@given(records=st.lists(WITHIN, min_size=4, max_size=4))
def test_clip_to_keeps_records_within_bounds(records):
    np.testing.assert_array_equal(clip_to(np.float32(records), (-3, 7)), np.float32(records))


@given(record=st.floats(-(2.0**-127), 2.0**-127, width=32))
def test_clip_to_of_subnormal_records(record):
    assert float(clip_to(np.float32([record]), (-3, 7))[0]) in (0.0, record)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
def test_clip_to_rounds_bounds_inwards(dtype):
    # 0.1 and 0.3 are not floats: rounded to the nearest, one would leave the box.
    clipped = clip_to(jnp.array([-9, 9, jnp.nan], dtype), (0.1, 0.3))
    assert clipped.dtype == dtype
    low, high, odd = np.asarray(clipped, np.float64)
    assert 0.1 <= low == odd < 0.102
    assert 0.298 < high <= 0.3


def test_clip_to_of_nan_is_within_sensitivity():
    stated = of_sum((-3, 7), norm="l1", adjacency="replace_one").value
    sums = [float(clip_to(np.float32([1.0, odd]), (-3, 7)).sum()) for odd in ODD]
    assert np.isfinite(sums).all()
    assert max(sums) - min(sums) == stated


def test_clip_to_bounds_of_each_entry():
    rows = jnp.array([[-50, 50], [50, -50]])
    clipped = clip_to(rows, ([-1, 0], [2, 9]))
    assert clipped.tolist() == [[-1.0, 9.0], [2.0, 0.0]]
    jitted = jax.jit(lambda r: clip_to(r, ([-1, 0], [2, 9])))(rows)
    np.testing.assert_array_equal(jitted, clipped)


@given(rows=st.lists(st.tuples(ANY, ANY), min_size=3, max_size=3))
def test_clip_norm_to_keeps_bound(rows):
    clipped = np.asarray(clip_norm_to(np.float32(rows), 2.0), np.float64)
    assert np.linalg.norm(clipped, axis=1).max() <= 2.0 * (1 + 1e-6)


def test_clip_norm_to_of_short_and_nonfinite_rows():
    rows = jnp.array([[0.3, 0.4], [jnp.nan, 0.1], [jnp.inf, 0.0], [6.0, 8.0]])
    np.testing.assert_allclose(
        clip_norm_to(rows, 5.0), [[0.3, 0.4], [0, 0], [0, 0], [3.0, 4.0]], rtol=1e-6
    )


@given(record=st.floats(-3, 7), grid=st.sampled_from([0.1, 0.25, 1 / 3]), other=st.floats(-3, 7))
def test_to_grid_keeps_bounds_and_order(record, grid, other):
    low, high = to_grid((-3, 7), grid)
    units = to_grid([record, other], grid)
    assert units.dtype == np.int64
    assert (low <= units).all()
    assert (units <= high).all()
    assert abs(units[0] * grid - record) <= grid / 2 * (1 + 1e-9)


@pytest.mark.parametrize("odd", [np.nan, np.inf, 1e300])
def test_to_grid_refuses(odd):
    with pytest.raises(ValueError, match="records must be finite and below"):
        to_grid([1.0, odd], 0.1)
    with pytest.raises(ValueError, match="grid must be a finite number > 0"):
        to_grid([1.0], 0.0)


def test_clip_norm_to_refuses():
    with pytest.raises(ValueError, match=r"records must be rows of numbers, of shape \(n, d\)"):
        clip_norm_to(jnp.zeros(3), 1.0)
    with pytest.raises(ValueError, match="l2_bound must be a finite number > 0"):
        clip_norm_to(jnp.zeros((3, 1)), 0.0)
    with pytest.raises(ValueError, match="bounds must be"):
        clip_to(jnp.zeros(3), (1, 0))
    with pytest.raises(ValueError, match="bounds must be apart by a number of dtype float32"):
        clip_to(jnp.zeros(3), (1 + 1e-9, 1 + 2e-9))


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_clip_norm_to_of_half_precision(dtype):
    rows = jax.random.normal(jax.random.key(0), (400, 64)).astype(dtype)
    # In float16 the squares of rows as small as these are zero.
    for size, bound in ((1.0, 1.0), (1e-4, 1e-4)):
        clipped = np.asarray(clip_norm_to(rows * jnp.asarray(size, dtype), bound), np.float64)
        assert np.linalg.norm(clipped, axis=1).max() <= bound * (1 + 1e-6)


def test_clip_norm_to_refuses_underflowing_bound():
    with pytest.raises(ValueError, match="l2_bound must be at least 1e-12, got 1e-30"):
        clip_norm_to(jnp.array([[1e-25, 0.0]]), 1e-30)


def test_clip_to_of_integers_beyond_32_bits():
    assert clip_to(np.array([2**31, -(2**40)]), (-3, 7)).tolist() == [7.0, -3.0]
