"""Convolutions, attention, flax linen and nnx, equinox, and losses of units of records."""

from typing import Any

import equinox as eqx
import flax.linen as nn
import flax.nnx as nnx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from dpjax.gradients import UnitRecords, augmented_loss, unit_loss
from helpers.zoo_case import BATCH, Case, Draw, scalar


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


def attention(draw: Draw) -> Case:
    def loss(p, x):  # x: (tokens, d)
        query, key, value = (jnp.einsum("td,dhk->htk", x, p[name]) for name in "qkv")
        scores = jnp.einsum("hsk,htk->hts", key, query) / 2
        causal = jnp.tril(jnp.ones((3, 3), bool))
        weights = jax.nn.softmax(jnp.where(causal, scores, -1e9))
        return scalar(jnp.einsum("hts,hsk,hkd->td", weights, value, p["out"]) + x)

    params = {name: draw(4, 2, 3) for name in "qkv"} | {"out": draw(2, 3, 4)}
    return Case(loss, params, draw.examples(3, 4))


def transformer(draw: Draw) -> Case:
    def norm(p, x):
        return (x - x.mean(-1, keepdims=True)) / jnp.sqrt(x.var(-1, keepdims=True) + 1e-2) * p

    def block(p, x):
        h = norm(p["n1"], x)
        weights = jax.nn.softmax(
            (h @ p["q"]) @ (h @ p["k"]).T + jnp.triu(-9.0 * jnp.ones((4, 4)), 1)
        )
        x = x + weights @ (h @ p["v"]) @ p["o"]
        return x + jax.nn.gelu(norm(p["n2"], x) @ p["up"] + p["b"]) @ p["down"]

    def loss(p, words):
        x = p["table"][words] + p["positions"]
        logits = norm(p["n"], block(p["block"], x)) @ p["table"].T
        return jnp.mean(jax.nn.logsumexp(logits, -1) - jnp.diagonal(logits[:, words]))

    block_params = {name: draw(4, 4) for name in "qkvo"} | {"n1": draw(4), "n2": draw(4)}
    block_params |= {"up": draw(4, 6), "b": draw(6), "down": draw(6, 4)}
    params = {"table": draw(7, 4), "positions": draw(4, 4), "n": draw(4), "block": block_params}
    return Case(loss, params, draw.integers(0, 7, 4))


class _Linen(nn.Module):
    @nn.compact
    def __call__(self, x):
        x = nn.GroupNorm(2)(nn.relu(nn.Conv(4, (2, 2), strides=2)(x))).reshape(-1, 4)
        x = x + nn.MultiHeadDotProductAttention(2)(nn.LayerNorm()(x))
        return nn.DenseGeneral((2, 2), axis=(0, 1))(x)


def linen(draw: Draw) -> Case:
    model, batch = _Linen(), draw.examples(4, 4, 1)
    params = model.init(jax.random.key(0), jnp.float32(batch[0]))["params"]
    return Case(lambda p, x: scalar(model.apply({"params": p}, x)), params, batch)


class _Recurrent(nn.Module):
    @nn.compact
    def __call__(self, words):
        embed = nn.Embed(5, 3)
        precision = jnp.result_type(float)
        hidden = nn.RNN(nn.GRUCell(3, param_dtype=precision))(embed(words))
        hidden = nn.RNN(nn.OptimizedLSTMCell(3, param_dtype=precision))(hidden)
        return embed.attend(nn.RMSNorm()(hidden))


def linen_recurrent(draw: Draw) -> Case:
    model, batch = _Recurrent(), draw.integers(0, 5, 4)
    params = model.init(jax.random.key(0), batch[0])["params"]
    return Case(lambda p, x: scalar(model.apply({"params": p}, x)), params, batch)


class _Dropout(nn.Module):
    @nn.compact
    def __call__(self, x):
        x = nn.WeightNorm(nn.Dense(6))(x)
        return nn.Dense(2)(nn.Dropout(0.5, deterministic=False)(jnp.tanh(x)))


def linen_dropout(draw: Draw) -> Case:
    model, batch = _Dropout(), {"x": draw.examples(3), "key": draw.keys()}
    keys = {"params": jax.random.key(0), "dropout": jax.random.key(1)}
    params = model.init(keys, jnp.float32(batch["x"][0]))["params"]

    def loss(p, example):
        rngs = {"dropout": example["key"]}
        return scalar(model.apply({"params": p}, example["x"], rngs=rngs))

    return Case(loss, params, batch)


class _Nnx(nnx.Module):
    def __init__(self, rngs: nnx.Rngs) -> None:
        self.conv = nnx.Conv(1, 3, (2, 2), rngs=rngs)
        self.norm = nnx.LayerNorm(3, rngs=rngs)
        self.heads = nnx.MultiHeadAttention(1, 3, decode=False, rngs=rngs)
        self.low_rank = nnx.LoRALinear(3, 2, lora_rank=1, rngs=rngs)

    def __call__(self, x):
        x = self.norm(nnx.gelu(self.conv(x))).reshape(-1, 3)
        return self.low_rank(self.heads(x).mean(0))


def nnx_state(draw: Draw) -> Case:
    graph, params, rest = nnx.split(_Nnx(nnx.Rngs(0)), nnx.Param, ...)

    def loss(p, x):
        return scalar(nnx.merge(graph, p, rest)(x))

    return Case(loss, params, draw.examples(3, 3, 1))


def nnx_low_rank_alone(draw: Draw) -> Case:
    graph, params, rest = nnx.split(
        nnx.LoRALinear(3, 2, lora_rank=2, rngs=nnx.Rngs(0)), nnx.LoRAParam, ...
    )

    def loss(p, x):
        return scalar(nnx.merge(graph, p, rest)(x))

    return Case(loss, params, draw.examples(4, 3))


