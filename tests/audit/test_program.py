"""The check of a program: right steps are shown, wrong ones are not."""

import linecache
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from audit.program_findings import FINDINGS
from jax.flatten_util import ravel_pytree

import dpjax
from dpjax.audit import check_program

Z = 1.1
W = {"a": 0.1 * jnp.ones((4, 3)), "b": jnp.zeros(3)}
X = jax.random.normal(jax.random.key(9), (6, 4))
Y = jnp.array([0, 1, 2, 0, 1, 2])
RIGHT: dict[str, Callable[..., Any]] = {}
WRONG: dict[str, tuple[Callable[..., Any], str]] = {}

normal = jax.random.normal
fold = jax.random.fold_in


def right(step: Callable[..., Any]) -> Callable[..., Any]:
    """A step that is to be shown."""
    RIGHT[step.__name__] = step
    return step


def wrong(step: Callable[..., Any]) -> Callable[..., Any]:
    """A step that must not be shown."""
    WRONG[step.__name__] = step, "not shown"
    return step


def violated(step: Callable[..., Any]) -> Callable[..., Any]:
    """A step that the check must find to be at fault."""
    WRONG[step.__name__] = step, "violated"
    return step


def loss(w, x, y):
    logits = jnp.tanh(x @ w["a"] + w["b"])
    return optax.softmax_cross_entropy_with_integer_labels(logits, y)


def gradients(w, x, y):
    return jax.vmap(jax.grad(loss), (None, 0, 0))(w, x, y)


def norms(g):
    return jax.vmap(optax.tree.norm)(g)


def column(s, a):
    return s.reshape((-1,) + (1,) * (a.ndim - 1))


def scaled(g, s):
    return jax.tree.map(lambda a: a * column(s, a), g)


def total(g):
    return jax.tree.map(lambda a: a.sum(0), g)


def clipped(w, x, y):
    g = gradients(w, x, y)
    return scaled(g, jnp.minimum(1, 1 / norms(g)))


def noisy(key, tree, deviation=Z):
    leaves, structure = jax.tree.flatten(tree)
    keys = jax.random.split(key, len(leaves))
    added = [a + deviation * normal(k, a.shape) for a, k in zip(leaves, keys, strict=True)]
    return jax.tree.unflatten(structure, added)


def updated(w, t, n=6.0):
    return jax.tree.map(lambda p, g: p - 0.1 * g / n, w, t)


def unit(x):
    """Records of norm at most one."""
    return x * jnp.minimum(1, 1 / jnp.linalg.norm(x, axis=1))[:, None]


def by_norm(x, n):
    """Records divided by the numbers, if these are more than one."""
    return (x * jnp.minimum(1, 1 / n)[:, None]).sum(0)


# --- Right: ways to clip -----------------------------------------------------------------------


@right
def clip_min(key, w, x, y):
    return updated(w, noisy(key, total(clipped(w, x, y))))


@right
def clip_max(key, w, x, y):
    g = gradients(w, x, y)
    return updated(w, noisy(key, total(scaled(g, 1 / jnp.maximum(1, norms(g))))))


@right
def clip_max_of_bound(key, w, x, y):
    g = gradients(w, x, y)
    return updated(w, noisy(key, total(scaled(g, 2 / jnp.maximum(norms(g), 2))), 2 * Z))


@right
def clip_where_factor(key, w, x, y):
    g = gradients(w, x, y)
    n = norms(g)
    return updated(w, noisy(key, total(scaled(g, jnp.where(n > 1, 1 / n, 1.0)))))


@right
def clip_where_array(key, w, x, y):
    def one(x, y):
        g = jax.grad(loss)(w, x, y)
        n = optax.tree.norm(g)
        return jax.tree.map(lambda a: jnp.where(n > 1, a / n, a), g)

    return updated(w, noisy(key, total(jax.vmap(one)(x, y))))


@right
def clip_raveled(key, w, x, y):
    def one(x, y):
        v = ravel_pytree(jax.grad(loss)(w, x, y))[0]
        return v * jnp.minimum(1.0, 1 / (jnp.linalg.norm(v) + 1e-6))

    v = jax.vmap(one)(x, y).sum(0)
    return updated(w, ravel_pytree(w)[1](v + Z * normal(key, v.shape)))


@right
def clip_einsum(key, w, x, y):
    g = gradients(w, x, y)
    square = sum(jnp.einsum("n...,n...->n", a, a) for a in jax.tree.leaves(g))
    s = jnp.minimum(1, jax.lax.rsqrt(square))
    return noisy(key, jax.tree.map(lambda a: jnp.einsum("n,n...->...", s, a), g))


@right
def clip_by_optax(key, w, x, y):
    t, _ = optax.per_example_global_norm_clip(gradients(w, x, y), 1.0)
    return updated(w, noisy(key, t))


@right
def clip_by_optax_vmapped(key, w, x, y):
    clip = optax.clip_by_global_norm(1.0)
    g = jax.vmap(lambda g: clip.update(g, clip.init(g))[0])(gradients(w, x, y))
    return updated(w, noisy(key, total(g)))


@right
def clip_each_layer(key, w, x, y):
    bound = 1 / np.sqrt(2)

    def one(a):
        n = jnp.linalg.norm(a.reshape(len(a), -1), axis=1)
        return (a * column(jnp.minimum(1, bound / n), a)).sum(0)

    return updated(w, noisy(key, jax.tree.map(one, gradients(w, x, y))))


@right
def clip_isfinite(key, w, x, y):
    g = gradients(w, x, y)
    n = norms(g)
    ok = jnp.isfinite(n)
    g = jax.tree.map(lambda a: jnp.where(column(ok, a), a, 0), g)
    return noisy(key, total(scaled(g, jnp.where(ok, jnp.minimum(1, 1 / n), 0))))


@right
def clip_nan_to_num(key, w, x, y):
    g = jax.tree.map(jnp.nan_to_num, gradients(w, x, y))
    return noisy(key, total(scaled(g, jnp.minimum(1, 1 / norms(g)))))


@right
def clip_of_quotient(key, w, x, y):
    g = gradients(w, x, y)
    square = sum(jnp.sum(a.reshape(len(a), -1) ** 2, axis=-1) for a in jax.tree.leaves(g))
    return noisy(key, total(scaled(g, jnp.clip(1 / jnp.sqrt(square), None, 1.0))))


@right
def normalised(key, w, x, y):
    g = gradients(w, x, y)
    return noisy(key, total(scaled(g, 1 / (norms(g) + 0.01))))


@right
def automatic_clipping(key, w, x, y):
    g = gradients(w, x, y)
    return noisy(key, total(scaled(g, 1 / jnp.sqrt(norms(g) ** 2 + 0.01))))


@right
def ghost_two_passes(key, w, x, y):
    s = jax.lax.stop_gradient(jnp.minimum(1, 1 / norms(gradients(w, x, y))))
    g = gradients(w, x, y)
    return noisy(key, total(scaled(g, jnp.minimum(1, 1 / norms(g)) * jnp.minimum(s, 1))))


@right
def clip_with_checkpoint(key, w, x, y):
    g = jax.vmap(jax.grad(jax.checkpoint(loss)), (None, 0, 0))(w, x, y)
    return noisy(key, total(scaled(g, jnp.minimum(1, 1 / norms(g)))))


# --- Right: batches, loops and noise -----------------------------------------------------------


@right
def mean_and_noise(key, w, x, y):
    return noisy(key, jax.tree.map(lambda a: a / 8.0, total(clipped(w, x, y))), Z / 8)


@right
def poisson_sampling(key, w, x, y):
    sample, noise = jax.random.split(key)
    mask = jax.random.bernoulli(sample, 0.5, (len(x),))
    return updated(w, noisy(noise, total(scaled(clipped(w, x, y), mask))))


