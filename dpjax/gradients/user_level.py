"""Losses of units of several records: all records of a user, or several views of an example.

The gradient of such a loss is one unit's, and clipping it protects the unit as a whole. It may take
the place of a loss of one record everywhere. Batch axis, mask, sampling rate, clip bound and
adjacency are then those of units.
"""

import hashlib
from collections.abc import Callable
from numbers import Integral
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt

from dpjax._checks import (
    as_key,
    batch_length,
    check,
    check_choice,
    check_count,
    check_function,
    check_unmasked,
)
from dpjax._typing import ArrayTree, LossFn, Params, PRNGKey, PyTree
from dpjax.gradients.loss_checks import split_params, with_keys


class UnitRecords(NamedTuple):
    """The records of one unit, or with a further leading axis those of several units.

    Attributes:
      records: a tree of arrays with an axis of ``max_records``, some of whose entries are padding.
      mask: which entries are records, bool ``(max_records,)``.
    """

    records: PyTree
    mask: jax.Array | np.ndarray


def unit_loss(loss_fn: LossFn, *, reduction: Literal["mean", "sum"] = "mean") -> LossFn:
    """Returns the loss of a unit of records, so that the gradient of all of them is clipped once.

    Args:
      loss_fn: ``loss_fn(params, record) -> scalar``, or ``loss_fn(params, record, key)``.
      reduction: ``"mean"`` or ``"sum"`` of the losses of the unit's records.

    Returns:
      ``loss(params, unit)`` of a `UnitRecords`, or ``loss(params, unit, key)``, where record i has
      the key ``fold_in(key, i)``. The loss and the gradient of a unit without records are zero.
      Padding has no influence, whatever it holds.

    Privacy:
      Records of a unit, and their number, affect its own gradient alone: one unit moves a clipped
      sum by at most the clip bound, whatever its records are. Nothing is released here.

    Raises:
      ValueError: another reduction, or (when called) an example that is not a `UnitRecords`.

    Source: McMahan, Ramage, Talwar, Zhang (2018), "Learning differentially private recurrent
    language models", for the privacy of users.

    >>> from dpjax.gradients import clipped_grad
    >>> loss = unit_loss(lambda w, x: 0.5 * jnp.sum((w - x) ** 2))
    >>> users = UnitRecords(
    ...     jnp.array([[[4.0], [2.0]], [[1.0], [jnp.nan]]]),
    ...     jnp.array([[True, True], [True, False]]),
    ... )
    >>> clipped_sum, info = clipped_grad(loss, l2_clip=10.0)(jnp.zeros(1), users, None)
    >>> info.norms.tolist()
    [3.0, 1.0]
    """
    check_function("loss_fn", loss_fn)
    check_choice("reduction", reduction, ("mean", "sum"))

    def loss(params: Params, unit: UnitRecords, *key: PRNGKey) -> jax.Array:
        check(isinstance(unit, UnitRecords), "example", unit, "a UnitRecords")
        # Padding could have a loss whose gradient is NaN, and 0 * NaN is NaN.
        source = jnp.where(unit.mask, jnp.arange(len(unit.mask)), jnp.argmax(unit.mask))
        records = jax.tree.map(lambda leaf: jnp.asarray(leaf)[source], unit.records)
        loss_input, trained, constants = split_params(params, None, keyed=bool(key))
        batch = with_keys(records, key[0], len(unit.mask)) if key else records
        each = jax.vmap(loss_input.bind(loss_fn, constants), (None, 0))(trained, batch)
        losses = jnp.where(unit.mask, each, 0)
        divisor = jnp.maximum(jnp.sum(unit.mask), 1) if reduction == "mean" else 1
        return jnp.sum(losses) / divisor

    return loss


def augmented_loss(
    loss_fn: LossFn,
    augment: Callable[[PRNGKey, PyTree], PyTree],
    num_views: int,
    *,
    loss_takes_key: bool = False,
) -> LossFn:
    """Returns the mean loss of several random views of one example (augmentation multiplicity).

    Args:
      loss_fn: ``loss_fn(params, view) -> scalar``, or ``loss_fn(params, view, key)`` with
        ``loss_takes_key``.
      augment: ``augment(key, example) -> view``, of one shape.
      num_views: views of each example in each step.
      loss_takes_key: whether the loss draws random numbers from a key, another one for each view.

    Returns:
      ``loss(params, example, key)``: for `clipped_grad` with a key, and for `train` and
      `private_step` with their own ``loss_takes_key``, which gives every step and example another
      key.

    Privacy:
      The views' gradients are averaged before the average is clipped, so they are one example's
      contribution: the guarantee is the same for any number of views.

    Raises:
      ValueError: ``num_views`` below one.

    Source: De, Berrada, Hayes, Smith, Balle (2022), "Unlocking high-accuracy differentially private
    image classification through scale", Section 3.

    >>> from dpjax.gradients import clipped_grad
    >>> loss = augmented_loss(
    ...     lambda w, x: jnp.sum(w * x),
    ...     lambda key, x: jnp.where(jax.random.bernoulli(key), x, -x),
    ...     num_views=16,
    ... )
    >>> gradient = clipped_grad(loss, l2_clip=10.0)
    >>> _, info = gradient(jnp.zeros(2), jnp.ones((1, 2)), None, key=jax.random.key(0))
    >>> bool(info.norms[0] < 1)
    True
    """
    check_function("augment", augment, "key", "example")
    check_count("num_views", num_views)
    loss_of_views = unit_loss(loss_fn)

    def loss(params: Params, example: PyTree, key: PRNGKey) -> jax.Array:
        view_key, loss_key = jax.random.split(as_key(key))
        views = jax.vmap(augment, (0, None))(jax.random.split(view_key, num_views), example)
        unit = UnitRecords(views, jnp.ones(num_views, bool))
        return loss_of_views(params, unit, *([loss_key] if loss_takes_key else []))

    return loss


