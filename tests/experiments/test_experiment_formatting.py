import math
from decimal import ROUND_CEILING, ROUND_FLOOR

import pytest

from experiments.lib.formatting import format_seconds, format_value, num_decimals


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.123456, "0.1235"),
        (28.0549, "28.05"),
        (12345.678, "12,346"),
        (2.0, "2"),
        (0, "0"),
        (0.0, "0"),
        (-0.5, "−0.5"),
        (9.99996, "10"),
        (0.00123456, "0.001235"),
        (0.0001, "1e-4"),
        (3.21987e-12, "3.22e-12"),
        (1.5e12, "1.5e12"),
        (60_000, "60,000"),
        (123_456_789, "123,456,789"),
        (math.inf, "∞"),
        (-math.inf, "−∞"),
        (math.nan, "not a number"),
        (True, "yes"),
        (False, "no"),
        (None, "–"),
        ("mnist", "mnist"),
        ([16, 0.5], "16, 0.5"),
        ({"batch_size": 256, "accuracy %": 95}, "batch size 256, accuracy % 95.0"),
    ],
)
def test_format_value(value, text):
    assert format_value(value) == text


@pytest.mark.parametrize(
    ("value", "name", "decimals", "text"),
    [
        (95, "accuracy %", 0, "95.0"),
        (94.876, "accuracy %", 0, "94.88"),
        (-0.25, "accuracy %", 0, "−0.25"),
        (7.1, "ε", 2, "7.10"),
        (2.0, "ε", 2, "2.00"),
        (28.05, "ε", 4, "28.05"),
        (60000, "ε", 2, "60,000"),
        (1e-5, "ε", 4, "1e-5"),
    ],
)
def test_format_value_of_percentages_and_padded_columns(value, name, decimals, text):
    assert format_value(value, name, decimals) == text


@pytest.mark.parametrize(
    ("value", "up", "down"),
    [
        (0.86511, "0.8652", "0.8651"),
        (0.8651, "0.8651", "0.8651"),
        (-0.86511, "−0.8651", "−0.8652"),
        (123456.2, "123,457", "123,456"),
        (1.00001e-7, "1.001e-7", "1e-7"),
        (9.99991, "10", "9.999"),
        ([0.00011, 1], "1.1e-4, 1", "1.1e-4, 1"),
        (math.inf, "∞", "∞"),
    ],
)
def test_format_value_rounds_bounds_to_their_side(value, up, down):
    assert format_value(value, rounding=ROUND_CEILING) == up
    assert format_value(value, rounding=ROUND_FLOOR) == down


def test_num_decimals():
    values = [0.83, 31.12, 5, "a.bc", 1e-9, math.inf, None, True]
    assert [num_decimals(value) for value in values] == [2, 2, 0, 0, 0, 0, 0, 0]


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0.0 s"),
        (9.94, "9.9 s"),
        (9.96, "10 s"),
        (59.4, "59 s"),
        (59.6, "1 min 0 s"),
        (3599.7, "1 h 0 min"),
        (90_000, "25 h 0 min"),
    ],
)
def test_format_seconds(seconds, text):
    assert format_seconds(seconds) == text