@right
def batch_of_permutation(key, w, x, y):
    sample, noise = jax.random.split(key)
    i = jax.random.permutation(sample, len(x))[:3]
    return updated(w, noisy(noise, total(clipped(w, x[i], y[i]))))


@right
def batch_of_choice(key, w, x, y):
    sample, noise = jax.random.split(key)
    i = jax.random.choice(sample, len(x), (3,), replace=False)
    return updated(w, noisy(noise, total(clipped(w, x[i], y[i]))))


@right
def scan_over_microbatches(key, w, x, y):
    def body(sums, batch):
        return jax.tree.map(jnp.add, sums, total(clipped(w, *batch))), None

    batches = x.reshape(2, -1, 4), y.reshape(2, -1)
    sums, _ = jax.lax.scan(body, jax.tree.map(jnp.zeros_like, w), batches)
    return updated(w, noisy(key, sums))


@right
def scan_over_records(key, w, x, y):
    def body(sums, record):
        g = jax.grad(loss)(w, *record)
        s = jnp.minimum(1, 1 / optax.tree.norm(g))
        return jax.tree.map(lambda a, b: a + s * b, sums, g), None

    sums, _ = jax.lax.scan(body, jax.tree.map(jnp.zeros_like, w), (x, y))
    return updated(w, noisy(key, sums))


@right
def scan_of_entries(key, w, x, y):
    sums, _ = jax.lax.scan(lambda a, x: (a + jnp.clip(x, -1, 1), None), jnp.zeros(4), x)
    return sums + 2 * Z * normal(key, (4,))


@right
def map_over_records(key, w, x, y):
    def one(record):
        g = jax.grad(loss)(w, *record)
        s = jnp.minimum(1, 1 / optax.tree.norm(g))
        return jax.tree.map(lambda a: s * a, g)

    return updated(w, noisy(key, total(jax.lax.map(one, (x, y)))))


@right
def loop_over_records(key, w, x, y):
    def body(i, sums):
        g = jax.grad(loss)(w, x[i], y[i])
        s = jnp.minimum(1, 1 / optax.tree.norm(g))
        return jax.tree.map(lambda a, b: a + s * b, sums, g)

    return noisy(key, jax.lax.fori_loop(0, len(x), body, jax.tree.map(jnp.zeros_like, w)))


@right
def training_by_scan(key, w, x, y):
    def body(carried, _):
        w, key = carried
        key, used = jax.random.split(key)
        return (clip_min(used, w, x, y), key), None

    return jax.lax.scan(body, (w, key), None, length=1)[0][0]


@right
def training_with_two_steps(key, w, x, y):
    def body(carried, i):
        w, key = carried
        return (updated(w, noisy(fold(key, i), total(clipped(w, x, y)), 2 * Z)), key), None

    return jax.lax.scan(body, (w, key), jnp.arange(3))[0][0]


@right
def noise_of_one_draw(key, w, x, y):
    t, v = total(clipped(w, x, y)), Z * normal(key, (15,))
    return {"a": t["a"] + v[:12].reshape(4, 3), "b": t["b"] + v[12:]}


@right
def noise_by_fold_in(key, w, x, y):
    t = total(clipped(w, x, y))
    return {k: t[k] + Z * normal(fold(key, i), t[k].shape) for i, k in enumerate(t)}


@right
def two_releases(key, w, x, y):
    one, two = jax.random.split(key)
    t = total(clipped(w, x, y))
    return noisy(one, t, 1.5 * Z), noisy(two, t, 1.5 * Z)


@right
def dropout(key, w, x, y):
    drop, noise = jax.random.split(key)

    def dropped(w, x, y, key):
        return loss(w, x * jax.random.bernoulli(key, 0.5, x.shape) * 2.0, y)

    g = jax.vmap(jax.grad(dropped), (None, 0, 0, 0))(w, x, y, jax.random.split(drop, len(x)))
    return updated(w, noisy(noise, total(scaled(g, jnp.minimum(1, 1 / norms(g))))))


@right
def adam(key, w, x, y):
    optimizer = optax.adam(0.1)
    g = noisy(key, total(clipped(w, x, y)))
    updates, state = optimizer.update(g, optimizer.init(w), w)
    return optax.apply_updates(w, updates), state


@right
def sum_of_entries(key, w, x, y):
    return jnp.clip(x, -1, 1).sum(0) + 2 * Z * normal(key, (4,))


@right
def covariance(key, w, x, y):
    u = unit(x)
    return u.T @ u + Z * normal(key, (4, 4))


@right
def masked_sum(key, w, x, y):
    return jnp.where((y > 0)[:, None], unit(x), 0.0).sum(0) + Z * normal(key, (4,))


@right
def sum_of_noises(key, w, x, y):
    noise = sum(normal(k, (4,)) for k in jax.random.split(key, 3))
    return unit(x).sum(0) + Z * noise


@right
def noise_by_a_schedule(key, w, x, y):
    def body(i, value):
        return value + unit(x).sum(0) + 2 * Z * (1.0 + i) * normal(fold(key, i), (4,))

    return jax.lax.fori_loop(0, 3, body, jnp.zeros(4))


@right
def public_bound(key, w, x, y):
    bound = jnp.asarray([0.5, 1.5]).sum()
    return by_norm(x, jnp.linalg.norm(x, axis=1) / bound) + Z * bound * normal(key, (4,))


# --- Right: models -----------------------------------------------------------------------------


def of_model(apply):
    def step(key, w, x, y):
        def model_loss(w, x, y):
            return optax.softmax_cross_entropy_with_integer_labels(apply(w, x), y)

        g = jax.vmap(jax.grad(model_loss), (None, 0, 0))(w, x, y)
        return noisy(key, total(scaled(g, jnp.minimum(1, 1 / norms(g)))))

    return step


@right
def convolution(key, w, x, y):
    def apply(w, x):
        numbers = ("NHWC", "HWIO", "NHWC")
        image = x[None, :, :, None]
        h = jax.lax.conv_general_dilated(image, w["k"], (1, 1), "SAME", dimension_numbers=numbers)
        return jax.nn.relu(h).reshape(-1) @ w["d"]

    w = {"k": jnp.ones((3, 3, 1, 2)), "d": jnp.ones((32, 3))}
    return of_model(apply)(key, w, x[:, :, None] * jnp.ones((1, 1, 4)), y)


@right
def pooling(key, w, x, y):
    def apply(w, x):
        image = jax.nn.relu(jnp.outer(x, x))[None, :, :, None] * w["k"]
        window = (1, 2, 2, 1)
        h = jax.lax.reduce_window(image, -jnp.inf, jax.lax.max, window, window, "VALID")
        return h.reshape(-1) @ w["d"]

    return of_model(apply)(key, {"k": jnp.ones(2), "d": jnp.ones((8, 3))}, x, y)


@right
def attention(key, w, x, y):
    def apply(w, x):
        h = jnp.outer(x, w["e"])
        h = (h - h.mean(-1, keepdims=True)) / jnp.sqrt(h.var(-1, keepdims=True) + 1e-5)
        h = jax.nn.softmax((h @ w["q"]) @ (h @ w["k"]).T) @ h
        return h.mean(0)[:3]

    w = {"e": jnp.arange(5.0), "q": jnp.ones((5, 5)), "k": jnp.ones((5, 5))}
    return of_model(apply)(key, w, x, y)


@right
def embedding(key, w, x, y):
    def apply(w, i):
        return w["e"][i] @ w["d"]

    w = {"e": jnp.ones((3, 5)), "d": jnp.ones((5, 3))}
    return of_model(apply)(key, w, y, y)


# --- Wrong: the clip ---------------------------------------------------------------------------


@wrong
def wrong_no_clip(key, w, x, y):
    """Nothing bounds a gradient."""
    return noisy(key, total(gradients(w, x, y)))


