"""Findings and remarks that compare published, measured and certified values."""

from collections.abc import Callable, Sequence
from decimal import ROUND_CEILING
from numbers import Real
from typing import Any, NamedTuple

from experiments.lib.formatting import format_value
from experiments.lib.registry import Finding, Record


class Comparison(NamedTuple):
    """Measured values beside the published ones."""

    subject: str  # what is compared, in the plural
    pairs: tuple[tuple[float, float], ...]  # measured and published
    tolerance: float  # in the unit
    unit: str = ""  # "%" for relative differences
    num_left_out: int = 0  # published values whose runs are shortened or on other data

    @property
    def differences(self) -> list[float]:
        """Measured minus published values, or relative differences in percent."""
        if self.unit == "%":
            return [100 * (one / other - 1) for one, other in self.pairs]
        return [one - other for one, other in self.pairs]

    @property
    def num_within(self) -> int:
        """The number of pairs that differ by at most the tolerance."""
        # Decimals such as 97.6 are not exact in binary.
        return sum(abs(each) <= self.tolerance + 1e-9 for each in self.differences)

    @property
    def verdict(self) -> str:
        """The verdict on the published values."""
        if not self.pairs:
            return "not compared"
        if self.num_within == len(self.pairs) + self.num_left_out:
            return "reproduced"
        return "reproduced in part" if self.num_within else "not reproduced"

    @property
    def stated_tolerance(self) -> str:
        """The tolerance with its unit."""
        unit = self.unit.removesuffix("s") if self.tolerance == 1 else self.unit
        return f"{self.tolerance:g} {unit}".strip() if self.pairs else ""

    def __str__(self) -> str:
        """The clause of a finding."""
        why = "shortened or on other data than the source's"
        if not self.pairs:
            return f"the runs are {why}" if self.num_left_out else f"there are no {self.subject}"
        shown = f"{max(self.differences, key=abs):+.2g} {self.unit}".strip().replace("-", "−")
        others = f"; {self.num_left_out} not compared: {why}" if self.num_left_out else ""
        return (
            f"{self.num_within} of {len(self.pairs) + self.num_left_out} {self.subject} are met"
            f" within {self.stated_tolerance} (largest difference {shown}{others})"
        )

    def finding(self, clause: str = "", contradicted: bool = False) -> Finding:
        """Returns the finding of this comparison and a further clause of its sentence."""
        sentence = "; ".join(filter(None, [str(self), clause]))
        verdict = "; ".join([self.verdict, *["claim contradicted"] * contradicted])
        if contradicted and not self.pairs:
            verdict = "claim contradicted"
        return Finding(verdict, f"{sentence[0].upper()}{sentence[1:]}.", self.stated_tolerance)


def compare_published(
    records: Sequence[Record],
    name: str,
    tolerance: float,
    subject: str,
    unit: str = "",
    is_full: Callable[[Record], bool] = lambda record: True,
) -> Comparison:
    """Compares a column's measured values with the numbers published for them.

    Records for which ``is_full`` does not hold, shortened or on other data, are only counted.
    """
    known = [record for record in records if isinstance(record.source.get(name), Real)]
    found = [record for record in known if isinstance(record.measured.get(name), Real)]
    pairs = [(r.measured[name], r.source[name]) for r in found if is_full(r)]
    num_left_out = sum(not is_full(record) for record in found)
    return Comparison(subject, tuple(pairs), tolerance, unit, num_left_out)


def direction_finding(
    holds: Sequence[bool], sentence: str, *, contradicted: bool = False
) -> Finding:
    """Returns the finding on a claim without published numbers, from the conditions it implies."""
    compared = "not compared"
    if holds:
        compared = "reproduced" if all(holds) else "not reproduced"
    verdict = "; ".join([compared, *["claim contradicted"] * contradicted])
    return Finding(verdict, sentence, "direction only" if holds else "")


def format_upper_bound(value: float) -> str:
    """Formats an upper bound, such as a certified ε, rounded up.

    >>> format_upper_bound(2.35312), format_upper_bound(float("inf"))
    ('2.354', '∞')
    """
    return format_value(value, rounding=ROUND_CEILING)


def compare_claim(claim: float, certified: float) -> str:
    """Compares a claimed ε with the certified one, in words.

    >>> compare_claim(0.83, certified=0.86), compare_claim(1.19, certified=0.86)
    ('is below', 'is not below')
    """
    return "is below" if claim < certified else "is not below"


def join_row_names(records: Sequence[Record], holds: Callable[[Record], bool]) -> str:
    """Returns the names of the rows that satisfy a condition, joined by semicolons."""
    return "; ".join(record.row for record in records if holds(record))


def group_by(records: Sequence[Record], setting: str) -> dict[Any, list[Record]]:
    """Groups records by the value of a setting; those without the setting are left out."""
    groups: dict[Any, list[Record]] = {}
    for record in records:
        if setting in record.settings:
            groups.setdefault(record.settings[setting], []).append(record)
    return groups
