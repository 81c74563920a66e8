"""Per-example clipping and summation as an optax transformation."""

import dataclasses
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import optax

from dpjax._checks import as_mask, batch_length, check
from dpjax._typing import ClipBound
from dpjax.gradients.clip_bound import total_l2_clip
from dpjax.gradients.clip_rules import AdaptiveClip
from dpjax.gradients.clipping import clip_and_sum
from dpjax.transforms.noise import check_description, static_bounds


@jax.tree_util.register_static
@dataclass(frozen=True)
class ClipPerExampleState:
    """State of `clip_per_example`: its clip bound, read by `dpjax.mechanism_of`; no arrays.

    Attributes:
      l2_clip: the bound (or per-layer bounds); ``None`` if it is a JAX array, which
        ``optax.inject_hyperparams`` may change between two updates.
    """

    l2_clip: ClipBound | None = dataclasses.field(hash=False)


def clip_per_example(l2_clip: ClipBound) -> optax.GradientTransformationExtraArgs:
    """Clips each example's gradient to ``l2_clip`` and returns their **sum**.

    Args:
      l2_clip: a number (flat L2 over the whole tree) or a prefix tree of numbers (per-layer);
        `AutomaticClip` or `PSACClip` may stand for a number. A bound that adapts needs what is
        released: see `noisy_sgd`.

    Returns:
      An optax transformation whose updates are per-example gradients, every leaf with a leading
      axis of one length B (as ``jax.vmap(jax.grad(loss), (None, 0))`` gives), and whose result has
      that axis summed out. First in its chain. Its ``update`` needs the keyword ``mask``: bool
      ``(B,)``, False for slots that hold no record (``mask`` of a sampler's batch), or ``None``
      where every slot has one. Such slots and examples that are not finite contribute zero; B = 0
      gives zeros. Where ``params`` is passed the shapes are checked against it. Leaves keep their
      dtype, except that half precision comes back as float32: rounding a sum before the noise
      would add to its sensitivity.

    Privacy:
      One example moves the sum by at most the total clip bound in L2. Nothing is released:
      `add_gaussian_noise` follows. Slots of padding repeat a record, which would move the sum by
      many clip bounds: that is why ``mask`` has no default.

    Raises:
      ValueError: a clip bound that is not above zero; in ``update`` gradients of other shapes than
        ``params``, or a mask of another length.
      TypeError: ``update`` without ``mask``.

    >>> clip = clip_per_example(1.0)
    >>> grads = {"w": jnp.array([[3.0, 4.0], [0.3, 0.4]])}
    >>> summed, _ = clip.update(grads, clip.init(None), mask=None)
    >>> [round(value, 6) for value in summed["w"].tolist()]
    [0.9, 1.2]
    >>> summed, _ = clip.update(grads, clip.init(None), mask=jnp.array([False, True]))
    >>> [round(value, 6) for value in summed["w"].tolist()]
    [0.3, 0.4]
    """
    total_l2_clip(l2_clip)
    check(
        not isinstance(l2_clip, AdaptiveClip),
        "l2_clip",
        l2_clip,
        "a number or a rule without a state; a bound that adapts is an argument of noisy_sgd,"
        " noisy_adam, SubsampledGaussian and clipped_grad",
    )
    own_state = ClipPerExampleState(static_bounds(l2_clip))

    def init(params: optax.Params) -> ClipPerExampleState:
        del params
        return own_state

    def update(
        updates: optax.Updates,
        state: ClipPerExampleState,
        params: optax.Params | None = None,
        **extra_args: Any,
    ) -> tuple[optax.Updates, ClipPerExampleState]:
        check_description(state, own_state)
        check_per_example(updates, params)
        usable = mask_argument(updates, extra_args)
        return clip_and_sum(updates, l2_clip, usable)[0], state

    return optax.GradientTransformationExtraArgs(init, update)


def check_per_example(updates: optax.Updates, params: optax.Params | None) -> None:
    """Raises ValueError unless ``updates`` are per-example gradients of ``params`` (if given)."""
    batch_length(updates, "updates")
    if params is None:
        return
    shapes = [jnp.shape(leaf) for leaf in jax.tree.leaves(updates)]
    expected = [jnp.shape(leaf) for leaf in jax.tree.leaves(params)]
    if [shape[1:] for shape in shapes] != expected:
        raise ValueError(
            "updates must be per-example gradients, every leaf with a leading example axis before"
            f" the parameters' own shapes {expected}, got {shapes}. Inside optax.MultiSteps they"
            " have been added up: clip first, optax.chain(clip_per_example(...),"
            " optax.MultiSteps(...))"
        )


def mask_argument(updates: optax.Updates, extra_args: dict[str, Any]) -> jax.Array:
    """Returns the keyword ``mask`` of an update of per-example gradients, bool ``(B,)``."""
    if "mask" not in extra_args:
        raise TypeError(
            "update needs the keyword mask: mask=batch.mask of a sampler's batch, whose padding"
            " repeats records that must not be added up, or None where every slot has a record"
            " of its own. Where no keyword can be passed, sums of dpjax.clipped_grad need no"
            " clip_per_example"
        )
    return jnp.asarray(as_mask(extra_args["mask"], (batch_length(updates, "updates"),)))