@wrong
def wrong_clip_of_the_sum(key, w, x, y):
    """The sum is clipped, by its own norm, not the records."""
    t = total(gradients(w, x, y))
    s = jnp.minimum(1, 1 / optax.tree.norm(t))
    return noisy(key, jax.tree.map(lambda a: a * s, t))


@violated
def wrong_each_layer_to_the_bound(key, w, x, y):
    """Two layers of norm 1 each have norm sqrt(2)."""
    g = gradients(w, x, y)
    n = {k: jnp.linalg.norm(a.reshape(len(a), -1), axis=1) for k, a in g.items()}
    return noisy(key, {k: (a * column(jnp.minimum(1, 1 / n[k]), a)).sum(0) for k, a in g.items()})


@wrong
def wrong_each_entry_to_the_bound(key, w, x, y):
    """Entries of at most 1 have norm sqrt(15)."""
    g = jax.tree.map(lambda a: jnp.clip(a, -1, 1), gradients(w, x, y))
    return noisy(key, total(g))


@wrong
def wrong_microbatches_clipped(key, w, x, y):
    """Gradients of means of two records are clipped."""
    means = jax.vmap(
        jax.grad(lambda w, x, y: jax.vmap(loss, (None, 0, 0))(w, x, y).mean()), (None, 0, 0)
    )
    g = means(w, x.reshape(-1, 2, 4), y.reshape(-1, 2))
    return noisy(key, total(scaled(g, jnp.minimum(1, 1 / norms(g)))))


@wrong
def wrong_one_layer_not_clipped(key, w, x, y):
    """The bias is not clipped."""
    return noisy(key, total({**clipped(w, x, y), "b": gradients(w, x, y)["b"]}))


@wrong
def wrong_norm_of_one_layer(key, w, x, y):
    """The norm leaves out the bias."""
    g = gradients(w, x, y)
    n = jnp.sqrt(jnp.sum(g["a"] ** 2, (1, 2)))
    return noisy(key, total(scaled(g, jnp.minimum(1, 1 / n))))


@violated
def wrong_norm_in_half_precision(key, w, x, y):
    """Half precision rounds the norm by 0.8 %."""
    g = gradients(w, x, y)
    n = norms(g).astype(jnp.bfloat16)
    return noisy(key, total(scaled(g, jnp.minimum(1, 1 / n).astype(jnp.float32))))


@wrong
def wrong_norm_of_few_bits(key, w, x, y):
    """The norm is rounded to one bit."""
    n = jax.lax.reduce_precision(jnp.linalg.norm(x, axis=1), 8, 1)
    return by_norm(x, n) + Z * normal(key, (4,))


@wrong
def wrong_norms_of_the_batch(key, w, x, y):
    """The bound is the median of the norms."""
    g = gradients(w, x, y)
    n = norms(g)
    bound = jnp.median(n)
    return noisy(key, total(scaled(g, jnp.minimum(1, bound / n))), Z * bound)


@wrong
def wrong_maximum_for_minimum(key, w, x, y):
    """Small gradients are made larger."""
    g = gradients(w, x, y)
    return noisy(key, total(scaled(g, jnp.maximum(1, 1 / norms(g)))))


@wrong
def wrong_root_of_the_norm(key, w, x, y):
    """The factor divides by the root of the norm."""
    g = gradients(w, x, y)
    return noisy(key, total(scaled(g, jnp.minimum(1, norms(g) ** -0.5))))


@wrong
def wrong_norm_of_another_record(key, w, x, y):
    """Each record is divided by the norm of the one before."""
    return by_norm(x, jnp.roll(jnp.linalg.norm(x, axis=1), 1)) + Z * normal(key, (4,))


@wrong
def wrong_norm_of_some_entries(key, w, x, y):
    """The norm leaves out an entry."""
    return by_norm(x, jnp.linalg.norm(x[:, :3], axis=1)) + Z * normal(key, (4,))


@wrong
def wrong_norm_of_masked_entries(key, w, x, y):
    """The norm leaves out two entries."""
    n = jnp.linalg.norm(x * jnp.array([1, 1, 0, 0.0]), axis=1)
    return by_norm(x, n) + Z * normal(key, (4,))


@wrong
def wrong_largest_entry_for_norm(key, w, x, y):
    """The largest entry is less than the norm."""
    return by_norm(x, jnp.abs(x).max(1)) + Z * normal(key, (4,))


@violated
def wrong_mean_square_for_norm(key, w, x, y):
    """The root of the mean square is half the norm."""
    return by_norm(x, jnp.sqrt((x**2).mean(1))) + Z * normal(key, (4,))


@wrong
def wrong_norm_less_a_number(key, w, x, y):
    """The norm is made smaller."""
    return by_norm(x, jnp.linalg.norm(x, axis=1) - 0.5) + Z * normal(key, (4,))


@wrong
def wrong_norm_of_shifted_records(key, w, x, y):
    """The norm is that of another array."""
    return by_norm(x, jnp.linalg.norm(x - jnp.ones(4), axis=1)) + Z * normal(key, (4,))


@wrong
def wrong_norm_of_real_parts(key, w, x, y):
    """The norm leaves out the imaginary parts."""
    z = jax.lax.convert_element_type(x, jnp.complex64) * jnp.exp(1j * jnp.ones(4))
    return by_norm(x, jnp.linalg.norm(jnp.real(z), axis=1)) + Z * normal(key, (4,))


@wrong
def wrong_norm_of_minima(key, w, x, y):
    """Minima of squares add up to less than the squares."""
    square = x**2
    n = jnp.sqrt(jnp.minimum(square, square[:, ::-1]).sum(1))
    return by_norm(x, n) + Z * normal(key, (4,))


@wrong
def wrong_norm_of_chosen_entries(key, w, x, y):
    """Squares of two entries are counted twice, those of the others not at all."""
    square = x**2
    first = jnp.array([True, True, False, False])
    n = jnp.sqrt(jnp.where(first, square, square[:, ::-1]).sum(1))
    return by_norm(x, n) + Z * normal(key, (4,))


@wrong
def wrong_norm_of_rounded_integers(key, w, x, y):
    """Halves of integers are rounded before the norm."""
    i = x.astype(jnp.int8).astype(jnp.int32)
    n = 2 * jnp.sqrt((jax.lax.div(i, 2) ** 2).sum(1).astype(float))
    return by_norm(i, n) + Z * normal(key, (4,))


@wrong
def wrong_norm_of_small_integers(key, w, x, y):
    """Squares of 8-bit integers wrap around."""
    i = x.astype(jnp.uint8)
    return by_norm(i, jnp.sqrt((i * i).sum(1).astype(float))) + Z * normal(key, (4,))


@violated
def wrong_clip_above_another_bound(key, w, x, y):
    """Records of norm up to 2 are left as they are."""
    n = jnp.linalg.norm(x, axis=1)
    return (x * jnp.where(n > 2, 1 / n, 1.0)[:, None]).sum(0) + Z * normal(key, (4,))


@wrong
def wrong_clip_on_the_wrong_side(key, w, x, y):
    """Small records are clipped, large ones not."""
    n = jnp.linalg.norm(x, axis=1)
    return (x * jnp.where(n < 1, 1 / n, 1.0)[:, None]).sum(0) + Z * normal(key, (4,))


@wrong
def wrong_custom_gradient(key, w, x, y):
    """The clip's own gradient is not clipped."""

    @jax.custom_vjp
    def clip(x):
        return x * jnp.minimum(1, 1 / jnp.linalg.norm(x))

    clip.defvjp(lambda x: (clip(x), x), lambda x, g: (g,))
    g = jax.vmap(jax.grad(lambda x: clip(x) @ x))(x)
    return g.sum(0) + Z * normal(key, (4,))


# --- Wrong: what is done to clipped records -----------------------------------------------------


@wrong
def wrong_rest_of_the_record(key, w, x, y):
    """A tenth of the record is added to the clipped one."""
    return (unit(x) + 0.1 * x).sum(0) + Z * normal(key, (4,))


