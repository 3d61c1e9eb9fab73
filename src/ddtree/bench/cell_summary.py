"""One cell's measurements to its CellSummary, beside the cells it is compared with.

Times and speeds are medians over the finished requests of valid blocks; system throughput pools
the busy windows of all blocks. In quantiles a failed request is slower than any other.
"""

import dataclasses
import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from statistics import median

from ddtree.bench.cell_checks import flags_of, losslessness_of
from ddtree.bench.gates import looped_reason
from ddtree.bench.pairing import (
    CellData,
    busy_slots,
    decode_ratios,
    end_to_end_speedup,
    speedup,
    whole_blocks,
)
from ddtree.records import metrics
from ddtree.records.acceptance import Account, accounts_of, by_depth_of, length_of, source_of
from ddtree.records.requests import RequestRecord
from ddtree.records.statistics import Estimate, mean_interval, quantile, quantile_minimum
from ddtree.records.summary import CellState, CellSummary, Interval, Losslessness, Spread
from ddtree.records.tree_use import tree_use

MAX_FAILED_SHARE = 0.05
ACCEPTANCE_DRAWS = 1_000

_NOTHING = Estimate(None, None, 0, 0)
_DECILES = tuple(tenth / 10 for tenth in range(1, 10))
Metric = Callable[[RequestRecord], float | None]


@dataclass(frozen=True)
class Rivals:
    """The valid cells of a setting that the others are held against: `ar`, and every chain."""

    baseline: CellData | None
    chains: tuple[CellData, ...]

    @classmethod
    def among(cls, group: Iterable[CellData]) -> "Rivals":
        """Those of a setting's cells."""
        valid = [cell for cell in group if state_of(cell)[0] == "ok"]
        baselines = [cell for cell in valid if cell.row.arm.method == "ar"]
        chains = tuple(cell for cell in valid if cell.row.arm.method == "chain")
        return cls(next(iter(baselines), None), chains)

    def chain_for(self, cell: CellData) -> CellData | None:
        """The chain with the same draft window if there is one."""
        window = cell.row.arm.draft_window
        same = [other for other in self.chains if other.row.arm.draft_window == window]
        return next(iter(same or self.chains), None)


def state_of(cell: CellData) -> tuple[CellState, str | None]:
    """The ledger's state, unless the counted blocks' requests say that the cell is no good."""
    if cell.row.state != "ok":
        return cell.row.state, cell.row.reason
    failed, counted = cell.failures.total(), len(cell.requests)
    if failed > MAX_FAILED_SHARE * counted:
        return "invalid", f"{failed} of {counted} requests failed ({classes_of(cell.failures)})"
    if not cell.finished:
        return "invalid", "no finished request in a valid block"
    looped = looped_reason(cell.finished)
    return ("ok", None) if looped is None else ("invalid", looped)


def classes_of(failures: Counter[str]) -> str:
    """`http_429 3, stall 1`."""
    return ", ".join(f"{name} {n}" for name, n in failures.most_common())


def summarise_cell(
    cell: CellData, rivals: Rivals, grade: Losslessness | None, seed: int
) -> CellSummary:
    """Everything that a report shows of a cell; no ratio for or against one that isn't ok."""
    row, finished, (state, reason) = cell.row, cell.finished, state_of(cell)
    baseline = rivals.baseline if state == "ok" else None
    ratio = _against(cell, baseline, seed)
    chain_ratio = _against(cell, rivals.chain_for(cell) if state == "ok" else None, seed)
    end_to_end = _end_to_end(cell, baseline, seed)
    stages = metrics.stage_seconds_per_round(finished)
    found = CellSummary(
        arm=row.arm,
        context=row.context,
        concurrency=row.concurrency,
        temperature=row.temperature,
        rate=row.rate,
        state=state,
        reason=reason,
        requests=len(cell.requests),
        failed_requests=cell.failures.total(),
        speedup=ratio.value,
        speedup_interval=ratio.interval,
        speedup_p=ratio.p_value,
        speedup_vs_chain=chain_ratio.value,
        speedup_vs_chain_interval=chain_ratio.interval,
        end_to_end_speedup=end_to_end.value,
        end_to_end_interval=end_to_end.interval,
        decode_tokens_per_s=_median(metrics.decode_tokens_per_s, finished),
        system_tokens_per_s=_system(cell),
        ttft_s=_median(metrics.ttft_s, finished),
        tpot_s=_median(metrics.tpot_s, finished),
        acceptance_length=length_of(cell.accounts),
        accepted_by_depth=by_depth_of(cell.accounts),
        stage_seconds=stages,
        round_s=sum(stages.values()) if stages else None,
        losslessness=losslessness_of(cell, rivals.baseline, grade),
    )
    return _with_observations(_with_rounds(found, cell, baseline, seed), cell, baseline)


