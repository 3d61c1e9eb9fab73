"""May a part's numbers be used? What would bias them makes the part invalid; the rest is a flag.

Each gate looks at one part: an arm's requests of one block, as they were recorded and as the
client ran meanwhile. docs/bench-selftest.md lists the gates with their limits.
"""

import re
from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median

from ddtree.bench.lag import Lag
from ddtree.endpoint.load import Occupancy
from ddtree.endpoint.stream import FINISH_REASONS
from ddtree.records.arms import Arm
from ddtree.records.metrics import reconciliation_error, ttft_s
from ddtree.records.requests import RequestRecord

LAG_LIMIT_S = 0.002
MEAN_LAG_LIMIT_S = 0.001
BIAS_LIMIT = 0.01
CONCURRENCY_LIMIT = 0.05
# A lag's mean over fewer ticks says too little to void a part.
_MIN_TICKS = 100

LOOP_LIMIT = 0.5
"""Share of repeated 4-grams from which a stretch of output counts as a loop."""
LOOPED_SHARE = 0.5
"""Share of a cell's outputs that may loop before its acceptance says nothing about real text."""
_GRAM = 4
_STRETCH = 64
# Shorter outputs repeat themselves by chance.
_MIN_TOKENS = 32
_WORDS = re.compile(r"\w+|[^\w\s]")


@dataclass(frozen=True)
class Observed:
    """A part as it ran. `planned` is the tokens of each prompt by id; `concurrency` is what was
    asked for and None in an open loop; `block_size` is the drafter's, None where unknown.
    """

    arm: Arm
    records: Sequence[RequestRecord]
    planned: Mapping[str, int]
    concurrency: int | None
    occupancy: Occupancy
    lag: Lag | None
    block_size: int | None = None

    @property
    def finished(self) -> tuple[RequestRecord, ...]:
        """Requests that did not fail."""
        return tuple(record for record in self.records if record.error is None)


@dataclass(frozen=True)
class Finding:
    """What a gate found; `invalid` when the part's numbers must not be used."""

    text: str
    invalid: bool = False


@dataclass(frozen=True)
class Findings:
    """All gates' findings: the first that voids the part, and every flag."""

    invalid: str | None
    flags: tuple[str, ...]


def judge(observed: Observed) -> Findings:
    """Ask every gate."""
    found = [finding for gate in GATES for finding in gate(observed)]
    void = [finding.text for finding in found if finding.invalid]
    flags = tuple(finding.text for finding in found if not finding.invalid)
    return Findings(void[0] if void else None, flags)


def prompt_length(observed: Observed) -> Iterator[Finding]:
    """Invalid: the server counted other prompt tokens than were sent. Flag: it doesn't say."""
    for record in observed.finished:
        planned, stated = observed.planned[record.prompt_id], record.prompt_tokens
        if stated is not None and stated != planned:
            text = f"prompt {record.prompt_id} has {planned} tokens, the server counted {stated}"
            yield Finding(text, invalid=True)
            return
    if any(record.prompt_tokens is None for record in observed.finished):
        yield Finding("prompt length: not stated by the server")


def cached_tokens(observed: Observed) -> Iterator[Finding]:
    """Invalid: part of a prompt came out of a prefix cache. Flag: the server doesn't say."""
    stated = [r.cached_tokens for r in observed.finished if r.cached_tokens is not None]
    if any(stated):
        text = (
            f"{sum(stated)} prompt tokens came out of a prefix cache (at most {max(stated)} in "
            "one request); start the server without one, or let it be reset"
        )
        yield Finding(text, invalid=True)
    elif len(stated) < len(observed.finished):
        yield Finding("cached tokens: not stated by the server")


def finish_reasons(observed: Observed) -> Iterator[Finding]:
    """Invalid: an answer ended in another way than by a stop or its limit."""
    reasons = Counter(str(record.finish_reason) for record in observed.finished)
    unknown = [name for name in reasons if name not in FINISH_REASONS]
    if unknown:
        text = f"finish reason {unknown[0]!r}, expected one of {', '.join(FINISH_REASONS)}"
        yield Finding(text, invalid=True)


