"""The metrics, one formula each, over request records. Seconds inside; nothing is rounded.

Every function of one record answers None for a request that failed: what arrived before a failure
is no measurement of speed.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from ddtree.errors import EngineError
from ddtree.records.requests import RequestRecord
from ddtree.records.rounds import GenerationStats

METRIC_VERSION = 2


@dataclass(frozen=True)
class BusyWindow:
    """The time in which all slots were decoding: `seconds` in all, `tokens` that came in it.

    `tokens` is fractional where a chunk's gap crosses the window's edge.
    """

    tokens: float
    seconds: float

    @property
    def tokens_per_s(self) -> float:
        """System throughput."""
        return self.tokens / self.seconds


def ttft_s(record: RequestRecord) -> float | None:
    """Request sent to first token, client's clock; None without a token."""
    if record.error is not None or not record.chunk_times_s:
        return None
    return record.chunk_times_s[0] - record.sent_s


def end_to_end_s(record: RequestRecord) -> float | None:
    """Request sent to end of stream; None without an end."""
    if record.error is not None or record.end_s is None:
        return None
    return record.end_s - record.sent_s


def tpot_s(record: RequestRecord) -> float | None:
    """(last - first chunk time) / (output tokens - tokens in the first chunk).

    None when all tokens came in one chunk: such an answer has no decode speed.
    """
    if record.error is not None:
        return None
    tokens = sum(record.chunk_tokens[1:])
    seconds = record.chunk_times_s[-1] - record.chunk_times_s[0] if tokens else 0.0
    return seconds / tokens if tokens and seconds > 0 else None


def decode_tokens_per_s(record: RequestRecord) -> float | None:
    """1 / tpot_s."""
    tpot = tpot_s(record)
    return None if tpot is None else 1 / tpot


def end_to_end_tokens_per_s(record: RequestRecord) -> float | None:
    """Output tokens / end-to-end seconds, the prompt's work included."""
    seconds = end_to_end_s(record)
    tokens = sum(record.chunk_tokens)
    return tokens / seconds if seconds and tokens else None


def chunk_gaps_s(record: RequestRecord) -> tuple[float, ...]:
    """Gaps between stream chunks: the step's time, not the time between tokens."""
    if record.error is not None:
        return ()
    times = record.chunk_times_s
    return tuple(b - a for a, b in pairwise(times))


def busy_window(records: Sequence[RequestRecord], concurrency: int) -> BusyWindow | None:
    """When at least `concurrency` of these requests were decoding, and the tokens of that time.

    A request decodes from its first token to its last one; a failed one to its failure (`end_s`),
    for it holds its slot until then and gives no tokens. Sending, queueing and its own prompt's
    work are no decoding, so ramp-up, hand-over and drain are outside, and a wave whose prompts go
    through one by one is measured once all have had their first token. (A prompt that a server
    works on while the others decode can still slow these.) A chunk's tokens are spread evenly
    over the gap before it; the first chunk's count at its stamp, the edge of the request's span.
    None when there never were that many, or no time passed.
    """
    spans = _busy_spans(records, concurrency)
    seconds = sum(end - start for start, end in spans)
    if seconds <= 0:
        return None
    finished = [record for record in records if record.error is None]
    tokens = sum(_tokens_within(record, span) for record in finished for span in spans)
    return BusyWindow(tokens, seconds)


def system_tokens_per_s(records: Sequence[RequestRecord], concurrency: int) -> float | None:
    """Tokens inside `busy_window` / its length; None without a window."""
    window = busy_window(records, concurrency)
    return None if window is None else window.tokens_per_s


def acceptance_length(records: Sequence[RequestRecord]) -> float | None:
    """1 + sum(num_accepted) / rounds over all requests' rounds together; None without rounds."""
    counts = _histogram(records)
    rounds = sum(counts)
    return 1 + sum(a * n for a, n in enumerate(counts)) / rounds if rounds else None


