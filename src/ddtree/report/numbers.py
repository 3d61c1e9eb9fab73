"""Numbers as people read them: fixed decimals with a unit, or a dash with the reason."""

import math
from dataclasses import dataclass

from ddtree.records.summary import Interval

DASH = "–"
N_TOO_SMALL = "n too small"


@dataclass(frozen=True)
class Shown:
    """One number on the page.

    `text` is what stands in the cell, `note` a smaller second line (an interval, a remark) and
    `why_missing` the reason where `text` is a dash. `badge` is the class of a text that stands
    out, `bar` the length of a small bar below the text, in percent of its column's longest.
    """

    text: str
    note: str = ""
    why_missing: str = ""
    badge: str = ""
    bar: float | None = None


class Footnotes:
    """The reasons of a table's dashes, each named once by a letter, in order of appearance."""

    def __init__(self) -> None:
        self._marks: dict[str, str] = {}

    def mark(self, reason: str) -> str:
        """The letter of `reason`: a to z, then aa, ab and on."""
        if reason not in self._marks:
            index, mark = len(self._marks), ""
            while index >= 0:
                index, letter = divmod(index, 26)
                mark = chr(ord("a") + letter) + mark
                index -= 1
            self._marks[reason] = mark
        return self._marks[reason]

    def items(self) -> tuple[tuple[str, str], ...]:
        """(letter, reason) of every mark given so far."""
        return tuple((mark, reason) for reason, mark in self._marks.items())


def missing(reason: str) -> Shown:
    """A dash that carries its reason."""
    return Shown(DASH, why_missing=reason)


def is_number(value: float | None) -> bool:
    """True for a finite value."""
    return value is not None and math.isfinite(value)


def fixed(value: float, digits: int) -> str:
    """`value` with `digits` decimals; what would round to zero reads `<0.01`, never `0.00`."""
    smallest = 10.0**-digits
    if value != 0 and abs(value) < smallest / 2:
        sign = "-" if value < 0 else ""
        return f"{sign}<{smallest:.{digits}f}"
    return f"{value:,.{digits}f}"


def number(value: float | None, digits: int, reason: str) -> Shown:
    """A plain number, or a dash with `reason` where there is none."""
    if value is None:
        return missing(reason)
    if not math.isfinite(value):
        return missing(f"not a finite number: {value}")
    return Shown(fixed(value, digits))


def percent(value: float | None, digits: int, reason: str) -> Shown:
    """A share as `31 %`, or a dash with `reason` where there is none."""
    shown = number(None if value is None else 100 * value, digits, reason)
    return shown if shown.why_missing else Shown(f"{shown.text} %")


def milliseconds(seconds: float | None, digits: int, reason: str) -> Shown:
    """Seconds of the records, shown in milliseconds."""
    return number(None if seconds is None else 1e3 * seconds, digits, reason)


def bounds(interval: Interval) -> str:
    """`1.79–1.93`."""
    return f"{fixed(interval.low, 2)}{DASH}{fixed(interval.high, 2)}"


def times(value: float | None, interval: Interval | None, reason: str) -> Shown:
    """A ratio such as `1.86×` with its interval as the note, or that there is none."""
    shown = number(value, 2, reason)
    if shown.why_missing:
        return shown
    note = N_TOO_SMALL if interval is None else bounds(interval)
    return Shown(f"{shown.text}×", note)


def count(value: int, noun: str, plural: str | None = None) -> str:
    """`1 cell`, `2 cells`."""
    return f"{value:,} {noun if value == 1 else plural or noun + 's'}"
