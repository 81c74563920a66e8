"""Models as users write them with flax nnx, flax linen and equinox."""

import equinox as eqx
import flax.linen as nn
import flax.nnx as nnx
import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl

from helpers.zoo_case import Case, Draw, scalar


def _nnx_case(module: nnx.Module, batch, apply=lambda model, x: scalar(model(x))):
    graph, params, rest = nnx.split(module, nnx.Param, ...)

    def loss(p, example):
        return apply(nnx.merge(graph, p, rest, copy=True), example)

    return Case(loss, params, batch)


def _equinox_case(module: eqx.Module, batch):
    params, static = eqx.partition(module, eqx.is_inexact_array)
    return Case(lambda p, x: scalar(eqx.combine(p, static)(x)), params, batch)


def selective_state_space(draw: Draw) -> Case:
    """A gated linear recurrence by an associative scan, with decays that depend on the input."""

    def loss(p, x):  # (tokens, 3)
        gate, u = jnp.split(x @ p["into"], 2, axis=-1)
        step = jax.nn.softplus(u @ p["step"] + p["step_bias"])
        decay = jnp.exp(-step[..., None] * jnp.exp(p["log_rate"]))
        inputs = (step * u)[..., None] * (u @ p["b"])[:, None]
        combine = lambda a, b: (a[0] * b[0], b[0] * a[1] + b[1])  # noqa: E731
        _, states = lax.associative_scan(combine, (decay, inputs))
        y = jnp.einsum("tcs,ts->tc", states, u @ p["c"]) + u * p["skip"]
        return scalar((y * jax.nn.silu(gate)) @ p["out_of"])

    params = {"into": draw(3, 8), "step": draw(4, 4), "step_bias": draw(4), "log_rate": draw(4, 2)}
    params |= {"b": draw(4, 2), "c": draw(4, 2), "skip": draw(4), "out_of": draw(4, 3)}
    return Case(loss, params, draw.examples(5, 3))


class _GroupedQueryBlock(nnx.Module):
    """RMS normalisation, grouped-query attention with rotary positions, SwiGLU."""

    def __init__(self, rngs: nnx.Rngs) -> None:
        self.norms = nnx.List([nnx.RMSNorm(8, rngs=rngs) for _ in range(2)])
        self.query = nnx.LinearGeneral(8, (2, 2, 4), use_bias=False, rngs=rngs)
        self.key, self.value = (nnx.Einsum("td,dgk->tgk", (8, 2, 4), rngs=rngs) for _ in range(2))
        self.out = nnx.LinearGeneral((2, 2, 4), 8, axis=(-3, -2, -1), rngs=rngs)
        self.gate, self.up, self.down = (
            nnx.Linear(*sizes, use_bias=False, rngs=rngs) for sizes in ((8, 6), (8, 6), (6, 8))
        )

    def __call__(self, x):
        h = self.norms[0](x)
        query, key = _rotate(self.query(h)), _rotate(self.key(h))
        scores = jnp.einsum("tgrk,sgk->grts", query, key) / 2
        weights = jax.nn.softmax(jnp.where(jnp.tril(jnp.ones((len(x),) * 2, bool)), scores, -1e9))
        x = x + self.out(jnp.einsum("grts,sgk->tgrk", weights, self.value(h)))
        h = self.norms[1](x)
        return x + self.down(nnx.silu(self.gate(h)) * self.up(h))


def _rotate(x):
    """Rotary positions along the first axis."""
    angle = jnp.arange(len(x)) / 10.0
    cos, sin = (f(angle).reshape(-1, *[1] * (x.ndim - 1)) for f in (jnp.cos, jnp.sin))
    left, right = jnp.split(x, 2, axis=-1)
    return jnp.concatenate([left * cos - right * sin, left * sin + right * cos], axis=-1)


def nnx_grouped_query_attention(draw: Draw) -> Case:
    return _nnx_case(_GroupedQueryBlock(nnx.Rngs(0)), draw.examples(3, 8))


class _Convolutions(nnx.Module):
    """Causal, depthwise, grouped, strided, dilated and transposed convolutions."""

    def __init__(self, rngs: nnx.Rngs) -> None:
        self.first = nnx.Conv(2, 4, (3,), padding="CAUSAL", rngs=rngs)
        self.depthwise = nnx.Conv(4, 4, (3,), feature_group_count=4, rngs=rngs)
        self.grouped = nnx.Conv(4, 4, (2,), feature_group_count=2, strides=2, rngs=rngs)
        self.dilated = nnx.Conv(4, 4, (2,), kernel_dilation=2, rngs=rngs)
        self.transposed = nnx.ConvTranspose(4, 3, (3,), strides=2, rngs=rngs)
        self.norm = nnx.GroupNorm(3, num_groups=1, rngs=rngs)

    def __call__(self, x):
        x = self.depthwise(nnx.gelu(self.first(x)))
        return self.norm(self.transposed(self.dilated(nnx.gelu(self.grouped(x)))))


def nnx_convolutions(draw: Draw) -> Case:
    return _nnx_case(_Convolutions(nnx.Rngs(0)), draw.examples(6, 2))


class _Standardized(nn.Module):
    """A convolution whose kernel is standardized, and a layer with weight normalisation."""

    @nn.compact
    def __call__(self, x):
        init = nn.initializers.lecun_normal()
        kernel = self.param("kernel", init, (2, 2, 1, 3), x.dtype)
        kernel = (kernel - kernel.mean((0, 1, 2))) / (kernel.std((0, 1, 2)) + 1e-5)
        numbers = ("NHWC", "HWIO", "NHWC")
        x = lax.conv_general_dilated(x[None], kernel, (1, 1), "SAME", dimension_numbers=numbers)
        x = nn.relu(nn.GroupNorm(3)(x)).mean((0, 1, 2))
        return nn.WeightNorm(nn.Dense(2))(x)


