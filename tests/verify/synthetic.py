"""A target with known logits, and a scorer over it: what the grader says can be checked by hand.

At every prefix the best token has logit 20 (one bfloat16 step there is 0.125) and the second is
`margin` below, 3 unless planted for that position; everything else lies at 16 or lower.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass, field

from ddtree.records.sampling import Sampling
from ddtree.verify.outputs import Output
from ddtree.verify.scoring import Position

VOCABULARY = 40
STOP = 0
ULP = 0.125


@dataclass
class Target:
    """`margins[n]` plants the margin for the token at position n of the whole text; `wobble` is
    the most that a logit moves when several rows go through in one pass.
    """

    margins: dict[int, float] = field(default_factory=dict)
    wobble: float = 0.0
    has_logits: bool = True
    calls: list[tuple[int, int]] = field(default_factory=list)

    def logits(self, prefix: Sequence[int], rows: int = 1) -> list[float]:
        rng = random.Random(repr(tuple(prefix)))
        values = [rng.uniform(0, 16) for _ in range(VOCABULARY)]
        values[STOP] = -5.0
        best, second = rng.sample(range(1, VOCABULARY), 2)
        values[best] = 20.0
        values[second] = 20.0 - self.margins.get(len(prefix), 3.0)
        if rows > 1:
            values = [value + rng.choice((-1, 0, 1)) * self.wobble for value in values]
        return values

    def ranked(self, prefix: Sequence[int], rows: int = 1) -> list[int]:
        """Token ids, best first; equal logits by lower id."""
        values = self.logits(prefix, rows)
        return sorted(range(VOCABULARY), key=lambda token: (-values[token], token))

    def greedy(self, prompt: Sequence[int], tokens: int, rows: int = 1) -> tuple[int, ...]:
        text = list(prompt)
        for _ in range(tokens):
            text.append(self.ranked(text, rows)[0])
        return tuple(text[len(prompt) :])

    def follow(self, prompt: Sequence[int], start: Sequence[int], tokens: int) -> tuple[int, ...]:
        """`start`, then greedy from there, `tokens` in all."""
        return (*start, *self.greedy((*prompt, *start), tokens - len(start)))

    async def score(
        self, token_ids: Sequence[int], score_from: int, rows: int, sampling: Sampling
    ) -> list[Position]:
        self.calls.append((score_from, rows))
        return [
            self._position(token_ids[:i], token_ids[i], rows)
            for i in range(score_from, len(token_ids))
        ]

    def _position(self, prefix: Sequence[int], token: int, rows: int) -> Position:
        if not self.has_logits:
            return Position(token, None, (), ())
        values = self.logits(prefix, rows)
        top = tuple(self.ranked(prefix, rows)[:5])
        return Position(token, values[token], top, tuple(values[t] for t in top))


def output(
    prompt: Sequence[int],
    token_ids: Sequence[int],
    finish_reason: str | None = "length",
    max_tokens: int | None = None,
) -> Output:
    limit = len(token_ids) if max_tokens is None else max_tokens
    return Output(tuple(prompt), tuple(token_ids), finish_reason, limit)
