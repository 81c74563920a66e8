"""Functions that mark, in a traced program, what a sampler drew."""

import jax


@jax.jit
def batch_of_draw(indices: jax.Array, mask: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Returns indices and mask of a batch.

    In a traced program it marks for `dpjax.audit.check_program`, which does not analyse samplers,
    that no index with a mask of True is there twice.
    """
    return indices, mask
