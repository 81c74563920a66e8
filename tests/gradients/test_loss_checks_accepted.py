"""Losses that look like mixing examples and do not: refusing one would cost a user the library."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import pytest
from flax import nnx

from dpjax.gradients.loss_checks import check_loss

pytestmark = pytest.mark.usefixtures("strict_numerics")

KEY = jax.random.key(0)
X = jax.random.normal(KEY, (4, 5))
IMAGES = jax.random.normal(KEY, (4, 6, 6, 3))
ROWS = IMAGES[:, :1]  # one pixel high
PIXELS = IMAGES[:, :1, :1]
TOKENS = jax.random.normal(KEY, (4, 3, 4))
TOKEN = TOKENS[:, :1]
W = jnp.ones((5, 4))


def accepts(module, batch, batched):
    """Checks a linen module with a loss that reaches all of its parameters."""

    def inputs(x):
        return x[None] if batched else x

    params = jax.eval_shape(lambda x: module.init(KEY, inputs(x)).get("params", {}), batch[0])

    def loss(params, x):
        out = module.apply({"params": params["module"]}, inputs(x))
        return jnp.sum(out**2) + params["one"]

    check_loss(loss, {"module": params, "one": jnp.float32(1)}, batch)


class Normalised(nn.Module):
    norm: nn.Module

    @nn.compact
    def __call__(self, x):
        return self.norm(nn.Dense(6)(x))


NORMS = {
    "LayerNorm": nn.LayerNorm(),
    "RMSNorm": nn.RMSNorm(),
    "GroupNorm of 2 groups": nn.GroupNorm(num_groups=2),
    "GroupNorm of 1 group": nn.GroupNorm(num_groups=1),
    "GroupNorm of groups of 1": nn.GroupNorm(num_groups=None, group_size=1),
    "InstanceNorm": nn.InstanceNorm(),
    "WeightNorm": nn.WeightNorm(nn.Dense(3)),
}


@pytest.mark.parametrize("name", NORMS)
@pytest.mark.parametrize("batched", [True, False], ids=["x[None]", "x"])
class TestNormsOfOneExample:
    @pytest.mark.parametrize("batch", [IMAGES, ROWS], ids=["images", "rows"])
    def test_of_images(self, name, batched, batch):
        accepts(Normalised(NORMS[name]), batch, batched)

    def test_of_vectors(self, name, batched):
        if name == "InstanceNorm":
            pytest.skip("InstanceNorm of a vector has no axis to normalise over")
        accepts(Normalised(NORMS[name]), X, batched)

    def test_of_tokens(self, name, batched):
        if name == "InstanceNorm" and not batched:
            pytest.skip(
                "without a batch axis InstanceNorm takes tokens for examples, and is refused"
            )
        for batch in (TOKENS, TOKEN):
            accepts(Normalised(NORMS[name]), batch, batched)


@pytest.mark.parametrize("norm", [nnx.LayerNorm, nnx.RMSNorm])
@pytest.mark.parametrize("batched", [True, False], ids=["x[None]", "x"])
def test_norms_of_nnx(norm, batched):
    graph, params = nnx.split(norm(5, rngs=nnx.Rngs(0)))

    def loss(params, x):
        return jnp.sum(nnx.merge(graph, params)(x[None] if batched else x) ** 2)

    check_loss(loss, params, X)


class SqueezeExcite(nn.Module):
    @nn.compact
    def __call__(self, x):
        squeezed = nn.relu(nn.Dense(2)(x.mean((-3, -2), keepdims=True)))
        return x * nn.sigmoid(nn.Dense(3)(squeezed))


@pytest.mark.parametrize("batched", [True, False], ids=["x[None]", "x"])
class TestNetworks:
    @pytest.mark.parametrize("batch", [IMAGES, ROWS, PIXELS], ids=["images", "rows", "pixels"])
    def test_squeeze_and_excite(self, batch, batched):
        accepts(SqueezeExcite(), batch, batched)

    @pytest.mark.parametrize("heads", [1, 2])
    @pytest.mark.parametrize("batch", [TOKENS, TOKEN], ids=["tokens", "token"])
    def test_attention(self, heads, batch, batched):
        accepts(nn.MultiHeadDotProductAttention(heads, qkv_features=4), batch, batched)

    @pytest.mark.parametrize("cell", [nn.LSTMCell, nn.OptimizedLSTMCell, nn.GRUCell])
    @pytest.mark.parametrize("batch", [TOKENS, TOKEN], ids=["tokens", "token"])
    def test_recurrent(self, cell, batch, batched):
        accepts(nn.RNN(cell(3)), batch, batched)

    def test_convolutions(self, batched):
        accepts(nn.Conv(4, (3, 3)), IMAGES, batched)
        accepts(nn.Conv(4, (1, 1)), PIXELS, batched)


def attention_by_hand(w, x):
    scores = (x @ w) @ (x @ w).T
    return jnp.sum((jax.nn.softmax(scores) @ x) ** 2)


@pytest.mark.parametrize("batch", [TOKENS, TOKEN], ids=["tokens", "token"])
def test_attention_by_hand(batch):
    check_loss(attention_by_hand, jnp.ones((4, 2)), batch)


def test_dot_product_attention_of_one_head_and_one_token():
    def loss(w, x):
        heads = (x @ w)[None, :, None]
        return jnp.sum(jax.nn.dot_product_attention(heads, heads, heads) ** 2)

    check_loss(loss, jnp.ones((4, 2)), TOKEN)


def standardised(x):
    return (x - x.mean()) / x.std()


LOSSES = {
    "mean": lambda w, x: jnp.mean((x[None] @ w) ** 2),
    "mean of a batch of one, then of outputs": lambda w, x: jnp.mean(
        jnp.mean((x[None] @ w) ** 2, 0)
    ),
    "mean of outputs, then of a batch of one": lambda w, x: jnp.mean(
        jnp.mean((x[None] @ w) ** 2, 1)
    ),
    "mean over a target": lambda w, x: jnp.mean((x[None] @ w - 1).mean(0) ** 2),
    "cross entropy": lambda w, x: -jax.nn.log_softmax(x[None] @ w).mean(),
    "masked mean": lambda w, x: jnp.sum((x[None] @ w) * (x[None, 1:] > 0)) / jnp.sum(x[None] > 0),
    "contrast with itself": lambda w, x: jnp.sum((x[None] @ w)[0] * (x[None] @ w)[::-1][0]),
    "cosine": lambda w, x: jnp.sum(
        (x[None] @ w) / jnp.linalg.norm(x[None] @ w, axis=1, keepdims=True)
    ),
    "gate": lambda w, x: jnp.mean((x[None] @ w) * jax.nn.sigmoid(x[None] @ w)),
    "an ensemble of one": lambda w, x: (jnp.mean(x @ w[:, :1]) - 1) ** 2,
}


@pytest.mark.parametrize("name", LOSSES)
def test_losses_over_a_batch_of_one(name):
    with jax.numpy_dtype_promotion("standard"):
        check_loss(LOSSES[name], W, X)


@pytest.mark.parametrize("batched", [True, False], ids=["x[None]", "x"])
@pytest.mark.parametrize("standardise", [standardised, lambda x: jax.nn.standardize(x, axis=None)])
def test_standardising_one_image_over_all_of_its_axes(batched, standardise):
    check_loss(lambda w, x: jnp.sum(w[0, 0] * standardise(x[None] if batched else x)), W, IMAGES)


def unit(w, axis):
    return w / jnp.linalg.norm(w, axis=axis, keepdims=True)


PARAMETERS = {
    "weight normalisation": lambda w, x: jnp.sum(x[None] * unit(w, 0)) ** 2,
    "over features": lambda w, x: jnp.sum(x[None] * unit(w, 1)) ** 2,
    "in jit": lambda w, x: jnp.sum(x[None] * jax.jit(lambda w: unit(w, 0))(w)) ** 2,
    "in a cond": lambda w, x: jax.lax.cond(
        x[0] > 0, lambda w, x: jnp.sum(x[None] * unit(w, 0)), lambda w, x: jnp.sum(x), w, x
    ),
    "in the closure of a cond": lambda w, x: jax.lax.cond(
        x[0] > 0, lambda: jnp.sum(x[None] * unit(w, 0)), lambda: jnp.sum(x)
    ),
    "in a while": lambda w, x: jnp.sum(
        jax.lax.while_loop(lambda c: c[0, 0] < 9, lambda c: c + unit(w, 0), x[None])
    ),
    "in a scan": lambda w, x: jnp.sum(
        jax.lax.scan(lambda c, _: (c * unit(w, 0), None), x[None], length=2)[0]
    ),
    "parameters over a mean": lambda w, x: jnp.sum(x[None] * (w - w.mean(0, keepdims=True))),
}


@pytest.mark.parametrize("name", PARAMETERS)
def test_operations_on_parameters_alone(name):
    check_loss(PARAMETERS[name], jnp.ones((1, 5)), X)


def test_dropout_with_a_key_in_the_batch():
    def loss(w, example):
        x, key = example
        return jnp.sum(jnp.where(jax.random.bernoulli(key, 0.5, x.shape), x, 0) @ w)

    check_loss(loss, W, (X, jax.random.split(KEY, 4)))


def test_collectives_over_an_inner_axis():
    def loss(w, x):
        def head(logit):
            return jax.nn.softplus(logit - jax.lax.pmean(logit, "heads"))

        return jnp.sum(jax.vmap(head, axis_name="heads")(x @ w))

    check_loss(loss, W, X)


def test_axis_index():
    def loss(w, x):
        return jnp.sum(x @ w) * jax.lax.axis_index("i").astype(jnp.float32)

    jax.vmap(lambda batch: check_loss(loss, W, batch), axis_name="i")(jnp.stack([X, X]))
