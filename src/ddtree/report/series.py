"""Which line each arm gets: colour, dash and marker, the same in every chart of the page."""

import math
from dataclasses import dataclass, replace

from ddtree.records.arms import Arm
from ddtree.report.limits import LINES
from ddtree.report.numbers import count, is_number
from ddtree.report.run import Run, barred

BASELINE, CHAIN, OTHER = 0, 1, 9
FIRST, LAST = 2, 7

# (matplotlib's marker, the same shape as an SVG path around the origin)
_SHAPES = {
    "o": "M-3.2 0a3.2 3.2 0 1 0 6.4 0a3.2 3.2 0 1 0-6.4 0z",
    "s": "M-2.8-2.8h5.6v5.6h-5.6z",
    "^": "M0-3.4L3.4 2.6H-3.4z",
    "D": "M0-3.8L3.8 0L0 3.8L-3.8 0z",
    "v": "M0 3.4L3.4-2.6H-3.4z",
    "P": "M-1.2-3.4h2.4v2.2h2.2v2.4h-2.2v2.2h-2.4v-2.2h-2.2v-2.4h2.2z",
    ">": "M3.4 0L-2.6 3.4V-3.4z",
    "": "",
}
_LOOKS: tuple[tuple[str, tuple[float, ...]], ...] = (
    ("s", (4.0, 2.5)),
    ("D", (7.0, 2.0, 1.5, 2.0)),
    ("o", ()),
    ("^", ()),
    ("v", (6.0, 2.0)),
    ("P", ()),
    (">", (2.0, 1.5)),
    ("D", ()),
)


@dataclass(frozen=True)
class Series:
    """How an arm is drawn. `colour` numbers a CSS custom property `--series-N`.

    Lines of a look that is not `shown` are left out of charts, but for points that stand alone.
    """

    colour: int
    marker: str
    dashes: tuple[float, ...]
    width: float
    marker_size: float
    shown: bool = True

    @property
    def shape(self) -> str:
        """The marker as an SVG path around the origin, empty where there is none."""
        return _SHAPES[self.marker]

    @property
    def dash_array(self) -> str:
        """SVG's stroke-dasharray of a line this wide."""
        return " ".join(f"{self.width * dash:g}" for dash in self.dashes)


@dataclass(frozen=True)
class LegendEntry:
    """One line of the legend."""

    label: str
    series: Series


def assign(run: Run) -> dict[Arm, Series]:
    """A look for every arm.

    The baseline, the chain and up to six other arms get one each: first the arm to ship, then the
    choices of single settings, then the fastest. The rest share a thin grey line, which is left out
    where there are more than LINES arms.
    """
    others = replace(_series(OTHER), shown=len(run.arms) <= LINES)
    looks = {arm: others for arm in run.arms}
    numbers = iter(range(FIRST, LAST + 1))
    for arm in _by_rank(run):
        if arm == run.baseline:
            looks[arm] = _series(BASELINE)
        elif arm.method == "chain" and _series(CHAIN) not in looks.values():
            looks[arm] = _series(CHAIN)
        else:
            number = next(numbers, None)
            looks[arm] = others if number is None else _series(number)
    return looks


def legend(looks: dict[Arm, Series]) -> tuple[LegendEntry, ...]:
    """The legend, in the order of the arms; arms that share the grey line share an entry."""
    named = [LegendEntry(arm.label, item) for arm, item in looks.items() if item.colour != OTHER]
    rest = sum(1 for item in looks.values() if item.colour == OTHER)
    if rest:
        others = next(item for item in looks.values() if item.colour == OTHER)
        text = count(rest, "other arm") + ("" if others.shown else ", not drawn as lines")
        named.append(LegendEntry(text, others))
    return tuple(named)


def numbered(place: int) -> Series:
    """A look for lines that are no arm's, by their place among their like; grey past the last."""
    return _series(FIRST + place if FIRST + place <= LAST else OTHER, emphatic=False)


def emphasis(series: Series) -> int:
    """Sort key for drawing: what matters most comes last and lies on top."""
    return -series.colour if series.colour >= FIRST else -LAST - (series.colour == BASELINE)


def _series(colour: int, emphatic: bool = True) -> Series:
    if colour == OTHER:
        return Series(OTHER, "", (), 0.9, 0.0)
    marker, dashes = _LOOKS[colour]
    return Series(colour, marker, dashes, 2.3 if emphatic and colour == FIRST else 1.6, 6.0)


def _by_rank(run: Run) -> list[Arm]:
    verdict = run.summary.verdict
    first = [verdict.arm, *(choice.arm for choice in verdict.choices)]

    def rank(arm: Arm) -> tuple[int, float]:
        return (first.index(arm) if arm in first else len(first), -_mean_log_speedup(run, arm))

    return sorted(run.arms, key=rank)


def _mean_log_speedup(run: Run, arm: Arm) -> float:
    logs = [
        math.log(c.speedup)
        for c in run.of(arm)
        if not barred(c) and c.speedup is not None and is_number(c.speedup) and c.speedup > 0
    ]
    return sum(logs) / len(logs) if logs else -math.inf