class _LinenLayer(nn.Module):
    @nn.compact
    def __call__(self, x, _):
        # Without biases: the gradient of a key's is exactly zero.
        x = x + nn.MultiHeadDotProductAttention(2, use_bias=False)(nn.LayerNorm()(x))
        return x + nn.Dense(4)(nn.gelu(nn.Dense(6)(nn.RMSNorm()(x)))), None


class _LinenStack(nn.Module):
    layer: type[nn.Module]

    @nn.compact
    def __call__(self, words):
        embed = nn.Embed(6, 4)
        layers = nn.scan(
            self.layer, variable_axes={"params": 0}, split_rngs={"params": True}, length=2
        )
        return embed.attend(layers()(embed(words), None)[0])


def linen_stack(draw: Draw) -> Case:
    model, batch = _LinenStack(_LinenLayer), draw.integers(0, 6, 3)
    params = model.init(jax.random.key(0), batch[0])["params"]
    return Case(lambda p, x: scalar(model.apply({"params": p}, x)), params, batch)


def linen_remat_stack(draw: Draw) -> Case:
    model = _LinenStack(nn.remat(_LinenLayer, prevent_cse=False))
    batch = draw.integers(0, 6, 3)
    params = model.init(jax.random.key(0), batch[0])["params"]
    return Case(lambda p, x: scalar(model.apply({"params": p}, x)), params, batch)


class _NnxLayer(nnx.Module):
    def __init__(self, rngs: nnx.Rngs) -> None:
        self.dense = nnx.Linear(3, 3, rngs=rngs)
        self.norm = nnx.RMSNorm(3, rngs=rngs)

    def __call__(self, x):
        return x + nnx.gelu(self.dense(self.norm(x)))


def nnx_remat_stack(draw: Draw) -> Case:
    @nnx.split_rngs(splits=2)
    @nnx.vmap(in_axes=(0,), out_axes=0)
    def layers(rngs):
        return _NnxLayer(rngs)

    @nnx.scan(in_axes=(nnx.Carry, 0), out_axes=nnx.Carry)
    def run(x, layer):
        return nnx.remat(lambda layer, x: layer(x))(layer, x)

    graph, params, rest = nnx.split(layers(nnx.Rngs(0)), nnx.Param, ...)

    def loss(p, x):
        return scalar(run(x, nnx.merge(graph, p, rest)))

    return Case(loss, params, draw.examples(2, 3))


class _NnxRecurrent(nnx.Module):
    def __init__(self, rngs: nnx.Rngs) -> None:
        precision = jnp.result_type(float)
        self.gru = nnx.RNN(nnx.GRUCell(2, 3, param_dtype=precision, rngs=rngs))
        self.lstm = nnx.RNN(nnx.LSTMCell(3, 3, param_dtype=precision, rngs=rngs))

    def __call__(self, x):
        return self.lstm(self.gru(x))


def nnx_recurrent(draw: Draw) -> Case:
    graph, params, rest = nnx.split(_NnxRecurrent(nnx.Rngs(0)), nnx.Param, ...)

    def loss(p, x):
        return scalar(nnx.merge(graph, p, rest, copy=True)(x))

    return Case(loss, params, draw.examples(4, 2))


def equinox_stack(draw: Draw) -> Case:
    keys = jax.random.split(jax.random.key(0), 3)
    layers = eqx.filter_vmap(lambda key: eqx.nn.MLP(3, 3, 4, 1, key=key))(keys)
    params, static = eqx.partition(layers, eqx.is_inexact_array)

    def loss(p, x):
        def layer(h, weights):
            return h + eqx.combine(weights, static)(h), None

        return scalar(jax.lax.scan(layer, x, p)[0])

    return Case(loss, params, draw.examples(3))


def low_rank_on_frozen(draw: Draw) -> Case:
    """LoRA in a stack: the frozen weights are constants in half precision."""
    frozen = jnp.asarray(draw(2, 4, 4), jnp.bfloat16)

    def loss(p, x):
        def layer(h, weights):
            fixed, a, b = weights
            return h + jnp.tanh(h @ fixed.astype(h.dtype) + (h @ a) @ b), None

        return scalar(jax.lax.scan(layer, x, (frozen, p["a"], p["b"]))[0])

    return Case(loss, {"a": draw(2, 4, 2), "b": draw(2, 2, 4)}, draw.examples(3, 4))


RECORDS = 3
MASK = np.array([[1, 1, 1], [1, 0, 1], [0, 0, 1], [0, 1, 0]], bool)


def _units_of(case: Case, reduction: str) -> Any:
    """Units of the records of a case, each with the others' as well."""
    turned = [jax.tree.map(lambda x, n=n: np.roll(x, n, 0), case.batch) for n in range(RECORDS)]
    records = jax.tree.map(lambda *each: np.stack(each, 1), *turned)
    assert MASK.shape == (BATCH, RECORDS)
    return Case(unit_loss(case.loss, reduction=reduction), case.params, UnitRecords(records, MASK))


def units_of_images(draw: Draw) -> Case:
    return _units_of(image_network(draw), "mean")


def units_of_texts(draw: Draw) -> Case:
    return _units_of(transformer(draw), "sum")


def shifted_views(draw: Draw) -> Case:
    case, keys = linen(draw), draw.keys()

    def shift(key, image):
        return jnp.roll(image, jax.random.randint(key, (), 0, 4), 0)

    views = augmented_loss(case.loss, shift, 2)
    return Case(lambda p, example: views(p, *example), case.params, (case.batch, keys))
