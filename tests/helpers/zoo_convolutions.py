"""Convolutions: strides, dilations, paddings, groups, layouts, and the parameter on either side."""

import jax
import jax.numpy as jnp
from jax import lax

from helpers.zoo_case import Case, Draw, scalar


def convolve(x, kernel, layout, strides=1, padding="VALID", **options):
    """A convolution with the same stride along all axes."""
    axes = x.ndim - 2
    return lax.conv_general_dilated(
        x, kernel, (strides,) * axes, padding, dimension_numbers=layout, **options
    )


NHWC = ("NHWC", "HWIO", "NHWC")


def image_network(draw: Draw) -> Case:
    def loss(p, example):
        x = jax.nn.relu(convolve(example["x"][None], p["k1"], NHWC, 2, "SAME") + p["b1"])
        x = jax.nn.relu(convolve(x, p["k2"], NHWC, 1, "VALID") + p["b2"])
        logits = x.mean((0, 1, 2)) @ p["w"]
        return jax.nn.logsumexp(logits) - logits[example["y"]]

    params = {"k1": draw(3, 3, 2, 4), "b1": draw(4), "k2": draw(2, 3, 4, 3), "b2": draw(3)}
    batch = {"x": draw.examples(6, 7, 2), "y": draw.integers(0, 2)}
    return Case(loss, params | {"w": draw(3, 2)}, batch)


def strides_and_dilations(draw: Draw) -> Case:
    def loss(p, x):
        one = lax.conv_general_dilated(
            x, p["k"], (2, 1), ((1, 2), (0, 3)), rhs_dilation=(1, 2), dimension_numbers=NHWC
        )
        two = convolve(x, p["k"], NHWC, 3, "SAME")
        return scalar(one) + scalar(two)

    return Case(loss, {"k": draw(3, 2, 2, 3)}, draw.examples(1, 6, 7, 2))


def small_gram(draw: Draw) -> Case:
    """Few output pixels and many channels: where Gram matrices are cheap."""

    def loss(p, x):
        return scalar(convolve(x, p["k"], NHWC, 2) + p["b"])

    return Case(loss, {"k": draw(2, 2, 5, 6), "b": draw(6)}, draw.examples(1, 4, 4, 5))


def several_images(draw: Draw) -> Case:
    def loss(p, x):
        return scalar(convolve(x, p["k"], ("NCHW", "OIHW", "NCHW"), 1, "SAME"))

    return Case(loss, {"k": draw(3, 2, 3, 2)}, draw.examples(3, 2, 4, 3))


def odd_layouts(draw: Draw) -> Case:
    def loss(p, x):  # x: (5, 2, 4, 3)
        one = convolve(x, p["one"], ("HNWC", "IWOH", "CWNH"), 1, "SAME")
        two = convolve(x, p["two"], ("WCHN", "OHIW", "NHWC"), 2)
        return scalar(one) + scalar(two)

    params = {"one": draw(3, 2, 4, 3), "two": draw(3, 3, 2, 2)}
    return Case(loss, params, draw.examples(5, 2, 4, 3))


def one_and_three_dimensions(draw: Draw) -> Case:
    def loss(p, example):
        line = convolve(example["line"][None], p["line"], ("NWC", "WIO", "NWC"), 2, "SAME")
        cube = convolve(example["cube"], p["cube"], ("NDHWC", "DHWIO", "NDHWC"), 1, "SAME")
        return scalar(line) + scalar(cube)

    batch = {"line": draw.examples(7, 3), "cube": draw.examples(1, 3, 2, 3, 2)}
    return Case(loss, {"line": draw(3, 3, 2), "cube": draw(2, 2, 2, 2, 2)}, batch)


def no_window(draw: Draw) -> Case:
    def loss(p, x):
        numbers = lax.ConvDimensionNumbers((0, 1), (0, 1), (0, 1))
        dense = lax.conv_general_dilated(x, p["k"], (), (), dimension_numbers=numbers)
        return scalar(dense) + scalar(x @ p["k"].T + jnp.tanh(x) @ p["k"].T)

    return Case(loss, {"k": draw(3, 4)}, draw.examples(2, 4))


