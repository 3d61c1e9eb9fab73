"""Speed-up over budget and topk, one map per setting and draft window."""

import math
from collections.abc import Iterable
from dataclasses import dataclass

from ddtree.records.arms import Arm, Window, window_size
from ddtree.records.settings import Setting
from ddtree.records.summary import CellSummary
from ddtree.report.limits import OPEN
from ddtree.report.numbers import N_TOO_SMALL, bounds, is_number
from ddtree.report.run import (
    Run,
    barred,
    barred_word,
    ratio,
    setting_of,
    window_label,
)

SMALLEST_SCALE = 1.5
"""Each side of the colour scale reaches at least this far, so that small gains look small."""


@dataclass(frozen=True)
class HeatCell:
    """One square. `kind` is win, loss, even, void (measured but may not count) or absent.

    A win or a loss has its whole interval on one side of 1; without an interval it is even.
    `strength` is the share of the full colour in percent, `chosen` marks the arm to ship here.
    """

    kind: str
    text: str
    note: str = ""
    strength: int = 0
    chosen: bool = False


@dataclass(frozen=True)
class HeatRow:
    """A row of the grid: its header and its squares."""

    header: str
    cells: tuple[HeatCell, ...]


@dataclass(frozen=True)
class HeatMap:
    """One setting and draft window: a budget x topk grid and the arms without a tree beside it.

    `hatched` says in full why each hatched square may not count.
    """

    title: str
    window: str
    budgets: tuple[int, ...]
    rows: tuple[HeatRow, ...]
    references: tuple[HeatRow, ...]
    hatched: tuple[str, ...]


@dataclass(frozen=True)
class Scale:
    """Speed-ups of full colour: `low` below 1, `high` above."""

    low: float
    high: float

    def strength(self, speedup: float) -> int:
        """Percent of the full colour, even steps on a log scale from 1."""
        end = self.high if speedup > 1 else self.low
        return min(100, round(100 * math.log(speedup) / math.log(end)))


@dataclass(frozen=True)
class HeatMaps:
    """All maps, and their one scale: the speed-ups at which each side's colour is full."""

    maps: tuple[HeatMap, ...]
    scale: Scale

    @property
    def folded(self) -> bool:
        """Whether the maps are too many to stand open."""
        return len(self.maps) > OPEN


def heat_maps(run: Run) -> HeatMaps:
    """One map per setting and draft window of its tree arms; a setting without any has one map."""
    found = [c.speedup for c in run.summary.cells if not barred(c) and c.speedup is not None]
    values = [value for value in found if is_number(value) and value > 0]
    scale = Scale(
        low=min([1 / SMALLEST_SCALE, *values]),
        high=max([SMALLEST_SCALE, *values]),
    )
    maps = [
        _map(run, setting, window, scale) for setting in run.settings for window in _windows(run)
    ]
    return HeatMaps(tuple(maps), scale)


def _windows(run: Run) -> list[Window]:
    windows = {arm.draft_window for arm in run.arms if arm.method == "ddtree"}
    return sorted(windows, key=window_size) or [None]


def _map(run: Run, setting: Setting, window: Window, scale: Scale) -> HeatMap:
    trees = [a for a in run.arms if a.method == "ddtree" and a.draft_window == window]
    budgets = sorted({arm.budget for arm in trees if arm.budget is not None})
    topks = sorted({arm.topk for arm in trees if arm.topk is not None})
    chosen = _chosen(run, setting)
    by_shape = {(arm.budget, arm.topk): run.cells.get((setting, arm)) for arm in trees}
    rows = tuple(
        HeatRow(
            str(topk),
            tuple(_cell(by_shape.get((budget, topk)), chosen, scale) for budget in budgets),
        )
        for topk in topks
    )
    references = [a for a in run.arms if a.method == "ar" or _is_reference(run, a, window)]
    shown = [*(run.cells.get((setting, arm)) for arm in references), *by_shape.values()]
    several = len(_windows(run)) > 1
    return HeatMap(
        title=run.label(setting),
        window=window_label(window) if several else "",
        budgets=tuple(budgets),
        rows=rows,
        references=tuple(
            HeatRow(arm.label, (_reference_cell(run, setting, arm, chosen, scale),))
            for arm in references
        ),
        hatched=_hatched(shown),
    )


def _is_reference(run: Run, arm: Arm, window: Window) -> bool:
    """A chain stands beside the trees of its own window, or beside all where none matches."""
    if arm.method != "chain":
        return False
    matching = any(a.method == "chain" and a.draft_window == window for a in run.arms)
    return arm.draft_window == window or not matching


def _chosen(run: Run, setting: Setting) -> frozenset[Arm]:
    return frozenset(c.arm for c in run.summary.verdict.choices if setting_of(c) == setting)


def _reference_cell(
    run: Run, setting: Setting, arm: Arm, chosen: frozenset[Arm], scale: Scale
) -> HeatCell:
    cell = run.cells.get((setting, arm))
    if cell is not None and arm == run.baseline and not barred(cell):
        return HeatCell("even", "1.00×", "baseline", chosen=arm in chosen)
    return _cell(cell, chosen, scale)


def _cell(cell: CellSummary | None, chosen: frozenset[Arm], scale: Scale) -> HeatCell:
    if cell is None:
        return HeatCell("absent", "–", "not planned")
    if barred(cell):
        return HeatCell("void", barred_word(cell))
    if cell.speedup is None or not is_number(cell.speedup) or cell.speedup <= 0:
        return HeatCell("absent", "–", "no pairs")
    interval = cell.speedup_interval
    kind = "win" if cell.is_win else "loss" if _is_loss(cell) else "even"
    return HeatCell(
        kind,
        ratio(cell.speedup),
        N_TOO_SMALL if interval is None else bounds(interval),
        scale.strength(cell.speedup),
        chosen=cell.arm in chosen,
    )


def _is_loss(cell: CellSummary) -> bool:
    return cell.speedup_interval is not None and cell.speedup_interval.high < 1


def _hatched(cells: Iterable[CellSummary | None]) -> tuple[str, ...]:
    return tuple(f"{c.place}: {barred(c)}" for c in cells if c is not None and barred(c))
