"""Where each method wins: contexts against concurrencies, one square per setting.

A method stands for its best arm that may count at a setting. It wins where that arm's interval
lies above 1 (for ar: where all others' lie below) and it is faster than the other method's best by
more than TIE_BAND, with an interval of its own that keeps clear of it.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from ddtree.records.arms import Arm, Method, Window, window_size
from ddtree.records.settings import Setting
from ddtree.records.summary import TIE_BAND, CellSummary, Interval
from ddtree.report.numbers import N_TOO_SMALL, count, is_number
from ddtree.report.run import Load, Run, barred, ratio, window_label

MARKS: dict[str, tuple[str, str]] = {
    "ar": ("A", "ar is fastest"),
    "chain": ("C", "the chain is fastest"),
    "ddtree": ("D", "a tree is fastest"),
    "tie": ("=", "too close to call"),
    "open": ("?", "no interval, n too small"),
    "none": ("–", "nothing that may be compared"),
}
"""Every kind of square: the letter in it, and what it says."""


@dataclass(frozen=True)
class Square:
    """One setting: `kind` is a key of MARKS, `arm` and `speedup` are the fastest arm's.

    `note` names what a tie is between, or why there is nothing to show.
    """

    kind: str
    arm: str = ""
    speedup: str = ""
    note: str = ""

    @property
    def mark(self) -> str:
        """The letter that says what the colour says."""
        return MARKS[self.kind][0]


@dataclass(frozen=True)
class CrossRow:
    """One context: a square per concurrency, None where the run has no such setting."""

    context: int
    squares: tuple[Square | None, ...]


@dataclass(frozen=True)
class CrossMap:
    """All contexts and concurrencies of one load, over the arms of one draft window or of all.

    `basis` says how many cells it rests on.
    """

    title: str
    concurrencies: tuple[int, ...]
    rows: tuple[CrossRow, ...]
    basis: str


def cross_maps(run: Run) -> tuple[CrossMap, ...]:
    """A map per load, over all arms and, where windows vary, over each window's.

    None where the run has a single setting or no speculative arm.
    """
    windows = sorted({arm.draft_window for arm in run.arms if arm.method != "ar"}, key=window_size)
    if len(run.settings) < 2 or not windows:
        return ()
    groups = [("", run.arms)]
    if len(windows) > 1:
        groups = [("any draft window", run.arms)]
        groups += [(window_label(window), _of(run, window)) for window in windows]
    return tuple(_map(run, load, name, arms) for load in run.loads for name, arms in groups)


def _of(run: Run, window: Window) -> tuple[Arm, ...]:
    return tuple(arm for arm in run.arms if arm.method == "ar" or arm.draft_window == window)


def _map(run: Run, load: Load, name: str, arms: Sequence[Arm]) -> CrossMap:
    settings = {(s.context, s.concurrency): s for s in run.under(load)}
    concurrencies = tuple(sorted({concurrency for _, concurrency in settings}))
    found = [
        cell
        for setting in settings.values()
        for cell in run.at(setting)
        if cell.arm in arms and cell.arm.method != "ar"
    ]
    title = ", ".join(part for part in (name, run.conditions(load)[2:]) if part)
    return CrossMap(
        title=title[:1].upper() + title[1:],
        concurrencies=concurrencies,
        rows=tuple(
            CrossRow(
                context,
                tuple(
                    _square(run, settings[context, c], arms) if (context, c) in settings else None
                    for c in concurrencies
                ),
            )
            for context in sorted({context for context, _ in settings})
        ),
        basis=_basis(found),
    )


def _basis(cells: Sequence[CellSummary]) -> str:
    unfit = sum(1 for cell in cells if barred(cell))
    text = f"From {count(len(cells) - unfit, 'speculative cell')}"
    return f"{text}; {count(unfit, 'cell')} more can't count." if unfit else f"{text}."


def _square(run: Run, setting: Setting, arms: Sequence[Arm]) -> Square:
    cells = [cell for cell in run.at(setting) if cell.arm in arms and not barred(cell)]
    if not any(cell.arm.method == "ar" for cell in cells):
        return Square("none", note="no valid ar")
    best = {method: _best(cells, method) for method in ("chain", "ddtree")}
    rivals = [cell for cell in best.values() if cell is not None]
    if not rivals:
        return Square("none", note="no valid arm")
    leader = max(rivals, key=_speed)
    if any(cell.speedup_interval is None for cell in rivals):
        return Square("open", leader.arm.label, ratio(_speed(leader)), N_TOO_SMALL)
    if all(_high(cell) < 1 for cell in rivals):
        return Square("ar", run.baseline.label, ratio(1.0), f"next {ratio(_speed(leader))}")
    ties = [cell.arm.method for cell in rivals if cell is leader or _ties(leader, cell)]
    if not leader.is_win:
        ties = ["ar", *ties]
    if len(ties) > 1:
        return Square("tie", leader.arm.label, ratio(_speed(leader)), " = ".join(ties))
    return Square(leader.arm.method, leader.arm.label, ratio(_speed(leader)))


def _best(cells: Sequence[CellSummary], method: Method) -> CellSummary | None:
    fit = [c for c in cells if c.arm.method == method and is_number(c.speedup) and _speed(c) > 0]
    return max(fit, key=_speed, default=None)


def _speed(cell: CellSummary) -> float:
    return cell.speedup or 0.0


def _high(cell: CellSummary) -> float:
    return cell.speedup_interval.high if cell.speedup_interval is not None else float("inf")


def _ties(leader: CellSummary, other: CellSummary) -> bool:
    """Within the band, or not told apart: by the paired interval where the run has it."""
    if _speed(other) >= _speed(leader) * (1 - TIE_BAND):
        return True
    paired = _paired(leader, other)
    if paired is not None:
        return paired.low <= 1 <= paired.high
    mine, theirs = leader.speedup_interval, other.speedup_interval
    return mine is None or theirs is None or mine.low <= theirs.high


def _paired(one: CellSummary, two: CellSummary) -> Interval | None:
    """The tree's interval against the chain, if that chain is the other of the two."""
    tree, chain = (one, two) if one.arm.method == "ddtree" else (two, one)
    if tree.arm.draft_window != chain.arm.draft_window:
        return None
    return tree.speedup_vs_chain_interval
