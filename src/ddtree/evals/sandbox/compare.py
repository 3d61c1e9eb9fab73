"""Whether a result, or what a program printed, is the right one."""

import cmath
import re
from typing import Any

_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")


def same(got: Any, expected: Any, atol: float = 0.0) -> bool:
    """Whether two plain values are equal as Python has it: 1 and 1.0 are, a list and a tuple are
    not.

    A NaN is equal to a NaN. With `atol` numbers may differ by so much where one is a float, in
    containers as well, keys and members of sets excepted.
    """
    if isinstance(got, dict) and isinstance(expected, dict):
        if got.keys() != expected.keys():
            return False
        return all(same(got[key], value, atol) for key, value in expected.items())
    if isinstance(got, list | tuple) and type(got) is type(expected):
        if len(got) != len(expected):
            return False
        return all(same(one, other, atol) for one, other in zip(got, expected, strict=True))
    if isinstance(got, float | complex) or isinstance(expected, float | complex):
        return _same_number(got, expected, atol)
    return bool(got == expected)


def difference(printed: str, expected: str) -> str | None:
    """Where the two texts differ, in few words; None where they are the same.

    White space at the ends of lines does not count, nor do empty lines at the end. On lines of
    numbers alone the space between them does not count either; a number is its text, so that 1 and
    1.0 differ.
    """
    got, wanted = _lines(printed), _lines(expected)
    for number, (one, other) in enumerate(zip(got, wanted, strict=False), start=1):
        if one != other and not _same_numbers(one, other):
            return f"line {number} differs"
    if len(got) != len(wanted):
        return f"{len(got)} lines, expected {len(wanted)}"
    return None


def _same_number(got: Any, expected: Any, atol: float) -> bool:
    if got == expected:
        return True
    if not isinstance(got, int | float | complex) or not isinstance(
        expected, int | float | complex
    ):
        return False
    try:
        if cmath.isnan(got) or cmath.isnan(expected):
            return cmath.isnan(got) and cmath.isnan(expected)
        return abs(got - expected) <= atol
    except OverflowError:
        # An int that no float comes near.
        return False


def _lines(text: str) -> list[str]:
    lines = [line.rstrip() for line in text.splitlines()]
    while lines and not lines[-1]:
        lines.pop()
    return lines


def _same_numbers(one: str, other: str) -> bool:
    numbers = one.split()
    return numbers == other.split() and all(_NUMBER.fullmatch(number) for number in numbers)
