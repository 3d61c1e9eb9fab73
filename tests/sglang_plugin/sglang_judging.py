"""Whether greedy tokens are the target's own, near ties in bfloat16 aside.

Each token is scored by the server without speculation, in one prompt pass over the whole answer:
how far is it from the best token after the very tokens before it? A bug of trees shows as tokens
that are far from it; rounding, which differs between passes of one row and of many, as a few that
are close. How many the target's own answers have, scored in the same way, stands beside it.
"""

import functools
from collections.abc import Sequence
from dataclasses import dataclass

from sglang_plugin.sglang_server import Answer, Server

# Nats. SmolLM2's best logits lie between 16 and 32, where bfloat16 steps are 1/8: two of them, and
# one of the log-probability's own rounding.
NEAR_TIE = 0.3


@dataclass(frozen=True)
class Judged:
    """Tokens of a list of answers. gaps: by how many nats the target prefers another token, for
    each token that isn't its best."""

    tokens: int
    gaps: tuple[float, ...]


def judged(ar: Server, prompts: Sequence[Sequence[int]], answers: Sequence[Answer]) -> Judged:
    """Every token of `answers`, scored by the server without speculation."""
    gaps: list[float] = []
    for prompt, answer in zip(prompts, answers, strict=True):
        assert answer.status == 200, answer.text
        gaps += gaps_of(ar, tuple(prompt), answer.ids)
    return Judged(len(gaps), tuple(gap for gap in gaps if gap > 0))


@functools.cache
def gaps_of(ar: Server, prompt: tuple[int, ...], ids: tuple[int, ...]) -> tuple[float, ...]:
    """By how many nats the best token is ahead of each of an answer's. Most servers give the same
    answers, which are scored once."""
    fields = {"return_logprob": True, "logprob_start_len": len(prompt) - 1, "top_logprobs_num": 1}
    scored = ar.ask([*prompt, *ids], fields, max_new_tokens=1)
    assert scored.status == 200, scored.text
    own = scored.meta["input_token_logprobs"][1:]
    best = scored.meta["input_top_logprobs"][1:]
    assert [token for _, token, _ in own] == list(ids)
    return tuple(top[0][0] - mine[0] for mine, top in zip(own, best, strict=True))


def verdict(own: Judged, given: Judged) -> str | None:
    """Why `given` can't be the target's answers, or None. own: the target's, scored alike."""
    far = [gap for gap in given.gaps if gap > NEAR_TIE]
    if far:
        return f"{len(far)} of {given.tokens} tokens are not the target's, by {max(far):.2f} nats"
    # Twice the target's own rate, and room for chance where that is small.
    if len(given.gaps) > 2 * len(own.gaps) + 6:
        return f"{len(given.gaps)} near ties in {given.tokens} tokens, the target has {own.gaps}"
    return None
