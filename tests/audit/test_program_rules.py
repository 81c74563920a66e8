"""The check of a program: norms, histograms and loops as different authors write them."""

import jax
import jax.numpy as jnp
import optax
import pytest
from audit.program_findings import FINDINGS
from audit.test_program import (
    Z,
    by_norm,
    check_reason,
    clipped,
    column,
    fold,
    gradients,
    loss,
    noisy,
    normal,
    norms,
    report,
    scaled,
    total,
    unit,
    updated,
)  # fmt: skip
from jax.flatten_util import ravel_pytree

C = 0.5
RIGHT = {}
WRONG = {}


def right(step):
    """A step that is to be shown."""
    RIGHT[step.__name__] = step
    return step


def wrong(step):
    """A step that must not be shown."""
    WRONG[step.__name__] = step
    return step


# --- Right -------------------------------------------------------------------------------------


@right
def stable_norm_max_entry(key, w, x, y):

    def one(x, y):
        g, _ = ravel_pytree(jax.grad(loss)(w, x, y))
        m = jnp.maximum(jnp.max(jnp.abs(g)), 1e-12)
        n = m * jnp.sqrt(jnp.sum((g / m) ** 2))
        return g * jnp.minimum(1.0, C / n)

    s = jax.vmap(one)(x, y).sum(0)
    return ravel_pytree(w)[1](s + Z * C * normal(key, s.shape))


@right
def stable_norm_batch(key, w, x, y):
    g = gradients(w, x, y)
    m = jnp.max(
        jnp.stack([jnp.max(jnp.abs(a.reshape(len(x), -1)), 1) for a in jax.tree.leaves(g)]), 0
    )
    m = jnp.where(m > 0, m, 1.0)
    sq = sum(jnp.sum((a / column(m, a)).reshape(len(x), -1) ** 2, 1) for a in jax.tree.leaves(g))
    n = m * jnp.sqrt(sq)
    return noisy(key, total(scaled(g, jnp.minimum(1, 1 / n))))


@right
def sum_of_leaf_norms(key, w, x, y):
    g = gradients(w, x, y)
    n = sum(jnp.linalg.norm(a.reshape(len(x), -1), axis=1) for a in jax.tree.leaves(g))
    return noisy(key, total(scaled(g, jnp.minimum(1, C / n))), Z * C)


@right
def sum_abs_l1(key, w, x, y):
    g = gradients(w, x, y)
    n = sum(jnp.abs(a).reshape(len(x), -1).sum(1) for a in jax.tree.leaves(g))
    return noisy(key, total(scaled(g, jnp.minimum(1, C / n))), Z * C)


@right
def norm_of_stacked_norms(key, w, x, y):

    def one(x, y):
        g = jax.grad(loss)(w, x, y)
        n = jnp.linalg.norm(jnp.array([jnp.linalg.norm(a) for a in jax.tree.leaves(g)]))
        return jax.tree.map(lambda a: a * jnp.minimum(1.0, C / n), g)

    return noisy(key, total(jax.vmap(one)(x, y)), Z * C)


@right
def norm_of_stacked_batch(key, w, x, y):
    g = gradients(w, x, y)
    n = jnp.linalg.norm(
        jnp.stack([jnp.linalg.norm(a.reshape(len(x), -1), axis=-1) for a in jax.tree.leaves(g)]),
        axis=0,
    )
    return noisy(key, total(scaled(g, C / jnp.maximum(n, C))), Z * C)


@right
def concat_norm_then_tree(key, w, x, y):
    g = gradients(w, x, y)
    flat = jnp.concatenate([a.reshape(len(x), -1) for a in jax.tree.leaves(g)], axis=1)
    n = jnp.linalg.norm(flat, axis=1)
    return noisy(key, total(scaled(g, jnp.minimum(1, C / n))), Z * C)


@right
def ravel_vmap_norm_then_tree(key, w, x, y):

    def one(x, y):
        g = jax.grad(loss)(w, x, y)
        n = jnp.linalg.norm(ravel_pytree(g)[0])
        return jax.tree.map(lambda a: a / jnp.maximum(1.0, n / C), g)

    return noisy(key, total(jax.vmap(one)(x, y)), Z * C)


@right
def optax_layer_norm_clip(key, w, x, y):
    t, _ = optax.per_example_layer_norm_clip(gradients(w, x, y), 1.0)
    return noisy(key, t)


@right
def optax_layer_norm_clip_nonuniform(key, w, x, y):
    t, _ = optax.per_example_layer_norm_clip(gradients(w, x, y), 1.0, uniform=False)
    return noisy(key, t)


@right
def optax_tree_norm_sq(key, w, x, y):
    g = gradients(w, x, y)
    sq = jax.vmap(lambda g: optax.tree.norm(g, squared=True))(g)
    return noisy(key, total(scaled(g, jnp.minimum(1, C * jax.lax.rsqrt(sq + 1e-12)))), Z * C)


