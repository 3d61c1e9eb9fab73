"""Tables with a row per arm and setting, all of one form so that a reader can sort and filter them.

The arm heads each row, its setting takes the next columns, the numbers follow.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from ddtree.records.arms import Arm
from ddtree.records.settings import Setting
from ddtree.records.summary import CellSummary
from ddtree.report.limits import DETAIL, ROWS
from ddtree.report.numbers import Shown
from ddtree.report.run import Run, barred


@dataclass(frozen=True)
class Column:
    """A column's title, a second line below it, and whether it holds text rather than numbers."""

    title: str
    note: str = ""
    text: bool = False


@dataclass(frozen=True)
class Row:
    """One arm at one setting; `void` where it may not count.

    Void rows stay behind all others, whatever the table is sorted by.
    """

    arm: str
    place: tuple[str, ...]
    void: bool
    values: tuple[Shown, ...]


@dataclass(frozen=True)
class Table:
    """`slug` is its element's id, `label` what it is called, `lead` how it is to be read."""

    slug: str
    label: str
    columns: tuple[Column, ...]
    rows: tuple[Row, ...]
    lead: str = ""

    @property
    def folded(self) -> bool:
        """Whether it is long enough to be shown on request alone."""
        return len(self.rows) > ROWS


def place_columns(run: Run) -> tuple[Column, ...]:
    """Context and concurrency; temperature where not all is greedy, rate where a load is open."""
    names = ["Context", "Concurrency"]
    names += [] if run.is_greedy else ["Temperature"]
    names += [] if run.is_closed else ["Requests/s"]
    return tuple(Column(name) for name in names)


def place_of(run: Run, setting: Setting) -> tuple[str, ...]:
    """A setting's texts for `place_columns`."""
    texts = [str(setting.context), str(setting.concurrency)]
    texts += [] if run.is_greedy else [f"{setting.temperature:g}"]
    texts += [] if run.is_closed else [f"{setting.rate:g}" if setting.rate else "closed"]
    return tuple(texts)


def row_of(run: Run, cell: CellSummary, values: Iterable[Shown]) -> Row:
    """A cell's row, void where the cell may not count."""
    return arm_row(run, cell.arm, cell.setting, tuple(values), bool(barred(cell)))


def arm_row(
    run: Run, arm: Arm, setting: Setting, values: tuple[Shown, ...], void: bool = False
) -> Row:
    """The row of an arm at a setting."""
    return Row(arm.label, place_of(run, setting), void, values)


def detailed(run: Run) -> tuple[CellSummary, ...]:
    """The cells that tables of details show: all, or in a large run each setting's fastest.

    Beside the fastest that may count, ar and the chains keep their rows.
    """
    if len(run.cells) <= DETAIL:
        return ordered(run)
    share = DETAIL // len(run.settings)
    return tuple(cell for setting in run.settings for cell in _fastest(run, setting, share))


def detail_note(run: Run) -> str:
    """What a reader of a table of details is told; empty where it has all cells."""
    if len(run.cells) <= DETAIL:
        return ""
    return (
        f"Of {len(run.cells):,} cells this holds those of ar, the chains and each setting's "
        "fastest trees that count; the page's data has all."
    )


def _fastest(run: Run, setting: Setting, share: int) -> list[CellSummary]:
    cells = run.at(setting)
    fit = [cell for cell in cells if not barred(cell)]
    ranked = sorted(fit, key=lambda c: (c.arm.method == "ddtree", -(c.speedup or 0.0)))
    kept = {cell.arm for cell in ranked[: max(1, share)]}
    return [cell for cell in cells if cell.arm in kept]


def ordered(run: Run) -> tuple[CellSummary, ...]:
    """All cells, by setting, then arm."""
    return tuple(cell for setting in run.settings for cell in run.at(setting))
