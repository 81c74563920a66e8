"""Formatting of numbers, times and names in tables and remarks."""

import math
from collections.abc import Mapping
from decimal import ROUND_HALF_EVEN, Decimal, localcontext
from typing import Any

ABSENT = "–"


def format_value(
    value: Any, name: str = "", decimals: int = 0, rounding: str = ROUND_HALF_EVEN
) -> str:
    """Formats a value with four significant digits; percentages with one or two decimals.

    Args:
      value: any value of a record.
      name: name of the value; a name that ends in ``%`` is a percentage.
      decimals: decimals to pad to with zeros, within four significant digits, to align a column.
      rounding: a mode of :mod:`decimal`.

    >>> format_value(0.865321), format_value(60000), format_value(1e-5), format_value(7.1, "ε", 2)
    ('0.8653', '60,000', '1e-5', '7.10')
    >>> format_value(95.0, "accuracy %"), format_value(float("inf")), format_value(None)
    ('95.0', '∞', '–')
    """
    if value is None:
        return ABSENT
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int | float):
        with localcontext(rounding=rounding):
            return _format_number(value, name.endswith("%"), decimals)
    if isinstance(value, Mapping):
        return ", ".join(f"{label(key)} {format_value(part, key)}" for key, part in value.items())
    if isinstance(value, list | tuple):
        return ", ".join(format_value(part, name, 0, rounding) for part in value)
    return str(value)


def num_decimals(value: Any, name: str = "") -> int:
    """Returns the number of decimals of a value of this name, formatted without padding.

    >>> num_decimals(7.1), num_decimals(95, "accuracy %"), num_decimals("1.5.2")
    (1, 1, 0)
    """
    if not isinstance(value, int | float):
        return 0
    return len(format_value(value, name).partition("e")[0].partition(".")[2])


def _format_number(value: float, percentage: bool, decimals: int) -> str:
    if math.isnan(value):
        return "not a number"
    if math.isinf(value):
        return "∞" if value > 0 else "−∞"
    number = Decimal(str(float(value)))
    text = _fixed(number, max(decimals, 1), 2) if percentage else _significant(number, decimals)
    return text.replace("-", "−", 1) if text.startswith("-") else text


def _significant(value: Decimal, decimals: int) -> str:
    """Formats a number with four significant digits, or with all digits of its integer part."""
    if value == 0 or Decimal("0.001") <= abs(value) < 10**9:
        return _fixed(value, decimals, max(0, 3 - value.adjusted()) if value else 3)
    mantissa, exponent = f"{value:.3e}".split("e")
    return f"{mantissa.rstrip('0').rstrip('.')}e{int(exponent)}"


def _fixed(value: Decimal, fewest: int, most: int) -> str:
    """Formats a number with as many decimals as it needs, between two limits."""
    whole, _, decimals = f"{value:,.{most}f}".partition(".")
    decimals = decimals.rstrip("0").ljust(min(fewest, most), "0")
    return f"{whole}.{decimals}" if decimals else whole


def format_seconds(seconds: float) -> str:
    """Formats a duration.

    >>> format_seconds(0.42), format_seconds(192.3), format_seconds(7325)
    ('0.4 s', '3 min 12 s', '2 h 2 min')
    """
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes == 0:
        return f"{rest} s"
    return f"{minutes} min {rest} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


def label(name: str) -> str:
    """Returns a name with spaces in place of underscores.

    >>> label("noise_multiplier")
    'noise multiplier'
    """
    return name.replace("_", " ")
