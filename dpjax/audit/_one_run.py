"""Lower bounds on epsilon from one run with many canaries, each in the data by its own fair coin.

After the run an attacker sees a score of every canary, and guesses of some of them whether they
were in. More correct guesses than a mechanism allows, up to the confidence, refute it.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
from scipy.optimize import brentq
from scipy.special import expit, ndtr, ndtri
from scipy.stats import binom, binomtest

from dpjax._checks import as_key, check, check_count, check_delta, check_positive, check_type
from dpjax._typing import PRNGKey
from dpjax.accounting import gdp
from dpjax.audit._worlds import CANARY_NORM
from dpjax.certificates import Certificate, Report
from dpjax.certificates.render import Table, round_down, round_up
from dpjax.mechanisms import Mechanism

__all__ = ["OneRunReport", "one_run", "orthogonal_canaries"]

Array: TypeAlias = npt.NDArray[np.float64]
# One guess for so many canaries: near the best share at every epsilon from 1 to 8.
_CANARIES_PER_GUESS = 8
_LEAST_CANARIES = 16
# P-value below which the number of canaries that were in is that of no fair coins.
_UNFAIR = 1e-6
_ACCURACY = 1e-9
_CAVEATS = (
    "This is what one attack on one run found. Another attack may find more; only the certificate"
    " bounds what every attack can find.",
    "The bounds hold if each canary was in by its own fair coin, and if the number of guesses was"
    " not chosen by these scores.",
)


@dataclass(frozen=True, kw_only=True)
class OneRunReport(Report):
    """Audited epsilon of one run with many canaries.

    Attributes:
      num_canaries: in or out of the data, together.
      num_guesses: canaries of which the attack guesses whether they were in.
      num_correct: correct guesses.
      mu: lower bound on mu if the run is mu-Gaussian private: all smaller mu are refuted.
      epsilon_distribution_free: lower bound on epsilon that assumes nothing of the run.
      delta: at which epsilon is stated.
      confidence: of both bounds together.
      noise_std: of normal scores, from which ``mu`` follows; ``None`` if it follows from guesses.
      certificate: of the mechanism that the run is claimed to be, or ``None``.
      is_refuted: whether the run contradicts the certificate.
    """

    num_canaries: int
    num_guesses: int
    num_correct: int
    mu: float
    epsilon_distribution_free: float
    delta: float
    confidence: float
    noise_std: float | None
    certificate: Certificate | None
    is_refuted: bool

    @property
    def epsilon(self) -> float:
        """The audited epsilon: at ``delta`` of Gaussian differential privacy with ``mu``.

        It assumes that the run is Gaussian private for some mu, as where every canary enters every
        step; it is at least `epsilon_distribution_free`.
        """
        gaussian = float(gdp.epsilon(self.mu, self.delta)) if self.mu > 0 else 0.0
        return max(gaussian, self.epsilon_distribution_free)

    @property
    def title(self) -> str:
        if self.is_refuted:
            return "REFUTED: the canaries reveal more than the certificate allows"
        audited = f"audited epsilon {round_down(self.epsilon)}"
        if self.certificate is None:
            return f"At least: {audited}"
        return f"Not refuted: {audited}, certified {round_up(self.certificate.epsilon)}"

    @property
    def tables(self) -> list[Table]:
        bounds = [
            ("epsilon, audited", f"at least {round_down(self.epsilon)}  (of a Gaussian mechanism)"),
            (
                "distribution-free",
                f"at least {round_down(self.epsilon_distribution_free)}  (of any mechanism)",
            ),
            ("mu, audited", f"at least {round_down(self.mu)}"),
        ]
        if self.certificate is not None:
            certified = f"at most {round_up(self.certificate.epsilon)}"
            bounds.insert(0, ("epsilon, certified", certified))
        attack = [
            ("canaries", f"{self.num_canaries:,}, each in the data by its own fair coin"),
            ("guesses", f"{self.num_guesses:,}, of which {self.num_correct:,} are correct"),
        ]
        if self.noise_std is not None:
            attack.append(("scores", f"normal, with standard deviation {self.noise_std:.4g}"))
        caption = f"Audit of one run at delta = {self.delta:g}, confidence {self.confidence:.4g}"
        return [(caption, bounds), ("Attack", attack)]

    @property
    def caveats(self) -> tuple[str, ...]:
        return _CAVEATS

    def paragraph(self) -> str:
        verdict = ""
        if self.certificate is not None:
            does = "which refutes" if self.is_refuted else "which does not contradict"
            verdict = f", {does} the certified {round_up(self.certificate.epsilon)}"
        return (
            f"An attack on one run with {self.num_canaries:,} canaries guessed {self.num_correct:,}"
            f" of {self.num_guesses:,} correctly. At confidence {self.confidence:.4g} the audited"
            f" epsilon is at least {round_down(self.epsilon)} at delta = {self.delta:g}{verdict}."
        )

    def _values(self) -> dict[str, Any]:
        certificate = self.certificate
        own = {name: value for name, value in vars(self).items() if name != "certificate"}
        return {
            "epsilon": self.epsilon,
            "certified_epsilon": None if certificate is None else certificate.epsilon,
            "adjacency": None if certificate is None else certificate.guarantee.adjacency,
            **own,
        }


def one_run(
    in_scores: npt.ArrayLike,
    out_scores: npt.ArrayLike,
    mechanism: Mechanism | None = None,
    *,
    delta: float,
    noise_std: float | None = None,
    num_guesses: int | None = None,
    confidence: float = 0.95,
) -> OneRunReport:
    """Audits one run by the scores of canaries, each in the data by its own fair coin.

    Half the guesses say that the canaries of the highest scores were in, half that those of the
    lowest were out; of the others nothing is guessed. The number of guesses is fixed beforehand, at
    one eighth of the canaries, so that no correction for a choice is needed. The audited epsilon
    follows from the correct guesses in f-differential privacy with Gaussian trade-off functions,
    the distribution-free one from their binomial bound. If the scores are normal with a known
    standard deviation, as the inner products of orthogonal canaries with noisy sums, the audited
    epsilon follows from the difference of their means, which is tighter.

    Source: Steinke, Nasr & Jagielski (2023), for any mechanism; Mahloujifar, Melis & Chaudhuri
    (2024), for a trade-off function; Agrawal, Wei, Singh, Magdon-Ismail & Zikas (2026), for normal
    scores.

    Args:
      in_scores: of the canaries that were in, larger for those more likely in: for example the
        negative loss, less that of a model trained on other data.
      out_scores: of those that were not.
      mechanism: that the run is claimed to be, if its certificate is to be compared.
      delta: in (0, 1), at which epsilon is stated.
      noise_std: standard deviation of the scores, if these are independent and normal with means
        that differ by whether the canary was in, and by nothing else.
      num_guesses: fixed before the scores were seen, from 2 to the number of canaries; by default
        one eighth of it. Of equal scores all or none are guessed.
      confidence: of both bounds together, in (0, 1).

    Returns:
      The audited epsilon and, with a mechanism, whether its certificate is refuted.

    Raises:
      TypeError: ``mechanism`` is neither a mechanism nor ``None``.
      ValueError: a number out of range, scores that are no numbers, fewer than 16 canaries, or so
        many in that their coins were not fair.

    >>> import dpjax
    >>> is_in = jax.random.bernoulli(jax.random.key(0), shape=(4_000,))
    >>> scores = 1.0 * is_in + jax.random.normal(jax.random.key(1), (4_000,))
    >>> run = dpjax.Gaussian(dpjax.Sensitivity(1.0, "l2", "zero_out"), 1.0)
    >>> black_box = one_run(scores[is_in], scores[~is_in], run, delta=1e-5)
    >>> white_box = one_run(scores[is_in], scores[~is_in], run, delta=1e-5, noise_std=1.0)
    >>> certified = run.certificate(1e-5).epsilon
    >>> 0.5 < black_box.epsilon / certified < 0.9 < white_box.epsilon / certified <= 1
    True
    """
    inside, outside = (
        np.ravel(np.asarray(in_scores, float)),
        np.ravel(np.asarray(out_scores, float)),
    )
    num_canaries = inside.size + outside.size
    for name, scores in (("in_scores", inside), ("out_scores", outside)):
        is_number = np.isfinite(scores) if noise_std is not None else ~np.isnan(scores)
        allowed = "numbers, finite with noise_std"
        check(bool(is_number.all()), name, "NaN or infinity", allowed)
    allowed = f"at least {_LEAST_CANARIES} together with out_scores"
    check(num_canaries >= _LEAST_CANARIES, "number of in_scores", num_canaries, allowed)
    check(
        binomtest(inside.size, num_canaries).pvalue >= _UNFAIR,
        "number of in_scores",
        inside.size,
        f"as many of {num_canaries} as fair coins may choose",
    )
    check_type("mechanism", mechanism, Mechanism | None, "a mechanism or None")
    check_delta(delta)
    check_delta(confidence, "confidence")
    if noise_std is not None:
        check_positive("noise_std", noise_std)
    if num_guesses is None:
        num_guesses = num_canaries // _CANARIES_PER_GUESS
    check_count("num_guesses", num_guesses, 2)
    check(num_guesses <= num_canaries, "num_guesses", num_guesses, f"at most {num_canaries}")

    # Both bounds share the failure probability.
    guessed, correct = _guess(inside, outside, num_guesses)
    error = (1 - confidence) / 2
    distribution_free = _guesses_epsilon(num_canaries, guessed, correct, delta, error)
    if noise_std is None:
        mu = _guesses_mu(num_canaries, guessed, correct, error)
    else:
        shift = (inside.mean() - outside.mean()) / noise_std
        slack = -ndtri(error) * math.sqrt(1 / inside.size + 1 / outside.size)
        mu = max(float(shift - slack), 0.0)

    # The certificate is refuted by the same bounds: by its own trade-off function if of guesses.
    certificate, is_refuted = None, False
    if mechanism is not None:
        certificate = mechanism.certificate(delta)
        curve = certificate.curve
        if noise_std is None:
            excess = _guesses_excess(
                num_canaries, guessed, correct, error, lambda mass: float(curve(1 - mass))
            )
            is_refuted = excess > 0
        else:
            is_refuted = mu > 0 and float(gdp.epsilon(mu, delta)) > certificate.epsilon
        is_refuted = is_refuted or distribution_free > certificate.epsilon

    return OneRunReport(
        num_canaries=num_canaries,
        num_guesses=guessed,
        num_correct=correct,
        mu=mu,
        epsilon_distribution_free=distribution_free,
        delta=delta,
        confidence=confidence,
        noise_std=noise_std,
        certificate=certificate,
        is_refuted=is_refuted,
    )


def orthogonal_canaries(
    key: PRNGKey, num_canaries: int, *, l2_clip: float
) -> tuple[jax.Array, jax.Array]:
    """Returns records with orthogonal gradients under `canary_loss`, each in by its own fair coin.

    The norm of a canary is twice the clip bound, so that its clipped gradient has the bound's. A
    canary that is out is a record of zeros, as under zero-out adjacency. Beside a model's own
    parameters, the canaries need as many of their own, of which `canary_loss` is a part of the
    loss.

    Args:
      key: of the coins.
      num_canaries: m, at least 16; the model has as many parameters.
      l2_clip: the clip bound.

    Returns:
      The records ``(m, m)``, and which canaries are in, ``(m,)``, of bool.

    Raises:
      ValueError: an argument is out of range.

    >>> records, is_in = orthogonal_canaries(jax.random.key(0), 100, l2_clip=0.5)
    >>> records.shape, records.sum(1)[is_in][0], records.sum(1)[~is_in][0]
    ((100, 100), Array(1., dtype=float32), Array(0., dtype=float32))
    """
    key = as_key(key)
    check_count("num_canaries", num_canaries, _LEAST_CANARIES)
    check_positive("l2_clip", l2_clip)
    is_in = jax.random.bernoulli(key, shape=(num_canaries,))
    return jnp.diag(CANARY_NORM * l2_clip * is_in), is_in


def _guess(inside: Array, outside: Array, num_guesses: int) -> tuple[int, int]:
    """Returns the numbers of guesses and of correct guesses.

    The choice of the canaries depends on all scores, but not on which of them were in: of equal
    scores all are guessed.
    """
    scores = np.sort(np.concatenate([inside, outside]))
    lowest = num_guesses // 2
    high, low = scores[scores.size - (num_guesses - lowest)], scores[lowest - 1]
    guessed = np.sum(scores >= high) + np.sum((scores <= low) & (scores < high))
    correct = np.sum(inside >= high) + np.sum((outside <= low) & (outside < high))
    return int(guessed), int(correct)


def _guesses_p_value(
    num_canaries: int, num_guesses: int, num_correct: int, epsilon: float, delta: float
) -> float:
    """Returns a bound on the probability of so many correct guesses under (epsilon, delta)-DP.

    Source: Steinke, Nasr & Jagielski (2023), their bound for approximate privacy.
    """
    # Pr[at least v - i correct] of independent guesses, for i from 0 to v.
    fewer = np.arange(num_correct + 1)
    tails = binom.sf(num_correct - fewer - 1, num_guesses, expit(epsilon))
    slopes = (tails[1:] - tails[0]) / fewer[1:]
    return float(tails[0] + 2 * num_canaries * delta * np.max(slopes, initial=0.0))


def _guesses_epsilon(
    num_canaries: int, num_guesses: int, num_correct: int, delta: float, error: float
) -> float:
    """Returns a lower bound on epsilon at ``delta`` of any mechanism with so many correct guesses.

    Source: Steinke, Nasr & Jagielski (2023), their bound for approximate privacy.
    """

    def excess(epsilon: float) -> float:
        p_value = _guesses_p_value(num_canaries, num_guesses, num_correct, epsilon, delta)
        return error - p_value

    return _largest_refuted(excess)


def _guesses_mu(num_canaries: int, num_guesses: int, num_correct: int, error: float) -> float:
    """Returns a lower bound on mu of a Gaussian private run with so many correct guesses."""

    def excess(mu: float) -> float:
        return _guesses_excess(
            num_canaries, num_guesses, num_correct, error, lambda mass: ndtr(ndtri(mass) - mu)
        )

    return _largest_refuted(excess)


def _guesses_excess(
    num_canaries: int,
    num_guesses: int,
    num_correct: int,
    error: float,
    error_of_complement: Callable[[float], float],
) -> float:
    """Returns a number above zero if a trade-off function f does not allow so many correct guesses.

    Source: Mahloujifar, Melis & Chaudhuri (2024), arXiv 2410.22235.

    Args:
      num_canaries, num_guesses, num_correct: m, r and v.
      error: the probability that a run with this trade-off function is refuted.
      error_of_complement: f(1 - x), of x.
    """
    # Masses of correct and of wrong guesses, if v or more were correct with probability `error`;
    # those of v - 1, v - 2, ... correct guesses, each as small as f allows, are added.
    right = error * num_correct / num_canaries
    wrong = error * (num_guesses - num_correct) / num_canaries
    for fewer in range(num_correct - 1, -1, -1):
        least_wrong = error_of_complement(right)
        if least_wrong <= wrong:
            break
        right = min(right + fewer / (num_guesses - fewer) * (least_wrong - wrong), 1.0)
        wrong = least_wrong
    return float(right + wrong - num_guesses / num_canaries)


def _largest_refuted(excess: Callable[[float], float]) -> float:
    """Returns the root of a decreasing function at zero or above, or 0.0 if it is not positive."""
    if excess(0.0) <= 0:
        return 0.0
    above = 1.0
    while excess(above) > 0:
        above *= 2
    return max(float(brentq(excess, 0.0, above, xtol=_ACCURACY)) - _ACCURACY, 0.0)