def stamps(observed: Observed) -> Iterator[Finding]:
    """Invalid: times go back between a request's sending, its chunks and its end."""
    for record in observed.finished:
        ends = () if record.end_s is None else (record.end_s,)
        times = (record.sent_s, *record.chunk_times_s, *ends)
        if any(b < a for a, b in pairwise(times)):
            yield Finding(f"times of {record.prompt_id} go back: {times[:4]}", invalid=True)
            return


def acceptance(observed: Observed) -> Iterator[Finding]:
    """Invalid: a request's acceptance length is below 1, or above what its drafts could give.

    A draft is no deeper than the drafter's block without its anchor, nor than the budget; without
    a drafter there is none. Rounds that the client estimated from chunks are only flagged.
    """
    limit = _depth_limit(observed)
    for record in observed.finished:
        length = _acceptance_length(record)
        if length is None:
            continue
        high = limit is not None and length > limit + 1
        if high or length < 1:
            estimated = (record.stats or {}).get("source") == "estimate"
            text = f"acceptance length {length:.3g} of {record.prompt_id} is outside 1 to "
            text += "infinity" if limit is None else str(limit + 1)
            text += " (rounds are an estimate)" if estimated else ""
            yield Finding(text, invalid=not estimated)
            return


def counts(observed: Observed) -> Iterator[Finding]:
    """Flag: counts that contradict each other. Those requests count as failed, so nothing more."""
    errors = [error for r in observed.records if (error := reconciliation_error(r)) is not None]
    if errors:
        yield Finding(f"{len(errors)} answers contradict themselves, for one: {errors[0]}")


def loops(observed: Observed) -> Iterator[Finding]:
    """Flag: outputs that repeat themselves; drafts of a loop are nearly always accepted.

    It is the model's and the prompt's doing, the same for every arm and at every repetition, so
    the part stays; a report may leave out a cell most of whose outputs loop.
    """
    looped = [record.prompt_id for record in observed.finished if is_looped(record)]
    if looped:
        total = len(observed.finished)
        yield Finding(f"{len(looped)} of {total} outputs repeat themselves ({looped[0]})")


def loop_lag(observed: Observed) -> Iterator[Finding]:
    """Flag: the client's event loop ran late, at its 99th percentile, by more than LAG_LIMIT_S.

    Invalid: by so much that stamps were late, on average, by over BIAS_LIMIT of the median time
    from an answer's first token to its last, and by over MEAN_LAG_LIMIT_S. Late by over BIAS_LIMIT
    of the median time to first token is a flag.
    """
    lag = observed.lag
    if lag is None or lag.p99_s <= LAG_LIMIT_S:
        return
    text = f"the client's event loop ran {lag.p99_s * 1e3:.1f} ms late (p99)"
    times = [r.chunk_times_s for r in observed.finished if len(r.chunk_times_s) > 1]
    span = median(t[-1] - t[0] for t in times) if times else None
    biased = span is not None and lag.mean_s > max(MEAN_LAG_LIMIT_S, BIAS_LIMIT * span)
    if span is not None and biased and lag.count >= _MIN_TICKS:
        text += f", {lag.mean_s / span:.1%} of an answer's decode time on average"
        yield Finding(f"{text} (limit {BIAS_LIMIT:.0%}); give the client a core", invalid=True)
        return
    yield Finding(f"{text} (limit {LAG_LIMIT_S * 1e3:g} ms)")
    first = [t for r in observed.finished if (t := ttft_s(r)) is not None]
    if first and lag.mean_s > BIAS_LIMIT * median(first):
        yield Finding(f"time to first token is late by {lag.mean_s / median(first):.1%} on average")