def _with_rounds(
    found: CellSummary, cell: CellData, baseline: CellData | None, seed: int
) -> CellSummary:
    """What drafting gained and what a round cost."""
    plain = found.arm.method == "ar"
    return dataclasses.replace(
        found,
        acceptance_source=source_of(cell.accounts),
        acceptance_interval=None if plain else _acceptance_interval(cell, seed),
        acceptance_gain=1.0 if plain else found.acceptance_length,
        round_cost=None if baseline is None else _round_cost(cell, baseline),
        tree=tree_use(cell.finished),
    )


def _with_observations(
    found: CellSummary, cell: CellData, baseline: CellData | None
) -> CellSummary:
    """What requests and blocks say beyond the means."""
    ratios: list[float] = []
    if baseline is not None and baseline is not cell:
        ratios = list(chain.from_iterable(decode_ratios(cell.blocks, baseline.blocks)))
    slots = [extra.get("achieved_concurrency") for extra in cell.extras.values()]
    lags = [extra.get("loop_lag_p99_s") for extra in cell.extras.values()]
    cached = [r.cached_tokens for r in cell.finished if r.cached_tokens is not None]
    return dataclasses.replace(
        found,
        ttft=_spread(metrics.ttft_s, cell.requests),
        tpot=_spread(metrics.tpot_s, cell.requests),
        end_to_end=_spread(metrics.end_to_end_s, cell.requests),
        ratio_deciles=_deciles(ratios),
        achieved_concurrency=median(known) if (known := _known(slots)) else None,
        loop_lag_s=max(_known(lags), default=None),
        cached_tokens=sum(cached) if cached else None,
        flags=tuple(flags_of(cell, baseline, found.speedup)),
    )


def _against(cell: CellData, other: CellData | None, seed: int) -> Estimate:
    """A cell against itself is 1."""
    if other is None:
        return _NOTHING
    if other is cell:
        return Estimate(1.0, None, len(cell.blocks), len(cell.finished))
    return speedup(cell.blocks, other.blocks, busy_slots(cell.row.setting), seed)


def _end_to_end(cell: CellData, baseline: CellData | None, seed: int) -> Estimate:
    if baseline is None:
        return _NOTHING
    if baseline is cell:
        return Estimate(1.0, None, len(cell.blocks), len(cell.finished))
    return end_to_end_speedup(cell.blocks, baseline.blocks, seed)


def _round_cost(cell: CellData, baseline: CellData) -> float | None:
    """Seconds of a round over seconds of a baseline step, in blocks that both sides finished."""
    whole = whole_blocks(cell.blocks, baseline.blocks)
    mine = _round_seconds(cell, whole)
    step = _round_seconds(baseline, whole)
    return None if mine is None or step is None else mine / step


def _round_seconds(cell: CellData, blocks: Sequence[int]) -> float | None:
    records = [record for index in blocks for record in cell.blocks[index]]
    if cell.row.arm.method == "ar":
        return metrics.step_seconds(records)
    accounts = cell.accounts_in(blocks)
    counted = source_of(accounts) == "counters"
    return metrics.round_seconds(records, sum(a["rounds"] for a in accounts) if counted else None)


def _acceptance_interval(cell: CellData, seed: int) -> Interval | None:
    """Of the acceptance length: prompts are drawn, since the rounds of one depend on each other;
    blocks where the server's counters tell no prompts apart."""
    groups: dict[object, list[Account]] = defaultdict(list)
    if source_of(cell.accounts) == "counters":
        groups = defaultdict(list, enumerate([account] for account in cell.accounts))
    else:
        for record in cell.finished:
            groups[record.prompt_id] += accounts_of([record])
    clusters = []
    for group in groups.values():
        length, rounds = length_of(group), sum(account.get("rounds", 0) for account in group)
        if length is not None:
            clusters.append((length * rounds, float(rounds)))
    return mean_interval(clusters, seed, ACCEPTANCE_DRAWS)


def _median(metric: Metric, records: Sequence[RequestRecord]) -> float | None:
    values = _known(map(metric, records))
    return median(values) if values else None


def _known(values: Iterable[float | None]) -> list[float]:
    return [value for value in values if value is not None]


def _system(cell: CellData) -> float | None:
    found = [metrics.busy_window(b, cell.row.concurrency) for b in cell.blocks.values()]
    windows = [window for window in found if window is not None]
    if not windows:
        return None
    return sum(w.tokens for w in windows) / sum(w.seconds for w in windows)


def _spread(metric: Metric, records: Sequence[RequestRecord]) -> Spread | None:
    """A failed request is infinitely slow; a quantile that falls on one is None."""
    values = [math.inf for record in records if record.error is not None]
    values += _known(metric(record) for record in records if record.error is None)
    if not values:
        return None

    def at(q: float) -> float | None:
        found = quantile(values, q)
        return None if found is None or math.isinf(found) else found

    return Spread(len(values), at(0.1), at(0.5), at(0.9), at(0.95), at(0.99))


def _deciles(ratios: Sequence[float]) -> tuple[float, ...]:
    """Empty with too few ratios for the outermost ones."""
    if len(ratios) < quantile_minimum(0.9):
        return ()
    return tuple(_known(quantile(ratios, q) for q in _DECILES))
