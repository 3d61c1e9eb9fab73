"""Tokens per second of one user against those of the whole server, and the front of the best."""

from dataclasses import dataclass, replace

from ddtree.records.arms import Arm
from ddtree.records.summary import CellSummary
from ddtree.report.charts import Axis, Guide, Line, Panel, draw
from ddtree.report.curves import Chart
from ddtree.report.limits import left_out, spread
from ddtree.report.numbers import count, fixed, is_number
from ddtree.report.run import Load, Run, barred
from ddtree.report.series import OTHER, Series


@dataclass(frozen=True)
class Front:
    """One chart, the points of its front from many users to one, and what is not drawn."""

    chart: Chart
    points: tuple[str, ...]
    drawn: int
    barred: int


@dataclass(frozen=True)
class Fronts:
    """All fronts; `not_drawn` says how many charts a large run leaves out."""

    fronts: tuple[Front, ...]
    not_drawn: str = ""


@dataclass(frozen=True)
class _Point:
    cell: CellSummary
    user: float
    system: float


def pareto_fronts(run: Run, looks: dict[Arm, Series]) -> Fronts:
    """A front per context and load with at least two points that may count."""
    places = [
        (load, context)
        for load in run.loads
        for context in sorted({s.context for s in run.under(load)})
        if len(_points(_cells(run, load, context))) > 1
    ]
    drawn = spread(places)
    fronts = tuple(_front(run, looks, load, context) for load, context in drawn)
    return Fronts(fronts, left_out(len(drawn), len(places), "chart"))


def front_of(points: list[tuple[float, float]]) -> list[int]:
    """Places of the points that no other beats in one number and matches in the other.

    In order of the first number; of equal points the first stands for all.
    """
    order = sorted(range(len(points)), key=lambda i: (-points[i][0], -points[i][1], i))
    front, highest = [], float("-inf")
    for i in order:
        if points[i][1] > highest:
            front.append(i)
            highest = points[i][1]
    return front[::-1]


def _cells(run: Run, load: Load, context: int) -> list[CellSummary]:
    return [c for s in run.under(load) if s.context == context for c in run.at(s)]


def _points(cells: list[CellSummary]) -> list[_Point]:
    return [
        _Point(cell, cell.decode_tokens_per_s, cell.system_tokens_per_s)
        for cell in cells
        if not barred(cell)
        and cell.decode_tokens_per_s is not None
        and cell.system_tokens_per_s is not None
        and is_number(cell.decode_tokens_per_s)
        and is_number(cell.system_tokens_per_s)
    ]


def _front(run: Run, looks: dict[Arm, Series], load: Load, context: int) -> Front:
    cells = _cells(run, load, context)
    points = _points(cells)
    best = [points[i] for i in front_of([(p.user, p.system) for p in points])]
    lines = tuple(
        Line(
            arm.label,
            _dot(looks[arm]),
            tuple((p.user, p.system) for p in points if p.cell.arm == arm),
            joined=False,
        )
        for arm in run.arms
        if any(p.cell.arm == arm for p in points)
    )
    named = tuple(_said(point) for point in best)
    panel = Panel(
        slug=f"front-{context}-{load.slug}",
        x=Axis("tokens per second, one user", low=0.0, high=1.12 * max(p.user for p in points)),
        y=Axis("tokens per second, whole server", low=0.0),
        lines=lines,
        description=f"{count(len(points), 'point')}; on the front: {'; '.join(named)}.",
        guides=(
            Guide(
                tuple((p.user, p.system) for p in best),
                tuple(f"C={p.cell.concurrency}" for p in best),
            ),
        ),
    )
    title = f"Context {context}{run.conditions(load)}"
    return Front(
        Chart(title, draw(panel)), named, len(points), sum(1 for cell in cells if barred(cell))
    )


def _dot(look: Series) -> Series:
    """Points without a line need a marker: a small dot for those that share the grey line."""
    return replace(look, marker="o", marker_size=3.0) if look.colour == OTHER else look


def _said(point: _Point) -> str:
    return (
        f"{point.cell.arm.label} at concurrency {point.cell.concurrency}: "
        f"{fixed(point.user, 1)} and {fixed(point.system, 1)}"
    )
