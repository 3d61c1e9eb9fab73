"""Acceptance length and speed-up by draft window, one line per context."""

from dataclasses import dataclass, replace

from ddtree.records.arms import Arm, window_size
from ddtree.records.settings import Setting
from ddtree.report.charts import Axis, Line, Panel, draw
from ddtree.report.curves import Chart, Charts, Measure, cell_line, describe, level_guide
from ddtree.report.limits import left_out, spread
from ddtree.report.run import Load, Run
from ddtree.report.series import LegendEntry, Series, numbered

MEASURES = (
    Measure(
        "length",
        "acceptance length",
        "acceptance length",
        lambda c: c.acceptance_length,
        lambda c: c.acceptance_interval,
        low=1.0,
    ),
    Measure(
        "ratio",
        "speed-up",
        "speed-up and its interval",
        lambda c: c.speedup,
        lambda c: c.speedup_interval,
        level=1.0,
    ),
)


@dataclass(frozen=True)
class Windows:
    """The charts and the legend of their contexts; no charts where no shape has two windows."""

    charts: Charts
    legend: tuple[LegendEntry, ...]


@dataclass(frozen=True)
class _Place:
    shape: Arm
    load: Load
    concurrency: int


def window_charts(run: Run, looks: dict[Arm, Series]) -> Windows:
    """Two charts per concurrency, load and shape: the chain, and the tree that ranks first.

    A shape is an arm without its window. Trees of other shapes are counted as not drawn.
    """
    shapes = _shapes(run, looks)
    contexts = sorted({setting.context for setting in run.settings})
    by_context = {context: numbered(place) for place, context in enumerate(contexts)}
    picked = [
        shape
        for method in ("chain", "ddtree")
        for shape in [s for s in shapes if s.method == method][:1]
    ]
    all_places = [
        _Place(shape, load, concurrency)
        for shape in shapes
        for load in run.loads
        for concurrency in sorted({s.concurrency for s in run.under(load)})
    ]
    places = [place for place in all_places if place.shape in picked]
    charts = [
        chart
        for place in spread(places)
        for measure in MEASURES
        for chart in _chart(run, place, measure, by_context)
    ]
    not_drawn = left_out(2 * len(spread(places)), 2 * len(all_places), "chart")
    legend = tuple(LegendEntry(f"context {c}", look) for c, look in by_context.items())
    return Windows(Charts(tuple(charts), not_drawn=not_drawn), legend)


def _shapes(run: Run, looks: dict[Arm, Series]) -> list[Arm]:
    """Arms without their window that the run has with two or more, best line first."""
    windows: dict[Arm, list[Arm]] = {}
    for arm in run.arms:
        windows.setdefault(replace(arm, draft_window=None), []).append(arm)
    several = {shape: arms for shape, arms in windows.items() if len(arms) > 1}
    return sorted(several, key=lambda shape: min(looks[arm].colour for arm in several[shape]))


def _chart(
    run: Run, place: _Place, measure: Measure, by_context: dict[int, Series]
) -> tuple[Chart, ...]:
    """One chart; none where no cell of the place has the number."""
    arms = sorted(
        (arm for arm in run.arms if replace(arm, draft_window=None) == place.shape),
        key=lambda arm: window_size(arm.draft_window),
    )
    lines = tuple(
        line
        for context, look in by_context.items()
        for line in [_line(run, place, context, arms, measure, look)]
        if line is not None
    )
    if not lines:
        return ()
    names = tuple(str(arm.draft_window or "default") for arm in arms)
    shape = place.shape.label.replace("(", "-").replace(")", "").replace(",", "-")
    panel = Panel(
        slug=f"window-{measure.slug}-{shape}-{place.concurrency}-{place.load.slug}",
        x=Axis("draft window, tokens", "values", names=names),
        y=Axis(measure.unit, low=measure.low),
        lines=lines,
        description=describe(lines, measure.unit, "window", names),
        guides=level_guide(measure.level, [0, len(arms) - 1]),
    )
    title = (
        f"{place.shape.label}, {measure.title}, concurrency {place.concurrency}"
        f"{run.conditions(place.load)}"
    )
    return (Chart(title, draw(panel)),)


def _line(
    run: Run, place: _Place, context: int, arms: list[Arm], measure: Measure, look: Series
) -> Line | None:
    setting = Setting(context, place.concurrency, place.load.temperature, place.load.rate)
    cells = [run.cells.get((setting, arm)) for arm in arms]
    x = [float(number) for number in range(len(arms))]
    return cell_line(f"context {context}", look, x, cells, measure)
