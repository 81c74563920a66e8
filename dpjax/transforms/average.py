"""Exponential moving average of the parameters as an optax transformation."""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

from dpjax._checks import check_rate


class ParamsEmaState(NamedTuple):
    """State of `params_ema`.

    Attributes:
      num_updates: updates so far, int32.
      average: the average of the parameters after these updates, shaped like the parameters and at
        least float32; the initial parameters before the first update.
    """

    num_updates: jax.Array
    average: optax.Params


def params_ema(decay: float) -> optax.GradientTransformation:
    """Exponential moving average (EMA) of the parameters, bias-corrected, for an optax chain.

    After t updates the average of the parameters p_1, ..., p_t has the weights
    ``decay**(t - i) * (1 - decay) / (1 - decay**t)``, as `optax.ema` has of updates: they add up to
    one, and the initial parameters have none.

    Args:
      decay: the weight of the average before an update, over those of all steps: in (0, 1]. The
        average is over about ``1 / (1 - decay)`` steps; with 1 over all of them, equally.

    Returns:
      An optax transformation, **last** in the chain of an optimiser, which returns its updates
      unchanged: ``optax.chain(optax.sgd(0.5), params_ema(0.99))``. Where that is the optimiser of
      `train`, the average is ``optax.tree.get(result.optimizer_state, "average")``, in a resumed
      run too. Its ``update`` needs ``params``.

    Privacy:
      Post-processing of released parameters, if what comes before it in the chain is: the average
      costs no privacy, and may be released beside the parameters.

    Raises:
      ValueError: ``decay`` outside of (0, 1], or ``update`` without ``params``.

    Source: De, Berrada, Hayes, Smith, Balle (2022), "Unlocking high-accuracy differentially private
    image classification through scale", Section 3; Polyak & Juditsky (1992) for ``decay = 1``.

    >>> optimizer = optax.chain(optax.sgd(1.0), params_ema(0.5))
    >>> params = jnp.float32(0.0)
    >>> state = optimizer.init(params)
    >>> for gradient in (-3.0, -3.0):
    ...     updates, state = optimizer.update(jnp.float32(gradient), state, params)
    ...     params = optax.apply_updates(params, updates)
    >>> float(params), float(optax.tree.get(state, "average"))  # (3 + 2 * 6) / 3
    (6.0, 5.0)
    """
    check_rate("decay", decay)
    decay = float(decay)

    def init(params: optax.Params) -> ParamsEmaState:
        average = jax.tree.map(_at_least_float32, params)
        return ParamsEmaState(jnp.int32(0), average)

    def update(
        updates: optax.Updates,
        state: ParamsEmaState,
        params: optax.Params | None = None,
    ) -> tuple[optax.Updates, ParamsEmaState]:
        if params is None:
            raise ValueError("params must be given to update, got None: their average is kept")
        moved = jax.tree.map(_at_least_float32, optax.apply_updates(params, updates))

        # The weight of the new parameters: 1 / (1 + decay + ... + decay**(t - 1)).
        num_updates = optax.safe_increment(state.num_updates)
        steps = num_updates.astype(jnp.float32)
        weight = 1 / steps if decay == 1 else (1 - decay) / -jnp.expm1(steps * math.log(decay))
        average = jax.tree.map(
            lambda new, old: old + weight.astype(old.dtype) * (new - old), moved, state.average
        )
        return updates, ParamsEmaState(num_updates, average)

    return optax.GradientTransformation(init, update)


def _at_least_float32(leaf: jax.Array) -> jax.Array:
    leaf = jnp.asarray(leaf)
    return leaf.astype(jnp.promote_types(leaf.dtype, jnp.float32))
