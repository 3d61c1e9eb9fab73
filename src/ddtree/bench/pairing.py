"""A cell's measurements as a ledger and a request log hold them, and ratios between two cells.

Pairs are made inside a block by prompt: both arms ran it on the same server, minutes apart at
most. Only `ok` blocks in which every request of both arms finished give ratios: a request that
failed leaves its neighbours a quieter server.
"""

import dataclasses
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ddtree.errors import ConfigError
from ddtree.records.acceptance import Account, accounts_of
from ddtree.records.ledger import BlockRow, CellRow
from ddtree.records.metrics import (
    busy_window,
    decode_tokens_per_s,
    end_to_end_tokens_per_s,
    reconciliation_error,
)
from ddtree.records.requests import RequestRecord
from ddtree.records.settings import Setting
from ddtree.records.statistics import Estimate, paired_ratio

Blocks = Mapping[int, Sequence[RequestRecord]]

END_TO_END_DRAWS = 1_000
"""Fewer than for what decides: the ends of an interval are good to 2 % of its width."""

MISCOUNTS = ("counts", "count_mismatch")
"""Error classes of answers whose counts contradict each other: no accident of the machine."""


@dataclass(frozen=True)
class CellData:
    """One cell with its requests by block.

    `blocks` holds the `ok` blocks, which alone are counted. `repeated` holds the requests of
    `failed` attempts, most of which a later attempt made good. `invalid_reasons` has one entry for
    each attempt that noise on the machine voided; its requests count nowhere. `extras` is what was
    observed during each ok block.
    """

    row: CellRow
    blocks: Blocks
    repeated: tuple[RequestRecord, ...]
    invalid_reasons: tuple[str, ...]
    extras: Mapping[int, Mapping[str, Any]] = field(default_factory=dict)

    @property
    def requests(self) -> tuple[RequestRecord, ...]:
        """Requests of the ok blocks, failed ones included."""
        return tuple(record for block in self.blocks.values() for record in block)

    @property
    def finished(self) -> tuple[RequestRecord, ...]:
        """Requests of the ok blocks that finished."""
        return tuple(record for record in self.requests if record.error is None)

    @property
    def accounts(self) -> list[Account]:
        """Of the ok blocks' rounds: the counters' of a block where they were read, else those of
        its requests that finished."""
        return self.accounts_in(self.blocks)

    def accounts_in(self, blocks: Iterable[int]) -> list[Account]:
        """`accounts` of some of the ok blocks."""
        found: list[Account] = []
        for index in blocks:
            counters = self.extras.get(index, {}).get("counters")
            found += [counters] if counters else accounts_of(self.blocks[index])
        return found

    @property
    def failures(self) -> Counter[str]:
        """Failed requests of the ok blocks by error class."""
        return failures_of(self.requests)

    @property
    def miscounts(self) -> int:
        """Requests of any attempt that hold counts or stats which contradict each other."""
        found = failures_of((*self.requests, *self.repeated))
        return sum(found[name] for name in MISCOUNTS)


def failures_of(records: Iterable[RequestRecord]) -> Counter[str]:
    """Failed requests by error class (the text before the first colon)."""
    errors = (record.error for record in records)
    return Counter(error.split(":")[0] for error in errors if error is not None)


def gather(row: CellRow, blocks: Sequence[BlockRow], requests: Sequence[RequestRecord]) -> CellData:
    """Sort a cell's requests into its blocks' attempts.

    A request whose counts don't reconcile becomes a failed one. Requests of an attempt that the
    ledger doesn't know (the client was killed in it) are left out. ConfigError when the requests
    of an ok block are missing.
    """
    by_attempt: dict[tuple[int, int], list[RequestRecord]] = defaultdict(list)
    for record in requests:
        problem = reconciliation_error(record)
        if problem is not None:
            record = dataclasses.replace(record, error=f"{MISCOUNTS[0]}: {problem}")
        by_attempt[record.block, record.attempt].append(record)
    counted = [block for block in blocks if block.state in ("ok", "failed")]
    for block in counted:
        if block.state == "ok" and (block.index, block.attempt) not in by_attempt:
            raise ConfigError(
                f"cell {row.key[:12]}, block {block.index}: ok in the ledger, but the request log "
                "has nothing of it; the run folder is damaged"
            )
    return CellData(
        row=row,
        blocks={
            block.index: tuple(by_attempt[block.index, block.attempt])
            for block in counted
            if block.state == "ok"
        },
        repeated=tuple(
            record
            for block in counted
            if block.state == "failed"
            for record in by_attempt[block.index, block.attempt]
        ),
        invalid_reasons=tuple(b.reason or "no reason" for b in blocks if b.state == "invalid"),
        extras={block.index: block.extra for block in counted if block.state == "ok"},
    )


