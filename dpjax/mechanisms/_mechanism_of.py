"""The mechanism of an optax optimiser with dpjax noise, from its state."""

from typing import Any

import optax

from dpjax._checks import as_count, check, check_type
from dpjax.adjacency import Adjacency
from dpjax.mechanisms.subsampled_gaussian import NoiseSchedule, SubsampledGaussian
from dpjax.sampling.base import Sampling
from dpjax.transforms import PrivateTransformation
from dpjax.transforms.inspect_state import find_noise, optimizer_state
from dpjax.transforms.noise import NoiseDescription


def mechanism_of(
    optimizer: Any,
    *,
    sampling: Sampling,
    num_steps: int | None = None,
    adjacency: Adjacency,
    unit: str = "one record",
) -> SubsampledGaussian:
    """Returns the mechanism of an optax optimiser with dpjax noise, from its state.

    For training loops of one's own: clip bound, noise and number of releases come from the static
    description in the state, so they are not typed twice.

    Args:
      optimizer: the state of an optax optimiser (as ``init`` or ``update`` returned it), an
        ``nnx.Optimizer`` or a ``TrainState`` of flax, of which ``opt_state`` is read, or what
        `add_gaussian_noise`, `noisy_sgd`, `noisy_adam` or `differentially_private_aggregate`
        returned.
      sampling: how the batch of one release is drawn; under ``optax.MultiSteps`` all micro-batches
        of an accumulated step together, with each record in at most one of them. Where the noise is
        ``SubsampledGaussian.noise``, that of the mechanism.
      num_steps: how many noisy sums are released, under ``optax.MultiSteps`` the accumulated steps.
        Left out, those that the state has counted so far.
      adjacency: the neighbouring relation; there is no default.
      unit: the unit of privacy, for example ``"one record"``.

    Privacy:
      Read from the state, and refused where it is not so: there is one noise transformation, it
      covers all parameters that the optimiser updates, and nothing but `clip_per_example`, with the
      same bound, acts before it. ``optax.chain``, ``named_chain``, ``inject_hyperparams``,
      ``masked``, ``partition`` and ``MultiSteps`` (of clipped sums) may be around it; any other
      wrapper is refused: ``apply_if_finite`` leaves the noise out where the private gradients are
      not finite, and under ``contrib.sam`` gradients are taken at parameters moved by private ones.
      What acts after the noise is post-processing. Groups of ``partition`` that each have their own
      noise are one release of the equivalent noise multiplier 1 / sqrt(sum of 1 / multiplier^2).
      Where ``MultiSteps`` averages k clipped sums, the sensitivity is a k-th of the bound and the
      mechanism an upper bound of what is spent.

      Not in a state, and so left to the caller: that batches are drawn by ``sampling``; where the
      chain does not clip, that its input is a sum of examples clipped to ``l2_clip``; that the
      updates are this optimiser's output and nothing else; that no private value (a loss) is passed
      as an extra argument of ``update``; and that a custom transformation does not change the input
      of a wrapped noise.

    Raises:
      ValueError: if the state is not as above, if clip bound or noise multiplier are JAX arrays,
        which ``optax.inject_hyperparams`` may change while running, if fewer ``num_steps`` are
        given than were released, or if the sum is divided by the drawn batch's length although the
        sampler draws it at random.

    >>> import jax, jax.numpy as jnp, optax
    >>> from dpjax.sampling import PoissonSampling
    >>> from dpjax.transforms import add_gaussian_noise, clip_per_example
    >>> from dpjax.transforms import differentially_private_aggregate
    >>> key, sampling = jax.random.key(0), PoissonSampling(1000, 0.1)
    >>> noise = add_gaussian_noise(noise_multiplier=1.1, l2_clip=1.0, key=key)
    >>> state = optax.chain(clip_per_example(1.0), noise, optax.adam(1e-3)).init(jnp.zeros(3))
    >>> mechanism = mechanism_of(state, sampling=sampling, num_steps=5, adjacency="add_remove")
    >>> mechanism.l2_clip, mechanism.noise_multiplier, mechanism.num_steps
    (1.0, 1.1, 5)
    >>> aggregate = differentially_private_aggregate(1.0, 1.1, key=0)
    >>> mechanism_of(aggregate, sampling=sampling, num_steps=5, adjacency="add_remove")
    Traceback (most recent call last):
    ValueError: optimizer divides by the length of the drawn batch, which is private under ...
    """
    check_type("sampling", sampling, Sampling, "a sampler such as PoissonSampling")
    if isinstance(optimizer, PrivateTransformation):
        description, done = optimizer.description, None
    elif isinstance(optimizer, optax.GradientTransformation | optax.MultiSteps):
        raise ValueError(
            "optimizer must be a state where dpjax's transformations are wrapped: pass the state"
            f" as optimizer.update returned it last, got {type(optimizer).__name__}"
        )
    else:
        noise = find_noise(optimizer_state(optimizer))
        description, done = noise.description, noise.num_releases
    _check_readable(description, sampling)
    assert description.l2_clip is not None

    # What is known of a mechanism's noise.
    schedule = description.noise_multiplier
    if isinstance(schedule, NoiseSchedule):
        allowed = f"that of the mechanism whose noise it is, {schedule.sampling}"
        # The size of physical batches, which costs memory alone, may differ. One step's event does
        # not tell shuffled epochs of different batch sizes apart: that of all steps does.
        given, planned = (
            (type(s), s.num_examples, s.expected_batch_size, s.event([(1.0, schedule.num_steps)]))
            for s in (sampling, schedule.sampling)
        )
        check(given == planned, "sampling", sampling, allowed)
        if done is not None and done > schedule.num_steps:
            raise ValueError(
                f"optimizer has made {done} releases, but its noise was planned for"
                f" {schedule.num_steps}: in the others it is NaN, and so are the parameters. The"
                " certificate of the planned ones is the mechanism's own"
            )

    num_steps = _num_releases(num_steps, done)
    noise_multiplier = _evaluate(description.noise_multiplier, num_steps)
    return SubsampledGaussian(
        sampling,
        l2_clip=description.l2_clip,
        noise_multiplier=noise_multiplier,
        num_steps=num_steps,
        adjacency=adjacency,
        unit=unit,
        correlation=description.correlation,
    )