def accepted_by_depth(records: Sequence[RequestRecord]) -> tuple[float, ...]:
    """[d - 1] = share of rounds that accepted at least d draft tokens; empty without drafts."""
    counts = _histogram(records)
    while counts and counts[-1] == 0:
        counts.pop()
    rounds = sum(counts)
    return tuple(sum(counts[depth:]) / rounds for depth in range(1, len(counts)))


def stage_seconds_per_round(records: Sequence[RequestRecord]) -> dict[str, float] | None:
    """Mean seconds of each stage in a round a request took part in; None where unreported."""
    totals: dict[str, float] = {}
    rounds = 0
    for record in _with_stats(records):
        stats = record.stats or {}
        if stats.get("stage_seconds"):
            rounds += stats["rounds"]
            for stage, seconds in stats["stage_seconds"].items():
                totals[stage] = totals.get(stage, 0.0) + seconds
    return {stage: seconds / rounds for stage, seconds in totals.items()} if rounds else None


def reconciliation_error(record: RequestRecord) -> str | None:
    """What is wrong with a finished request's counts, or None.

    Checks that ids, chunks and `completion_tokens` agree, and where the server gave stats, that
    completion_tokens = 1 + sum(num_accepted + 1) - cut_tokens.
    """
    if record.error is not None:
        return None
    counted = {
        "token ids": len(record.token_ids),
        "tokens in chunks": sum(record.chunk_tokens),
        "completion_tokens": record.completion_tokens,
    }
    if len(set(counted.values())) > 1:
        return "counts differ: " + ", ".join(f"{n} {name}" for name, n in counted.items())
    return None if record.stats is None else _stats_error(record)


def _stats_error(record: RequestRecord) -> str | None:
    stats = record.stats or {}
    names = ("completion_tokens", "rounds", "cut_tokens", "accepted_histogram")
    missing = [name for name in names if name not in stats]
    if missing:
        return f"stats lack {missing[0]!r}"
    try:
        GenerationStats(prompt_tokens=0, **{name: stats[name] for name in names}).check()
    except EngineError as error:
        return str(error)
    if stats["completion_tokens"] != record.completion_tokens:
        return f"{stats['completion_tokens']} tokens in stats, {record.completion_tokens} in usage"
    return None


def _with_stats(records: Sequence[RequestRecord]) -> list[RequestRecord]:
    return [record for record in records if record.error is None and record.stats is not None]


def _histogram(records: Sequence[RequestRecord]) -> list[int]:
    total: list[int] = []
    for record in _with_stats(records):
        counts = (record.stats or {}).get("accepted_histogram", [])
        total.extend([0] * (len(counts) - len(total)))
        for accepted, rounds in enumerate(counts):
            total[accepted] += rounds
    return total


def _busy_spans(
    records: Sequence[RequestRecord], concurrency: int
) -> tuple[tuple[float, float], ...]:
    """Spans with at least `concurrency` requests decoding, in order.

    A slot handed over at once ends one span and begins the next at the same time.
    """
    events = []
    for record in records:
        start, end = _decoding_span(record)
        if end > start:
            events += [(start, 1), (end, -1)]
    events.sort()
    spans, decoding, start = [], 0, 0.0
    for when, change in events:
        if change == 1 and decoding == concurrency - 1:
            start = when
        if change == -1 and decoding == concurrency and when > start:
            spans.append((start, when))
        decoding += change
    return tuple(spans)


def _decoding_span(record: RequestRecord) -> tuple[float, float]:
    """First to last token, or to the failure; empty without a token."""
    if not record.chunk_times_s:
        return record.sent_s, record.sent_s
    first, last = record.chunk_times_s[0], record.chunk_times_s[-1]
    failure = None if record.error is None else record.end_s
    return first, last if failure is None else max(last, failure)


def _tokens_within(record: RequestRecord, span: tuple[float, float]) -> float:
    start, end = span
    tokens = 0.0
    before: float | None = None
    for when, count in zip(record.chunk_times_s, record.chunk_tokens, strict=True):
        if before is None or when == before:
            # A stamp on an edge between spans belongs to the earlier one.
            tokens += count if start < when <= end else 0
        else:
            overlap = min(end, when) - max(start, before)
            tokens += count * max(0.0, overlap) / (when - before)
        before = when
    return tokens