def pairs(
    candidate: Blocks, baseline: Blocks
) -> Iterator[list[tuple[RequestRecord, RequestRecord]]]:
    """For each common block, in order: (candidate, baseline) of each prompt that both finished."""
    for index in _common(candidate, baseline):
        base = {r.prompt_id: r for r in baseline[index] if r.error is None}
        yield [
            (record, base[record.prompt_id])
            for record in candidate[index]
            if record.error is None and record.prompt_id in base
        ]


def unanswered(candidate: Blocks, baseline: Blocks) -> int:
    """Prompts of common blocks that the baseline finished and the candidate failed."""
    count = 0
    for index in _common(candidate, baseline):
        finished = {r.prompt_id for r in baseline[index] if r.error is None}
        count += sum(r.error is not None and r.prompt_id in finished for r in candidate[index])
    return count


def busy_slots(setting: Setting) -> int:
    """How many slots a setting keeps busy, as `speedup` wants them: 1 in an open loop, which is
    never full for long and compared prompt by prompt."""
    return 1 if setting.rate else setting.concurrency


def speedup(candidate: Blocks, baseline: Blocks, concurrency: int, seed: int) -> Estimate:
    """Decode speed-up, see `speed_ratios`."""
    return paired_ratio(speed_ratios(candidate, baseline, concurrency), seed)


def speed_ratios(candidate: Blocks, baseline: Blocks, concurrency: int) -> list[list[float]]:
    """By block, candidate over baseline: per prompt at concurrency 1, of system throughputs above.

    Answers that came in one chunk, and blocks in which the slots were never all busy or any
    request of either side failed, give no ratio.
    """
    if concurrency == 1:
        return decode_ratios(candidate, baseline)
    rates = []
    for index in whole_blocks(candidate, baseline):
        windows = [busy_window(side[index], concurrency) for side in (candidate, baseline)]
        found = [window.tokens_per_s for window in windows if window and window.tokens]
        if len(found) == len(windows):
            rates.append([found[0] / found[1]])
    return rates


def decode_ratios(candidate: Blocks, baseline: Blocks) -> list[list[float]]:
    """By block, the ratio of decode speeds of each prompt."""
    return _prompt_ratios(candidate, baseline, decode_tokens_per_s)


def end_to_end_speedup(candidate: Blocks, baseline: Blocks, seed: int) -> Estimate:
    """Geometric mean of per-prompt ratios of tokens / end-to-end time, prompt work included."""
    ratios = _prompt_ratios(candidate, baseline, end_to_end_tokens_per_s)
    return paired_ratio(ratios, seed, draws=END_TO_END_DRAWS)


def whole_blocks(candidate: Blocks, baseline: Blocks) -> list[int]:
    """Common blocks in which no request of either side failed."""
    return [
        index
        for index in _common(candidate, baseline)
        if all(record.error is None for record in (*candidate[index], *baseline[index]))
    ]


def _common(candidate: Blocks, baseline: Blocks) -> list[int]:
    return sorted(candidate.keys() & baseline.keys())


def _prompt_ratios(
    candidate: Blocks, baseline: Blocks, speed: Callable[[RequestRecord], float | None]
) -> list[list[float]]:
    ratios = []
    whole = whole_blocks(candidate, baseline)
    for block in pairs({i: candidate[i] for i in whole}, {i: baseline[i] for i in whole}):
        speeds = [(speed(mine), speed(base)) for mine, base in block]
        ratios.append([a / b for a, b in speeds if a is not None and b is not None])
    return ratios
