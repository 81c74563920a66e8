"""Memory of compiled clipped sums beside that of the plain gradient."""

import jax
import jax.numpy as jnp
import pytest
from bookkeeping_checks import bookkeeping, routes_of

LAYERS, WIDTH, TOKENS, BATCH = 6, 128, 16, 32


def stack(remat):
    """A residual network of stacked layers."""

    def layer(h, w):
        return h + jnp.tanh(h @ w["up"] + w["b"]) @ w["down"], None

    def loss(p, x):
        return jnp.mean(jax.lax.scan(jax.checkpoint(layer) if remat else layer, x, p)[0] ** 2)

    shapes = {"up": (WIDTH, 2 * WIDTH), "b": (2 * WIDTH,), "down": (2 * WIDTH, WIDTH)}
    return loss, {name: jnp.zeros((LAYERS, *shape)) for name, shape in shapes.items()}


def memory(compute, *args):
    """Bytes of temporary arrays."""
    return jax.jit(compute).lower(*args).compile().memory_analysis().temp_size_in_bytes


@pytest.mark.parametrize(("remat", "at_most"), [(False, 2.0), (True, 1.3)])
def test_a_stack_takes_the_memory_of_the_plain_gradient(remat, at_most):
    loss, params = stack(remat)
    batch = jnp.zeros((BATCH, TOKENS, WIDTH))
    assert "vmap" not in routes_of(loss, params, batch).values()

    def plain(params, batch):
        return jax.grad(lambda p: jnp.mean(jax.vmap(loss, (None, 0))(p, batch)))(params)

    expected = memory(plain, params, batch)
    assert (
        memory(lambda *args: bookkeeping(loss, 1.0)(*args)[0], params, batch) < at_most * expected
    )
    by_vmap = memory(lambda *args: bookkeeping(loss, 1.0, method="vmap")(*args)[0], params, batch)
    assert by_vmap > 4 * expected  # what is left when gradients are instantiated
