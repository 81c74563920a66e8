"""The check of a program on further forms of steps: norms, Jacobians, rows and devices."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax
import pytest
from audit.test_program import (
    W,
    X,
    Y,
    Z,
    column,
    gradients,
    loss,
    noisy,
    norms,
    scaled,
    total,
    updated,
)
from audit.test_program_facts import evaluate
from jax import lax
from jax.flatten_util import ravel_pytree
from jax.sharding import PartitionSpec as P

from dpjax.audit import check_program

C = 0.5
KEY = jax.random.key(0)
MESH = jax.sharding.AbstractMesh((2,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
RIGHT: dict[str, tuple[Callable[..., Any], str]] = {}
WRONG: dict[str, tuple[Callable[..., Any], str, str]] = {}


def right(adjacency: str = "add_remove") -> Callable[..., Any]:
    """A step that is to be shown."""

    def register(step):
        RIGHT[step.__name__] = step, adjacency
        return step

    return register


def wrong(reason: str, adjacency: str = "zero_out") -> Callable[..., Any]:
    """A step that must not be shown, with a part of the reason."""

    def register(step):
        WRONG[step.__name__] = step, adjacency, reason
        return step

    return register


def rows(a):
    return a.reshape(len(a), -1)


def released(key, g, factors):
    return noisy(key, total(scaled(g, factors)), Z * C)


def clipped(w, x, y):
    g = gradients(w, x, y)
    return scaled(g, jnp.minimum(1, C / norms(g)))


def losses(w, x, y):
    return jax.vmap(loss, (None, 0, 0))(w, x, y)


def add(*trees):
    return jax.tree.map(lambda *leaves: sum(leaves), *trees)


# --- Norms and factors -------------------------------------------------------------------------


@right()
def norm_by_hypot(key, w, x, y):
    g = gradients(w, x, y)
    n = jnp.hypot(*(jnp.linalg.norm(rows(a), axis=1) for a in g.values()))
    return released(key, g, jnp.where(n > C, C / n, 1.0))


@wrong("no bound is found")
def hypot_of_one_leaf(key, w, x, y):
    g = gradients(w, x, y)
    n = jnp.linalg.norm(rows(g["a"]), axis=1)
    return released(key, g, jnp.minimum(1, C / jnp.hypot(n, n)))


@wrong("no bound is found")
def hypot_of_squares(key, w, x, y):
    g = gradients(w, x, y)
    n = jnp.hypot(*((rows(a) ** 2).sum(1) for a in g.values()))
    return released(key, g, jnp.minimum(1, C / n))


@wrong("no bound is found")
def own_function_hypot(key, w, x, y):
    @jax.jit
    def hypot(a, b):
        return jnp.minimum(a, b)

    g = gradients(w, x, y)
    n = hypot(*(jnp.linalg.norm(rows(a), axis=1) for a in g.values()))
    return released(key, g, jnp.minimum(1, C / n))


@right()
def factor_by_relu(key, w, x, y):
    g = gradients(w, x, y)
    return released(key, g, 1 / (1 + jax.nn.relu(norms(g) / C - 1)))


@wrong("no bound is found")
def relu_of_the_opposite(key, w, x, y):
    g = gradients(w, x, y)
    return released(key, g, 1 / (1 + jax.nn.relu(1 - norms(g) / C)))


@wrong("no bound is found")
def relu_plus_less_than_taken_off(key, w, x, y):
    g = gradients(w, x, y)
    return released(key, g, 1 / (0.5 + jax.nn.relu(norms(g) / C - 1)))


@wrong("no bound is found")
def excess_with_its_sign_changed(key, w, x, y):
    g = gradients(w, x, y)
    return released(key, g, 1 / (1 + jax.nn.relu(-(norms(g) / C - 1))))


@right()
def norm_without_zero(key, w, x, y):
    def one(x, y):
        g = jax.grad(loss)(w, x, y)
        square = sum(jnp.sum(a**2) for a in jax.tree.leaves(g))
        is_zero = square == 0
        n = jnp.where(is_zero, 1.0, jnp.sqrt(jnp.where(is_zero, 1.0, square)))
        return jax.tree.map(lambda a: a * lax.clamp(0.0, C / n, 1.0), g)

    return noisy(key, total(jax.vmap(one)(x, y)), Z * C)


@wrong("no bound is found")
def norm_that_is_not_zero_replaced(key, w, x, y):
    g = gradients(w, x, y)
    n = norms(g)
    return released(key, g, jnp.minimum(1, C / jnp.where(n != 0, 1.0, n)))


@wrong("no bound is found")
def norm_replaced_where_another_is_zero(key, w, x, y):
    g = gradients(w, x, y)
    other = jnp.linalg.norm(g["b"], axis=1)
    return released(key, g, jnp.minimum(1, C / jnp.where(other == 0, 1.0, norms(g))))


@wrong("the noise multiplier")
def norm_of_three_replaced(key, w, x, y):
    g = gradients(w, x, y)
    n = norms(g)
    return released(key, g, jnp.minimum(1, C / jnp.where(n == 3, 1.0, n)))


@right()
def leaves_of_a_clipped_vector(key, w, x, y):
    def one(x, y):
        g, unravel = ravel_pytree(jax.grad(loss)(w, x, y))
        n = jnp.sqrt(jnp.vdot(g, g))
        return unravel(lax.select(n > C, g * (C / n), g))

    return noisy(key, total(jax.vmap(one)(x, y)), Z * C)


@right()
def weights_by_a_product(key, w, x, y):
    v = jax.vmap(lambda x, y: ravel_pytree(jax.grad(loss)(w, x, y))[0])(x, y)
    v = v * jnp.reciprocal(jnp.maximum(1.0, jnp.linalg.norm(v, axis=1) / C))[:, None]
    return jnp.ones(len(v)) @ v + Z * C * jax.random.normal(key, (15,))


@wrong("the noise multiplier")
def weights_above_one_by_a_product(key, w, x, y):
    u = x * jnp.minimum(1, C / jnp.linalg.norm(x, axis=1))[:, None]
    return jnp.arange(1.0, 7.0) @ u + Z * C * jax.random.normal(key, (4,))


@wrong("the noise multiplier")
def regions_of_a_vector_that_overlap(key, w, x, y):
    v = jax.vmap(lambda x, y: ravel_pytree(jax.grad(loss)(w, x, y))[0])(x, y)
    v = v * jnp.minimum(1, C / jnp.linalg.norm(v, axis=1))[:, None]
    return noisy(key, [v[:, :10].sum(0), v[:, 9:].sum(0)], Z * C)


@wrong("the noise multiplier")
def a_region_beside_its_vector(key, w, x, y):
    v = jax.vmap(lambda x, y: ravel_pytree(jax.grad(loss)(w, x, y))[0])(x, y)
    v = v * jnp.minimum(1, C / jnp.linalg.norm(v, axis=1))[:, None]
    return noisy(key, [v.sum(0), v[:, 9:].sum(0)], Z * C)


@wrong("the noise multiplier")
def regions_of_two_arrays(key, w, x, y):
    u = x * jnp.minimum(1, C / jnp.linalg.norm(x, axis=1))[:, None]
    return noisy(key, [u[:, :2].sum(0), u[:, ::-1][:, 2:].sum(0)], Z * C)


@wrong("no bound is found")
def outer_products_of_positions(key, w, x, y):
    """The norm of products of equal positions is less than the product of the norms."""
    a, b = x.reshape(-1, 2, 2), jnp.tanh(x).reshape(-1, 2, 2)
    some = jnp.einsum("nti,ntj->ntij", a, b)
    n = jnp.sqrt((some**2).sum((1, 2, 3)))
    every = jnp.einsum("nti,nsj->ntisj", a, b)
    return (every * column(jnp.minimum(1, C / n), every)).sum(0) + Z * C * jax.random.normal(
        key, (2, 2, 2, 2)
    )


# --- Gradients as rows of a Jacobian -----------------------------------------------------------


@right()
def jacobian_of_the_losses(key, w, x, y):
    g = jax.jacrev(lambda w: losses(w, x, y))(w)
    return released(key, g, jnp.minimum(1, C / norms(g)))


@right()
def jacobian_of_linear_losses(key, w, x, y):
    def squares(w):
        logits = jax.nn.relu(x @ w["a"] + w["b"]) @ jnp.ones(3)
        return (logits - y) ** 2

    g = jax.jacobian(squares)(w)
    return released(key, g, 1 / jnp.maximum(1, norms(g) / C))


@right()
def jacobian_forward(key, w, x, y):
    g = jax.jacfwd(lambda w: losses(w, x, y))(w)
    return released(key, g, jnp.minimum(1, C / norms(g)))


@wrong("a sum over the records enters")
def jacobian_of_centred_losses(key, w, x, y):
    def centred(w):
        values = losses(w, x, y)
        return (values - values.mean()) ** 2

    g = jax.jacrev(centred)(w)
    return released(key, g, jnp.minimum(1, C / norms(g)))


@wrong("a sum over the records enters")
def jacobian_of_cumulative_losses(key, w, x, y):
    g = jax.jacrev(lambda w: jnp.cumsum(losses(w, x, y)))(w)
    return released(key, g, jnp.minimum(1, C / norms(g)))


@wrong("a sum over the records enters")
def jacobian_of_pairs(key, w, x, y):
    g = jax.jacrev(lambda w: losses(w, x, y) + losses(w, x, y)[::-1])(w)
    return released(key, g, jnp.minimum(1, C / norms(g)))


@wrong("a sum over the records enters")
def jacobian_of_losses_repeated(key, w, x, y):
    g = jax.jacrev(lambda w: jnp.concatenate([losses(w, x, y)] * 2))(w)
    return released(key, g, jnp.minimum(1, C / norms(g)))


@wrong("a sum over the records enters")
def jacobian_with_one_more_entry(key, w, x, y):
    basis = jnp.eye(len(x)).at[0, 1].set(1.0)
    (g,) = jax.vmap(jax.vjp(lambda w: losses(w, x, y), w)[1])(basis)
    return released(key, g, jnp.minimum(1, C / norms(g)))


# --- Rows of records, and loops ----------------------------------------------------------------


@right("zero_out")
def loop_over_slices(key, w, x, y):
    parts = [total(clipped(w, x[i : i + 4], y[i : i + 4])) for i in range(0, len(x), 4)]
    return noisy(key, add(*parts), Z * C)


@right()
def loop_over_parts(key, w, x, y):
    parts = zip(jnp.split(x, 2), jnp.split(y, 2), strict=True)
    return noisy(key, add(*(total(clipped(w, *part)) for part in parts)), Z * C)


@right("zero_out")
def loop_over_rows(key, w, x, y):
    sums = jax.tree.map(jnp.zeros_like, w)
    for record, label in zip(x, y, strict=True):
        g = jax.grad(loss)(w, record, label)
        s = jnp.minimum(1.0, C / optax.tree.norm(g))
        sums = jax.tree.map(lambda t, a, s=s: t + s * a, sums, g)
    return noisy(key, sums, Z * C)


@right("zero_out")
def rows_stacked(key, w, x, y):
    g = [ravel_pytree(jax.grad(loss)(w, x[i], y[i]))[0] for i in range(len(x))]
    v = jnp.stack([a * jnp.minimum(1.0, C / jnp.linalg.norm(a)) for a in g]).sum(0)
    return v + Z * C * jax.random.normal(key, v.shape)


@right("zero_out")
def map_of_batches(key, w, x, y):
    def one(record):
        g = jax.grad(loss)(w, *record)
        return jax.tree.map(lambda a: a * jnp.minimum(1.0, C / optax.tree.norm(g)), g)

    return noisy(key, total(lax.map(one, (x, y), batch_size=4)), Z * C)


@right("zero_out")
def noise_for_each_half(key, w, x, y):
    one, two = jax.random.split(key)
    first = noisy(one, total(clipped(w, x[:3], y[:3])), Z * C)
    return first, noisy(two, total(clipped(w, x[3:], y[3:])), Z * C)


@right("zero_out")
def steps_on_parts_of_a_permutation(key, w, x, y):
    """Each step is taken to be on a batch with the record: twice the noise for four of them."""
    sample, noise = jax.random.split(key)
    batches = jax.random.permutation(sample, len(x))[:4].reshape(4, 1)

    def step(w, batch_and_key):
        batch, own = batch_and_key
        return noisy(own, total(clipped(w, x[batch], y[batch])), 2 * Z * C), None

    return lax.scan(step, w, (batches, jax.random.split(noise, 4)))[0]


@wrong("the check does not follow gather")
def rows_drawn_with_repetition(key, w, x, y):
    sample, noise = jax.random.split(key)
    batches = jax.random.choice(sample, len(x), (2, 3))

    def body(sums, batch):
        return add(sums, total(clipped(w, x[batch], y[batch]))), None

    sums, _ = lax.scan(body, jax.tree.map(jnp.zeros_like, w), batches)
    return noisy(noise, sums, Z * C)


@wrong("the noise multiplier")
def slices_that_overlap(key, w, x, y):
    parts = [total(clipped(w, x[i : i + 3], y[i : i + 3])) for i in (0, 2, 3)]
    return noisy(key, add(*parts), Z * C)


@wrong("the noise multiplier")
def slices_with_steps_that_overlap(key, w, x, y):
    slices = slice(0, None, 2), slice(1, None, 2), slice(5, 6)
    return noisy(key, add(*(total(clipped(w, x[s], y[s])) for s in slices)), Z * C)


@wrong("the noise multiplier")
def slices_of_two_epochs(key, w, x, y):
    parts = [total(clipped(w, x[i : i + 2], y[i : i + 2])) for i in (0, 2, 4)]
    return noisy(key, add(*parts, *parts), Z * C)


@wrong("the noise multiplier")
def last_row_twice(key, w, x, y):
    def one(i):
        g = jax.grad(loss)(w, x[i], y[i])
        return jax.tree.map(lambda a: a * jnp.minimum(1.0, C / optax.tree.norm(g)), g)

    return noisy(key, add(*(one(i) for i in (*range(len(x)), -1))), Z * C)


@wrong("mul combines records at different positions")
def factor_of_the_first_row(key, w, x, y):
    g = [jax.grad(loss)(w, x[i], y[i]) for i in range(len(x))]
    s = jnp.minimum(1.0, C / optax.tree.norm(g[0]))
    return noisy(key, add(*(jax.tree.map(lambda a: s * a, one) for one in g)), Z * C)


@wrong("a sum over the records enters")
def running_sum_clipped(key, w, x, y):
    sums = jax.tree.map(jnp.zeros_like, w)
    for i in range(len(x)):
        sums = add(sums, jax.grad(loss)(w, x[i], y[i]))
        s = jnp.minimum(1.0, C / optax.tree.norm(sums))
        sums = jax.tree.map(lambda a, s=s: s * a, sums)
    return noisy(key, sums, Z * C)


@wrong("the noise multiplier")
def leaves_joined_at_different_rows(key, w, x, y):
    """A record between both has one leaf of one gradient, and the other of another."""
    one, two = clipped(w, x, y), clipped(jax.tree.map(lambda a: a + 1, w), x, y)
    a = jnp.concatenate([one["a"][:4], two["a"][4:]])
    b = jnp.concatenate([one["b"][:2], two["b"][2:]])
    return noisy(key, {"a": a.sum(0), "b": b.sum(0)}, Z * C)


@wrong("which records are in some rows depends on their number", "add_remove")
def first_rows_only(key, w, x, y):
    return noisy(key, total(clipped(w, x[:4], y[:4])), Z * C)


@wrong("which records are in some rows depends on their number", "add_remove")
def whole_batches_only(key, w, x, y):
    def body(i, sums):
        x_part, y_part = (lax.dynamic_slice_in_dim(a, 3 * i, 3) for a in (x, y))
        return add(sums, total(clipped(w, x_part, y_part)))

    sums = lax.fori_loop(0, len(x) // 3, body, jax.tree.map(jnp.zeros_like, w))
    return noisy(key, sums, Z * C)


@right()
def recurrent_network(key, w, x, y):
    def sequence_loss(w, x, y):
        cell = lambda h, x: (jnp.tanh(x * w["a"][0] + h), None)  # noqa: E731
        return optax.softmax_cross_entropy_with_integer_labels(lax.scan(cell, w["b"], x)[0], y)

    g = jax.vmap(jax.grad(sequence_loss), (None, 0, 0))(w, x, y)
    return released(key, g, jnp.minimum(1, C / norms(g)))


@wrong("no bound is found")
def recurrent_network_clipped_by_its_losses(key, w, x, y):
    def sequence_loss(w, x, y):
        h, states = lax.scan(lambda h, x: (jnp.tanh(x * w["a"][0] + h),) * 2, w["b"], x)
        return optax.softmax_cross_entropy_with_integer_labels(h, y), states

    g, states = jax.vmap(jax.grad(sequence_loss, has_aux=True), (None, 0, 0))(w, x, y)
    return released(key, g, jnp.minimum(1, C / jnp.linalg.norm(rows(states), axis=1)))


# --- Axes of vmap, and devices -----------------------------------------------------------------


@right()
def sum_inside_vmap(key, w, x, y):
    def one(x, y):
        g = jax.grad(loss)(w, x, y)
        return lax.psum(optax.tree.scale(jnp.minimum(1.0, C / optax.tree.norm(g)), g), "batch")

    return noisy(key, jax.vmap(one, axis_name="batch", out_axes=None)(x, y), Z * C)


@wrong("a sum over the records enters")
def mean_inside_vmap_subtracted(key, w, x, y):
    def one(x, y):
        g = jax.grad(loss)(w, x - lax.pmean(x, "batch"), y)
        return optax.tree.scale(jnp.minimum(1.0, C / optax.tree.norm(g)), g)

    return noisy(key, total(jax.vmap(one, axis_name="batch")(x, y)), Z * C)


def on_devices(body, *out_axes):
    """A function of the key, the parameters and the records, of which each device has some."""
    specs = P(), P(), P("data"), P("data")
    return jax.shard_map(body, mesh=MESH, in_specs=specs, out_specs=P(*out_axes), check_vma=False)


@right()
@on_devices
def sum_of_devices(key, w, x, y):
    return noisy(key, lax.psum(total(clipped(w, x, y)), "data"), Z * C)


@right()
def noise_after_the_devices(key, w, x, y):
    sums = on_devices(lambda key, w, x, y: lax.psum(total(clipped(w, x, y)), "data"))
    return noisy(key, sums(key, w, x, y), Z * C)


@right()
@on_devices
def noise_of_every_device(key, w, x, y):
    own = jax.random.fold_in(key, lax.axis_index("data"))
    return lax.psum(noisy(own, total(clipped(w, x, y)), Z * C), "data")


@wrong("returned without noise")
@on_devices
def sum_of_devices_without_noise(key, w, x, y):
    return lax.psum(total(clipped(w, x, y)), "data")


@wrong("a sum over the records enters")
@on_devices
def clip_of_the_sum_of_devices(key, w, x, y):
    g = lax.psum(total(gradients(w, x, y)), "data")
    return noisy(key, optax.tree.scale(jnp.minimum(1.0, C / optax.tree.norm(g)), g), Z * C)


@wrong("the same noise is added on every device")
def same_noise_on_every_device(key, w, x, y):
    def body(key, w, x, y):
        return jax.tree.map(lambda a: a[None], noisy(key, total(clipped(w, x, y)), Z * C))

    return on_devices(body, "data")(key, w, x, y)


@wrong("the noise multiplier")
def sum_released_by_every_device(key, w, x, y):
    def body(key, w, x, y):
        own = jax.random.fold_in(key, lax.axis_index("data"))
        sums = lax.psum(total(clipped(w, x, y)), "data")
        return jax.tree.map(lambda a: a[None], noisy(own, sums, Z * C))

    return on_devices(body, "data")(key, w, x, y)


@wrong("the noise multiplier is 0.7778")
def sum_of_all_returned_by_every_device(key, w, x, y):
    def body(key, w, x, y):
        return jax.tree.map(lambda a: lax.psum(a, "data")[None], total(clipped(w, x, y)))

    return noisy(key, on_devices(body, "data")(key, w, x, y), Z * C)


@wrong("the noise multiplier")
@on_devices
def sum_of_devices_twice(key, w, x, y):
    sums = lax.psum(lax.psum(total(clipped(w, x, y)), "data"), "data")
    return noisy(key, sums, Z * C)


@wrong("psum adds up records of several devices")
@on_devices
def records_of_devices_added(key, w, x, y):
    return noisy(key, total(clipped(w, lax.psum(x, "data"), y)), Z * C)


@wrong("the noise multiplier")
def all_records_on_every_device(key, w, x, y):
    all_of_them = (P(),) * 4
    body = lambda key, w, x, y: lax.psum(total(clipped(w, x, y)), "data")  # noqa: E731
    sums = jax.shard_map(body, mesh=MESH, in_specs=all_of_them, out_specs=P(), check_vma=False)
    return noisy(key, sums(key, w, x, y), Z * C)


def sum_of_devices_by_gradients_of(parameters):
    """A sum over devices, where JAX keeps account of the arrays that vary by device."""

    def body(key, w, x, y):
        return lax.psum(total(clipped(parameters(w), x, y)), "data")

    specs = P(), P(), P("data"), P("data")
    return jax.shard_map(body, mesh=MESH, in_specs=specs, out_specs=P())


@right()
def parameters_that_vary_by_device(key, w, x, y):
    vary = lambda w: jax.tree.map(lambda a: lax.pcast(a, "data", to="varying"), w)  # noqa: E731
    return noisy(key, sum_of_devices_by_gradients_of(vary)(key, w, x, y), Z * C)


@wrong("adds up records of several devices")
def gradients_of_all_devices_added(key, w, x, y):
    return noisy(key, sum_of_devices_by_gradients_of(lambda w: w)(key, w, x, y), Z * C)


# --- Number of records -------------------------------------------------------------------------


def release(key, w, x, y):
    return noisy(key, total(clipped(w, x, y)), Z * C)


@wrong("a constant depends on the number of records", "add_remove")
def number_of_records_returned(key, w, x, y):
    return release(key, w, x, y), jnp.asarray(len(x))


@wrong("a constant depends on the number of records", "add_remove")
def zeros_for_all_records_returned(key, w, x, y):
    return release(key, w, x, y), jnp.zeros(len(x))


@wrong("a constant depends on the number of records", "add_remove")
def nothing_without_records(key, w, x, y):
    return optax.tree.scale(float(len(x) > 0), release(key, w, x, y))


@wrong("a constant depends on the number of records", "add_remove")
def nothing_with_one_record(key, w, x, y):
    return optax.tree.scale(float(len(x) > 1), release(key, w, x, y))


@wrong("less noise is drawn", "add_remove")
def noise_not_used_without_records(key, w, x, y):
    noise = release(key, w, x, y)
    return noise if len(x) else jax.tree.map(jnp.zeros_like, noise)


# --- Optimisers and local steps ----------------------------------------------------------------


@right()
def accumulated_by_optax(key, w, x, y):
    optimizer = optax.MultiSteps(optax.adam(1e-3), 4)
    return optimizer.update(release(key, w, x, y), optimizer.init(w), w)


@wrong("returned without noise")
def accumulated_before_the_noise(key, w, x, y):
    optimizer = optax.MultiSteps(optax.adam(1e-3), 4)
    updates, state = optimizer.update(total(clipped(w, x, y)), optimizer.init(w), w)
    return noisy(key, updates, Z * C), state


@right()
def local_steps_of_each_client(key, w, x, y):
    def client(x, y):
        g = jax.grad(loss)
        after, _ = lax.scan(lambda w, _: (updated(w, g(w, x, y)), None), w, length=3)
        change = jax.tree.map(jnp.subtract, after, w)
        return optax.tree.scale(jnp.minimum(1, C / optax.tree.norm(change)), change)

    return noisy(key, total(jax.vmap(client)(x, y)), Z * C)


def epoch(key, w, x, y):
    """Steps on batches of which each record is in one."""

    def step(w, batch_and_key):
        *batch, key = batch_and_key
        return updated(w, release(key, w, *batch)), None

    batches = x.reshape(3, 2, 4), y.reshape(3, 2), jax.random.split(key, 3)
    return lax.scan(step, w, batches)[0]


right()(epoch)


@wrong("the noise multiplier may be no more than 0.7778")
def two_epochs(key, w, x, y):
    return lax.scan(lambda w, k: (epoch(k, w, x, y), None), w, jax.random.split(key))[0]


@right()
def mean_over_augmentations(key, w, x, y):
    key, noise_key = jax.random.split(key)

    def one(key, x, y):
        views = x + 0.1 * jax.random.normal(key, (3, *x.shape))
        g = jax.grad(lambda w: jax.vmap(loss, (None, 0, None))(w, views, y).mean())(w)
        return optax.tree.scale(jnp.minimum(1, C / optax.tree.norm(g)), g)

    return noisy(noise_key, total(jax.vmap(one)(jax.random.split(key, len(x)), x, y)), Z * C)


@wrong("no bound is found")
def augmentations_clipped_apart(key, w, x, y):
    key, noise_key = jax.random.split(key)

    def one(key, x, y):
        views = x + 0.1 * jax.random.normal(key, (3, *x.shape))
        return total(clipped(w, views, jnp.repeat(y, 3)))

    return noisy(noise_key, total(jax.vmap(one)(jax.random.split(key, len(x)), x, y)), Z * C)


# --- Tests -------------------------------------------------------------------------------------


def report(step, adjacency):
    return check_program(
        step, KEY, W, X, Y, records=(2, 3), noise_multiplier=Z, adjacency=adjacency
    )


@pytest.mark.parametrize("name", RIGHT)
def test_right_steps_are_shown(name):
    found = report(*RIGHT[name])
    assert found.verdict == "shown", str(found)
    assert found.noise_multiplier == pytest.approx(Z, rel=1e-4)


@pytest.mark.parametrize("name", WRONG)
def test_wrong_steps_are_not_shown(name):
    step, adjacency, reason = WRONG[name]
    found = report(step, adjacency)
    assert found.verdict != "shown"
    assert any(reason in one.reason for one in found.findings), str(found)


def test_bounds_that_need_not_be_attained_at_once_are_no_violation():
    """Of a region of an array that is bounded as a whole the sum may be released once more."""

    def step(key, w, x, y):
        n = jnp.linalg.norm(x, axis=1)
        one, two = x[:, :2], x[:, 2:]
        s = jnp.minimum(1, C / n)[:, None]
        return noisy(key, [(one * s).sum(0), (two * s).sum(0)], Z * C)

    assert report(step, "zero_out").verdict == "not decided"


@pytest.mark.parametrize("is_followed", [True, False])
def test_noise_that_does_not_follow_a_clip_bound_is_not_decided(is_followed):
    """The bound follows a quantile: it has another value in the next call, with as much noise."""

    def step(key, state, x, y):
        key, count_key = jax.random.split(key)
        w, bound = state["w"], state["bound"]
        g = gradients(w, x, y)
        factors = jnp.minimum(1, bound / norms(g))
        noise = 2 * Z * (bound if is_followed else C)
        below = jnp.sum(norms(g) <= bound) + 10.0 * jax.random.normal(count_key)
        return {
            "w": updated(w, noisy(key, total(scaled(g, factors)), noise)),
            "bound": bound * jnp.exp(0.5 - below / 6),
        }

    state = {"w": W, "bound": jnp.float32(C)}
    given = {"records": (2, 3), "noise_multiplier": Z, "adjacency": "zero_out"}
    found = check_program(step, KEY, state, X, Y, **given)
    assert found.verdict == ("shown" if is_followed else "not decided")
    assert (
        "number 0.5 of argument 1['bound'] only" in str(found).replace("\n", " ")
    ) != is_followed


def test_noise_that_is_kept_for_a_later_call_is_not_decided():
    """The noises of consecutive calls cancel, so that only one is left in their sum."""

    def step(key, w, x, y, last_noise):
        noise = noisy(key, jax.tree.map(jnp.zeros_like, w), Z * C)
        return add(total(clipped(w, x, y)), noise, optax.tree.scale(-1.0, last_noise)), noise

    given = {"records": (2, 3), "noise_multiplier": Z, "adjacency": "zero_out"}
    found = check_program(step, KEY, W, X, Y, W, private_outputs=("[1]",), **given)
    assert found.verdict == "not decided"
    assert "the noise of a release is kept" in str(found)


@pytest.mark.slow
def test_what_is_stated_of_arrays_holds_in_all_steps():
    steps = [step for name, (step, *_) in (RIGHT | WRONG).items() if "device" not in name]
    found = [evaluate(step) for step in steps]
    assert sum(analysis.num_compared > 10 for analysis in found) > 0.5 * len(steps)
    assert not any(analysis.failures for analysis in found)