@wrong
def wrong_number_added(key, w, x, y):
    """Every record adds a vector of ones too: of norm 2."""
    return (unit(x) + jnp.ones(4)).sum(0) + Z * normal(key, (4,))


@violated
def wrong_weights(key, w, x, y):
    """The last record counts five times."""
    return (unit(x) * jnp.arange(float(len(x)))[:, None]).sum(0) + Z * normal(key, (4,))


@violated
def wrong_mixture_of_two(key, w, x, y):
    """Entries of a clipped record and of its mirror image: of norm sqrt(2)."""
    u = unit(x)
    first = jnp.array([True, True, False, False])
    return jnp.where(first, u, u[:, ::-1]).sum(0) + Z * normal(key, (4,))


@wrong
def wrong_mixture_by_masked_condition(key, w, x, y):
    """The condition of a record is masked in some entries: a mixture again."""
    u = unit(x)
    positive = jnp.broadcast_to((x[:, 0] > 0)[:, None], x.shape)
    first = jnp.where(jnp.array([True, True, False, False]), positive, False)
    return jnp.where(first, u, u[:, ::-1]).sum(0) + Z * normal(key, (4,))


@wrong
def wrong_entries_twice(key, w, x, y):
    """Clipped records side by side with themselves."""
    u = unit(x)
    return jnp.concatenate([u, u], 1).sum(0) + Z * normal(key, (8,))


@wrong
def wrong_entry_gathered_four_times(key, w, x, y):
    """One entry, four times."""
    return unit(x)[:, jnp.array([0, 0, 0, 0])].sum(0) + Z * normal(key, (4,))


@wrong
def wrong_cumulative_sums(key, w, x, y):
    """Partial sums are larger than the record."""
    return jnp.cumsum(unit(x), 1).sum(0) + Z * normal(key, (4,))


@wrong
def wrong_matrix_applied(key, w, x, y):
    """A matrix of norm 4 sqrt(3)."""
    return (unit(x) @ (2 * jnp.ones((4, 3)))).sum(0) + Z * normal(key, (3,))


@wrong
def wrong_number_times_rows(key, w, x, y):
    """A clipped number times rows of norm 10."""
    s = x[:, 0] * jnp.minimum(1, 1 / jnp.abs(x[:, 0]))
    rows = jnp.tanh(x[:, 1:2]) * jnp.ones(100)
    return jnp.einsum("n,nd->d", s, rows) + Z * normal(key, (100,))


@wrong
def wrong_number_repeated_in_a_loop(key, w, x, y):
    """A clipped number times a vector of norm 10."""

    def body(sums, x):
        return sums + x[0] * jnp.minimum(1, 1 / jnp.sqrt(x[0] ** 2)) * jnp.ones(100), None

    return jax.lax.scan(body, jnp.zeros(100), x)[0] + Z * normal(key, (100,))


@wrong
def wrong_entries_in_a_loop(key, w, x, y):
    """Four entries of at most 1 have norm 2."""
    sums, _ = jax.lax.scan(lambda a, x: (a + jnp.clip(x, -1, 1), None), jnp.zeros(4), x)
    return sums + Z * normal(key, (4,))


@wrong
def wrong_converted_to_boolean(key, w, x, y):
    """Small numbers become one."""
    b = jax.lax.convert_element_type(unit(x), jnp.bool_)
    return jax.lax.convert_element_type(b, jnp.float32).sum(0) + Z * normal(key, (4,))


@wrong
def wrong_cosine_of_imaginary(key, w, x, y):
    """The cosine of an imaginary number is not bounded."""
    return jnp.real(jnp.cos(1j * x)).sum(0) + 2 * Z * normal(key, (4,))


@wrong
def wrong_sorted_with_another(key, w, x, y):
    """The second array sorted is not bounded, the first is."""
    return jax.lax.sort_key_val(jax.nn.sigmoid(x), x)[1].sum(0) + 2 * Z * normal(key, (4,))


@wrong
def wrong_one_record_for_many(key, w, x, y):
    """One record's entries are no records."""
    return jnp.clip(x[0], -1, 1).sum() + Z * normal(key, ())


@wrong
def wrong_labels_counted_twice(key, w, x, y):
    """Two ones for each record: of norm sqrt(2)."""
    counts = jax.nn.one_hot(y, 3) + jax.nn.one_hot(y + 1, 3)
    return counts.sum(0) + Z * normal(key, (3,))


@wrong
def wrong_histogram_with_less_noise(key, w, x, y):
    """Half of the noise."""
    return jax.nn.one_hot(y, 3).sum(0) + Z / 2 * normal(key, (3,))


@wrong
def wrong_products_not_clipped(key, w, x, y):
    """Squares of records are not bounded."""
    return x.T @ x + Z * normal(key, (4, 4))


@violated
def wrong_products_of_norm_four(key, w, x, y):
    """Records of norm 2 have outer products of norm 4."""
    u = 2 * unit(x)
    return u.T @ u + 2 * Z * normal(key, (4, 4))


# --- Wrong: records that meet each other --------------------------------------------------------


@violated
def wrong_batch_statistics(key, w, x, y):
    """Records are standardised by the batch."""
    return noisy(key, total(clipped(w, (x - x.mean(0)) / x.std(0), y)))


@violated
def wrong_mean_subtracted(key, w, x, y):
    """Every record depends on the mean of all."""
    return (x - x.mean(0)).clip(-0.5, 0.5).sum(0) + Z * normal(key, (4,))


@wrong
def wrong_softmax_over_records(key, w, x, y):
    """Probabilities over records, not classes."""
    return (jax.nn.softmax(x, 0) / 2).sum(0) + Z * normal(key, (4,))


@wrong
def wrong_pairs(key, w, x, y):
    """Every record is in twelve of the pairs."""
    return (x[:, None] - x[None]).clip(-0.01, 0.01).sum((0, 1)) + Z * normal(key, (4,))


@wrong
def wrong_sorted_over_records(key, w, x, y):
    """Order statistics."""
    return jnp.sort(jnp.clip(x, -0.5, 0.5), 0)[:3].sum(0) + Z * normal(key, (4,))


@wrong
def wrong_differences(key, w, x, y):
    """Every record is in two of the differences."""

    def body(i, sums):
        d = x[i + 1] - x[i]
        return sums + d * jnp.minimum(1, 1 / jnp.linalg.norm(d))

    return jax.lax.fori_loop(0, 5, body, jnp.zeros(4)) + Z * normal(key, (4,))


@wrong
def wrong_norm_of_the_next(key, w, x, y):
    """Records are divided by the norm of the one before."""

    def body(i, sums):
        return sums + x[i + 1] * jnp.minimum(1, 1 / jnp.linalg.norm(x[i]))

    return jax.lax.fori_loop(0, 5, body, jnp.zeros(4)) + Z * normal(key, (4,))


@wrong
def wrong_row_beyond_the_end(key, w, x, y):
    """The last record is taken five times."""
    rows = x.at[jnp.arange(10)].get(mode="clip")
    return rows.clip(-0.5, 0.5).sum(0) + Z * normal(key, (4,))


@wrong
def wrong_rows_with_repetition(key, w, x, y):
    """A record may be drawn more than once."""
    sample, noise = jax.random.split(key)
    i = jax.random.choice(sample, len(x), (3,))
    return unit(x[i]).sum(0) + Z * normal(noise, (4,))


@violated
def wrong_sum_added_twice(key, w, x, y):
    """The sum is added to itself."""
    t = unit(x).sum(0)
    return t + t + Z * normal(key, (4,))


@violated
def wrong_sum_in_every_iteration(key, w, x, y):
    """The sum over all records is added three times."""

    def body(sums, _):
        return jax.tree.map(jnp.add, sums, total(clipped(w, x, y))), None

    zeros = jax.tree.map(jnp.zeros_like, w)
    return noisy(key, jax.lax.scan(body, zeros, None, length=3)[0])