@right
def linear_by_hand(key, w, x, y):
    p = jax.nn.softmax(x @ w["a"] + w["b"]) - jax.nn.one_hot(y, 3)
    ga = x[:, :, None] * p[:, None, :]
    n = jnp.sqrt((ga**2).sum((1, 2)) + (p**2).sum(1))
    s = jnp.minimum(1.0, C / n)
    return noisy(key, {"a": (s[:, None, None] * ga).sum(0), "b": (s[:, None] * p).sum(0)}, Z * C)


@right
def linear_ghost_by_hand(key, w, x, y):
    p = jax.nn.softmax(x @ w["a"] + w["b"]) - jax.nn.one_hot(y, 3)
    n = jnp.sqrt((x**2).sum(1) + 1.0) * jnp.linalg.norm(p, axis=1)
    s = jnp.minimum(1.0, C / n)
    d = p * s[:, None]
    return noisy(key, {"a": x.T @ d, "b": d.sum(0)}, Z * C)


@right
def linear_norm_factorised_vector(key, w, x, y):
    r_ = jax.nn.sigmoid(x @ w["a"][:, 0]) - y
    n = jnp.abs(r_) * jnp.linalg.norm(x, axis=1)
    g = r_[:, None] * x
    return (g * jnp.minimum(1, C / n)[:, None]).sum(0) + Z * C * normal(key, (4,))


@right
def linear_norm_unfactorised(key, w, x, y):
    r_ = jax.nn.sigmoid(x @ w["a"][:, 0]) - y
    g = x * r_[:, None]
    n = jnp.linalg.norm(g, axis=1)
    s = jnp.minimum(1, C / n)
    return x.T @ (r_ * s) + Z * C * normal(key, (4,))


