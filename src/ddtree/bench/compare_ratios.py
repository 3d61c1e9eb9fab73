"""How much faster one run's cell is than another's, by what both have on file."""

from collections.abc import Iterable
from dataclasses import dataclass
from statistics import geometric_mean

from ddtree.bench.compare_runs import ComparedRun, Place
from ddtree.bench.pairing import Blocks, busy_slots, speed_ratios
from ddtree.records.arms import Arm
from ddtree.records.metrics import busy_window, decode_tokens_per_s
from ddtree.records.requests import RequestRecord
from ddtree.records.statistics import Estimate, paired_ratio, unpaired_ratio
from ddtree.records.summary import CellSummary, Interval

_AR = Arm("ar")


@dataclass(frozen=True)
class Ratio:
    """B over A; `interval` None where there are too few blocks, or no requests to look at."""

    value: float
    interval: Interval | None

    @property
    def is_changed(self) -> bool:
        """Whether the whole interval lies on one side of 1."""
        found = self.interval
        return found is not None and not found.low <= 1 <= found.high


def is_paired(place: Place, a: ComparedRun, b: ComparedRun) -> bool:
    """Whether both sides ran the same prompts, by the hash in the cells' identities."""
    hashes = []
    for run in (a, b):
        cell = run.cells.get(place)
        if cell is None:
            return False
        hashes.append(run.identities[cell.row.key]["prompts_sha256"])
    return bool(hashes[0] == hashes[1])


def speed_ratio(place: Place, a: ComparedRun, b: ComparedRun) -> Ratio | None:
    """Of decode speeds by prompt, or of system throughputs by block above concurrency 1."""
    slots = busy_slots(place[1])
    mine, base = b.cells.get(place), a.cells.get(place)
    if mine is None or base is None:
        return _plain(*(_speed(run.places[place], slots) for run in (b, a)))
    if is_paired(place, a, b):
        return _ratio(paired_ratio(speed_ratios(mine.blocks, base.blocks, slots), b.seed))
    return _ratio(unpaired_ratio(_speeds(mine.blocks, slots), _speeds(base.blocks, slots), b.seed))


def speedup_ratio(place: Place, a: ComparedRun, b: ComparedRun) -> Ratio | None:
    """Of speed-ups over each run's own baseline, by block: that is what a run's arms share."""
    arm, setting = place
    cells = [run.places[place] for run in (b, a)]
    if any(cell.speedup is None for cell in cells):
        return None
    if arm == _AR:
        return Ratio(1.0, Interval(1.0, 1.0))
    sides = []
    for run in (b, a):
        mine, base = run.cells.get(place), run.cells.get((_AR, setting))
        if mine is None or base is None:
            return _plain(*(cell.speedup for cell in cells))
        sides.append(_by_block(mine.blocks, base.blocks, busy_slots(setting)))
    if not is_paired(place, a, b):
        return _ratio(unpaired_ratio(list(sides[0].values()), list(sides[1].values()), b.seed))
    common = sorted(sides[0].keys() & sides[1].keys())
    means = [[geometric_mean(sides[0][i]) / geometric_mean(sides[1][i])] for i in common]
    return _ratio(paired_ratio(means, b.seed))


def _ratio(found: Estimate) -> Ratio | None:
    return None if found.value is None else Ratio(found.value, found.interval)


def _plain(mine: float | None, base: float | None) -> Ratio | None:
    """Of two summaries' numbers, whose spread is gone."""
    return Ratio(mine / base, None) if mine and base else None


def _speed(cell: CellSummary, slots: int) -> float | None:
    return cell.decode_tokens_per_s if slots == 1 else cell.system_tokens_per_s


def _by_block(mine: Blocks, base: Blocks, slots: int) -> dict[int, list[float]]:
    """Ratios by block, blocks without one left out."""
    found = {}
    for index in sorted(mine.keys() & base.keys()):
        ratios = speed_ratios({index: mine[index]}, {index: base[index]}, slots)
        if ratios and ratios[0]:
            found[index] = ratios[0]
    return found


def _speeds(blocks: Blocks, slots: int) -> list[list[float]]:
    """By block, of blocks in which nothing failed."""
    whole = [block for block in blocks.values() if all(r.error is None for r in block)]
    return [list(_block_speeds(block, slots)) for block in whole]


def _block_speeds(block: Iterable[RequestRecord], slots: int) -> Iterable[float]:
    records = tuple(block)
    if slots > 1:
        window = busy_window(records, slots)
        return [] if window is None or not window.tokens else [window.tokens_per_s]
    return [speed for r in records if (speed := decode_tokens_per_s(r)) is not None]
