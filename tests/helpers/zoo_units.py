"""Losses of units of records and of several views, around networks of other parts of the zoo."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from dpjax.gradients import UnitRecords, augmented_loss, unit_loss
from helpers import zoo_convolutions, zoo_networks
from helpers.zoo_case import BATCH, Case, Draw

RECORDS = 3
MASK = np.array([[1, 1, 1], [1, 0, 1], [0, 0, 1], [0, 1, 0]], bool)


def _units_of(case: Case, reduction: str) -> Any:
    """Units of the records of a case, each with the others' as well."""
    turned = [jax.tree.map(lambda x, n=n: np.roll(x, n, 0), case.batch) for n in range(RECORDS)]
    records = jax.tree.map(lambda *each: np.stack(each, 1), *turned)
    assert MASK.shape == (BATCH, RECORDS)
    return Case(unit_loss(case.loss, reduction=reduction), case.params, UnitRecords(records, MASK))


def units_of_images(draw: Draw) -> Case:
    return _units_of(zoo_convolutions.image_network(draw), "mean")


def units_of_texts(draw: Draw) -> Case:
    return _units_of(zoo_networks.transformer(draw), "sum")


def shifted_views(draw: Draw) -> Case:
    case, keys = zoo_networks.linen(draw), draw.keys()

    def shift(key, image):
        return jnp.roll(image, jax.random.randint(key, (), 0, 4), 0)

    views = augmented_loss(case.loss, shift, 2)
    return Case(lambda p, example: views(p, *example), case.params, (case.batch, keys))