@wrong
def wrong_moments_not_clipped(key, w, x, y):
    """A moving average of records."""
    return jax.lax.scan(lambda m, x: (0.9 * m + x, None), jnp.zeros(4), x)[0] + Z * normal(
        key, (4,)
    )


@wrong
def wrong_growing_sum(key, w, x, y):
    """The first record counts 1.1^5 times."""
    return jax.lax.scan(lambda m, x: (1.1 * m + x, None), jnp.zeros(4), unit(x))[0] + Z * normal(
        key, (4,)
    )


@wrong
def wrong_sum_of_partial_sums(key, w, x, y):
    """The first record is in all partial sums."""

    def body(carried, x):
        a, b = carried
        return (a + x, b + a), None

    sums = jax.lax.scan(body, (jnp.zeros(4), jnp.zeros(4)), unit(x))[0][1]
    return sums + Z * normal(key, (4,))


# --- Wrong: what is done to sums ----------------------------------------------------------------


@violated
def wrong_sum_less_its_multiple(key, w, x, y):
    """The coefficient is 0.9 in three entries, not zero."""
    t = unit(x).sum(0)
    return t - t * jnp.array([0.1, 0.1, 0.1, 1.0]) + Z / 2 * normal(key, (4,))


@violated
def wrong_sum_less_its_mirror_image(key, w, x, y):
    """The entries are others: they do not cancel."""
    t = unit(x).sum(0)
    return t - t[::-1] + 0.1 * Z * normal(key, (4,))


@violated
def wrong_sum_less_its_mean(key, w, x, y):
    """The mean of the entries does not cancel them."""
    t = unit(x).sum(0)
    return t - t.mean() + 0.1 * Z * normal(key, (4,))


@wrong
def wrong_parts_in_another_order(key, w, x, y):
    """The large parts of both arrays meet."""
    large, small = unit(x).sum(0), jnp.clip(1e-3 * x, -1e-3, 1e-3).sum(0)
    one, two = jnp.concatenate([large, small]), jnp.concatenate([small, large])
    return one + two[::-1] + 1.5 * Z * normal(key, (8,))


@violated
def wrong_parts_side_by_side(key, w, x, y):
    """The sum is released twice."""
    t = unit(x).sum(0)
    one, two = jnp.concatenate([t, t]), jnp.concatenate([t, t[:2], t[:2]])
    return one + 1e-3 * two + 1.05 * Z * normal(key, (8,))


@violated
def wrong_number_times_ones(key, w, x, y):
    """A hundred times the same sum: ten times the norm."""
    return jnp.clip(x[:, 0], -1, 1).sum() * jnp.ones(100) + Z * normal(key, (100,))


@violated
def wrong_number_plus_zeros(key, w, x, y):
    """A hundred times the same sum: ten times the norm."""
    return jnp.clip(x[:, 0], -1, 1).sum() + jnp.zeros(100) + Z * normal(key, (100,))


@wrong
def wrong_sum_rounded(key, w, x, y):
    """Rounding makes a small change one of 1 in every entry."""
    return unit(x).sum(0).astype(int) + Z * normal(key, (4,))


@wrong
def wrong_sum_halved_as_integer(key, w, x, y):
    """The half is rounded: a change of 1 stays one of 1."""
    return jax.lax.div(jnp.clip(y, 0, 1)[:, None].sum(0), 2) + Z / 2 * normal(key, (1,))


@wrong
def wrong_sum_of_small_integers(key, w, x, y):
    """Sums of 8-bit integers wrap around."""
    t = jnp.sum(x.astype(jnp.uint8), 0, dtype=jnp.uint8).astype(float)
    return t + 510 * Z * normal(key, (4,))


@wrong
def wrong_sum_normalised(key, w, x, y):
    """The sum is divided by its norm."""
    t = unit(x).sum(0)
    return t / jnp.linalg.norm(t) + Z * normal(key, (4,))


@violated
def wrong_two_releases_of_one_budget(key, w, x, y):
    """Two releases, each with the noise of one."""
    one, two = jax.random.split(key)
    t = total(clipped(w, x, y))
    return noisy(one, t), noisy(two, t)


@violated
def wrong_four_steps(key, w, x, y):
    """Four steps, each with the noise of one."""

    def body(w, k):
        return updated(w, noisy(k, total(clipped(w, x, y)))), None

    return jax.lax.scan(body, w, jax.random.split(key, 4))[0]


# --- Wrong: the noise ---------------------------------------------------------------------------


@violated
def wrong_half_of_the_noise(key, w, x, y):
    """Half of the noise declared."""
    return noisy(key, total(clipped(w, x, y)), Z / 2)


@violated
def wrong_root_of_the_noise(key, w, x, y):
    """The variance is taken for the standard deviation."""
    return noisy(key, total(clipped(w, x, y)), Z**0.5)


@violated
def wrong_noise_of_the_mean(key, w, x, y):
    """Noise for the mean is added to the sum."""
    return noisy(key, total(clipped(w, x, y)), Z / 6)


@violated
def wrong_less_noise_in_one_entry(key, w, x, y):
    """Half of the noise in the last entry."""
    return unit(x).sum(0) + Z * normal(key, (4,)) * jnp.array([1, 1, 1, 0.5])


@violated
def wrong_no_noise_in_one_layer(key, w, x, y):
    """The bias is released as it is."""
    t = total(clipped(w, x, y))
    return {**t, "a": t["a"] + Z * normal(key, (4, 3))}


@violated
def wrong_uniform_noise(key, w, x, y):
    """Uniform noise of the same variance."""
    a = 3**0.5 * Z
    return unit(x).sum(0) + jax.random.uniform(key, (4,), minval=-a, maxval=a)


@violated
def wrong_truncated_noise(key, w, x, y):
    """The noise is bounded."""
    return unit(x).sum(0) + Z * jax.random.truncated_normal(key, -2, 2, (4,))


@violated
def wrong_noise_clipped(key, w, x, y):
    """The noise is bounded."""
    return unit(x).sum(0) + jnp.clip(Z * normal(key, (4,)), -3, 3)


@violated
def wrong_noise_rounded(key, w, x, y):
    """The noise is a whole number."""
    return jnp.clip(y, 0, 1).sum() + (Z * normal(key, ())).astype(int)


@violated
def wrong_one_number_as_noise(key, w, x, y):
    """All entries get the same noise."""
    return unit(x).sum(0) + Z * normal(key, ())


@violated
def wrong_noise_repeated(key, w, x, y):
    """Two entries get the noise of two others."""
    return unit(x).sum(0) + jnp.tile(Z * normal(key, (2,)), 2)


@violated
def wrong_differences_of_noise(key, w, x, y):
    """The noise of neighbouring entries is correlated."""
    n = Z * normal(key, (5,))
    return unit(x).sum(0) + n[1:] - n[:-1]


@violated
def wrong_cumulative_noise(key, w, x, y):
    """The noise of entries is correlated."""
    return unit(x).sum(0) + jnp.cumsum(Z * normal(key, (4,)))


@violated
def wrong_noise_of_the_data(key, w, x, y):
    """The scale of the noise depends on the records."""
    return noisy(key, total(clipped(w, x, y)), Z * jnp.abs(x).mean())


@wrong
def wrong_noise_of_the_sum(key, w, x, y):
    """The scale of the noise depends on the sum."""
    t = unit(x).sum(0)
    return t + Z * normal(key, (4,)) * jnp.linalg.norm(t)


@violated
def wrong_noise_before_the_clip(key, w, x, y):
    """Noise is added to the records, whose sum is then not noisy enough."""
    n = x + Z * normal(key, (4,))
    return unit(n).sum(0)


@wrong
def wrong_noise_as_factor(key, w, x, y):
    """The factor of the sum depends on the noise."""
    n = Z * normal(key, (4,))
    return unit(x).sum(0) * jnp.clip(n, -1, 1) + n


