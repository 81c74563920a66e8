"""Private hyperparameter tuning: repetition and selection (Papernot & Steinke 2022)."""

import dataclasses
import functools
from dataclasses import KW_ONLY, dataclass
from typing import Self

from dpjax._checks import check, check_positive, check_type
from dpjax.guarantee import Guarantee
from dpjax.mechanisms.additive import AdditiveNoise
from dpjax.mechanisms.base import Mechanism
from dpjax.mechanisms.subsampled_gaussian import SubsampledGaussian
from dpjax.sampling.base import compose
from dpjax.sampling.repetitions import Repetitions


@dataclass(frozen=True)
class RepeatedSelection(Mechanism):
    """Private hyperparameter tuning: training of a random number of candidates, the best released.

    The settings of every candidate are drawn independently from one distribution, which is chosen
    without the private records. Each candidate is trained by ``run``, with noise of its own, and
    scored. Epsilon is that of the whole: training, scores and selection.

    Attributes:
      run: the mechanism that trains one candidate.
      repetitions: the distribution of the number of candidates.
      score: the noise on the score of a candidate, which is a sum over private records of numbers
        in [0, 1]; ``None`` where the score depends on the released parameters and public data only.

    Raises:
      TypeError: an argument of another type.
      ValueError: run and score have different adjacencies or units, or the score's sensitivity is
        not of one number that a record changes by at most one.

    Privacy:
      Parameters, settings and noisy score of the best candidate are released. The number of
      candidates, and everything of the others, must stay secret.

    Source: Papernot & Steinke (2022); Koskela, Redberg & Wang (2024).

    >>> from dpjax.mechanisms import dpsgd
    >>> from dpjax.sampling import TruncatedNegativeBinomial
    >>> run = dpsgd(
    ...     num_examples=60_000, batch_size=512, num_steps=1172, noise_multiplier=1.24,
    ...     adjacency="zero_out", unit="one image")
    >>> tuned = RepeatedSelection(run, repetitions=TruncatedNegativeBinomial(10, shape=1.0))
    >>> round(run.certificate(1e-6).epsilon, 2), round(tuned.certificate(1e-6).epsilon, 1)
    (1.29, 1.9)
    """

    run: SubsampledGaussian
    _: KW_ONLY
    repetitions: Repetitions
    score: AdditiveNoise | None = None

    def __post_init__(self) -> None:
        check_type("run", self.run, SubsampledGaussian, "a SubsampledGaussian")
        allowed = "a distribution such as TruncatedNegativeBinomial(10)"
        check_type("repetitions", self.repetitions, Repetitions, allowed)
        check_type("score", self.score, AdditiveNoise | None, "Gaussian, Laplace, ... or None")
        if self.score is None:
            return

        # The noise on the score is of the same records, and of one number in [0, 1] of each.
        for name in ("adjacency", "unit"):
            own, other = (getattr(each.guarantee, name) for each in (self.run, self.score))
            check(own == other, f"score's {name}", other, f"that of the run, {own!r}")
        sensitivity = self.score.sensitivity
        check(sensitivity.shape == (), "score's shape", sensitivity.shape, "(), of one number")
        allowed = "at least 1: a record adds a number in [0, 1]"
        check(sensitivity.value >= 1, "score's sensitivity", sensitivity.value, allowed)

    @functools.cached_property
    def guarantee(self) -> Guarantee:
        run = self.run.guarantee

        # Training and score of one candidate.
        events, score = [run.event], "from the released parameters and public data only"
        if self.score is not None:
            events.append(self.score.event)
            noise = self.score.guarantee.description["noise"]
            score = f"a sum over private records of numbers in [0, 1]; {noise}"
        described = {f"each candidate, {head}": text for head, text in run.description.items()}

        # The best of a random number of them.
        return dataclasses.replace(
            run,
            event=self.repetitions.event(compose(events)),
            num_releases=1,
            description={
                "tuning": f"a random number of candidates ({self.repetitions}) is trained, each"
                f" in {self.run.num_steps:,} steps with independent settings and noise; the best"
                " is released alone, and the number stays secret",
                "score of a candidate": score,
                **described,
            },
            tuning="counted",
        )

    def with_privacy_factor(self, factor: float) -> Self:
        """Returns this mechanism with the noise of training and of scores times ``factor``."""
        check_positive("factor", factor)
        score = self.score and self.score.with_privacy_factor(factor)
        return dataclasses.replace(self, run=self.run.with_privacy_factor(factor), score=score)
