"""The line charts by arm: speed against concurrency, acceptance by depth and by node."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

from ddtree.records.arms import Arm
from ddtree.records.settings import Setting
from ddtree.records.summary import CellSummary, Interval
from ddtree.report.charts import Axis, Guide, Line, Panel, draw
from ddtree.report.limits import left_out, spread
from ddtree.report.numbers import Shown, fixed, is_number, missing, number
from ddtree.report.run import Load, Run, barred, barred_word
from ddtree.report.series import Series

NO_ROUNDS = "the server reports no rounds"


@dataclass(frozen=True)
class Chart:
    """One chart: its title and the drawing, empty where there is no point to draw."""

    title: str
    svg: str


@dataclass(frozen=True)
class Charts:
    """A section's charts, the cells that they leave out with the reason, and what isn't drawn.

    `not_drawn` is empty where the run is small enough for all of its charts.
    """

    charts: tuple[Chart, ...]
    left_out: tuple[str, ...] = ()
    not_drawn: str = ""


@dataclass(frozen=True)
class LengthRow:
    """Acceptance length of one arm over the settings."""

    arm: str
    values: tuple[Shown, ...]


@dataclass(frozen=True)
class Measure:
    """What a chart's y shows of a cell, and the interval around it where there is one."""

    slug: str
    title: str
    unit: str
    value: Callable[[CellSummary], float | None]
    interval: Callable[[CellSummary], Interval | None] = lambda cell: None
    level: float | None = None
    low: float = 0.0


Need = tuple[Callable[[CellSummary], bool], str]

SPEEDS = (
    Measure("system", "whole server", "tokens per second", lambda c: c.system_tokens_per_s),
    Measure("user", "one user", "tokens per second", lambda c: c.decode_tokens_per_s),
    Measure(
        "ratio",
        "speed-up",
        "speed-up and its interval",
        lambda c: c.speedup,
        lambda c: c.speedup_interval,
        level=1.0,
    ),
)


def speed_charts(run: Run, looks: dict[Arm, Series]) -> Charts:
    """Per context and load: tokens/s of the whole server, of one user, and the speed-up."""
    places = [(load, c) for load in run.loads for c in _contexts(run, load)]
    drawn = spread(places)
    charts = []
    for load, context in drawn:
        settings = [s for s in run.under(load) if s.context == context]
        for measure in SPEEDS:
            lines = arm_lines(run, looks, settings, measure)
            panel = Panel(
                slug=f"speed-{measure.slug}-{context}-{load.slug}",
                x=Axis("concurrent requests", "steps"),
                y=Axis(measure.unit, low=measure.low),
                lines=lines,
                description=describe(lines, measure.unit, "concurrency"),
                guides=level_guide(measure.level, [s.concurrency for s in settings]),
            )
            name = f"Context {context}, {measure.title}{run.conditions(load)}"
            charts.append(Chart(name, draw(panel) if lines else ""))
    missed = _left_out(
        run,
        (lambda c: is_number(c.system_tokens_per_s), "no number for the whole server"),
        (lambda c: is_number(c.decode_tokens_per_s), "no number for one user"),
    )
    return Charts(
        tuple(charts),
        missed,
        left_out(3 * len(drawn), 3 * len(places), "chart"),
    )


def _contexts(run: Run, load: Load) -> list[int]:
    return sorted({s.context for s in run.under(load)})


def level_guide(level: float | None, x: list[int]) -> tuple[Guide, ...]:
    """A dashed line at `level` over the range of x; none where there is no level."""
    if level is None:
        return ()
    return (Guide(((min(x), level), (max(x), level)), dashed=True),)


def _left_out(run: Run, *needs: Need) -> tuple[str, ...]:
    lines: list[str] = []
    for cell in (cell for setting in run.settings for cell in run.at(setting)):
        reasons = [barred(cell)] if barred(cell) else [text for met, text in needs if not met(cell)]
        lines.extend(f"{cell.place}: {reason}" for reason in reasons)
    return tuple(lines)


def arm_lines(
    run: Run, looks: dict[Arm, Series], settings: list[Setting], measure: Measure
) -> tuple[Line, ...]:
    """Lines with a point per setting; a gap breaks a line rather than being bridged."""
    lines = []
    for arm in run.arms:
        cells = [run.cells.get((setting, arm)) for setting in settings]
        x = [float(setting.concurrency) for setting in settings]
        line = cell_line(arm.label, looks[arm], x, cells, measure)
        if line is not None:
            lines.append(line)
    return tuple(lines)


def cell_line(
    label: str,
    look: Series,
    x: list[float],
    cells: list[CellSummary | None],
    measure: Measure,
) -> Line | None:
    """One line through the cells that may count; None where no cell has a number.

    None as well where lines of this look are not shown.
    """
    if not look.shown:
        return None
    fit = [None if cell is None or barred(cell) else cell for cell in cells]
    values = [None if cell is None else measure.value(cell) for cell in fit]
    if not any(is_number(value) for value in values):
        return None
    y = (math.nan if value is None else value for value in values)
    intervals = tuple(None if cell is None else measure.interval(cell) for cell in fit)
    return Line(label, look, tuple(zip(x, y, strict=True)), intervals)


def acceptance_charts(run: Run, looks: dict[Arm, Series]) -> Charts:
    """One chart per setting: the share of rounds that accepted at least d draft tokens."""
    drawn = spread(run.settings)
    charts = []
    for setting in drawn:
        lines = tuple(
            Line(
                cell.arm.label,
                looks[cell.arm],
                tuple((float(d), p) for d, p in enumerate(cell.accepted_by_depth, 1)),
            )
            for cell in run.at(setting)
            if not barred(cell) and _has_depths(cell) and looks[cell.arm].shown
        )
        panel = Panel(
            slug=f"depth-{setting.slug}",
            x=Axis("draft depth", "values"),
            y=Axis("share of rounds accepted at least this deep", low=0.0, high=1.0),
            lines=lines,
            description=describe(lines, "share of rounds", "depth"),
        )
        charts.append(Chart(run.label(setting), draw(panel) if lines else ""))
    need = (lambda c: c.arm.method == "ar" or _has_depths(c), NO_ROUNDS)
    not_drawn = left_out(len(drawn), len(run.settings), "chart")
    return Charts(tuple(charts), _left_out(run, need), not_drawn)


def _has_depths(cell: CellSummary) -> bool:
    return bool(cell.accepted_by_depth) and all(is_number(v) for v in cell.accepted_by_depth)


def describe(lines: tuple[Line, ...], unit: str, axis: str, names: tuple[str, ...] = ()) -> str:
    """The chart read out: every line with its points; x is a place in `names` where given."""
    read = [
        f"{line.label} "
        + ", ".join(
            f"{fixed(y, 2)} at {axis} {names[int(x)] if names else f'{x:g}'}"
            for x, y in line.points
            if is_number(y)
        )
        for line in lines
    ]
    return f"Line chart, {unit}: " + "; ".join(read) + "."


def acceptance_lengths(run: Run) -> tuple[LengthRow, ...]:
    """Acceptance length of every drafting arm, one column per setting."""
    return tuple(
        LengthRow(arm.label, tuple(_length(run, setting, arm) for setting in run.settings))
        for arm in run.arms
        if arm.method != "ar"
    )


def _length(run: Run, setting: Setting, arm: Arm) -> Shown:
    cell = run.cells.get((setting, arm))
    if cell is None:
        return missing("not planned")
    shown = number(cell.acceptance_length, 2, barred(cell) or NO_ROUNDS)
    return replace(shown, note=barred_word(cell))
