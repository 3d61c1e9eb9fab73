"""What the grader asks of a target: the logits it gives a text, one row at a time."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Protocol

from ddtree.errors import EndpointError


@dataclass(frozen=True)
class Position:
    """A token of a text and the raw logits at its place, given everything before it.

    `top_ids` and `top_logits` are the highest logits, best first (five, fewer in a tiny
    vocabulary). `token_logit` is None and the tops are empty where the target gives no logits.
    """

    token_id: int
    token_logit: float | None
    top_ids: tuple[int, ...]
    top_logits: tuple[float, ...]

    @property
    def has_logits(self) -> bool:
        """Whether the token can be judged here."""
        return self.token_logit is not None and bool(self.top_logits)

    @property
    def gap(self) -> float:
        """Highest logit minus the token's, 0 or more. Only where `has_logits`."""
        assert self.token_logit is not None
        return self.top_logits[0] - self.token_logit

    def rank_of(self, logit: float) -> int | None:
        """1 + the number of higher logits among the tops; None when it is below all of them."""
        higher = sum(top > logit for top in self.top_logits)
        return None if higher == len(self.top_logits) else higher + 1

    def logit_of(self, token_id: int) -> float | None:
        """The logit of any token that is known here: the text's own or one of the tops."""
        if token_id in self.top_ids:
            return self.top_logits[self.top_ids.index(token_id)]
        return self.token_logit if token_id == self.token_id else None


class Scorer(Protocol):
    """Teacher forcing by the target alone, without any drafter."""

    async def score(
        self, token_ids: Sequence[int], score_from: int, rows: int
    ) -> Sequence[Position]:
        """Positions score_from .. len(token_ids) - 1, in order.

        `rows` 1 is one-row decoding, the reference; m scores m rows in each pass.
        """
        ...


class CachedScorer:
    """Remembers scores by (text, score_from, rows): many arms give the same output."""

    def __init__(self, scorer: Scorer) -> None:
        self._scorer = scorer
        self._known: dict[tuple[tuple[int, ...], int, int], tuple[Position, ...]] = {}

    async def score(
        self, token_ids: Sequence[int], score_from: int, rows: int
    ) -> tuple[Position, ...]:
        """As the scorer's; EndpointError when the answer is not about this text."""
        key = (tuple(token_ids), score_from, rows)
        if key not in self._known:
            positions = tuple(await self._scorer.score(token_ids, score_from, rows))
            _check(positions, key[0][score_from:])
            self._known[key] = positions
        return self._known[key]


def _check(positions: tuple[Position, ...], expected: tuple[int, ...]) -> None:
    if tuple(position.token_id for position in positions) != expected:
        raise EndpointError(
            f"scoring: asked for {len(expected)} positions, got {len(positions)} or other tokens; "
            "the server must return one entry per prompt position from score_from on"
        )
    for index, position in enumerate(positions):
        tops = position.top_logits
        ordered = all(a >= b for a, b in pairwise(tops))
        if len(tops) != len(position.top_ids) or not ordered:
            raise EndpointError(f"scoring: position {index} has top logits {tops}: not best first")
        # Written so that NaN fails as well.
        if position.has_logits and not position.gap >= 0:
            raise EndpointError(
                f"scoring: position {index} gives its token {position.token_logit}, above or not "
                f"comparable with the highest logit {tops[0]}"
            )