@wrong
def wrong_noise_chooses_records(key, w, x, y):
    """The noise decides which records count."""
    n = Z * normal(key, (4,))
    return (unit(x) * (n[0] > 0)).sum(0) + n


@violated
def wrong_noise_transposed(key, w, x, y):
    """One entry of the draw is in both releases."""
    n = Z * normal(key, (4, 4))
    t = unit(x).sum(0) / 2**0.5
    return t + n.T[0], t + n[1]


@violated
def wrong_noise_returned(key, w, x, y):
    """The noise is returned as well."""
    n = Z * normal(key, (4,))
    return unit(x).sum(0) + n, n


@violated
def wrong_own_function_of_that_name(key, w, x, y):
    """The user's own function has the name of JAX's."""

    @jax.jit
    def _normal(key):
        return jax.random.uniform(key, (4,))

    return unit(x).sum(0) + Z * _normal(key)


@wrong
def wrong_own_clip_of_that_name(key, w, x, y):
    """The user's own function has the name of a trusted one."""

    @jax.jit
    def clipped_sum_and_info(x):
        return x.sum(0)

    return clipped_sum_and_info(x) + Z * normal(key, (4,))


# --- Wrong: keys --------------------------------------------------------------------------------


@violated
def wrong_key_for_two_leaves(key, w, x, y):
    """All leaves get noise of one key."""
    return jax.tree.map(lambda a: a + Z * normal(key, a.shape), total(clipped(w, x, y)))


@violated
def wrong_key_returned(key, w, x, y):
    """The key is returned after its use."""
    return noisy(key, total(clipped(w, x, y))), key


@violated
def wrong_key_numbers_returned(key, w, x, y):
    """A function of the key is returned."""
    return unit(x).sum(0) + Z * normal(key, (4,)), jax.random.key_data(key) + 1


@violated
def wrong_bits_of_the_key_returned(key, w, x, y):
    """Random bits of the same key are returned."""
    return unit(x).sum(0) + Z * normal(key, (4,)), jax.random.bits(key)


@violated
def wrong_keys_stacked_and_returned(key, w, x, y):
    """The keys of all iterations are returned."""
    t = unit(x).sum(0) / 2

    def body(k, _):
        k, used = jax.random.split(k)
        return k, (t + Z * normal(used, (4,)), jax.random.key_data(used))

    return jax.lax.scan(body, key, None, length=4)[1]


@violated
def wrong_constant_key(key, w, x, y):
    """The key is the same in every call."""
    return noisy(jax.random.key(0), total(clipped(w, x, y)))


@violated
def wrong_constant_raw_key(key, w, x, y):
    """The key is the same in every call."""
    return noisy(jax.random.PRNGKey(0), total(clipped(w, x, y)))


@wrong
def wrong_public_seed(key, w, x, y):
    """The key is made of a public number."""
    return noisy(jax.random.key(jnp.int32(w["b"].sum())), total(clipped(w, x, y)))


@wrong
def wrong_seed_used_twice(key, w, x, y):
    """Two keys of the same number."""
    t, seed = unit(x).sum(0) / 2**0.5, jnp.int32(w["a"].sum())
    one, two = jax.random.PRNGKey(seed), jax.random.PRNGKey(seed)
    return t + Z * normal(one, (4,)), t + Z * normal(two, (4,))


@violated
def wrong_key_of_sampling(key, w, x, y):
    """The batch and the noise are drawn with one key."""
    mask = jax.random.bernoulli(key, 0.5, (len(x),))
    return (unit(x) * mask[:, None]).sum(0) + Z * normal(key, (4,))


@violated
def wrong_split_and_fold_in(key, w, x, y):
    """`split` and `fold_in` give the same key."""
    t = unit(x).sum(0) / 2**0.5
    one, two = jax.random.split(key, 3)[1], fold(key, 1)
    return t + Z * normal(one, (4,)), t + Z * normal(two, (4,))


@violated
def wrong_key_and_its_child(key, w, x, y):
    """A key is used and split."""
    t = unit(x).sum(0) / 2**0.5
    return t + Z * normal(key, (4,)), t + Z * normal(jax.random.split(key)[0], (4,))


@violated
def wrong_key_cloned(key, w, x, y):
    """A clone is the same key."""
    t = unit(x).sum(0) / 2**0.5
    return t + Z * normal(key, (4,)), t + Z * normal(jax.random.clone(key), (4,))


@wrong
def wrong_keys_repeated(key, w, x, y):
    """The keys of a mapped draw are one."""
    draw = jax.vmap(lambda t, k: t + Z * normal(k, ()))
    return draw(unit(x).sum(0), jnp.stack([key] * 4))


@wrong
def wrong_number_folded_in_repeated(key, w, x, y):
    """The keys of a mapped draw are one."""
    noise = jax.vmap(lambda i: normal(fold(key, i), (4,)))(jnp.zeros(3, int))
    return jnp.stack([unit(x).sum(0) / 3**0.5] * 3) + Z * noise


@violated
def wrong_zero_folded_in(key, w, x, y):
    """The number folded in is the same in every iteration."""

    def body(value, i):
        return value, unit(x).sum(0) + 2 * Z * normal(fold(key, i - i), (4,))

    return jax.lax.scan(body, 0, jnp.arange(4))[1]


@violated
def wrong_boolean_folded_in(key, w, x, y):
    """The number folded in is the same in all iterations but one."""

    def body(value, i):
        return value, unit(x).sum(0) + 2 * Z * normal(
            fold(key, jax.lax.convert_element_type(i, jnp.bool_)), (4,)
        )

    return jax.lax.scan(body, 0, jnp.arange(4))[1]


@violated
def wrong_key_of_every_iteration(key, w, x, y):
    """One key for all iterations."""

    def body(value, i):
        return value, unit(x).sum(0) + 2 * Z * normal(fold(key, 7), (4,))

    return jax.lax.scan(body, 0, jnp.arange(4))[1]


@violated
def wrong_too_few_keys(key, w, x, y):
    """The last key is used in six iterations."""
    keys = jax.random.split(key, 2)

    def body(i, value):
        return value + unit(x).sum(0) + 4 * Z * normal(keys[i], (4,))

    return jax.lax.fori_loop(0, 8, body, jnp.zeros(4))


@wrong
def wrong_key_outside_and_inside(key, w, x, y):
    """A loop uses a key that was used before it."""
    t = unit(x).sum(0) / 2
    first = t + Z * normal(jax.random.split(key)[1], (4,))

    def body(k, _):
        k, used = jax.random.split(k)
        return k, t + Z * normal(used, (4,))

    return first, jax.lax.scan(body, key, None, length=2)[1]


@wrong
def wrong_key_after_the_loop(key, w, x, y):
    """The loop's last key is also derived outside."""
    t = unit(x).sum(0) / 2

    def body(k, _):
        k, used = jax.random.split(k)
        return k, t + Z * normal(used, (4,))

    last, values = jax.lax.scan(body, key, None, length=1)
    again = jax.random.split(key)[0]
    return values, t + Z * normal(last, (4,)), t + Z * normal(again, (4,))


@wrong
def wrong_key_reset_in_a_loop(key, w, x, y):
    """From the second iteration on the key is the same."""
    t = unit(x).sum(0) / 2
    first, other = jax.random.split(key)

    def body(k, _):
        return other, t + Z * normal(fold(k, 0), (4,))

    return jax.lax.scan(body, first, None, length=4)[1]


@violated
def wrong_inner_number_folded_in(key, w, x, y):
    """The outer loop repeats the keys of the inner one."""

    def outer(value, i):
        def inner(value, j):
            return value + unit(x).sum(0) + 6 * Z * normal(fold(key, j), (4,)), None

        return jax.lax.scan(inner, value, jnp.arange(3))[0], None

    return jax.lax.scan(outer, jnp.zeros(4), jnp.arange(3))[0]


