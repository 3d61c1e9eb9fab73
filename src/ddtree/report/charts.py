"""Line charts: speed against concurrency, and acceptance by depth."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import matplotlib as mpl
from matplotlib import style as mpl_style
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, MaxNLocator, NullLocator

from ddtree.records.arms import Arm
from ddtree.report.series import Series, emphasis
from ddtree.report.svg import inline_svg

# matplotlib needs real colours; the page wants names. These stand for the names in between.
_INK, _RULE = "#010101", "#010102"
_SERIES_BASE = 0x020200
_SIZE_INCHES = (6.0, 3.1)
_AXES = (0.1, 0.17, 0.885, 0.71)


@dataclass(frozen=True)
class Line:
    """One arm's points, in the order of x; y is NaN where the line breaks."""

    arm: Arm
    points: tuple[tuple[float, float], ...]


@dataclass(frozen=True)
class Panel:
    """What one chart shows. `steps` spaces x by powers of two, with a tick at each value."""

    slug: str
    x_label: str
    y_label: str
    lines: tuple[Line, ...]
    description: str
    steps: bool = False
    top: float | None = None


def draw(panel: Panel, series: dict[Arm, Series]) -> str:
    """The panel as an inline `<svg>`; emphasised arms lie on top."""
    with _settings():
        figure = Figure(figsize=_SIZE_INCHES)
        figure.patch.set_visible(False)
        axes = figure.add_axes(_AXES)
        for line in sorted(panel.lines, key=lambda item: emphasis(series[item.arm])):
            _plot(axes, line, series[line.arm])
        _dress(axes, panel)
        return inline_svg(figure, _variables(series), panel.slug, panel.description)


@contextmanager
def _settings() -> Iterator[None]:
    settings = {"svg.fonttype": "none", "svg.hashsalt": "ddtree", "path.simplify": False}
    with mpl_style.context("default"), mpl.rc_context(settings):
        yield


def _hex(series: Series) -> str:
    return f"#{_SERIES_BASE + series.colour:06x}"


def _variables(series: dict[Arm, Series]) -> dict[str, str]:
    named = {_hex(item): f"series-{item.colour}" for item in series.values()}
    return {_INK: "ink-soft", _RULE: "rule", **named}


def _plot(axes: Axes, line: Line, series: Series) -> None:
    x = [point[0] for point in line.points]
    y = [point[1] for point in line.points]
    axes.plot(
        x,
        y,
        color=_hex(series),
        linewidth=series.width,
        dashes=series.dashes or (None, None),
        marker=series.marker,
        markersize=series.marker_size,
        markeredgewidth=0,
        clip_on=False,
        zorder=3,
    )


def _dress(axes: Axes, panel: Panel) -> None:
    axes.patch.set_visible(False)
    axes.set_ylim(0, panel.top)
    if panel.top is None:
        axes.set_ylim(0, None)
    _x_axis(axes, panel)
    axes.yaxis.set_major_locator(MaxNLocator(5))
    axes.grid(axis="y", color=_RULE, linewidth=0.8)
    axes.set_axisbelow(True)
    for side, spine in axes.spines.items():
        spine.set_visible(side == "bottom")
        spine.set_color(_INK)
        spine.set_linewidth(0.8)
    axes.tick_params(colors=_INK, labelcolor=_INK, labelsize=11, length=0, pad=6)
    axes.set_title(
        panel.y_label, loc="left", fontsize=11, color=_INK, pad=11, x=-_AXES[0] / _AXES[2]
    )
    axes.set_xlabel(panel.x_label, fontsize=11, color=_INK, labelpad=4)


def _x_axis(axes: Axes, panel: Panel) -> None:
    values = sorted({x for line in panel.lines for x, _ in line.points})
    if panel.steps:
        axes.set_xscale("log", base=2)
        axes.set_xlim(values[0] / 1.25, values[-1] * 1.25)
    else:
        axes.set_xlim(values[0] - 0.4, values[-1] + 0.4)
    axes.xaxis.set_major_locator(FixedLocator(values))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xticks(values, labels=_tick_labels(values))


def _tick_labels(values: Sequence[float]) -> list[str]:
    return [f"{value:g}" for value in values]