def groups_and_depthwise(draw: Draw) -> Case:
    def loss(p, x):
        x = convolve(x, p["groups"], NHWC, 1, "SAME", feature_group_count=2)
        x = jnp.tanh(convolve(x, p["depth"], NHWC, 1, "SAME", feature_group_count=4))
        return scalar(x) + scalar(
            convolve(jnp.concatenate([x, x + 1]), p["batch"], NHWC, batch_group_count=2)
        )

    params = {"groups": draw(2, 2, 2, 4), "depth": draw(3, 2, 1, 4), "batch": draw(2, 2, 4, 4)}
    return Case(loss, params, draw.examples(1, 4, 3, 4))


def paddings(draw: Draw) -> Case:
    def loss(p, x):
        negative = convolve(x, p["negative"], NHWC, 1, ((-1, 2), (1, -1)))
        circular = convolve(jnp.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0)), "wrap"), p["wrap"], NHWC)
        wide = convolve(x, p["wide"], NHWC, 2, ((3, 3), (0, 4)))
        return scalar(negative) + scalar(circular) + scalar(wide)

    params = {name: draw(2, 3, 2, 2) for name in ("negative", "wrap", "wide")}
    return Case(loss, params, draw.examples(1, 4, 4, 2))


def transposed_convolution(draw: Draw) -> Case:
    def loss(p, x):
        up = lax.conv_transpose(x, p["up"], (2, 2), "SAME")
        return scalar(convolve(up, p["k"], NHWC, 1, ((0, 1), (2, 0)), lhs_dilation=(1, 3)))

    return Case(loss, {"up": draw(3, 3, 2, 2), "k": draw(2, 2, 2, 2)}, draw.examples(1, 2, 3, 2))


def shared_kernel(draw: Draw) -> Case:
    def loss(p, x):
        for _ in range(2):
            x = jnp.tanh(convolve(x, p["k"], NHWC, 1, "SAME"))
        return scalar(x) + scalar(convolve(x, p["k"].transpose(1, 0, 2, 3), NHWC))

    return Case(loss, {"k": draw(2, 2, 2, 2)}, draw.examples(1, 3, 3, 2))


def kernel_from_a_matrix(draw: Draw) -> Case:
    def loss(p, x):
        kernel = p["k"].reshape(2, 2, 3, 4)
        return scalar(convolve(x, kernel, NHWC)) + scalar(
            x.reshape(9, 3)[:, :2] @ p["k"].reshape(2, 24)
        )

    return Case(loss, {"k": draw(12, 4)}, draw.examples(1, 3, 3, 3))


def parameter_is_the_image(draw: Draw) -> Case:
    def loss(p, x):
        generated = convolve(p["image"][None], x, NHWC, 1, "SAME")
        return scalar(generated) + scalar(convolve(p["a"], p["b"], NHWC) * x[0, 0, 0, 0])

    params = {"image": draw(4, 4, 2), "a": draw(1, 3, 3, 1), "b": draw(2, 2, 1, 1)}
    return Case(loss, params, draw.examples(2, 2, 2, 2))


def nothing_left_to_see(draw: Draw) -> Case:
    def loss(p, x):
        return scalar(convolve(x, p["large"], NHWC)) + scalar(convolve(x, p["one"], NHWC))

    return Case(
        loss, {"large": draw(4, 4, 1, 2), "one": draw(1, 1, 1, 2)}, draw.examples(1, 3, 3, 1)
    )


def pooled(draw: Draw) -> Case:
    def loss(p, x):
        x = convolve(x, p["k"], NHWC, 1, "SAME")
        largest = lax.reduce_window(x, -jnp.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")
        summed = lax.reduce_window(x, 0.0, lax.add, (1, 2, 2, 1), (1, 1, 1, 1), "SAME")
        return scalar(largest * p["gain"]) + scalar(summed)

    return Case(loss, {"k": draw(2, 2, 1, 2), "gain": draw(2)}, draw.examples(1, 4, 4, 1))


def standardised_kernel(draw: Draw) -> Case:
    def loss(p, x):
        kernel = p["k"] - p["k"].mean((0, 1, 2))
        kernel = kernel * jax.lax.rsqrt((kernel**2).mean((0, 1, 2)) + 1e-2)
        return scalar(convolve(x, kernel, NHWC, 1, "SAME") * p["gain"])

    return Case(loss, {"k": draw(2, 2, 2, 3), "gain": draw(3)}, draw.examples(1, 3, 3, 2))
