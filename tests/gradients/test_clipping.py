"""Bounds, factors and sums on their own: what the sum of clipped gradients is made of."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dpjax import clipped_grad, l2_sensitivity, total_l2_clip
from dpjax.gradients.clipping import clip_and_sum, clip_factor

pytestmark = pytest.mark.usefixtures("strict_numerics")


class TestTotalBound:
    def test_total_l2_clip_of_a_number(self):
        assert total_l2_clip(1.5) == 1.5
        assert total_l2_clip({"all": 1.5}) == 1.5

    def test_total_l2_clip_of_groups(self):
        assert total_l2_clip([3.0, 4.0]) == 5.0
        nested = {"a": {"w": 1.0, "b": 2}, "c": np.float32(2.0)}
        assert total_l2_clip(nested) == pytest.approx(3.0, rel=1e-15)

    def test_total_l2_clip_under_jit(self):
        total = jax.jit(lambda a, b: total_l2_clip({"a": a, "b": b, "c": 12.0}))(3.0, 4.0)
        assert total == pytest.approx(13.0, rel=1e-6)

    @pytest.mark.parametrize("bound", [0.0, -2.0, math.nan, math.inf, "1", True])
    def test_total_l2_clip_refuses(self, bound):
        with pytest.raises(ValueError, match=r"^l2_clip must be a finite number > 0, got"):
            total_l2_clip({"a": 1.0, "b": bound})

    def test_l2_sensitivity_of_adjacencies(self):
        assert l2_sensitivity([3.0, 4.0], "add_remove") == 5.0
        assert l2_sensitivity([3.0, 4.0], "replace_one") == 10.0
        with pytest.raises(ValueError, match=r"^adjacency must be one of .* got 'substitute'"):
            l2_sensitivity(1.0, "substitute")


class TestClipFactor:
    def test_clip_factor_values(self):
        norms = jnp.array([0.0, 1e-38, 0.5, 2.0, 4.0, 1e30])
        expected = [1, 1, 1, 1, 0.5, 2e-30]
        np.testing.assert_allclose(clip_factor(norms, 2.0), expected, rtol=1e-6)

    @pytest.mark.parametrize("bound", [2.0, np.float64(2), jnp.bfloat16(2), jnp.float32(2), 2])
    def test_clip_factor_bound_dtypes(self, bound):
        factor = clip_factor(jnp.array([4.0]), bound)
        assert factor.dtype == jnp.float32
        assert factor == 0.5


class TestClipAndSum:
    GRADS = {"a": jnp.array([[3.0, 0.0], [0.3, 0.0]]), "b": jnp.array([4.0, 0.4])}  # noqa: RUF012
    ALL = np.ones(2, bool)

    def test_flat(self):
        clipped_sum, (_, norms, _) = clip_and_sum(self.GRADS, 1.0, self.ALL)
        np.testing.assert_allclose(norms, [5.0, 0.5], rtol=1e-6)
        np.testing.assert_allclose(clipped_sum["a"], [0.6 + 0.3, 0], rtol=1e-6)
        np.testing.assert_allclose(clipped_sum["b"], 0.8 + 0.4, rtol=1e-6)

    def test_per_layer(self):
        clipped_sum, (_, norms, _) = clip_and_sum(self.GRADS, {"a": 1.0, "b": 10.0}, self.ALL)
        np.testing.assert_allclose(norms["a"], [3.0, 0.3], rtol=1e-6)
        np.testing.assert_allclose(norms["b"], [4.0, 0.4], rtol=1e-6)
        np.testing.assert_allclose(clipped_sum["a"], [1.3, 0], rtol=1e-6)
        np.testing.assert_allclose(clipped_sum["b"], 4.4, rtol=1e-6)

    def test_group_without_leaves(self):
        grads, bounds = {**self.GRADS, "c": {}}, {"a": 1.0, "b": 10.0, "c": 1.0}
        clipped_sum, (_, norms, _) = clip_and_sum(grads, bounds, self.ALL)
        np.testing.assert_array_equal(norms["c"], [0, 0])
        assert clipped_sum["c"] == {}

    def test_unusable_examples(self):
        grads = {"a": self.GRADS["a"].at[0].set(jnp.nan), "b": self.GRADS["b"].at[0].set(jnp.inf)}
        clipped_sum, _ = clip_and_sum(grads, 1.0, np.array([False, True]))
        np.testing.assert_allclose(clipped_sum["a"], [0.3, 0], rtol=1e-6)
        np.testing.assert_allclose(clipped_sum["b"], 0.4, rtol=1e-6)

    def test_nonfinite_group(self):
        grads = self.GRADS | {"b": self.GRADS["b"].at[0].set(jnp.nan)}
        clipped_sum, _ = clip_and_sum(grads, {"a": 1.0, "b": 1.0}, self.ALL)
        np.testing.assert_allclose(clipped_sum["a"], [0.3, 0], rtol=1e-6)

    @pytest.mark.slow
    @pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16])
    def test_half_precision_is_summed_in_single(self, dtype):
        # 2049 needs 12 bits: bfloat16 would stop at 256, float16 at 2048.
        ones = {"w": jnp.ones((2049, 1), dtype)}
        clipped_sum, (_, norms, _) = clip_and_sum(ones, 2.0, np.ones(2049, bool))
        assert clipped_sum["w"].dtype == norms.dtype == jnp.float32
        assert clipped_sum["w"] == 2049

    def test_norms_of_half_precision_do_not_overflow(self):
        grads = {"w": jnp.full((1, 4), 300, jnp.float16)}  # the square, 90 000, is no float16
        clipped_sum, (_, norms, _) = clip_and_sum(grads, 1.0, np.ones(1, bool))
        assert norms == 600
        np.testing.assert_allclose(clipped_sum["w"], 0.5, rtol=1e-6)

    def test_many_small_entries_of_half_precision_count(self):
        grads = {"w": jnp.full((1, 40_000), 2**-10, jnp.bfloat16)}
        _, (_, norms, _) = clip_and_sum(grads, 1.0, np.ones(1, bool))
        np.testing.assert_allclose(norms, 200 * 2**-10, rtol=1e-5)


def test_clip_and_sum_precision():
    """On accelerators float32 products keep 10 bits or 7 unless the highest precision is asked."""
    grads, usable = {"a": jnp.ones((4, 3)), "b": jnp.ones((4, 2, 2))}, np.ones(4, bool)
    precisions = {
        equation.params["precision"]
        for equation in jax.make_jaxpr(lambda g: clip_and_sum(g, 1.0, usable))(grads).eqns
        if equation.primitive.name == "dot_general"
    }
    assert precisions == {(jax.lax.Precision.HIGHEST, jax.lax.Precision.HIGHEST)}


@pytest.mark.parametrize("microbatch_size", [None, 7])
@pytest.mark.parametrize("method", ["vmap", "bookkeeping"])
def test_clipped_grad_sums_half_precision_in_single(method, microbatch_size):
    """Of 300 ones bfloat16 would keep 256."""
    batch = jnp.ones((300, 1), jnp.bfloat16)
    options = {"method": method, "microbatch_size": microbatch_size}
    compute = jax.jit(clipped_grad(lambda w, x: jnp.sum(w * x), 2.0, **options))
    clipped_sum, info = compute(jnp.zeros(1, jnp.bfloat16), batch, None)
    assert clipped_sum.dtype == info.norms.dtype == jnp.float32
    assert clipped_sum == 300