def concurrency(observed: Observed) -> Iterator[Finding]:
    """Invalid: fewer requests in flight than asked for, on average over the busy window.

    Flag: there was no moment in which all slots were decoding, so no system throughput; the
    server has fewer slots, or its prompts take longer than its answers.
    """
    asked, mean = observed.concurrency, observed.occupancy.mean
    if asked is None:
        return
    if mean is not None and mean < (1 - CONCURRENCY_LIMIT) * asked:
        text = f"{mean:.3g} requests in flight on average, asked for {asked}"
        yield Finding(f"{text} (limit {CONCURRENCY_LIMIT:.0%} less)", invalid=True)
    decoding = peak_decoding(observed.records)
    if decoding < asked <= len(observed.records) and observed.finished:
        yield Finding(f"at most {decoding} requests decoded at once, asked for {asked}")


def lateness(observed: Observed) -> Iterator[Finding]:
    """Flag: an open loop's requests left late; latencies count from when they were planned."""
    late = sorted(r.sent_s - r.planned_s for r in observed.records if r.planned_s is not None)
    worst = late[-(-99 * len(late) // 100) - 1] if late else 0.0
    if worst > LAG_LIMIT_S:
        yield Finding(f"requests left up to {worst * 1e3:.1f} ms after their time (p99)")


GATES: tuple[Callable[[Observed], Iterator[Finding]], ...] = (
    *(prompt_length, cached_tokens, finish_reasons, stamps, acceptance, counts),
    *(loops, loop_lag, concurrency, lateness),
)


def looped_reason(records: Sequence[RequestRecord]) -> str | None:
    """Why a whole cell is invalid by its outputs, or None: too many of them loop."""
    finished = [record for record in records if record.error is None]
    looped = sum(map(is_looped, finished))
    if looped <= LOOPED_SHARE * len(finished):
        return None
    return (
        f"{looped} of {len(finished)} outputs repeat themselves (limit {LOOPED_SHARE:.0%}): drafts "
        "of a loop are nearly always accepted; use other prompts, or ignore_eos: false"
    )


def is_looped(record: RequestRecord) -> bool:
    """Whether an output, or a stretch of it, is a loop, by its ids or else by its words."""
    tokens: Sequence[Hashable] = record.token_ids or _WORDS.findall(record.text or "")
    if len(tokens) < _MIN_TOKENS:
        return False
    starts = range(0, max(1, len(tokens) - _STRETCH + 1), _STRETCH // 4)
    stretches = [tokens, *(tokens[start : start + _STRETCH] for start in starts)]
    return any(repeated_share(stretch) >= LOOP_LIMIT for stretch in stretches)


def repeated_share(tokens: Sequence[Hashable]) -> float:
    """Share of a sequence's 4-grams that stood in it before; 0 where it has none."""
    grams = [tuple(tokens[i : i + _GRAM]) for i in range(len(tokens) - _GRAM + 1)]
    return 1 - len(set(grams)) / len(grams) if grams else 0.0


def peak_decoding(records: Sequence[RequestRecord]) -> int:
    """The most requests that were between their first and last token at one moment."""
    steps = []
    for record in records:
        if record.chunk_times_s:
            first, last = record.chunk_times_s[0], record.chunk_times_s[-1]
            steps += [(first, 0, 1), (last, 1, -1)]
    count = peak = 0
    for _, _, change in sorted(steps):
        count += change
        peak = max(peak, count)
    return peak


def _depth_limit(observed: Observed) -> int | None:
    arm, block = observed.arm, observed.block_size
    if arm.method == "ar":
        return 0
    limits = [n for n in (arm.budget, None if block is None else block - 1) if n is not None]
    return min(limits, default=None)


def _acceptance_length(record: RequestRecord) -> float | None:
    """1 + accepted draft tokens / rounds; the largest single round's where there is a histogram.

    A histogram shows an impossible round, which a mean hides.
    """
    stats = record.stats or {}
    histogram = stats.get("accepted_histogram")
    if histogram:
        return 1.0 + max((depth for depth, n in enumerate(histogram) if n), default=0)
    length = stats.get("acceptance_length")
    return None if length is None else float(length)
