"""Charts of lines and points, drawn by matplotlib and themed by the page."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

import matplotlib as mpl
from matplotlib import style as mpl_style
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, MaxNLocator, NullLocator

from ddtree.records.summary import Interval
from ddtree.report.numbers import is_number
from ddtree.report.series import OTHER, Series, emphasis
from ddtree.report.svg import inline_svg

# matplotlib needs real colours; the page wants names. These stand for the names in between.
_INK, _RULE = "#010101", "#010102"
_SERIES_BASE = 0x020200
_SIZE_INCHES = (6.0, 3.1)
_AXES = (0.1, 0.17, 0.885, 0.71)


@dataclass(frozen=True)
class Line:
    """One series of points, in the order of x; y is NaN where the line breaks.

    `intervals` are drawn as bars through their points, none where empty or None. Points that are
    not `joined` stand alone.
    """

    label: str
    look: Series
    points: tuple[tuple[float, float], ...]
    intervals: tuple[Interval | None, ...] = ()
    joined: bool = True


@dataclass(frozen=True)
class Guide:
    """A line to read others by: a front, a diagonal, a level. `names` stand at its points."""

    points: tuple[tuple[float, float], ...]
    names: tuple[str, ...] = ()
    dashed: bool = False


@dataclass(frozen=True)
class Axis:
    """An axis and its ticks.

    "values" has a tick at every value, "steps" too but spaces them by powers of two, and "free"
    lets ticks fall evenly. `names` replace the texts of the values. `low` and `high` end the axis
    where they are given; it follows the data elsewhere.
    """

    label: str
    ticks: Literal["values", "steps", "free"] = "free"
    names: tuple[str, ...] = ()
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class Panel:
    """What one chart shows."""

    slug: str
    x: Axis
    y: Axis
    lines: tuple[Line, ...]
    description: str
    guides: tuple[Guide, ...] = ()


def draw(panel: Panel) -> str:
    """The panel as an inline `<svg>`; emphasised lines lie on top."""
    with _settings():
        figure = Figure(figsize=_SIZE_INCHES)
        figure.patch.set_visible(False)
        axes = figure.add_axes(_AXES)
        for line in sorted(panel.lines, key=lambda item: emphasis(item.look)):
            _plot(axes, line)
        for guide in panel.guides:
            _guide(axes, guide)
        _dress(axes, panel)
        return inline_svg(figure, _variables(panel.lines), panel.slug, panel.description)


@contextmanager
def _settings() -> Iterator[None]:
    settings = {"svg.fonttype": "none", "svg.hashsalt": "ddtree", "path.simplify": False}
    with mpl_style.context("default"), mpl.rc_context(settings):
        yield


def _hex(series: Series) -> str:
    return f"#{_SERIES_BASE + series.colour:06x}"


def _variables(lines: tuple[Line, ...]) -> dict[str, str]:
    named = {_hex(line.look): f"series-{line.look.colour}" for line in lines}
    return {_INK: "ink-soft", _RULE: "rule", **named}


def _plot(axes: Axes, line: Line) -> None:
    look = line.look
    axes.plot(
        [x for x, _ in line.points],
        [y for _, y in line.points],
        color=_hex(look),
        linewidth=look.width if line.joined else 0.0,
        dashes=look.dashes or (None, None),
        marker=look.marker,
        markersize=look.marker_size,
        markeredgewidth=0,
        clip_on=False,
        zorder=3,
    )
    if not line.intervals or look.colour == OTHER:
        return
    for (x, y), interval in zip(line.points, line.intervals, strict=True):
        if interval is not None and is_number(y):
            ends = (interval.low, interval.high)
            axes.plot((x, x), ends, color=_hex(look), linewidth=1.2, clip_on=False, zorder=2.5)


def _guide(axes: Axes, guide: Guide) -> None:
    x, y = zip(*guide.points, strict=True)
    dashes = (4.0, 3.0) if guide.dashed else (None, None)
    axes.plot(x, y, color=_INK, linewidth=1.1, dashes=dashes, zorder=2)
    for (at, height), name in zip(guide.points, guide.names, strict=False):
        axes.annotate(
            name,
            (at, height),
            xytext=(7, 1),
            textcoords="offset points",
            color=_INK,
            fontsize=11,
            annotation_clip=False,
        )


def _dress(axes: Axes, panel: Panel) -> None:
    axes.patch.set_visible(False)
    _scale(axes, panel)
    axes.set_ylim(panel.y.low, panel.y.high)
    axes.yaxis.set_major_locator(MaxNLocator(5))
    axes.grid(axis="y", color=_RULE, linewidth=0.8)
    axes.set_axisbelow(True)
    for side, spine in axes.spines.items():
        spine.set_visible(side == "bottom")
        spine.set_color(_INK)
        spine.set_linewidth(0.8)
    axes.tick_params(colors=_INK, labelcolor=_INK, labelsize=11, length=0, pad=6)
    axes.set_title(
        panel.y.label, loc="left", fontsize=11, color=_INK, pad=11, x=-_AXES[0] / _AXES[2]
    )
    axes.set_xlabel(panel.x.label, fontsize=11, color=_INK, labelpad=4)


def _scale(axes: Axes, panel: Panel) -> None:
    axis = panel.x
    if axis.ticks == "free":
        axes.set_xlim(axis.low, axis.high)
        axes.xaxis.set_major_locator(MaxNLocator(6))
        return
    values = sorted({x for line in panel.lines for x, _ in line.points})
    if axis.ticks == "steps":
        axes.set_xscale("log", base=2)
        axes.set_xlim(values[0] / 1.25, values[-1] * 1.25)
    else:
        axes.set_xlim(values[0] - 0.4, values[-1] + 0.4)
    axes.xaxis.set_major_locator(FixedLocator(values))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xticks(values, labels=axis.names or [f"{value:g}" for value in values])
