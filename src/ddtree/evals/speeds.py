"""Speeds of an evaluation's own requests, block by block."""

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from ddtree.evals.comparison import Speeds
from ddtree.records.acceptance import accounts_of, length_of
from ddtree.records.metrics import system_tokens_per_s
from ddtree.records.requests import RequestRecord

Blocks = Mapping[int, Sequence[RequestRecord]]


def speeds_of(
    arm: Iterable[RequestRecord], baseline: Iterable[RequestRecord], concurrency: int
) -> Speeds:
    """System throughput (the mean over blocks), the geometric mean of the blocks' ratios to the
    baseline's, and the acceptance length.

    Both are all that was asked for, failures included. A block that was asked again in part, after
    a failure or a stop, measures nothing: its requests never ran together.
    """
    mine, base = by_block(arm), by_block(baseline)
    rates, others = _rates(mine, concurrency), _rates(base, concurrency)
    known = {block: rate for block, rate in rates.items() if rate}
    pairs = [(rate, others[block]) for block, rate in known.items() if others.get(block)]
    logs = [math.log(rate / other) for rate, other in pairs if other]
    return Speeds(
        tokens_per_s=sum(known.values()) / len(known) if known else None,
        speedup=math.exp(sum(logs) / len(logs)) if logs else None,
        acceptance_length=length_of(accounts_of(r for records in mine.values() for r in records)),
    )


def _rates(blocks: Blocks, concurrency: int) -> dict[int, float | None]:
    """Of blocks that were asked at one go."""
    return {
        block: system_tokens_per_s(records, concurrency)
        for block, records in blocks.items()
        if not any(record.attempt or record.error is not None for record in records)
    }


def by_block(records: Iterable[RequestRecord]) -> Blocks:
    """Records by block, each in the order they were sent."""
    found: dict[int, list[RequestRecord]] = defaultdict(list)
    for record in records:
        found[record.block].append(record)
    return {block: sorted(mine, key=lambda r: r.sent_s) for block, mine in found.items()}
