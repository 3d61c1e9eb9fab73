"""What the mock server decodes: a hash as language model, rounds by script, faults by count."""

import hashlib
import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ddtree.endpoint.mock_sampling import Candidates, choose, sampled_scores
from ddtree.records.sampling import Sampling

EOS_ID = 0
VOCABULARY = 50_000
GREEDY = Sampling()
# Raw logits of the model's five best tokens, close enough to be sampled, and of every other one,
# too low for any noise up to temperature 1.5.
TOP_LOGITS = (20.0, 19.5, 19.0, 18.5, 18.0)
OTHER_LOGIT = -20.0


@dataclass(frozen=True)
class MockFaults:
    """What goes wrong; the default is nothing.

    `refuse_share` of the completion requests get a 429 and `error_share` an error event inside
    the stream, spread evenly and exactly. The chunk limits hit every request that reaches them:
    silence after `stall_after_chunks`, a dropped connection after `cut_after_chunks`. The whole
    process exits in the completion request number `exit_at_request` (counted from 1), so that
    one is for a mock in a process of its own. `corrupt[method]` is the output position at which
    that method emits a wrong token; it then goes on from its own prefix. `finish_reason` and
    `matched_stop` are stated in place of the true ones.
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
    finish_reason: str | None = None
    matched_stop: str | None = None
    corrupt: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class MockScript:
    """How the server decodes.

    `accepted[method]` is the cycle of draft tokens accepted round by round (a round emits one
    more: the bonus) and `round_s[method]` the seconds a round takes. The first chunk carries the
    token that prefill gives and those of `first_chunk_rounds` rounds, every later one those of
    `rounds_per_chunk`. With `eos_every` n, one token in n ends the output on average. `in_step`
    decodes as a batch does: chunks leave when the server's clock is a multiple of the round time.
    """

    prefill_s: float = 0.0
    accepted: Mapping[str, Sequence[int]] = field(
        default_factory=lambda: {"ar": (0,), "chain": (1,), "ddtree": (2, 1)}
    )
    round_s: Mapping[str, float] = field(default_factory=dict)
    first_chunk_rounds: int = 0
    rounds_per_chunk: int = 1
    eos_every: int = 0
    in_step: bool = False
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


def first_due(script: MockScript, method: str, now_s: float, delay_s: float) -> float:
    """When a request's first chunk leaves if it was accepted at `now_s`."""
    due = now_s + delay_s
    step = script.round_s.get(method, 0.0)
    return math.ceil(due / step) * step if script.in_step and step else due


def continuation(
    prompt: Sequence[int], max_tokens: int, eos_every: int = 0, sampling: Sampling = GREEDY
) -> tuple[int, ...]:
    """How the model goes on from `prompt`, its end-of-sequence token included."""
    return _decode(_Model(prompt, eos_every), max_tokens, sampling, corrupt_at=None)


def top_tokens(prefix: Sequence[int], eos_every: int = 0) -> tuple[int, ...]:
    """The five best tokens after `prefix`, best first; their logits are TOP_LOGITS."""
    return tuple(_Model(prefix, eos_every).candidates().token_ids)


def scores(
    ids: Sequence[int], score_from: int, eos_every: int, sampling: Sampling | None
) -> dict[str, list[Any]]:
    """The answer to scoring `ids`: lists with an entry per position, None before score_from."""
    found = [_score(ids[:i], ids[i], eos_every, sampling) for i in range(score_from, len(ids))]
    lists = {
        name: [*(None for _ in ids[:score_from]), *(position[name] for position in found)]
        for name in (found[0] if found else ())
    }
    return {"token_ids": list(ids), **lists}


def _score(
    prefix: Sequence[int], token_id: int, eos_every: int, sampling: Sampling | None
) -> dict[str, Any]:
    candidates = _Model(prefix, eos_every).candidates()
    best = list(candidates.token_ids)
    logit = TOP_LOGITS[best.index(token_id)] if token_id in best else OTHER_LOGIT
    raw = {
        "token_logprobs": logit - TOP_LOGITS[0],
        "token_logits": logit,
        "top_ids": best,
        "top_logits": list(TOP_LOGITS),
    }
    if sampling is None:
        return raw
    return raw | sampled_scores(candidates, token_id, OTHER_LOGIT, sampling)


def answer(
    script: MockScript,
    method: str,
    prompt: Sequence[int],
    max_tokens: int,
    sampling: Sampling = GREEDY,
) -> MockAnswer:
    """What `script` makes of one request."""
    corrupt_at = script.faults.corrupt.get(method)
    out = _decode(_Model(prompt, script.eos_every), max_tokens, sampling, corrupt_at)
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


class _Model:
    """A hash of the text so far says which token is best, and its followers come next."""

    def __init__(self, text: Sequence[int], eos_every: int) -> None:
        self._length = len(text)
        self._eos_every = eos_every
        self._state = hashlib.sha256(b"".join(token.to_bytes(4, "big") for token in text))

    def candidates(self) -> Candidates:
        """What may come next."""
        number = int.from_bytes(self._state.digest()[:8], "big")
        best = 1 + number % (VOCABULARY - 1)
        if self._eos_every and number % self._eos_every == 0:
            best = EOS_ID
        # The end of sequence is nobody's follower.
        others = (1 + (best + i) % (VOCABULARY - 1) for i in range(len(TOP_LOGITS) - 1))
        return Candidates((best, *others), TOP_LOGITS, self._length)

    def append(self, token: int) -> None:
        """Go on by a token."""
        self._length += 1
        self._state.update(token.to_bytes(4, "big"))


def _decode(
    model: _Model, max_tokens: int, sampling: Sampling, corrupt_at: int | None
) -> tuple[int, ...]:
    out = list[int]()
    while len(out) < max_tokens:
        token = choose(model.candidates(), sampling)
        if len(out) == corrupt_at:
            token = 1 + (token + 7) % (VOCABULARY - 1)
        out.append(token)
        if token == EOS_ID:
            break
        model.append(token)
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