def linen_standardized_weights(draw: Draw) -> Case:
    model, batch = _Standardized(), draw.examples(3, 3, 1)
    params = model.init(jax.random.key(0), jnp.float32(batch[0]))["params"]
    return Case(lambda p, x: scalar(model.apply({"params": p}, x)), params, batch)


def top_two_experts(draw: Draw) -> Case:
    """Tokens are sent to the two experts with the highest gates, within a capacity."""

    def loss(p, x):  # (tokens, 3)
        gates, chosen = lax.top_k(jax.nn.softmax(x @ p["router"]), 2)
        taken = jax.nn.one_hot(chosen, 4, dtype=jnp.int32)  # (tokens, 2, experts)
        place = jnp.cumsum(taken.reshape(-1, 4), 0).reshape(taken.shape) * taken - 1
        dispatch = jax.nn.one_hot(place, 2, dtype=x.dtype)  # (tokens, 2, experts, capacity)
        inputs = jnp.einsum("tkec,td->ecd", dispatch, x)
        hidden = jax.nn.gelu(jnp.einsum("ecd,edh->ech", inputs, p["up"]) + p["bias"][:, None])
        outputs = jnp.einsum("ech,ehd->ecd", hidden, p["down"])
        return scalar(x + jnp.einsum("tkec,tk,ecd->td", dispatch, gates, outputs))

    params = {"router": draw(3, 4), "up": draw(4, 3, 5), "bias": draw(4, 5), "down": draw(4, 5, 3)}
    return Case(loss, params, draw.examples(5, 3))


class _UNet(nn.Module):
    @nn.compact
    def __call__(self, x):
        top = nn.silu(nn.GroupNorm(2)(nn.Conv(4, (3, 3))(x)))
        low = nn.silu(nn.Conv(6, (3, 3))(nn.avg_pool(top, (2, 2), (2, 2))))
        up = jax.image.resize(low, (*top.shape[:2], 6), "nearest")
        joined = jnp.concatenate([top, up, nn.ConvTranspose(2, (2, 2), strides=(2, 2))(low)], -1)
        return nn.Conv(1, (1, 1))(joined)


def linen_u_net(draw: Draw) -> Case:
    model, batch = _UNet(), draw.examples(4, 4, 1)
    params = model.init(jax.random.key(0), jnp.float32(batch[0]))["params"]
    return Case(lambda p, x: scalar(model.apply({"params": p}, x)), params, batch)


def siamese_network(draw: Draw) -> Case:
    """One encoder on two inputs, which are compared."""

    def distance(encoder, pair):
        one, other = (nnx.tanh(encoder(x)) for x in pair)
        return scalar((one - other) ** 2)

    encoder = nnx.Sequential(
        nnx.Linear(3, 4, rngs=nnx.Rngs(0)), nnx.relu, nnx.Linear(4, 2, rngs=nnx.Rngs(1))
    )
    return _nnx_case(encoder, draw.examples(2, 3), distance)


def hypernetwork(draw: Draw) -> Case:
    """A network whose outputs are the weights of another one."""

    def loss(p, example):
        weights = (jnp.tanh(example["task"] @ p["into"]) @ p["out_of"] + p["b"]).reshape(3, 2)
        return scalar(jnp.tanh(example["x"] @ weights) @ p["head"])

    params = {"into": draw(2, 4), "out_of": draw(4, 6), "b": draw(6), "head": draw(2, 2)}
    return Case(loss, params, {"task": draw.examples(2), "x": draw.examples(5, 3)})


class _Equinox(eqx.Module):
    conv: eqx.nn.Conv1d
    attention: eqx.nn.MultiheadAttention
    cell: eqx.nn.LSTMCell
    norm: eqx.nn.LayerNorm

    def __init__(self, key):
        keys = jax.random.split(key, 3)
        self.conv = eqx.nn.Conv1d(2, 4, 3, padding=1, key=keys[0])
        self.attention = eqx.nn.MultiheadAttention(2, 4, use_output_bias=True, key=keys[1])
        self.cell = eqx.nn.LSTMCell(4, 3, key=keys[2])
        self.norm = eqx.nn.LayerNorm(4)

    def __call__(self, x):  # (tokens, 2)
        x = jax.nn.gelu(self.conv(x.T)).T
        x = x + eqx.filter_checkpoint(self.attention)(*[jax.vmap(self.norm)(x)] * 3)
        start = (jnp.zeros(3, x.dtype),) * 2
        return lax.scan(lambda state, token: (self.cell(token, state), None), start, x)[0][0]


def equinox_layers(draw: Draw) -> Case:
    return _equinox_case(_Equinox(jax.random.key(0)), draw.examples(4, 2))


def kernel_on_the_way(draw: Draw) -> Case:
    """A Pallas kernel (interpreted) with its own derivative, between two layers."""

    def kernel(x_ref, out_ref):
        out_ref[...] = x_ref[...] * jax.nn.sigmoid(x_ref[...])

    @jax.custom_vjp
    def swish(x):
        shape = jax.ShapeDtypeStruct(x.shape, x.dtype)
        return pl.pallas_call(kernel, out_shape=shape, interpret=True)(x)

    def backward(x, cotangent):
        return jax.vjp(jax.nn.silu, x)[1](cotangent)

    swish.defvjp(lambda x: (swish(x), x), backward)
    params = {"into": draw(3, 4), "b": draw(4), "out_of": draw(4, 2)}
    return Case(
        lambda p, x: scalar(swish(x @ p["into"] + p["b"]) @ p["out_of"]),
        params,
        draw.examples(5, 3),
    )
