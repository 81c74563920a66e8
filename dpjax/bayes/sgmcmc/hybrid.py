"""Hybrid: a private start by one posterior sample, then private Langevin steps."""

import dataclasses

from dpjax._validation import check_positive
from dpjax.bayes.sgmcmc.budget import add_noise_for, scale_steps_for
from dpjax.bayes.sgmcmc.description import Langevin
from dpjax.bayes.sgmcmc.one_sample import OnePosteriorSample
from dpjax.mechanisms.composition import Composition


def hybrid(
    start: OnePosteriorSample,
    chain: Langevin,
    *,
    epsilon: float,
    delta: float,
    keep_steps: bool = False,
) -> Composition:
    """Returns the two mechanisms with half of ``epsilon`` each, as one.

    Run them in turn: an exact sampler of ``parts[0]`` (`rejection_sample`, `beta_sample`), then
    `sample` with ``parts[1]`` from there. A start that is not exact has no such guarantee.

    Args:
      start: its ``target_epsilon`` becomes ``epsilon / 2``.
      chain: made (epsilon / 2, delta)-private.
      epsilon: above zero.
      delta: in (0, 1).
      keep_steps: add noise to the chain (`add_noise_for`) instead of scaling its steps
        (`scale_steps_for`).

    Privacy:
      At most (epsilon, delta) by basic composition; the certificate's accountant finds less.

    Source: Wang, Fienberg, Smola (2015).

    >>> from dpjax.bayes.sgmcmc import SGLD
    >>> from dpjax.sampling import PoissonSampling
    >>> start = OnePosteriorSample(1.0, -2.0, 0.0, "add_remove")
    >>> chain = SGLD(PoissonSampling(1_000, 0.1), 1.0, 0.1, 100, "add_remove")
    >>> both = hybrid(start, chain, epsilon=1.0, delta=1e-5)
    >>> both.parts[0].epsilon, both.certificate(1e-5).epsilon < 1
    (0.5, True)
    """
    check_positive("epsilon", epsilon)
    half = epsilon / 2
    calibrated = (add_noise_for if keep_steps else scale_steps_for)(
        chain, epsilon=half, delta=delta
    )
    return Composition((dataclasses.replace(start, target_epsilon=half), calibrated))
