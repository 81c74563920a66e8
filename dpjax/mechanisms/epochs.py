"""Steps from batch size and epochs: the one rule by which they become a number of steps."""

import math
from dataclasses import dataclass

from dpjax._checks import as_count, check, check_positive

# A quotient this close above a whole number is that number with errors of floating point.
_ROUNDING = 1e-12


@dataclass(frozen=True, kw_only=True)
class Epochs:
    """Training planned in epochs: its sampling rate and its number of steps.

    An epoch is ``num_examples / batch_size`` steps, in which each record is drawn once on average.

    Attributes:
      num_examples: number of records n.
      batch_size: expected number of records in a batch, whole, at most ``num_examples``; whole
        floats such as ``256.0`` are accepted.
      epochs: above zero; need not be whole.

    Privacy:
      Rate and steps are computed from the number of records: both publish it.

    Raises:
      ValueError: a number out of range, or not whole.

    >>> Epochs(num_examples=60_000, batch_size=256.0, epochs=1.5).num_steps
    352
    """

    num_examples: int
    batch_size: int
    epochs: float

    def __post_init__(self) -> None:
        for name in ("num_examples", "batch_size"):
            object.__setattr__(self, name, as_count(name, getattr(self, name)))
        allowed = f"at most num_examples = {self.num_examples}"
        check(self.batch_size <= self.num_examples, "batch_size", self.batch_size, allowed)
        check_positive("epochs", self.epochs)
        allowed = "below 2^63 * batch_size / num_examples, so that the steps can be counted"
        check(self._quotient < 2**63, "epochs", self.epochs, allowed)

    @property
    def sampling_rate(self) -> float:
        """Probability with which each step draws a record: ``batch_size / num_examples``."""
        return self.batch_size / self.num_examples

    @property
    def num_steps(self) -> int:
        """Number of steps: ``epochs * num_examples / batch_size``, rounded up."""
        return math.ceil(self._quotient * (1 - _ROUNDING))

    def describe(self, num_steps: int | None = None) -> str:
        """Returns steps, epochs, batch size and rounding in words, for the certificate.

        Args:
          num_steps: how many of the steps are made; by default all.

        Raises:
          ValueError: not a whole number from 1 to that of all steps.

        >>> Epochs(num_examples=60_000, batch_size=256, epochs=1.5).describe()
        '352: 1.5 epochs of 60,000 records, 256 of them expected in a batch (1.5 * 60,000 / 256 =
        351.5625 steps, rounded up)'
        """
        made = self.num_steps if num_steps is None else as_count("num_steps", num_steps)
        check(made <= self.num_steps, "num_steps", made, f"at most {self.num_steps}")
        steps = f"{made:,}" if made == self.num_steps else f"{made:,} of {self.num_steps:,}"
        return (
            f"{steps}: {self.epochs:g} epochs of {self.num_examples:,} records,"
            f" {self.batch_size:,} of them expected in a batch ({self.epochs:g} *"
            f" {self.num_examples:,} / {self.batch_size:,} = {self._quotient:,.10g} steps, rounded"
            " up)"
        )

    @property
    def _quotient(self) -> float:
        return float(self.epochs) * self.num_examples / self.batch_size
