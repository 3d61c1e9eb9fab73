"""The line charts' content: speed against concurrency, acceptance by depth."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

from ddtree.records.arms import Arm
from ddtree.records.summary import CellSummary
from ddtree.report.charts import Line, Panel, draw
from ddtree.report.numbers import Shown, fixed, is_number, missing, number
from ddtree.report.run import Run, Setting, barred, barred_word
from ddtree.report.series import Series

NO_ROUNDS = "the server reports no rounds"


@dataclass(frozen=True)
class Chart:
    """One chart: its title and the drawing, empty where there is no point to draw."""

    title: str
    svg: str


@dataclass(frozen=True)
class Charts:
    """A section's charts, and the cells that they leave out with the reason."""

    charts: tuple[Chart, ...]
    left_out: tuple[str, ...]


@dataclass(frozen=True)
class LengthRow:
    """Acceptance length of one arm over the settings."""

    arm: str
    values: tuple[Shown, ...]


Metric = Callable[[CellSummary], float | None]
Need = tuple[Callable[[CellSummary], bool], str]


def speed_charts(run: Run, looks: dict[Arm, Series]) -> Charts:
    """Two charts per context and temperature: tokens/s of the whole server, and of one user."""
    places = sorted({(s.temperature, s.context) for s in run.settings})
    kinds: tuple[tuple[str, str, Metric], ...] = (
        ("system", "whole server", lambda c: c.system_tokens_per_s),
        ("user", "one user", lambda c: c.decode_tokens_per_s),
    )
    charts = []
    for temperature, context in places:
        settings = [s for s in run.settings if (s.temperature, s.context) == (temperature, context)]
        for slug, title, metric in kinds:
            lines = _lines(run, settings, metric)
            panel = Panel(
                slug=f"speed-{slug}-{context}-{_slug(temperature)}",
                x_label="concurrent requests",
                y_label="tokens per second",
                lines=lines,
                description=_describe(lines, "tokens per second", "concurrency"),
                steps=True,
            )
            name = f"Context {context}, {title}" + run.temperature(temperature)
            charts.append(_chart(panel, looks, name))
    left_out = _left_out(
        run,
        (lambda c: is_number(c.system_tokens_per_s), "no number for the whole server"),
        (lambda c: is_number(c.decode_tokens_per_s), "no number for one user"),
    )
    return Charts(tuple(charts), left_out)


def _left_out(run: Run, *needs: Need) -> tuple[str, ...]:
    lines: list[str] = []
    for cell in (cell for setting in run.settings for cell in run.at(setting)):
        reasons = [barred(cell)] if barred(cell) else [text for met, text in needs if not met(cell)]
        lines.extend(f"{cell.place}: {reason}" for reason in reasons)
    return tuple(lines)


def _lines(run: Run, settings: list[Setting], metric: Metric) -> tuple[Line, ...]:
    """Lines with a point per setting; a gap breaks a line rather than being bridged."""
    lines = []
    for arm in run.arms:
        cells = [run.cells.get((setting, arm)) for setting in settings]
        values = [None if cell is None or barred(cell) else metric(cell) for cell in cells]
        if any(is_number(value) for value in values):
            points = zip((float(s.concurrency) for s in settings), values, strict=True)
            lines.append(Line(arm, tuple((x, math.nan if y is None else y) for x, y in points)))
    return tuple(lines)


def acceptance_charts(run: Run, looks: dict[Arm, Series]) -> Charts:
    """One chart per setting: the share of rounds that accepted at least d draft tokens."""
    charts = []
    for setting in run.settings:
        lines = tuple(
            Line(cell.arm, tuple((float(d), p) for d, p in enumerate(cell.accepted_by_depth, 1)))
            for cell in run.at(setting)
            if not barred(cell) and _has_depths(cell)
        )
        panel = Panel(
            slug=f"depth-{setting.context}-{setting.concurrency}-{_slug(setting.temperature)}",
            x_label="draft depth",
            y_label="share of rounds accepted at least this deep",
            lines=lines,
            description=_describe(lines, "share of rounds", "depth"),
            top=1.0,
        )
        charts.append(_chart(panel, looks, run.label(setting)))
    need = (lambda c: c.arm.method == "ar" or _has_depths(c), NO_ROUNDS)
    return Charts(tuple(charts), _left_out(run, need))


def _has_depths(cell: CellSummary) -> bool:
    return bool(cell.accepted_by_depth) and all(is_number(v) for v in cell.accepted_by_depth)


def _chart(panel: Panel, looks: dict[Arm, Series], title: str) -> Chart:
    return Chart(title, draw(panel, looks) if panel.lines else "")


def _describe(lines: tuple[Line, ...], unit: str, axis: str) -> str:
    """The chart read out: every line with its points."""
    read = [
        f"{line.arm.label} "
        + ", ".join(f"{fixed(y, 2)} at {axis} {x:g}" for x, y in line.points if is_number(y))
        for line in lines
    ]
    return f"Line chart, {unit}: " + "; ".join(read) + "."


def _slug(temperature: float) -> str:
    return f"{temperature:g}".replace(".", "_")


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