@violated
def wrong_sum_of_numbers_folded_in(key, w, x, y):
    """0 + 1 and 1 + 0 give the same key."""

    def outer(value, i):
        def inner(value, j):
            return value + unit(x).sum(0) + 6 * Z * normal(fold(key, i + j), (4,)), None

        return jax.lax.scan(inner, value, jnp.arange(3))[0], None

    return jax.lax.scan(outer, jnp.zeros(4), jnp.arange(3))[0]


# --- Wrong: the number of records, and samples --------------------------------------------------


@violated
def wrong_divided_by_length(key, w, x, y):
    """The number of records is private."""
    return jax.tree.map(lambda a: a / len(x), noisy(key, total(clipped(w, x, y))))


@violated
def wrong_sum_of_ones(key, w, x, y):
    """The number of records, as a sum."""
    return updated(w, noisy(key, total(clipped(w, x, y))), jnp.ones(len(x)).sum())


@violated
def wrong_sum_of_ones_like(key, w, x, y):
    """The number of records, as a sum."""
    return updated(w, noisy(key, total(clipped(w, x, y))), jnp.ones_like(y).sum())


@violated
def wrong_largest_position(key, w, x, y):
    """The number of records less one."""
    return unit(x).sum(0) + Z * normal(key, (4,)), jnp.arange(len(x)).max()


@violated
def wrong_last_cumulative_sum(key, w, x, y):
    """The number of records, as a cumulative sum."""
    return unit(x).sum(0) + Z * normal(key, (4,)), jnp.cumsum(jnp.ones(len(x)))[-1]


@violated
def wrong_product_of_ones(key, w, x, y):
    """The number of records, as a product."""
    return unit(x).sum(0) + Z * normal(key, (4,)), jnp.ones(len(x)) @ jnp.ones(len(x))


@violated
def wrong_length_of_microbatches(key, w, x, y):
    """The program takes even numbers of records only."""
    t = unit(x.reshape(2, -1, 4).reshape(-1, 4)).sum(0)
    return (t + Z * normal(key, (4,))) / len(x)


@violated
def wrong_length_as_position(key, w, x, y):
    """An entry of a table at the number of records."""
    return unit(x).sum(0) + Z * normal(key, (4,)), w["a"].reshape(-1)[len(x)]


@violated
def wrong_length_as_end(key, w, x, y):
    """As many entries of a table as there are records."""
    return unit(x).sum(0) + Z * normal(key, (4,)), w["a"].reshape(-1)[: len(x)].sum()


@violated
def wrong_length_as_bound(key, w, x, y):
    """A random number below the number of records."""
    noise, other = jax.random.split(key)
    return unit(x).sum(0) + Z * normal(noise, (4,)), jax.random.randint(other, (), 0, len(x))


@violated
def wrong_length_as_exponent(key, w, x, y):
    """A power of the number of records."""
    return (unit(x).sum(0) + Z * normal(key, (4,))) ** len(x)


@violated
def wrong_length_as_iterations(key, w, x, y):
    """As many iterations as there are records."""
    value = unit(x).sum(0) + Z * normal(key, (4,))
    return jax.lax.fori_loop(0, len(x), lambda i, v: 0.9 * v, value)


@violated
def wrong_length_counted(key, w, x, y):
    """A loop counts the records."""

    def body(carried, x):
        sums, count = carried
        return (sums + x * jnp.minimum(1, 1 / jnp.linalg.norm(x)), count + 1), None

    sums, count = jax.lax.scan(body, (jnp.zeros(4), 0), x)[0]
    return sums + Z * normal(key, (4,)), count


@wrong
def wrong_length_added(key, w, x, y):
    """A loop adds ones for each record."""

    def body(sums, x):
        return sums + x * jnp.minimum(1, 1 / jnp.linalg.norm(x)) + 1.0, None

    return jax.lax.scan(body, jnp.zeros(4), x)[0] + Z * normal(key, (4,))


@violated
def wrong_release_repeated(key, w, x, y):
    """The noisy sum, as often as there are records."""
    return ((unit(x).sum(0) + Z * normal(key, (4,))) * jnp.ones((len(x), 1))).sum(0)


@violated
def wrong_divided_by_sample(key, w, x, y):
    """The size of the sample is returned."""
    sample, noise = jax.random.split(key)
    mask = jax.random.bernoulli(sample, 0.5, (len(x),))
    t = (unit(x) * mask[:, None]).sum(0) + Z * normal(noise, (4,))
    return t / jnp.maximum(mask.sum(), 1)


@violated
def wrong_mask_returned(key, w, x, y):
    """The sample is returned."""
    sample, noise = jax.random.split(key)
    mask = jax.random.bernoulli(sample, 0.5, (len(x),))
    return (unit(x) * mask[:, None]).sum(0) + Z * normal(noise, (4,)), mask


@violated
def wrong_mask_of_the_next_iteration(key, w, x, y):
    """The sample of the next iteration is returned."""

    def body(mask, key):
        noise, sample = jax.random.split(key)
        t = (jnp.clip(x, -0.5, 0.5) * mask[:, None]).sum(0) + 40 * Z * normal(noise, (4,))
        return jax.random.bernoulli(sample, 0.5, (len(x),)), t

    mask = jnp.ones(len(x), bool)
    return jax.lax.scan(body, mask, jax.random.split(key, 4))


# --- Wrong: what is not noisy -------------------------------------------------------------------


@violated
def wrong_mean_loss(key, w, x, y):
    """The mean loss is returned."""
    losses = jax.vmap(loss, (None, 0, 0))(w, x, y)
    return noisy(key, total(clipped(w, x, y))), losses.mean()


@violated
def wrong_momentum_without_noise(key, w, x, y):
    """The momentum is of the sum without noise."""
    t = total(clipped(w, x, y))
    return noisy(key, t), jax.tree.map(lambda a: 0.9 * a, t)


@violated
def wrong_largest_class(key, w, x, y):
    """The largest entry of the sum is returned."""
    t = unit(x).sum(0)
    return t + Z * normal(key, (4,)), jnp.argmax(t)


@violated
def wrong_branch_of_the_data(key, w, x, y):
    """A branch depends on the records."""
    t = unit(x).sum(0)
    return jax.lax.cond(x.sum() > 0, lambda: t, lambda: t + Z * normal(key, (4,)))


@wrong
def wrong_known_branch(key, w, x, y):
    """The branch taken has no noise."""
    t = unit(x).sum(0)
    return jax.lax.cond(w["b"].sum() == 0, lambda: t, lambda: t + Z * normal(key, (4,)))


@wrong
def wrong_random_branch(key, w, x, y):
    """In half of the calls there is no noise."""
    coin, noise = jax.random.split(key)
    t = unit(x).sum(0)
    heads = jax.random.bernoulli(coin)
    return jax.lax.cond(heads, lambda: t, lambda: t + Z * normal(noise, (4,)))


@violated
def wrong_iterations_of_the_data(key, w, x, y):
    """The number of iterations depends on the records."""
    count = jax.lax.while_loop(lambda c: c < x.sum(), lambda c: c + 1.0, 0.0)
    return unit(x).sum(0) + Z * normal(key, (4,)), count


@violated
def wrong_printed(key, w, x, y):
    """The mean is printed."""
    jax.debug.print("{}", x.mean())
    return unit(x).sum(0) + Z * normal(key, (4,))


@violated
def wrong_printed_in_a_loop(key, w, x, y):
    """The mean is printed in a loop."""

    def body(i):
        jax.debug.print("{}", x.mean())
        return i + 1

    jax.lax.while_loop(lambda i: i < 3, body, 0)
    return unit(x).sum(0) + Z * normal(key, (4,))


@violated
def wrong_printed_mask(key, w, x, y):
    """The sample is printed."""
    sample, noise = jax.random.split(key)
    mask = jax.random.bernoulli(sample, 0.5, (len(x),))
    jax.debug.print("{}", mask)
    return (unit(x) * mask[:, None]).sum(0) + Z * normal(noise, (4,))


