"""Whole networks: attention, flax linen and flax nnx."""

import flax.linen as nn
import flax.nnx as nnx
import jax
import jax.numpy as jnp
from zoo_case import Case, Draw, scalar


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
