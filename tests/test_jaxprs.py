"""Equations that contain jaxprs are read the same from every version of JAX."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.extend.core import jaxpr_as_fun
from jax.sharding import AxisType, PartitionSpec

from dpjax._jaxprs import bodies_of, body_of, primitive_names, read_scan

X = jnp.arange(1.0, 7.0).reshape(3, 2)
STACKED = jnp.stack([X, -X])


def scan(x, *, reverse=False, unroll=1):
    """Constants, three carried values, two arrays to iterate over, and two stacked outputs."""

    def body(carry, entries):
        a, b, count = carry
        row, scale = entries
        moved = jnp.sin(a) * x[0, 0] + row.sum()
        return (moved, b + scale * a * row, count + 1), (b, a * x[1])

    start, arrays = (x[0, 1], x[1], 0), (x, jnp.arange(3.0))
    return jax.lax.scan(body, start, arrays, reverse=reverse, unroll=unroll)


def loss(x):
    (a, b, _), (first, second) = scan(x)
    return a + b.sum() + (first * second).sum()


def directional(x):
    return jax.jvp(loss, (x,), (jnp.ones_like(x),))[1]


SCANS = {
    "scan": (scan, X),
    "reverse": (partial(scan, reverse=True, unroll=2), X),
    "fori_loop": (lambda x: jax.lax.fori_loop(0, 3, lambda i, y: y * x[i], x[0]), X),
    "no carry": (lambda x: jax.lax.scan(lambda _, row: (None, row * x[0]), None, x), X),
    "vmap": (jax.vmap(scan), STACKED),
    "jvp": (directional, X),
    "grad": (jax.grad(loss), X),
    "second derivative": (jax.grad(directional), X),
    "vmap of grad": (jax.vmap(jax.grad(loss)), STACKED),
}


def by_definition(equation, operands):
    """The outputs of a scan, iteration by iteration as `jax.lax.scan` defines them."""
    read, body = read_scan(equation), jaxpr_as_fun(read_scan(equation).body)
    start = read.num_consts + read.num_carry
    consts, carry = operands[: read.num_consts], operands[read.num_consts : start]
    stacked = []

    for i in range(read.length)[:: -1 if read.reverse else 1]:
        outputs = body(*consts, *carry, *(array[i] for array in operands[start:]))
        carry = outputs[: read.num_carry]
        stacked.append(outputs[read.num_carry :])

    in_order = stacked[::-1] if read.reverse else stacked
    return [*carry, *map(jnp.stack, zip(*in_order, strict=True))]


@pytest.mark.slow
@pytest.mark.parametrize("case", SCANS)
def test_read_scan_by_definition(case):
    jaxpr = jax.make_jaxpr(SCANS[case][0])(SCANS[case][1])
    scans = [equation for equation in jaxpr.jaxpr.eqns if equation.primitive.name == "scan"]
    assert scans
    for equation in scans:
        avals = [value.aval for value in equation.invars]
        operands = [jnp.full(a.shape, n % 7 / 3).astype(a.dtype) for n, a in enumerate(avals)]
        expected = equation.primitive.bind(*operands, **equation.params)
        for one, other in zip(expected, by_definition(equation, operands), strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-5)


def test_read_scan_parameters():
    (equation,) = jax.make_jaxpr(partial(scan, reverse=True, unroll=2))(X).jaxpr.eqns[-1:]
    read = read_scan(equation)
    assert (read.num_carry, read.length, read.reverse, read.unroll) == (3, 3, True, 2)
    assert read.num_consts == len(equation.invars) - 5 > 0


MESH = jax.make_mesh((1,), ("data",), axis_types=(AxisType.Auto,))
CONSTANT = np.array([2.0, 3.0], np.float32)


@jax.custom_jvp
def with_jvp(x):
    return jnp.sin(x * CONSTANT)


with_jvp.defjvp(lambda primals, tangents: (with_jvp(*primals), tangents[0]))


@jax.custom_vjp
def with_vjp(x):
    return jnp.sin(x * CONSTANT)


with_vjp.defvjp(lambda x: (with_vjp(x), None), lambda _, g: (g,))


def sine(x):
    return jnp.sin(x * CONSTANT)


@pytest.mark.parametrize(
    ("function", "name", "number"),
    [
        (jax.jit(sine), "jit", 1),
        (jax.checkpoint(sine), "remat2", 1),
        (lambda x: jax.lax.scan(lambda c, _: (sine(c), None), x, length=2)[0], "scan", 1),
        (lambda x: jax.lax.while_loop(lambda c: c[0] < 1, sine, x), "while", 2),
        (lambda x: jax.lax.cond(x[0] > 1, sine, lambda y: y, x), "cond", 2),
        (lambda x: jax.lax.switch(x[0].astype(int), [sine, sine, jnp.cos], x), "cond", 3),
        (with_jvp, "custom_jvp_call", 1),
        (with_vjp, "custom_vjp_call", 1),
        (
            jax.shard_map(sine, mesh=MESH, in_specs=PartitionSpec(), out_specs=PartitionSpec()),
            "shard_map",
            1,
        ),
    ],
)
def test_bodies_of(function, name, number):
    jaxpr = jax.make_jaxpr(function)(X[0])
    equation = jaxpr.jaxpr.eqns[-1]
    assert equation.primitive.name == name
    bodies = bodies_of(equation)
    assert len(bodies) == number
    for body in bodies:
        assert len(body.consts) == len(body.jaxpr.constvars)
    assert "sin" in primitive_names(jaxpr.jaxpr)
    if name in ("jit", "remat2"):
        computed = jaxpr_as_fun(body_of(equation))(*(X[0], CONSTANT)[: len(equation.invars)])
        np.testing.assert_allclose(computed[0], jnp.sin(X[0] * CONSTANT), rtol=1e-6)
