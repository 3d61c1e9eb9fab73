"""Warm-up at one shape (arm, context, concurrency): batches until their times agree, bounded.

The first batches of a shape compile, capture graphs, grow caches and let clocks rise. All batches
are the same work (the same prompts, with end-of-sequence ignored), so their times tell when that
is over. None of it is measured, so the prompts may be the same.
"""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from ddtree.records.requests import RequestRecord

AGREEING = 3
WITHIN = 0.05
MAX_BATCHES = 10

Batch = Callable[[], Awaitable[Sequence[RequestRecord]]]


@dataclass(frozen=True)
class WarmUp:
    """What each batch took in seconds, None for one in which a request failed.

    `stable` is None where too few batches were allowed for it to be known. `error` is the last
    failure.
    """

    seconds: tuple[float | None, ...]
    stable: bool | None
    error: str | None

    @property
    def note(self) -> str | None:
        """What a reader of the run should know; None if all went well."""
        if self.error is not None:
            return self.error
        if self.stable is not False:
            return None
        times = ", ".join(f"{s:.3g}" for s in self.seconds[-AGREEING:] if s is not None)
        return (
            f"not stable after {len(self.seconds)} batches (the last took {times} s, which is "
            f"more than {WITHIN:.0%} apart)"
        )


async def warm_up(batch: Batch, max_batches: int = MAX_BATCHES) -> WarmUp:
    """Run `batch` until the last AGREEING times lie within WITHIN of each other.

    Ends after `max_batches` at the latest; 1 runs one batch and asks nothing of its time. A batch
    with a failed request agrees with none. What `batch` raises goes on as it is.
    """
    seconds: list[float | None] = []
    error = None
    while len(seconds) < max_batches and not _agree(seconds):
        records = await batch()
        errors = [record.error for record in records if record.error is not None]
        error = errors[0] if errors else error
        seconds.append(None if errors else batch_s(records))
    known = max_batches >= AGREEING
    return WarmUp(tuple(seconds), _agree(seconds) if known else None, error)


def batch_s(records: Sequence[RequestRecord]) -> float | None:
    """Seconds from the first request sent to the last end of a stream; None without one."""
    ends = [record.end_s for record in records if record.end_s is not None]
    return max(ends) - min(record.sent_s for record in records) if ends else None


def _agree(seconds: Sequence[float | None]) -> bool:
    last = [s for s in seconds[-AGREEING:] if s is not None]
    return len(last) == AGREEING and max(last) <= (1 + WITHIN) * min(last)
