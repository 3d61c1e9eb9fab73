"""The cells beside those that may rank: screened ones, and the baseline repeated over the run."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from statistics import geometric_mean

from ddtree.bench.cell_summary import Rivals, summarise_cell
from ddtree.bench.pairing import Blocks, CellData, busy_slots, speedup
from ddtree.records.ledger import BlockRow
from ddtree.records.metrics import busy_window, decode_tokens_per_s
from ddtree.records.requests import RequestRecord
from ddtree.records.settings import Setting
from ddtree.records.summary import CellSummary, Losslessness, Sentinel

DRIFT = 0.03
"""How far the sentinel may move between two measurements before the run says so."""


def summarise_screened(
    cells: Sequence[CellData], grades: Mapping[str, Losslessness], seed: int
) -> list[CellSummary]:
    """Each against the `ar` and the chains that share most of its prompts.

    An arm that went through several rungs has several cells at one setting, each on its rung's
    prompts.
    """
    return [
        summarise_cell(cell, Rivals.among(_rung_of(cell, cells)), grades.get(cell.row.key), seed)
        for cell in sorted(cells, key=lambda cell: (cell.row.setting, cell.row.arm.size))
    ]


def sentinels(cells: Sequence[CellData], blocks: Sequence[BlockRow]) -> tuple[Sentinel, ...]:
    """The sentinel's measurements in the order they were made.

    `cells` are those of the role `sentinel`, `blocks` all of the run's. Where there are several
    sentinels, each is held against its own first measurement.
    """
    rows = {(b.cell, b.index): b for b in blocks if b.state == "ok" and b.started is not None}
    own = {cell.row.key for cell in cells}
    ends = [b.ended for b in rows.values() if b.cell not in own and b.ended is not None]
    found = []
    for cell in cells:
        measured = [(rows[cell.row.key, index], index) for index in cell.blocks]
        measured.sort(key=lambda pair: pair[0].started or 0.0)
        for row, index in measured:
            first = cell.blocks[measured[0][1]]
            ratio = _ratio(cell.blocks[index], first, cell.row.setting)
            if ratio is not None:
                at = row.started or 0.0
                found.append(Sentinel(sum(end <= at for end in ends), at, ratio))
    return tuple(sorted(found, key=lambda sentinel: sentinel.at))


def drift_warnings(found: Sequence[Sentinel]) -> Iterator[str]:
    """One line where the sentinel moved by more than DRIFT from one measurement to the next."""
    moves = [b.ratio / a.ratio - 1 for a, b in pairwise(found)]
    large = [move for move in moves if abs(move) > DRIFT]
    if large:
        worst = max(large, key=abs)
        yield (
            f"the machine drifted: the sentinel's speed moved by over {DRIFT:.0%} between "
            f"{len(large)} of {len(moves)} pairs of measurements, by {worst:+.1%} at most; ratios "
            "are of cells in the same block, so they keep, but speeds of different blocks differ"
        )


def _rung_of(cell: CellData, cells: Sequence[CellData]) -> list[CellData]:
    """The rivals at the cell's setting that ran its prompts, and the cell itself."""
    here = [other for other in cells if other.row.setting == cell.row.setting]
    wanted = _prompts(cell.blocks)
    by_arm: dict[object, CellData] = {}
    most: dict[object, int] = {}
    for other in here:
        arm, shared = other.row.arm, len(wanted & _prompts(other.blocks))
        if shared and shared >= most.get(arm, 0):
            by_arm[arm], most[arm] = other, shared
    by_arm[cell.row.arm] = cell
    return sorted(by_arm.values(), key=lambda other: other.row.arm.size)


def _prompts(blocks: Blocks) -> set[tuple[int, str]]:
    return {(index, record.prompt_id) for index, block in blocks.items() for record in block}


def _ratio(
    block: Sequence[RequestRecord], first: Sequence[RequestRecord], setting: Setting
) -> float | None:
    """Of speeds: by prompt where both ran the same ones, else of their means."""
    paired = speedup({0: block}, {0: first}, busy_slots(setting), 0).value
    if paired is not None:
        return paired
    speeds = [_speed(side, setting) for side in (block, first)]
    return None if speeds[0] is None or speeds[1] is None else speeds[0] / speeds[1]


def _speed(block: Sequence[RequestRecord], setting: Setting) -> float | None:
    slots = busy_slots(setting)
    if slots > 1:
        window = busy_window(block, slots)
        return None if window is None or not window.tokens else window.tokens_per_s
    found = [speed for record in block if (speed := decode_tokens_per_s(record)) is not None]
    return geometric_mean(found) if found else None