@right
def fori_microbatches_dynamic(key, w, x, y):
    m = 2

    def body(i, acc):
        xb = jax.lax.dynamic_slice_in_dim(x, i * m, m)
        yb = jax.lax.dynamic_slice_in_dim(y, i * m, m)
        return jax.tree.map(jnp.add, acc, total(clipped(w, xb, yb)))

    acc = jax.lax.fori_loop(0, len(x) // m, body, jax.tree.map(jnp.zeros_like, w))
    return noisy(key, acc)


@right
def fori_microbatches_index(key, w, x, y):
    xs, ys = (x.reshape(3, -1, 4), y.reshape(3, -1))

    def body(i, acc):
        return jax.tree.map(jnp.add, acc, total(clipped(w, xs[i], ys[i])))

    acc = jax.lax.fori_loop(0, 3, body, jax.tree.map(jnp.zeros_like, w))
    return noisy(key, acc)


@right
def scan_microbatches_stack(key, w, x, y):

    def body(_, b):
        return (None, total(clipped(w, *b)))

    _, s = jax.lax.scan(body, None, (x.reshape(3, -1, 4), y.reshape(3, -1)))
    return noisy(key, total(s))


@right
def vmap_microbatches(key, w, x, y):
    g = jax.vmap(lambda a, b: total(clipped(w, a, b)))(x.reshape(3, -1, 4), y.reshape(3, -1))
    return noisy(key, total(g))


@right
def hist_one_hot(key, w, x, y):
    return jnp.sum(jax.nn.one_hot(y, 3), axis=0) + Z * normal(key, (3,))


@right
def hist_scatter_int(key, w, x, y):
    return jnp.zeros(3, jnp.int32).at[y].add(1) + Z * normal(key, (3,))


@right
def hist_segment(key, w, x, y):
    return jax.ops.segment_sum(jnp.ones(len(y)), y, num_segments=3) + Z * normal(key, (3,))


@right
def hist_bincount(key, w, x, y):
    return jnp.bincount(y, length=3) + Z * normal(key, (3,))


@right
def hist_eq(key, w, x, y):
    c = (y[:, None] == jnp.arange(3)[None]).sum(0)
    return c.astype(jnp.float32) + Z * normal(key, (3,))


@right
def hist_of_digitised(key, w, x, y):
    b = jnp.digitize(x[:, 0], jnp.linspace(-2, 2, 5))
    return jnp.bincount(b, length=6) + Z * normal(key, (6,))


@right
def hist_jnp_histogram(key, w, x, y):
    c, _ = jnp.histogram(jnp.clip(x[:, 0], -2, 2), bins=5, range=(-2, 2))
    return c + Z * normal(key, (5,))


@right
def hist_two_way(key, w, x, y):
    b = (x[:, 0] > 0).astype(int)
    return jnp.zeros((2, 3)).at[b, y].add(1.0) + Z * normal(key, (2, 3))


@right
def class_sums_segment(key, w, x, y):
    return jax.ops.segment_sum(unit(x), y, num_segments=3) + Z * normal(key, (3, 4))


@right
def class_sums_one_hot(key, w, x, y):
    return jnp.einsum("nk,nd->kd", jax.nn.one_hot(y, 3), unit(x)) + Z * normal(key, (3, 4))


@right
def class_sums_and_counts(key, w, x, y):
    k1, k2 = jax.random.split(key)
    s = jnp.zeros((3, 4)).at[y].add(unit(x)) + 2**0.5 * Z * normal(k1, (3, 4))
    n = jnp.zeros(3).at[y].add(1.0) + 2**0.5 * Z * normal(k2, (3,))
    return s / jnp.maximum(n, 1.0)[:, None]


@right
def kmeans(key, w, x, y):
    c = w["a"].T
    u = unit(x)
    d = ((u[:, None] - c[None]) ** 2).sum(-1)
    h = jax.nn.one_hot(jnp.argmin(d, 1), 3)
    k1, k2 = jax.random.split(key)
    s = h.T @ u + 2**0.5 * Z * normal(k1, (3, 4))
    n = h.sum(0) + 2**0.5 * Z * normal(k2, (3,))
    return s / jnp.maximum(n, 1)[:, None]


@right
def tensordot_bk(key, w, x, y):
    g = gradients(w, x, y)
    s = jnp.minimum(1, C / norms(g))
    return noisy(key, jax.tree.map(lambda a: jnp.tensordot(s, a, axes=1), g), Z * C)


@right
def dot_bk(key, w, x, y):
    g = gradients(w, x, y)
    s = jnp.minimum(1, C / norms(g))
    return noisy(
        key, jax.tree.map(lambda a: (s @ a.reshape(len(x), -1)).reshape(a.shape[1:]), g), Z * C
    )


@right
def random_like(key, w, x, y):
    t = total(clipped(w, x, y))
    n = optax.tree.random_like(key, t, jax.random.normal)
    return jax.tree.map(lambda a, b: a + Z * b, t, n)


@right
def noise_bf16_cast(key, w, x, y):
    t = total(clipped(w, x, y))
    leaves, d = jax.tree.flatten(t)
    ks = jax.random.split(key, len(leaves))
    return d.unflatten(
        [
            (a + Z * normal(k, a.shape, jnp.float32)).astype(jnp.bfloat16)
            for a, k in zip(leaves, ks, strict=True)
        ]
    )


@right
def bf16_params(key, w, x, y):
    wb = jax.tree.map(lambda a: a.astype(jnp.bfloat16), w)
    g = jax.tree.map(
        lambda a: a.astype(jnp.float32),
        jax.vmap(jax.grad(loss), (None, 0, 0))(wb, x.astype(jnp.bfloat16), y),
    )
    s = jnp.minimum(1.0, C / norms(g))
    t = noisy(key, total(scaled(g, s)), Z * C)
    return jax.tree.map(lambda p, u: (p.astype(jnp.float32) - 0.1 * u).astype(jnp.bfloat16), wb, t)


@right
def key_iter(key, w, x, y):
    t = total(clipped(w, x, y))
    out = {}
    for name in t:
        key, sub = jax.random.split(key)
        out[name] = t[name] + Z * normal(sub, t[name].shape)
    return (updated(w, out), key)


@right
def poisson_mask(key, w, x, y):
    sk, nk = jax.random.split(key)
    mask = jax.random.uniform(sk, (len(x),)) < 0.3
    g = gradients(w, x, y)
    s = jnp.minimum(1, C / norms(g)) * mask
    return updated(
        w, noisy(nk, jax.tree.map(lambda a: jnp.einsum("n,n...->...", s, a), g), Z * C), 3.0
    )


@right
def momentum_ema_wd(key, w, x, y):
    opt = optax.chain(
        optax.trace(0.9), optax.add_decayed_weights(0.0001), optax.ema(0.99), optax.scale(-0.1)
    )
    g = noisy(key, total(clipped(w, x, y)))
    u, st = opt.update(g, opt.init(w), w)
    return (optax.apply_updates(w, u), st)


@right
def adamw_schedule(key, w, x, y):
    opt = optax.chain(
        optax.clip_by_global_norm(5.0),
        optax.adamw(optax.cosine_decay_schedule(0.1, 100), weight_decay=0.01),
    )
    g = jax.tree.map(lambda a: a / 8.0, noisy(key, total(clipped(w, x, y))))
    u, st = opt.update(g, opt.init(w), w)
    return (optax.apply_updates(w, u), st)


@right
def loss_released_by_noise(key, w, x, y):
    k1, k2 = jax.random.split(key)
    losses = jax.vmap(loss, (None, 0, 0))(w, x, y)
    s = jnp.clip(losses, 0, 4.0).sum() + 4 * 2**0.5 * Z * normal(k1)
    return (noisy(k2, total(clipped(w, x, y)), 2**0.5 * Z), s / 6.0)


@right
def accuracy_released(key, w, x, y):
    k1, k2 = jax.random.split(key)
    pred = jnp.argmax(x @ w["a"] + w["b"], -1)
    acc = jnp.sum(pred == y)
    return (noisy(k2, total(clipped(w, x, y)), 2**0.5 * Z), (acc + 2**0.5 * Z * normal(k1)) / 6.0)


@right
def scan_steps_poisson(key, w, x, y):

    def body(c, i):
        w, key = c
        key, a, b = jax.random.split(key, 3)
        mask = jax.random.bernoulli(a, 0.5, (len(x),))
        g = noisy(b, total(scaled(clipped(w, x, y), mask)), 2 * Z)
        return ((updated(w, g), key), None)

    return jax.lax.scan(body, (w, key), None, 4)[0][0]


@right
def select_nan_safe(key, w, x, y):
    g = gradients(w, x, y)
    n = norms(g)
    s = jnp.where(jnp.isfinite(n), jnp.minimum(1, C / jnp.where(n > 0, n, 1.0)), 0.0)
    return noisy(
        key,
        total(
            jax.tree.map(lambda a: jnp.where(column(jnp.isfinite(n), a), a * column(s, a), 0.0), g)
        ),
        Z * C,
    )


@right
def per_layer_scaled_noise(key, w, x, y):
    b = {"a": 0.5, "b": 2.0}
    g = gradients(w, x, y)
    ks = dict(zip(g, jax.random.split(key, 2), strict=True))
    out = {}
    for k_, a in g.items():
        n = jnp.sqrt(jnp.sum(a.reshape(len(a), -1) ** 2, -1))
        s = (a * column(jnp.minimum(1, b[k_] / n), a)).sum(0)
        out[k_] = s + 2**0.5 * Z * b[k_] * normal(ks[k_], s.shape)
    return out


@right
def vmapped_augmentation_mean(key, w, x, y):

    def one(x, y):
        views = jnp.stack([x, -x, x[::-1]])
        return jax.grad(lambda w: jax.vmap(lambda v: loss(w, v, y))(views).mean())(w)

    g = jax.vmap(one)(x, y)
    return noisy(key, total(scaled(g, jnp.minimum(1, 1 / norms(g)))))


@right
def min_of_reciprocal(key, w, x, y):
    g = gradients(w, x, y)
    s = jnp.minimum(jnp.reciprocal(norms(g)) * C, 1.0)
    return noisy(key, total(scaled(g, s)), Z * C)


@right
def smooth_clip(key, w, x, y):
    g = gradients(w, x, y)
    s = C / jnp.sqrt(C**2 + norms(g) ** 2)
    return noisy(key, total(scaled(g, s)), Z * C)


@right
def covariance_sym(key, w, x, y):
    u = unit(x)
    m = jnp.einsum("ni,nj->ij", u, u)
    i, j = jnp.triu_indices(4)
    return m[i, j] + Z * normal(key, (10,))


@right
def flatten_noise(key, w, x, y):
    flat, un = ravel_pytree(total(clipped(w, x, y)))
    return updated(w, un(flat + Z * normal(key, flat.shape, flat.dtype)))


# --- Wrong -------------------------------------------------------------------------------------


@wrong
def wrong_norm_over_batch_axis(key, w, x, y):
    """The norms are those of the columns."""
    return (x * jnp.minimum(1, 1 / jnp.linalg.norm(x, axis=0))).sum(0) + Z * normal(key, (4,))


@wrong
def wrong_norm_whole_batch(key, w, x, y):
    """The norm is that of all records together."""
    return (x * jnp.minimum(1, 1 / jnp.linalg.norm(x))).sum(0) + Z * normal(key, (4,))


@wrong
def wrong_norm_other_tree(key, w, x, y):
    """The norm is that of gradients at other parameters."""
    g = gradients(w, x, y)
    h = gradients(jax.tree.map(lambda a: a + 1, w), x, y)
    return noisy(key, total(scaled(g, jnp.minimum(1, 1 / norms(h)))))


@wrong
def wrong_norm_before_scaling(key, w, x, y):
    """The gradients are doubled after their norm was computed."""
    g = gradients(w, x, y)
    n = norms(g)
    g = jax.tree.map(lambda a: 2 * a, g)
    return noisy(key, total(scaled(g, jnp.minimum(1, 1 / n))))


@wrong
def wrong_factor_above_one(key, w, x, y):
    """The factor is up to 2."""
    n = jnp.linalg.norm(x, axis=1)
    return (x * jnp.minimum(2, 2 / n)[:, None]).sum(0) + Z * normal(key, (4,))


@wrong
def wrong_stable_max_not_multiplied_back(key, w, x, y):
    """The norm is in units of the largest entry."""
    m = jnp.max(jnp.abs(x), 1, keepdims=True)
    n = jnp.sqrt(jnp.sum((x / m) ** 2, 1))
    return by_norm(x, n) + Z * normal(key, (4,))


@wrong
def wrong_stable_max_multiplied_squared(key, w, x, y):
    """The square is multiplied by the largest entry, not by its square."""
    m = jnp.max(jnp.abs(x), 1)
    n = jnp.sqrt(m * jnp.sum((x / m[:, None]) ** 2, 1))
    return by_norm(x, n) + Z * normal(key, (4,))


@wrong
def wrong_stable_other_max(key, w, x, y):
    """Divided by the largest entry, multiplied by the smallest."""
    m = jnp.max(jnp.abs(x), 1)
    k = jnp.min(jnp.abs(x), 1)
    n = k * jnp.sqrt(jnp.sum((x / m[:, None]) ** 2, 1))
    return by_norm(x, n) + Z * normal(key, (4,))


@wrong
def wrong_stable_divides_twice(key, w, x, y):
    """Divided by the largest entry twice, multiplied by it once."""
    m = jnp.max(jnp.abs(x), 1)
    n = m * jnp.sqrt(jnp.sum((x / m[:, None] / m[:, None]) ** 2, 1))
    return by_norm(x, n) + Z * normal(key, (4,))


@wrong
def wrong_max_norm_with_sqrt_missing(key, w, x, y):
    """The norm is up to twice the largest entry."""
    n = jnp.max(jnp.abs(x), 1) * 1.5
    return by_norm(x, n) + Z * normal(key, (4,))


@wrong
def wrong_stacked_norms_of_one_leaf_twice(key, w, x, y):
    """One layer's norm counts twice, the other's not at all."""
    g = gradients(w, x, y)
    na = jnp.linalg.norm(g["a"].reshape(len(x), -1), axis=1)
    n = jnp.linalg.norm(jnp.stack([na, na]), axis=0)
    return noisy(key, total(scaled(g, jnp.minimum(1, 1 / n))))


@wrong
def wrong_stacked_norms_max(key, w, x, y):
    """The largest norm of the layers is less than the norm."""
    g = gradients(w, x, y)
    n = jnp.max(
        jnp.stack([jnp.linalg.norm(a.reshape(len(x), -1), axis=1) for a in jax.tree.leaves(g)]), 0
    )
    return noisy(key, total(scaled(g, jnp.minimum(1, 1 / n))))


@wrong
def wrong_stacked_norms_mean(key, w, x, y):
    """So is their mean."""
    g = gradients(w, x, y)
    n = jnp.mean(
        jnp.stack([jnp.linalg.norm(a.reshape(len(x), -1), axis=1) for a in jax.tree.leaves(g)]), 0
    )
    return noisy(key, total(scaled(g, jnp.minimum(1, 1 / n))))


@wrong
def wrong_stacked_norms_over_records(key, w, x, y):
    """The norms are added up over the records."""
    g = gradients(w, x, y)
    n = jnp.linalg.norm(
        jnp.stack([jnp.linalg.norm(a.reshape(len(x), -1), axis=1) for a in jax.tree.leaves(g)]),
        axis=1,
    )
    return noisy(
        key,
        {"a": (g["a"] / jnp.maximum(n[0], 1)).sum(0), "b": (g["b"] / jnp.maximum(n[1], 1)).sum(0)},
    )


@wrong
def wrong_concat_drops_leaf(key, w, x, y):
    """Zeros take the place of the bias in the norm."""
    g = gradients(w, x, y)
    flat = jnp.concatenate([g["a"].reshape(len(x), -1), jnp.zeros((len(x), 3))], 1)
    return noisy(key, total(scaled(g, jnp.minimum(1, 1 / jnp.linalg.norm(flat, axis=1)))))


@wrong
def wrong_concat_then_slice_norm(key, w, x, y):
    """The bias is cut off before the norm."""
    g = gradients(w, x, y)
    flat = jnp.concatenate([a.reshape(len(x), -1) for a in jax.tree.leaves(g)], 1)
    return noisy(key, total(scaled(g, jnp.minimum(1, 1 / jnp.linalg.norm(flat[:, :12], axis=1)))))


@wrong
def wrong_ghost_without_bias(key, w, x, y):
    """The norm leaves out the bias."""
    p = jax.nn.softmax(x @ w["a"] + w["b"]) - jax.nn.one_hot(y, 3)
    s = jnp.minimum(1.0, 1 / (jnp.linalg.norm(x, axis=1) * jnp.linalg.norm(p, axis=1)))
    d = p * s[:, None]
    return noisy(key, {"a": x.T @ d, "b": d.sum(0)})


@wrong
def wrong_ghost_sum_of_norms(key, w, x, y):
    """The norm of an outer product is no sum."""
    p = jax.nn.softmax(x @ w["a"] + w["b"]) - jax.nn.one_hot(y, 3)
    s = jnp.minimum(1.0, 1 / (jnp.linalg.norm(x, axis=1) + jnp.linalg.norm(p, axis=1)))
    return x.T @ (p * s[:, None]) + Z * normal(key, (4, 3))


@wrong
def wrong_ghost_other_input(key, w, x, y):
    """The norm has the output of a layer for its input."""
    h = jnp.tanh(x)
    p = jax.nn.softmax(x @ w["a"] + w["b"]) * y[:, None]
    s = jnp.minimum(1.0, 1 / (jnp.linalg.norm(h, axis=1) * jnp.linalg.norm(p, axis=1)))
    return x.T @ (p * s[:, None]) + Z * normal(key, (4, 3))


@wrong
def wrong_ghost_factor_twice(key, w, x, y):
    """The input is a factor twice, and once in the norm."""
    p = jax.nn.softmax(x @ w["a"]) * y[:, None]
    s = jnp.minimum(1.0, 1 / (jnp.linalg.norm(x, axis=1) * jnp.linalg.norm(p, axis=1)))
    return x.T @ (x[:, :3] * p * s[:, None]) + Z * normal(key, (4, 3))


@wrong
def wrong_ghost_plus_half(key, w, x, y):
    """The bias has a derivative of one, not of a half."""
    p = jax.nn.softmax(x @ w["a"] + w["b"]) - jax.nn.one_hot(y, 3)
    n = jnp.sqrt((x**2).sum(1) + 0.5) * jnp.linalg.norm(p, axis=1)
    d = p * jnp.minimum(1.0, 1 / n)[:, None]
    return noisy(key, {"a": x.T @ d, "b": d.sum(0)})


@wrong
def wrong_microbatch_sum_clip(key, w, x, y):
    """The sum of two records is clipped."""
    xb = x.reshape(3, 2, 4)
    s = xb.sum(1)
    return by_norm(s, jnp.linalg.norm(s, axis=1)) + Z * normal(key, (4,))


@wrong
def wrong_microbatch_map_clip(key, w, x, y):
    """The sum of two gradients is clipped."""

    def one(b):
        g = jax.grad(lambda w: jax.vmap(loss, (None, 0, 0))(w, *b).sum())(w)
        return jax.tree.map(lambda a: a * jnp.minimum(1, 1 / optax.tree.norm(g)), g)

    return noisy(key, total(jax.lax.map(one, (x.reshape(3, 2, 4), y.reshape(3, 2)))))


@wrong
def wrong_microbatch_overlap(key, w, x, y):
    """Micro-batches of three records, two apart."""

    def body(i, acc):
        return acc + unit(jax.lax.dynamic_slice_in_dim(x, i * 2, 3)).sum(0)

    return jax.lax.fori_loop(0, 2, body, jnp.zeros(4)) + Z * normal(key, (4,))


@wrong
def wrong_microbatch_clamped(key, w, x, y):
    """The last rows are taken three times."""

    def body(i, acc):
        return acc + unit(jax.lax.dynamic_slice_in_dim(x, i * 2, 2)).sum(0)

    return jax.lax.fori_loop(0, 5, body, jnp.zeros(4)) + Z * normal(key, (4,))


@wrong
def wrong_microbatch_epochs(key, w, x, y):
    """Every micro-batch is added twice."""
    xs = x.reshape(3, 2, 4)

    def body(i, acc):
        return acc + unit(xs[i % 3]).sum(0)

    return jax.lax.fori_loop(0, 6, body, jnp.zeros(4)) + Z * normal(key, (4,))


@wrong
def wrong_microbatch_nested_twice(key, w, x, y):
    """All micro-batches are added twice."""
    xs = x.reshape(3, 2, 4)

    def outer(j, acc):
        return jax.lax.fori_loop(0, 3, lambda i, a: a + unit(xs[i]).sum(0), acc)

    return jax.lax.fori_loop(0, 2, outer, jnp.zeros(4)) + Z * normal(key, (4,))


@wrong
def wrong_microbatch_rows_multiplied_matrix(key, w, x, y):
    """The last micro-batch counts three times."""
    s = jax.lax.map(lambda b: unit(b).sum(0), x.reshape(3, 2, 4))
    return (s * jnp.array([[1.0], [2.0], [3.0]])).sum(0) + Z * normal(key, (4,))


@wrong
def wrong_microbatch_rows_same_each_summed(key, w, x, y):
    """The sum over all records is added three times."""
    s = jax.lax.map(lambda i: unit(x).sum(0), jnp.arange(3))
    return s.sum(0) + Z * normal(key, (4,))


@wrong
def wrong_microbatch_cumsum(key, w, x, y):
    """The first micro-batch is in all partial sums."""

    def body(acc, b):
        acc = acc + unit(b).sum(0)
        return (acc, acc)

    return jax.lax.scan(body, jnp.zeros(4), x.reshape(3, 2, 4))[1].sum(0) + Z * normal(key, (4,))


@wrong
def wrong_rows_reversed_added(key, w, x, y):
    """Every micro-batch is added twice."""
    s = jax.vmap(lambda b: unit(b).sum(0))(x.reshape(3, 2, 4))
    return (s + s[::-1]).sum(0) + Z * normal(key, (4,))


@wrong
def wrong_rows_transposed_sum(key, w, x, y):
    """The entries of a micro-batch are added up."""
    s = jax.vmap(lambda b: unit(b).sum(0))(x.reshape(3, 2, 4))
    return s.T.sum(0) + Z * normal(key, (3,))


@wrong
def wrong_hist_two_bins(key, w, x, y):
    """Every record is in two bins."""
    return jnp.zeros(3).at[y].add(1).at[(y + 1) % 3].add(1) + Z * normal(key, (3,))


@wrong
def wrong_hist_two_columns(key, w, x, y):
    """Every record is in four bins."""
    i = (x > 0).astype(int)
    return jnp.zeros(2).at[i].add(1) + Z * normal(key, (2,))


@wrong
def wrong_hist_weights(key, w, x, y):
    """Records count by a value without bounds."""
    return jnp.zeros(3).at[y].add(x[:, 0]) + Z * normal(key, (3,))


@wrong
def wrong_hist_public_weights(key, w, x, y):
    """The last record counts six times."""
    return jnp.zeros(3).at[y].add(jnp.arange(1.0, len(x) + 1)) + Z * normal(key, (3,))


@wrong
def wrong_hist_set(key, w, x, y):
    """A bin is one or zero: this is no sum."""
    return jnp.zeros(3).at[y].set(1.0) + Z * normal(key, (3,))


@wrong
def wrong_hist_cumulative(key, w, x, y):
    """Records are in all bins from theirs on."""
    return (y[:, None] <= jnp.arange(3)[None]).sum(0) + Z * normal(key, (3,))


@wrong
def wrong_hist_equal_bins(key, w, x, y):
    """One number has three bins."""
    return (y[:, None] == jnp.array([0, 1, 1, 1])[None]).sum(0) + Z * normal(key, (4,))


@wrong
def wrong_hist_of_two_features(key, w, x, y):
    """Four values of a record are counted."""
    i = x.astype(int)
    return jax.nn.one_hot(i, 3).sum((0, 1)) + Z * normal(key, (3,))


@wrong
def wrong_hist_dense_rows(key, w, x, y):
    """Rows of norm two are added to a class."""
    return jnp.zeros((3, 4)).at[y].add(jnp.tanh(x)) + Z * normal(key, (3, 4))


@wrong
def wrong_hist_length_by_data(key, w, x, y):
    """The bins depend on the largest label."""
    return jnp.zeros(3).at[jnp.minimum(y, y.max() - 1)].add(1) + Z * normal(key, (3,))


@wrong
def wrong_gather_sum_repeated(key, w, x, y):
    """One entry, four times."""
    t = unit(x).sum(0)
    return t[jnp.array([0, 0, 0, 0])] + Z * normal(key, (4,))


@wrong
def wrong_gather_sum_out_of_range(key, w, x, y):
    """The last entry, four times."""
    t = unit(x).sum(0)
    return t.at[jnp.array([7, 8, 9, 10])].get(mode="clip") + Z * normal(key, (4,))


@wrong
def wrong_noise_scaled_by_one_leaf(key, w, x, y):
    """The noise is that of the smaller bound."""
    g = gradients(w, x, y)
    c = {"a": 1.0, "b": 2.0}
    cl = {
        k: (
            v * column(jnp.minimum(1, c[k] / jnp.linalg.norm(v.reshape(len(x), -1), axis=1)), v)
        ).sum(0)
        for k, v in g.items()
    }
    return noisy(key, cl, Z * 1.0)


@wrong
def wrong_key_folded_mod(key, w, x, y):
    """The third iteration has the key of the first."""

    def body(i, w):
        return updated(w, noisy(fold(key, i % 2), total(clipped(w, x, y)), 2 * Z))

    return jax.lax.fori_loop(0, 4, body, w)


@wrong
def wrong_key_folded_wraps(key, w, x, y):
    """Multiples of 2^30 are only four different numbers."""

    def body(i, w):
        return updated(w, noisy(fold(key, i * 2**30), total(clipped(w, x, y)), 2.9 * Z))

    return jax.lax.fori_loop(0, 8, body, w)


@wrong
def wrong_noise_symmetrised(key, w, x, y):
    """The second half of the noise is the first with the other sign."""
    n = Z * normal(key, (2,))
    return unit(x).sum(0) + jnp.concatenate([n, -n])


@wrong
def wrong_noise_matrix_symmetrised(key, w, x, y):
    """The noise below the diagonal is that above."""
    u = unit(x)
    n = Z * normal(key, (4, 4))
    return u.T @ u + (n + n.T) / 2


@wrong
def wrong_stop_gradient_norm(key, w, x, y):
    """The factors are those of gradients at other parameters."""
    g = gradients(w, x, y)
    s = jax.lax.stop_gradient(jnp.minimum(1, 1 / norms(g)))
    g2 = gradients(jax.tree.map(lambda a: 2 * a, w), x, y)
    return noisy(key, total(scaled(g2, s)))


@wrong
def wrong_percentile_bound(key, w, x, y):
    """The clip bound is the median of the norms."""
    g = gradients(w, x, y)
    n = norms(g)
    c = jnp.percentile(n, 50)
    return noisy(key, total(scaled(g, jnp.minimum(1, c / n) / c)))


@wrong
def wrong_where_lower_wrong(key, w, x, y):
    """Norms between 1 and 3 are taken for 1."""
    n = jnp.linalg.norm(x, axis=1)
    n = jnp.where(n > 3, n, 1.0)
    return by_norm(x, n) + Z * normal(key, (4,))


@wrong
def wrong_l1_difference(key, w, x, y):
    """The sum of the entries may be zero."""
    n = jnp.abs(x.sum(1))
    return by_norm(x, n) + Z * normal(key, (4,))


@wrong
def wrong_norms_product(key, w, x, y):
    """The product of the layers' norms may be less than each."""
    g = gradients(w, x, y)
    a, c = [jnp.linalg.norm(v.reshape(len(x), -1), axis=1) for v in jax.tree.leaves(g)]
    return noisy(key, total(scaled(g, jnp.minimum(1, 1 / (a * c)))))


@wrong
def wrong_norms_hypot_half(key, w, x, y):
    """The root mean square of the layers' norms."""
    g = gradients(w, x, y)
    a, c = [jnp.linalg.norm(v.reshape(len(x), -1), axis=1) for v in jax.tree.leaves(g)]
    return noisy(key, total(scaled(g, jnp.minimum(1, 1 / jnp.sqrt((a**2 + c**2) / 2)))))


@wrong
def wrong_carried_running_max(key, w, x, y):
    """Records are divided by the largest norm before."""

    def body(c, r):
        acc, m = c
        m = jnp.maximum(m, jnp.linalg.norm(r))
        return ((acc + r / m, m), None)

    return jax.lax.scan(body, (jnp.zeros(4), 1e-06), x)[0][0] + Z * normal(key, (4,))


@wrong
def wrong_carried_unclipped(key, w, x, y):
    """A loop makes clipped records larger."""

    def body(c, _):
        return (c * 1.5, None)

    return jax.lax.scan(body, unit(x), None, 2)[0].sum(0) + Z * normal(key, (4,))


@wrong
def wrong_weighted_by_inverse_only_x(key, w, x, y):
    """The outer product of a record has its squared norm."""
    s = 1 / jnp.linalg.norm(x, axis=1)
    return jnp.einsum("n,ni,nj->ij", s, x, x) + Z * normal(key, (4, 4))


@wrong
def wrong_reciprocal_of_itself(key, w, x, y):
    """Divided once, multiplied twice."""
    m = x[:, :1]
    return (x / m * m * m).sum(0) + Z * normal(key, (4,))


@wrong
def wrong_concat_clipped_twice(key, w, x, y):
    """Clipped records side by side with themselves."""
    c = clipped(w, x, y)
    f = jnp.concatenate([c["a"].reshape(len(x), -1), c["a"].reshape(len(x), -1)], 1)
    return f.sum(0) + Z * normal(key, (24,))


@wrong
def wrong_norm_by_dot_of_reversed(key, w, x, y):
    """The product with the reversed record is no norm."""
    n = jnp.sqrt(jnp.abs(jnp.einsum("ni,ni->n", x, x[:, ::-1])))
    return by_norm(x, n) + Z * normal(key, (4,))


@wrong
def wrong_odd_lengths_other_program(key, w, x, y):
    """Another function for odd numbers of records."""
    t = unit(x).sum(0) + Z * normal(key, (4,))
    return jnp.tanh(t) if len(x) % 2 else t


# --- Tests -------------------------------------------------------------------------------------

QUICK = ["stable_norm_batch", "norm_of_stacked_batch", "linear_ghost_by_hand", "hist_bincount"]
QUICK += ["fori_microbatches_index", "wrong_stable_divides_twice", "wrong_ghost_without_bias"]
QUICK += ["wrong_microbatch_epochs", "wrong_hist_two_bins"]


def quick_first(names):
    return [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in names]


@pytest.mark.parametrize("name", quick_first(RIGHT))
def test_right_steps_are_shown(name):
    # With an odd number of records the last one is left out.
    adjacency = "zero_out" if name == "fori_microbatches_dynamic" else "add_remove"
    found = report(RIGHT[name], adjacency=adjacency)
    assert found.verdict == "shown", str(found)
    assert found.noise_multiplier >= Z * (1 - 1e-4)


@pytest.mark.parametrize("name", quick_first(WRONG))
def test_wrong_steps_are_not_shown(name):
    check_reason(report(WRONG[name]), *FINDINGS[name])
