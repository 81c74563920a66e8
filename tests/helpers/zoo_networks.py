"""Whole networks: attention, flax linen, flax nnx and equinox; stacked, recurrent, low-rank."""

import equinox as eqx
import flax.linen as nn
import flax.nnx as nnx
import jax
import jax.numpy as jnp

from helpers.zoo_case import Case, Draw, scalar


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