def _evaluate(noise_multiplier: Any, num_steps: int) -> float | tuple[float, ...]:
    """The noise multiplier of all steps, or one for each where a schedule gives it."""
    if not callable(noise_multiplier):
        return noise_multiplier
    if isinstance(noise_multiplier, NoiseSchedule):
        planned = noise_multiplier.num_steps
        check(num_steps <= planned, "num_steps", num_steps, f"at most the {planned} planned")
        multipliers = noise_multiplier.noise_multiplier
        return multipliers[:num_steps] if isinstance(multipliers, tuple) else multipliers
    return tuple(float(noise_multiplier(step)) for step in range(num_steps))


def _num_releases(num_steps: int | None, done: int | None) -> int:
    if num_steps is None:
        if not done:
            raise ValueError(
                "num_steps must be given for an optimizer whose state counts no release yet"
            )
        return done
    num_steps = as_count("num_steps", num_steps)
    if done is not None:
        check(num_steps >= done, "num_steps", num_steps, f"at least the {done} releases made")
    return num_steps


def _check_readable(description: NoiseDescription, sampling: Sampling) -> None:
    for name in ("l2_clip", "noise_multiplier"):
        if getattr(description, name) is None:
            raise ValueError(
                f"optimizer must have a Python number (or schedule) as {name}, got a JAX array,"
                " which can change while running, as optax.inject_hyperparams does: list"
                f" {name} in its static_args, or pass a schedule to the noise itself"
            )
    if description.divisor == "batch length" and not sampling.has_public_batch_size:
        raise ValueError(
            "optimizer divides by the length of the drawn batch, which is private under"
            f" {type(sampling).__name__}: use noisy_sgd, which divides by the expected size, or a"
            " sampler with batches of one fixed size"
        )
