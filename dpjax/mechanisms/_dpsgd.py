"""DP-SGD from batch size, epochs or steps, and a privacy target."""

import math
from typing import Literal

from dpjax._checks import as_count, check, check_choice, check_delta, check_positive
from dpjax._typing import ClipBound
from dpjax.adjacency import Adjacency
from dpjax.mechanisms.epochs import Epochs
from dpjax.mechanisms.subsampled_gaussian import SubsampledGaussian
from dpjax.sampling.allocated import AllocatedSampling
from dpjax.sampling.poisson import PoissonSampling, TruncatedPoissonSampling


def dpsgd(
    *,
    num_examples: int,
    batch_size: int,
    epochs: float | None = None,
    num_steps: int | None = None,
    epsilon: float | None = None,
    delta: float | None = None,
    noise_multiplier: float | tuple[float, ...] | None = None,
    l2_clip: ClipBound = 1.0,
    adjacency: Adjacency,
    unit: str = "one record",
    sampler: Literal["poisson", "truncated", "allocated"] = "poisson",
) -> SubsampledGaussian:
    """Returns the mechanism of DP-SGD for a batch size, epochs or steps, and a privacy target.

    Batches are by default Poisson samples: each step draws every record with probability
    ``batch_size / num_examples``. There are ``num_steps`` steps, or
    ``epochs * num_examples / batch_size``, rounded up; the certificate then states batch size,
    epochs and this rounding (see `Epochs`). Either the noise is the least for ``epsilon`` at
    ``delta`` (see `calibrate`), or it is ``noise_multiplier``.

    Args:
      num_examples: number of records n.
      batch_size: expected number of records in a batch, whole, 1 to ``num_examples``; the divisor
        of noisy sums. Whole floats such as ``256.0`` are accepted.
      epochs: above zero; need not be whole.
      num_steps: instead of ``epochs``: number of steps, a whole number.
      epsilon: the target epsilon, finite and above zero; with ``delta``.
      delta: in (0, 1), of ``epsilon``; customarily well below ``1 / num_examples``.
      noise_multiplier: instead of ``epsilon``: noise standard deviation over the clip bound, a
        number or one for each step.
      l2_clip: bound on one example's gradient in L2: a number, or per-layer bounds.
      adjacency: ``"add_remove"``, ``"zero_out"`` or ``"replace_one"``; there is no default.
      unit: the unit of privacy, for example ``"one record"``.
      sampler: ``"poisson"`` for `PoissonSampling`; ``"truncated"`` for `TruncatedPoissonSampling`,
        each draw of which fits into one batch, for own loops, and whose largest batch is so large
        that the noise is the same; or ``"allocated"`` for `AllocatedSampling`, with each record in
        one step of each pass of ``num_examples / batch_size`` steps, rounded up, the mean of which
        is the divisor, and ``epochs`` that are such passes. Not under ``"replace_one"``.

    Privacy:
      Sampling rate, divisor and, of ``epochs``, the number of steps are computed from
      ``num_examples``, which is so public. Under ``"add_remove"`` the certificate states this, and
      that its guarantee is that of ``"zero_out"``, with the same epsilon. To keep the number of
      records private, build a `SubsampledGaussian` from constants that were chosen without it.

    Raises:
      ValueError: a number out of range or not whole, another ``sampler``, not exactly one of
        ``epochs`` and ``num_steps`` and one of ``epsilon`` and ``noise_multiplier``, or ``delta``
        without ``epsilon``.

    Source: Abadi et al. (2016), Algorithm 1.

    >>> mechanism = dpsgd(
    ...     num_examples=60_000, batch_size=256, epochs=1.5, epsilon=1.0, delta=1e-6,
    ...     adjacency="zero_out", unit="one image")
    >>> mechanism.num_steps, round(mechanism.noise_multiplier, 1)
    (352, 0.8)
    """
    # Exactly one way to set the steps, and one to set the noise.
    _check_one_given("the number of steps", epochs=epochs, num_steps=num_steps)
    _check_one_given("the noise", epsilon=epsilon, noise_multiplier=noise_multiplier)
    if epsilon is not None:
        check_positive("epsilon", epsilon)
        check(delta is not None, "delta", delta, "given with epsilon, such as 1e-6")
        check_delta(delta)
    else:
        check(delta is None, "delta", delta, "left out where noise_multiplier is given")

    # Sizes and steps; an epoch's are checked alike where steps are given.
    plan = Epochs(
        num_examples=num_examples, batch_size=batch_size, epochs=1 if epochs is None else epochs
    )
    steps = plan.num_steps if num_steps is None else as_count("num_steps", num_steps)

    # How batches are drawn; passes of random allocation are of whole steps.
    check_choice("sampler", sampler, ("poisson", "truncated", "allocated"))
    sampling: PoissonSampling | TruncatedPoissonSampling | AllocatedSampling
    if sampler == "allocated":
        steps_per_epoch = math.ceil(plan.num_examples / plan.batch_size)
        sampling = AllocatedSampling(plan.num_examples, steps_per_epoch=steps_per_epoch)
        steps = steps if epochs is None else math.ceil(epochs * steps_per_epoch)
    else:
        kind = TruncatedPoissonSampling if sampler == "truncated" else PoissonSampling
        divisor = float(plan.batch_size)
        sampling = kind(plan.num_examples, plan.sampling_rate, expected_batch_size=divisor)

    # The mechanism, at a noise that calibration scales.
    mechanism = SubsampledGaussian(
        sampling,
        l2_clip=l2_clip,
        noise_multiplier=1.0 if noise_multiplier is None else noise_multiplier,
        num_steps=steps,
        adjacency=adjacency,
        unit=unit,
        epochs=None if epochs is None or sampler == "allocated" else plan,
    )
    if epsilon is None:
        return mechanism

    from dpjax.accounting.calibration import calibrate  # which imports dp-accounting and scipy

    return calibrate(mechanism, epsilon=epsilon, delta=delta)


def _check_one_given(what: str, **values: object) -> None:
    given = [name for name, value in values.items() if value is not None]
    check(len(given) == 1, what, given, f"given by exactly one of {', '.join(values)}")
