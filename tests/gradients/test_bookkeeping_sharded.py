"""Bookkeeping with the batch split over devices, against the reference on one."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers.bookkeeping_checks import assert_same, bookkeeping, fast_jit
from helpers.zoo import BATCH, build
from jax.sharding import AxisType, PartitionSpec

from dpjax.gradients import ClippedGradInfo
from dpjax.gradients._clipped_grad import sum_by_vmap

EVERYWHERE, SPLIT = PartitionSpec(), PartitionSpec("data")


def sharded(compute):
    """Each device's examples, then the sum over the devices."""

    def part(params, batch, mask):
        summed, info = compute(params, batch, mask)
        count = jax.lax.psum(info.num_nonfinite, "data")
        return jax.lax.psum(summed, "data"), info._replace(num_nonfinite=count)

    mesh = jax.make_mesh((2,), ("data",), axis_types=(AxisType.Auto,))
    outputs = (EVERYWHERE, ClippedGradInfo(SPLIT, SPLIT, EVERYWHERE))
    inputs = (EVERYWHERE, SPLIT, SPLIT)
    return fast_jit(jax.shard_map(part, mesh=mesh, in_specs=inputs, out_specs=outputs))


NAMES = [
    "embedding",
    "image_network",
    "scan_over_steps",
    "same_layer_on_tokens",
    "tied_embedding",
    "two_branches",
    "stacked_layers",
    "remat_layers",
]


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_agrees_when_split_over_devices(name):
    case, mask = build(name, jnp.float32), np.arange(BATCH) != 1
    found = sharded(bookkeeping(case.loss, 0.8))(case.params, case.batch, mask)
    reference = fast_jit(sum_by_vmap, static_argnums=0)
    assert_same(found, reference(case.loss, 0.8, case.params, case.batch, mask), 1e-5)
