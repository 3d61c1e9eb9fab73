"""What the mock server decodes: a hash as language model, rounds by script, faults by count."""

import hashlib
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

EOS_ID = 0
VOCABULARY = 50_000
# Raw logits of the model's five best tokens, and of every other one.
TOP_LOGITS = (20.0, 12.0, 11.0, 10.0, 9.0)
OTHER_LOGIT = 1.0


@dataclass(frozen=True)
class MockFaults:
    """What goes wrong; the default is nothing.

    `refuse_share` of the completion requests get a 429 and `error_share` an error event inside
    the stream, spread evenly and exactly. The chunk limits hit every request that reaches them:
    silence after `stall_after_chunks`, a dropped connection after `cut_after_chunks`. The whole
    process exits in the completion request number `exit_at_request` (counted from 1), so that
    one is for a mock in a process of its own. `corrupt[method]` is the output position at which
    that method emits a wrong token; it then goes on from its own prefix.
    """

    refuse_share: float = 0.0
    error_share: float = 0.0
    stall_after_chunks: int | None = None
    cut_after_chunks: int | None = None
    exit_at_request: int | None = None
    omit_usage: bool = False
    omit_finish: bool = False
    usage_offset: int = 0
    prompt_offset: int = 0
    corrupt: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class MockScript:
    """How the server decodes.

    `accepted[method]` is the cycle of draft tokens accepted round by round (a round emits one
    more: the bonus) and `round_s[method]` the seconds a round takes. The first chunk carries the
    token that prefill gives and those of `first_chunk_rounds` rounds, every later one those of
    `rounds_per_chunk`. With `eos_every` n, one token in n ends the output on average.
    """

    prefill_s: float = 0.0
    accepted: Mapping[str, Sequence[int]] = field(
        default_factory=lambda: {"ar": (0,), "chain": (1,), "ddtree": (2, 1)}
    )
    round_s: Mapping[str, float] = field(default_factory=dict)
    first_chunk_rounds: int = 0
    rounds_per_chunk: int = 1
    eos_every: int = 0
    slots: int = 64
    max_context: int = 8192
    faults: MockFaults = field(default_factory=MockFaults)


@dataclass(frozen=True)
class MockAnswer:
    """A whole output, cut into chunks: `chunks[i]` are its tokens, `delays_s[i]` precede it."""

    token_ids: tuple[int, ...]
    chunks: tuple[tuple[int, ...], ...]
    delays_s: tuple[float, ...]
    finish_reason: str
    stats: dict[str, Any]


def next_token(prefix: Sequence[int], eos_every: int = 0) -> int:
    """The model: the token after `prefix`."""
    return _next(_state(prefix), eos_every)


def greedy(prompt: Sequence[int], max_tokens: int, eos_every: int = 0) -> tuple[int, ...]:
    """The model's greedy continuation of `prompt`, its end-of-sequence token included."""
    return _decode(prompt, max_tokens, eos_every, corrupt_at=None)


def top_tokens(prefix: Sequence[int], eos_every: int = 0) -> tuple[int, ...]:
    """The five best tokens after `prefix`, best first; their logits are TOP_LOGITS."""
    best = next_token(prefix, eos_every)
    return tuple((best + i) % VOCABULARY for i in range(len(TOP_LOGITS)))


def answer(script: MockScript, method: str, prompt: Sequence[int], max_tokens: int) -> MockAnswer:
    """What `script` makes of one request."""
    corrupt_at = script.faults.corrupt.get(method)
    out = _decode(prompt, max_tokens, script.eos_every, corrupt_at)
    emitted, histogram, cut = _rounds(script.accepted[method], len(out))
    per_chunk = _group(emitted, script.first_chunk_rounds, script.rounds_per_chunk)
    ends = list(itertools.accumulate(sum(group) for group in per_chunk))
    chunks = tuple(out[a:b] for a, b in itertools.pairwise([0, *ends]))
    round_s = script.round_s.get(method, 0.0)
    # The first group's leading entry is prefill's token, not a round.
    counts = [len(per_chunk[0]) - 1, *(len(group) for group in per_chunk[1:])]
    delays = [count * round_s for count in counts]
    delays[0] += script.prefill_s
    rounds = sum(histogram)
    accepted = sum(a * n for a, n in enumerate(histogram))
    stats = {
        "method": method,
        "prompt_tokens": len(prompt),
        "completion_tokens": len(out),
        "rounds": rounds,
        "accepted_histogram": histogram,
        "acceptance_length": 1 + accepted / rounds if rounds else None,
        "tree_nodes": accepted,
        "cut_tokens": cut,
        "stage_seconds": {"verify": rounds * round_s},
        "token_ids": list(out),
    }
    reason = "stop" if out[-1] == EOS_ID else "length"
    return MockAnswer(out, chunks, tuple(delays), reason, stats)


def _decode(
    prompt: Sequence[int], max_tokens: int, eos_every: int, corrupt_at: int | None
) -> tuple[int, ...]:
    state, out = _state(prompt), list[int]()
    while len(out) < max_tokens:
        token = _next(state, eos_every)
        if len(out) == corrupt_at:
            token = 1 + (token + 7) % (VOCABULARY - 1)
        out.append(token)
        if token == EOS_ID:
            break
        state.update(token.to_bytes(4, "big"))
    return tuple(out)


def _rounds(cycle: Sequence[int], length: int) -> tuple[list[int], list[int], int]:
    """Tokens emitted by prefill and each round, histogram of accepted counts, tokens cut."""
    emitted, histogram, cut, left = [1], [0] * (max(cycle) + 1), 0, length - 1
    accepted = itertools.cycle(cycle)
    while left > 0:
        count = next(accepted)
        histogram[count] += 1
        emitted.append(min(left, count + 1))
        cut += count + 1 - emitted[-1]
        left -= emitted[-1]
    return emitted, histogram, cut


def _group(emitted: list[int], first_rounds: int, rounds: int) -> list[list[int]]:
    head, rest = emitted[: 1 + first_rounds], emitted[1 + first_rounds :]
    return [head, *(rest[i : i + rounds] for i in range(0, len(rest), rounds))]


def _state(token_ids: Sequence[int]) -> "hashlib._Hash":
    return hashlib.sha256(b"".join(token.to_bytes(4, "big") for token in token_ids))


def _next(state: "hashlib._Hash", eos_every: int) -> int:
    number = int.from_bytes(state.digest()[:8], "big")
    if eos_every and number % eos_every == 0:
        return EOS_ID
    return 1 + number % (VOCABULARY - 1)
