"""Convolutions and pooling by slices are those of XLA, with their gradients."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from dpjax._jaxprs import primitive_names
from dpjax.pate.convolutions import by_slices

CONVOLUTIONS = {
    "NHWC": {"dimension_numbers": ("NHWC", "HWIO", "NHWC"), "padding": "SAME"},
    "strides": {
        "dimension_numbers": ("NHWC", "HWIO", "NHWC"),
        "window_strides": (2, 3),
        "padding": [(2, 1), (0, -1)],
    },
    "dilation": {
        "dimension_numbers": ("NHWC", "HWIO", "NHWC"),
        "padding": "VALID",
        "rhs_dilation": (2, 1),
    },
    "NCHW": {"dimension_numbers": ("NCHW", "OIHW", "NHWC"), "padding": "VALID"},
}
KEPT = {
    "groups": {"feature_group_count": 3, "padding": "VALID"},
    "transposed": {"lhs_dilation": (2, 2), "padding": [(1, 1), (1, 1)]},
}


def convolution(settings):
    def function(x, kernel):
        return jnp.sin(
            lax.conv_general_dilated(x, kernel, **{"window_strides": (1, 1), **settings})
        )

    return function


def arrays(settings, channels=3):
    x = jax.random.normal(jax.random.key(0), (2, 9, 8, 3))
    kernel = jax.random.normal(jax.random.key(1), (3, 2, channels, 6))
    lhs, rhs, _ = settings.get("dimension_numbers", ("NHWC", "HWIO", "NHWC"))
    x = x.transpose(["NHWC".index(axis) for axis in lhs])
    return x, kernel.transpose(["HWIO".index(axis) for axis in rhs])


def names(function, *arguments):
    return set(primitive_names(jax.make_jaxpr(function)(*arguments).jaxpr))


@pytest.mark.slow
@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_convolutions_and_their_gradients_are_those_of_xla(name):
    function = convolution(CONVOLUTIONS[name])
    inputs = arrays(CONVOLUTIONS[name])
    sliced = by_slices(function)
    np.testing.assert_allclose(sliced(*inputs), function(*inputs), atol=1e-5)
    found, expected = (
        jax.grad(lambda *a, f=f: f(*a).sum(), (0, 1))(*inputs) for f in (sliced, function)
    )
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, atol=2e-4)
    assert "conv_general_dilated" in names(function, *inputs)


@pytest.mark.parametrize("name", KEPT)
def test_other_convolutions_are_kept(name):
    settings = {"dimension_numbers": ("NHWC", "HWIO", "NHWC"), **KEPT[name]}
    function = convolution(settings)
    inputs = arrays(settings, channels=1 if name == "groups" else 3)
    np.testing.assert_array_equal(jax.jit(by_slices(function))(*inputs), jax.jit(function)(*inputs))


@pytest.mark.slow
@pytest.mark.parametrize("pool", [nn.max_pool, nn.avg_pool])
@pytest.mark.parametrize("padding", ["SAME", "VALID"])
def test_pooling_and_its_gradient_are_those_of_xla(pool, padding):
    x = jax.random.normal(jax.random.key(0), (2, 9, 8, 3))

    def function(x):
        return jnp.sin(pool(x, (3, 2), (2, 1), padding))

    sliced = by_slices(function)
    np.testing.assert_allclose(sliced(x), function(x), atol=1e-6)
    found, expected = (jax.grad(lambda x, f=f: f(x).sum())(x) for f in (sliced, function))
    np.testing.assert_allclose(found, expected, atol=1e-5)


def test_gradients_of_ties_are_shared():
    """The one difference: XLA passes the gradient to the first of equal maxima."""
    grad = jax.grad(lambda x: by_slices(lambda x: nn.max_pool(x, (1, 2)).sum())(x))
    np.testing.assert_array_equal(grad(jnp.ones((1, 1, 2, 1))).ravel(), [0.5, 0.5])


def test_a_batch_of_kernels_needs_no_convolution():
    function = convolution(CONVOLUTIONS["NHWC"])
    x, kernel = arrays(CONVOLUTIONS["NHWC"])
    kernels = jnp.stack([kernel, 2 * kernel])
    batched = jax.jit(jax.vmap(by_slices(function), (None, 0)))
    np.testing.assert_allclose(batched(x, kernels)[1], function(x, 2 * kernel), atol=1e-5)
    assert " convolution(" not in batched.lower(x, kernels).compile().as_text()
    plain = jax.jit(jax.vmap(function, (None, 0))).lower(x, kernels).compile()
    assert " convolution(" in plain.as_text()
