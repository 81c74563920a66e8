"""Inside ``shard_map``: each example's gradient stays on its device until it is clipped."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers.gradient_oracle import clipped_sum_by_hand
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

from dpjax import clipped_grad
from dpjax.gradients.shard_map import as_varying, varying_axes

pytestmark = pytest.mark.usefixtures("strict_numerics")

BATCH = jax.random.normal(jax.random.key(0), (8, 3))
PARAMS = {"w": jax.random.normal(jax.random.key(1), (3, 2)), "b": jnp.ones(2)}
MASK = np.array([True, True, False, True, True, True, False, True])


def loss(params, x):
    return jnp.sum(jax.nn.softplus(x @ params["w"] + params["b"]) ** 2)


def mesh(*shape):
    names = ("data", "model")[: len(shape)]
    return jax.make_mesh(shape, names, axis_types=(AxisType.Auto,) * len(shape))


def over_devices(devices, check_vma=True, **options):
    """The sum over all devices of what each made of its part of the batch, and all norms."""

    def local(params, batch, mask):
        clipped_sum, info = clipped_grad(loss, 0.5, **options)(params, batch, mask)
        return jax.lax.psum(clipped_sum, "data"), info.norms

    return jax.jit(
        jax.shard_map(
            local,
            mesh=devices,
            in_specs=(P(), P("data"), P("data")),
            out_specs=(P(), P("data")),
            check_vma=check_vma,
        )
    )


@pytest.mark.parametrize("check_vma", [True, False])
@pytest.mark.parametrize("options", [{"method": "vmap"}, {}, {"microbatch_size": 1}], ids=str)
@pytest.mark.parametrize("shape", [(4,), (2, 2)], ids=str)
def test_sum_over_devices(shape, options, check_vma):
    clipped_sum, norms = over_devices(mesh(*shape), check_vma, **options)(PARAMS, BATCH, MASK)
    expected, expected_norms, _ = clipped_sum_by_hand(loss, 0.5, PARAMS, BATCH, MASK)
    np.testing.assert_allclose(norms, expected_norms, rtol=1e-5)
    for name in PARAMS:
        np.testing.assert_allclose(clipped_sum[name], expected[name], rtol=1e-5, atol=1e-6)


def test_convolutions():
    """They take a route of their own where an example is not finite."""

    def loss(kernel, x):
        return jnp.sum(jnp.convolve(x, kernel) ** 2)

    compute = clipped_grad(loss, 0.5)
    local = jax.shard_map(
        lambda kernel, x: jax.lax.psum(compute(kernel, x, None)[0], "data"),
        mesh=mesh(4),
        in_specs=(P(), P("data")),
        out_specs=P(),
    )
    expected, _, _ = clipped_sum_by_hand(loss, 0.5, jnp.ones(2), BATCH)
    np.testing.assert_allclose(jax.jit(local)(jnp.ones(2), BATCH), expected, rtol=1e-5)


def test_power_gradients_of_replicated_parameters():
    """The power of the test above: autodiff sums a replicated parameter's gradient by itself."""

    def local(params, x):
        grads = jax.vmap(jax.grad(loss), (None, 0))(params, x)
        return jnp.sqrt(sum(jnp.sum(g**2, tuple(range(1, g.ndim))) for g in grads.values()))

    compute = jax.shard_map(local, mesh=mesh(4), in_specs=(P(), P("data")), out_specs=P("data"))
    _, expected, _ = clipped_sum_by_hand(loss, 0.5, PARAMS, BATCH)
    assert not np.allclose(jax.jit(compute)(PARAMS, BATCH), expected, rtol=0.1)


def test_replicated_batches():
    """Then nothing differs between devices, and the output may say so."""
    compute = jax.shard_map(
        lambda p, x: clipped_grad(loss, 0.5, microbatch_size=3)(p, x, None)[0],
        mesh=mesh(2),
        in_specs=(P(), P()),
        out_specs=P(),
    )
    expected, _, _ = clipped_sum_by_hand(loss, 0.5, PARAMS, BATCH)
    np.testing.assert_allclose(jax.jit(compute)(PARAMS, BATCH)["w"], expected["w"], rtol=1e-5)


def test_examples_in_a_closure_refused():
    """They differ between devices, but nothing that is passed in says so."""

    def local(params, x):
        indexed = clipped_grad(lambda params, i: loss(params, x[i]), 0.5)
        return jax.lax.psum(indexed(params, jnp.arange(2), None)[0], "data")

    compute = jax.shard_map(local, mesh=mesh(4), in_specs=(P(), P("data")), out_specs=P())
    with pytest.raises(
        ValueError, match=r"(?s)its gradient, calls .*psum.* batch, not in a closure"
    ):
        compute(PARAMS, BATCH)


@pytest.mark.slow
def test_varying_axes():
    seen = []

    def local(same, row, cell):
        seen.append([varying_axes(tree) for tree in (same, row, (row, {"x": cell}), 1.0, None)])
        varied = as_varying({"same": same, "row": row}, frozenset({"data", "model"}))
        seen.append([varying_axes(varied[name]) for name in ("same", "row")])
        return varied["row"] + varied["same"]

    specs = (P(), P("data"), P("data", "model"))
    compute = jax.shard_map(local, mesh=mesh(2, 2), in_specs=specs, out_specs=P(("data", "model")))
    compute(jnp.ones(1), jnp.ones(2), jnp.ones((2, 2)))
    both = {"data", "model"}
    assert seen == [[set(), {"data"}, both, set(), set()], [both, both]]


def test_varying_axes_outside_of_shard_map():
    assert varying_axes((PARAMS, BATCH, 1.0)) == frozenset()
    assert as_varying(PARAMS, frozenset())["w"] is PARAMS["w"]


@pytest.mark.parametrize("method", ["vmap", "bookkeeping"])
@pytest.mark.parametrize("jit", [False, True], ids=["", "jit"])
@pytest.mark.parametrize("name", ["params", "batch", "mask"])
def test_explicit_axes_refused(name, jit, method):
    """The default of `jax.make_mesh`; the remedy that the error names is accepted."""

    def compute(*axis_types):
        mesh = jax.make_mesh((4,), ("data",), *axis_types)
        arrays = {"params": jnp.ones(4), "batch": jnp.eye(4), "mask": jnp.ones(4, bool)}
        arrays[name] = jax.device_put(arrays[name], jax.NamedSharding(mesh, P("data")))
        function = clipped_grad(lambda w, x: jnp.sum(w * x), 1.0, method=method)
        return (jax.jit(function) if jit else function)(*arrays.values())[0]

    words = rf"^{name} must not be split over explicit mesh axes, .*AxisType\.Auto"
    with pytest.raises(ValueError, match=words):
        compute()
    np.testing.assert_allclose(compute((AxisType.Auto,)), np.ones(4), rtol=1e-3)