@violated
def wrong_printed_key(key, w, x, y):
    """The key is printed."""
    jax.debug.print("{}", jax.random.key_data(key))
    return unit(x).sum(0) + Z * normal(key, (4,))


@violated
def wrong_callback(key, w, x, y):
    """The records leave the program."""
    shape = jax.ShapeDtypeStruct((), jnp.float32)
    seen = jax.pure_callback(lambda x: x, shape, x[0, 0])
    return unit(x).sum(0) + Z * normal(key, (4,)) + 0 * seen


@wrong
def wrong_closed_over_array(key, w, x, y):
    """An array as long as the records is no argument."""
    return unit(x).sum(0) + Z * normal(key, (4,)), jnp.asarray(np.arange(24.0).reshape(6, 4)).sum()


# --- Wrong: found by reviews of the rules ------------------------------------------------------


@wrong
def wrong_noise_of_a_column_slice(key, w, x, y):
    """The difference of the same entries is no noise."""
    noise = normal(key, (4, 9))
    total = jnp.stack([unit(x).sum(0)] * 2)
    return total + 2 * Z * (noise[2:4, :4] - noise[:, :4][2:4])


@wrong
def wrong_sum_broadcast_along_an_axis(key, w, x, y):
    """Nine equal columns of a sum are nine releases of it."""
    total = jnp.clip(x[:, :1], -1, 1).sum(0, keepdims=True) * jnp.ones((9, 1))
    return total + Z * normal(key, (9, 1))


@wrong
def wrong_values_broadcast_along_an_axis(key, w, x, y):
    """Nine equal columns of each record."""
    return (jnp.clip(x[:, :1], -1, 1) * jnp.ones((1, 9))).sum(0) + Z * normal(key, (9,))


@wrong
def wrong_one_record_broadcast(key, w, x, y):
    """The first record is added many times."""
    return (jnp.clip(x[:1, 0], -1, 1) + jnp.zeros(8)).sum() + Z * normal(key)


@wrong
def wrong_key_in_a_loop_with_records(key, w, x, y):
    """The noise is computed again in a loop, and returned."""

    def body(carry):
        step, total, _ = carry
        return step + 1, total + x.sum(), normal(key, (4,))

    _, _, noise = jax.lax.while_loop(
        lambda carry: carry[0] < 3, body, (0, jnp.zeros(()), jnp.zeros(4))
    )
    return unit(x).sum(0) + Z * normal(key, (4,)), noise


@wrong
def wrong_noise_scales_another_sum(key, w, x, y):
    """The second release depends on the noise of the first."""
    first, second = jax.random.split(key)
    noise, total = normal(first, (4,)), unit(x).sum(0)
    return total + 2 * Z * noise, total * jnp.clip(noise, -1, 1) + 2 * Z * normal(second, (4,))


@wrong
def wrong_keys_of_equal_numbers(key, w, x, y):
    """A key of several that are not followed is that of the noise."""
    keys = jax.vmap(jax.random.fold_in, (None, 0))(key, jnp.array([1, 1, 2, 3]))
    noise = normal(jax.random.fold_in(key, 3), (4,))
    return unit(x).sum(0) + Z * noise, normal(keys[3], (4,))


@wrong
def wrong_gradient_at_zero_parameters(key, w, x, y):
    """Without a clip the gradient is small by chance: the parameters are zero."""
    gradients = jax.vmap(jax.grad(lambda b, x: (x[:3] @ b) ** 2), (None, 0))(w["b"], x)
    return gradients.sum(0) + Z * normal(key, (3,))


@violated
def wrong_divisor_of_large_batches(key, w, x, y):
    """The divisor is the number of records where there are many."""
    return (unit(x).sum(0) + Z * normal(key, (4,))) / max(len(x), 64)


# --- Tests -------------------------------------------------------------------------------------


def report(step, **changes):
    given = {"records": (2, 3), "noise_multiplier": Z, "adjacency": "add_remove", **changes}
    return check_program(step, jax.random.key(0), W, X, Y, **given)


@pytest.mark.parametrize("name", RIGHT)
def test_right_steps_are_shown(name):
    found = report(RIGHT[name])
    assert found.verdict == "shown", str(found)
    assert found.noise_multiplier >= Z * (1 - 1e-4)


def check_reason(found, reason, source, expected="not shown"):
    """That a program is not shown, for a reason and at a line."""
    assert found.verdict != "shown"
    if expected == "violated":
        assert found.verdict == "violated", str(found)
    matching = [one for one in found.findings if reason in one.reason]
    assert matching, str(found)
    assert any(source in one.where + source_of(one.where) for one in matching), str(found)


def source_of(where):
    """The first of the lines that a finding names, if it is one of the tests."""
    file, _, line = where.split(", ")[0].partition(":")
    path = Path(__file__).parent / file
    return linecache.getline(str(path), int(line)) if line and path.exists() else ""


@pytest.mark.parametrize("name", WRONG)
def test_wrong_steps_are_not_shown(name):
    step, expected = WRONG[name]
    check_reason(report(step), *FINDINGS[name], expected)


def test_power_another_reason_or_line_is_not_accepted():
    found = report(WRONG["wrong_half_of_the_noise"][0])
    check_reason(found, "the noise multiplier is 0.55", "added = ")
    for reason, source in (("a sum over the records", ""), ("the noise multiplier", "x.sum")):
        with pytest.raises(AssertionError):
            check_reason(found, reason, source)


def test_private_outputs_are_named_by_whole_positions():
    def step(key, w, x, y):
        return (*[unit(x).sum(0) + Z * normal(key, (4,))], *[0] * 9, x.sum(0), x.sum(0))[:11]

    assert report(step, private_outputs=["[10]"]).verdict == "shown"
    assert report(step, private_outputs=["[1]"]).verdict == "violated"


def test_branches_that_are_not_taken_in_this_call_are_followed():
    def step(number, key, x):
        metric = jax.lax.cond(number % 100 == 0, lambda: x.sum(), lambda: jnp.zeros(()))
        return unit(x).sum(0) + Z * normal(key, (4,)), metric

    given = {"records": 2, "noise_multiplier": Z, "adjacency": "add_remove"}
    assert check_program(step, 1, jax.random.key(0), X, **given).verdict != "shown"


def test_what_a_loss_prints_within_a_trusted_function_is_found():
    def loss(w, x):
        jax.debug.print("{}", x)
        return jnp.vdot(w, x)

    def step(key, w, x):
        return dpjax.clipped_grad(loss, 1.0)(w, x, None)[0] + Z * normal(key, (4,))

    given = {"records": 2, "noise_multiplier": Z, "adjacency": "zero_out"}
    report = check_program(step, jax.random.key(0), jnp.ones(4), X, **given)
    assert report.verdict == "violated"


def test_a_record_is_in_one_release_of_disjoint_micro_batches():
    def step(key, x):
        def release(_, part):
            rows, own = part
            return None, unit(rows).sum(0) + Z * normal(own, (4,))

        keys = jax.random.split(key, 3)
        return jax.lax.scan(release, None, (x.reshape(3, 2, 4), keys))[1]

    given = {"records": 1, "noise_multiplier": Z, "adjacency": "zero_out"}
    report = check_program(step, jax.random.key(0), X, **given)
    assert (report.verdict, report.num_releases) == ("shown", 3)


def test_a_program_of_one_number_of_rows_is_said_to_have_a_public_one():
    def step(key, x):
        return unit(x.reshape(6, 4)).sum(0) / len(x) + Z / 6 * normal(key, (4,))

    given = {"records": 1, "noise_multiplier": Z, "adjacency": "add_remove"}
    report = check_program(step, jax.random.key(0), X, **given)
    assert (report.verdict, report.is_length_public) == ("shown", True)
    assert "taken as public" in str(report)
