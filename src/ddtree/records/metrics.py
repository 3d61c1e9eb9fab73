"""The metrics, one formula each, over request records. Seconds inside; nothing is rounded.

Every function of one record answers None for a request that failed: what arrived before a failure
is no measurement of speed.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from ddtree.records.acceptance import account_error, accounts_of, by_depth_of, length_of
from ddtree.records.requests import RequestRecord

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
    """Request sent to first token, client's clock; None without a token.

    In an open loop from when it was to be sent: a client that falls behind hides no wait.
    """
    if record.error is not None or not record.chunk_times_s:
        return None
    return record.chunk_times_s[0] - _due_s(record)


def end_to_end_s(record: RequestRecord) -> float | None:
    """Request sent (in an open loop: to be sent) to end of stream; None without an end."""
    if record.error is not None or record.end_s is None:
        return None
    return record.end_s - _due_s(record)


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
    return length_of(accounts_of(records))


def accepted_by_depth(records: Sequence[RequestRecord]) -> tuple[float, ...]:
    """[d - 1] = share of rounds that accepted at least d draft tokens; empty without drafts."""
    return by_depth_of(accounts_of(records))


def stage_seconds_per_round(records: Sequence[RequestRecord]) -> dict[str, float] | None:
    """Mean seconds of each stage in a round a request took part in; None where unreported."""
    totals: dict[str, float] = {}
    rounds = 0
    for stats in accounts_of(records):
        if stats.get("stage_seconds"):
            rounds += stats["rounds"]
            for stage, seconds in stats["stage_seconds"].items():
                totals[stage] = totals.get(stage, 0.0) + seconds
    return {stage: seconds / rounds for stage, seconds in totals.items()} if rounds else None


def step_seconds(records: Sequence[RequestRecord]) -> float | None:
    """Seconds of a token after the first, as a client sees them, over all requests together."""
    return _mean_seconds(records, [float(sum(record.chunk_tokens) - 1) for record in records])


def round_seconds(records: Sequence[RequestRecord], rounds: int | None = None) -> float | None:
    """Seconds of a round as a client sees them, over all requests' rounds together.

    Of a request: decode time by the share of its tokens that came after the first chunk, over its
    rounds. `rounds` is their sum where nobody knows it by request. None without rounds.
    """
    if rounds is None:
        return _mean_seconds(records, [(r.stats or {}).get("rounds", 0) for r in records])
    after = sum(sum(record.chunk_tokens) - 1 for record in records)
    step = step_seconds(records)
    return step * after / rounds if step is not None and rounds else None


def reconciliation_error(record: RequestRecord) -> str | None:
    """What is wrong with a finished request's counts, or None.

    Checks that ids (where the stream had them), chunks and `completion_tokens` agree, and where
    the server counted rounds, that completion_tokens = 1 + sum(num_accepted + 1) - cut_tokens.
    Counters of a whole block and a client's guesses owe no such identity to one request.
    """
    if record.error is not None:
        return None
    counted = {
        "token ids": len(record.token_ids),
        "tokens in chunks": sum(record.chunk_tokens),
        "completion_tokens": record.completion_tokens,
    }
    if record.counted != "ids":
        del counted["token ids"]
    if len(set(counted.values())) > 1:
        return "counts differ: " + ", ".join(f"{n} {name}" for name, n in counted.items())
    if record.stats is None or record.stats.get("source", "server") != "server":
        return None
    return account_error(record.stats, record.completion_tokens)


def _due_s(record: RequestRecord) -> float:
    return record.sent_s if record.planned_s is None else record.planned_s


def _mean_seconds(records: Sequence[RequestRecord], rounds: Sequence[float]) -> float | None:
    seconds = total = 0.0
    for record, mine in zip(records, rounds, strict=True):
        tpot = tpot_s(record)
        if tpot is not None and mine:
            seconds += tpot * (sum(record.chunk_tokens) - 1)
            total += mine
    return seconds / total if total else None


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
