"""Where a round's time goes: one stacked bar per arm and setting, with its numbers."""

from collections.abc import Sequence
from dataclasses import dataclass

from ddtree.records.rounds import STAGES
from ddtree.records.summary import CellSummary
from ddtree.report.grid import detailed
from ddtree.report.limits import ROWS, left_out, spread
from ddtree.report.numbers import Shown, is_number, milliseconds, missing, number
from ddtree.report.run import Run, barred, barred_word

NONE_REPORTED = "the server reports no stage times"


@dataclass(frozen=True)
class Segment:
    """A stage's part of a bar: `share` in percent of the longest round of the setting."""

    stage: str
    colour: int
    share: float
    text: str


@dataclass(frozen=True)
class StageRow:
    """One arm: the bar, the whole round, time per output token, then each stage, in ms.

    `barred` is why the cell cannot count and `no_bar` why nothing is drawn, both empty otherwise.
    """

    arm: str
    barred: str
    no_bar: str
    segments: tuple[Segment, ...]
    round_ms: Shown
    per_token_ms: Shown
    stages_ms: tuple[Shown, ...]


@dataclass(frozen=True)
class StageTable:
    """All arms of one setting."""

    title: str
    rows: tuple[StageRow, ...]


@dataclass(frozen=True)
class StageTables:
    """`stages` names the columns; a stage's place in it is its colour.

    `folded` where the tables are too many to stand open, `not_drawn` how many are left out.
    """

    stages: tuple[str, ...]
    tables: tuple[StageTable, ...]
    folded: bool = False
    not_drawn: str = ""


def stage_tables(run: Run) -> StageTables:
    """One table per setting with any stage times; none at all where no server reports them."""
    seen = {name for cell in run.summary.cells for name in cell.stage_seconds or {}}
    names = (*(s for s in STAGES if s in seen), *sorted(seen - set(STAGES)))
    settings = [s for s in run.settings if any(cell.stage_seconds for cell in run.at(s))]
    drawn = spread(settings)
    cells = detailed(run)
    return StageTables(
        names,
        tuple(
            _table(run.label(setting), [c for c in cells if c.setting == setting], names)
            for setting in drawn
        ),
        folded=len(run.summary.cells) > ROWS,
        not_drawn=left_out(len(drawn), len(settings), "setting"),
    )


def _table(title: str, cells: Sequence[CellSummary], names: tuple[str, ...]) -> StageTable:
    longest = max((sum(_seconds(cell).values()) for cell in cells), default=0.0)
    return StageTable(title, tuple(_row(cell, names, longest) for cell in cells))


def _seconds(cell: CellSummary) -> dict[str, float]:
    return {k: v for k, v in (cell.stage_seconds or {}).items() if is_number(v) and v > 0}


def _row(cell: CellSummary, names: tuple[str, ...], longest: float) -> StageRow:
    seconds = _seconds(cell)
    reason = barred(cell) or NONE_REPORTED
    stages = cell.stage_seconds or {}
    shown = tuple(
        milliseconds(stages[name], 2, reason)
        if name in stages
        else missing(reason if not stages else "not a stage of this arm")
        for name in names
    )
    tokens = 1.0 if cell.arm.method == "ar" else cell.acceptance_length
    per_token = None if cell.round_s is None or not tokens else 1e3 * cell.round_s / tokens
    return StageRow(
        arm=cell.arm.label,
        barred=barred_word(cell),
        no_bar="" if seconds else reason,
        segments=tuple(
            Segment(
                name,
                names.index(name),
                100 * seconds[name] / longest,
                f"{name} {milliseconds(seconds[name], 2, reason).text} ms",
            )
            for name in names
            if name in seconds
        ),
        round_ms=milliseconds(cell.round_s, 2, reason),
        per_token_ms=number(per_token, 2, reason),
        stages_ms=shown,
    )