def group_by_unit(
    key: PRNGKey, records: ArrayTree, unit_ids: npt.ArrayLike, *, max_records: int
) -> UnitRecords:
    """Collects the records of each unit, at most ``max_records`` of them, chosen at random.

    Args:
      key: with which the records that are kept are chosen.
      records: a tree of arrays with a leading axis of all records.
      unit_ids: the unit of each record: integers, strings or floats, ``(num_records,)``.
      max_records: the most records of one unit; a public number.

    Returns:
      NumPy arrays with a leading axis of units, in the order of their ids, and then one of
      ``max_records``; padding is zero. Memory is that of ``max_records`` records for every unit.

    Privacy:
      Which records of a unit are kept depends on the key, its identifier and its own records alone,
      so one unit changes one entry of the result, for any key. Nothing is released; the number of
      units is as private as that of records without units.

    Raises:
      ValueError: ``unit_ids`` of another length, of several or other types or with missing values
        (NaN, None), no records, or ``max_records`` below one.

    >>> users = group_by_unit(
    ...     jax.random.key(0), np.arange(4.0), ["b", "a", "b", "b"], max_records=2
    ... )
    >>> users.mask.tolist(), float(users.records[0, 0])
    ([[True, False], [True, True]], 1.0)
    """
    check_count("max_records", max_records)
    size, ids = batch_length(records, "records"), _as_identifiers(unit_ids)
    check(ids.shape == (size,), "unit_ids", ids.shape, f"of shape ({size},), one for each record")
    check(size > 0, "records", size, "at least one record")

    # The position of each record among those of its unit, in the order given.
    units, unit_of_record = np.unique(ids, return_inverse=True)
    order = np.argsort(unit_of_record, kind="stable")
    unit = unit_of_record[order]
    position = np.arange(size) - np.searchsorted(unit, unit)

    # Random numbers from a key of each unit and the position; those of a unit in their order.
    unit_keys = _unit_keys(as_key(key), units)
    drawn = jax.vmap(jax.random.fold_in)(unit_keys[unit], position.astype(np.uint32))
    high, low = np.asarray(jax.random.key_data(drawn)).T
    order = order[np.lexsort((low, high, unit))]

    # The first ``max_records`` of each unit are kept.
    first = position < max_records
    order, unit, position = order[first], unit[first], position[first]

    def place(leaf: npt.ArrayLike) -> np.ndarray:
        array = np.asarray(leaf)
        placed = np.zeros((len(units), max_records, *array.shape[1:]), array.dtype)
        placed[unit, position] = array[order]
        return placed

    return UnitRecords(jax.tree.map(place, records), place(np.ones(size, bool)))


def _as_identifiers(unit_ids: npt.ArrayLike) -> np.ndarray:
    """Identifiers as an array; raises ValueError for those that are missing or of several types.

    numpy would turn integers beside strings into strings, and large ones beside negative ones into
    floats, so that the identifiers of one unit would depend on those of others.
    """
    check_unmasked("unit_ids", unit_ids)
    ids = np.asarray(unit_ids, object if isinstance(unit_ids, list | tuple) else None)
    types = set(map(type, ids.flat)) if ids.dtype == object else {ids.dtype.type}
    families = ((Integral,), (str,), (float, np.floating))
    of_one_family = any(all(issubclass(t, family) for t in types) for family in families)
    if not of_one_family or np.any(ids != ids):
        names = ", ".join(sorted(t.__name__ for t in types))
        raise ValueError(
            "unit_ids must be integers, strings or floats, all of one type and none of them"
            f" missing (NaN, None), got {names}{' with NaN' if of_one_family else ''}"
        )
    return ids


def _unit_keys(key: PRNGKey, units: np.ndarray) -> jax.Array:
    """A key for each unit: its identifier's hash, the same for all dtypes, keyed by ``key``."""
    secret = np.asarray(jax.random.key_data(key)).tobytes()
    digests = bytearray()
    for unit in units.tolist():
        # 3.0 as 3: with the records of another unit a file's column may be read as floats.
        if not isinstance(unit, str):
            unit = int(unit) if unit == unit // 1 else float(unit)
        text = str(unit).encode("utf-8", "surrogatepass")
        digests += hashlib.blake2b(text, digest_size=8, key=secret).digest()
    words = np.frombuffer(bytes(digests), "<u4").reshape(-1, 2)
    return jax.random.wrap_key_data(jnp.asarray(words, jnp.uint32), impl="threefry2x32")
