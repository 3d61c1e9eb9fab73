"""What the grader asks of a target: the scores it gives a text, one row at a time.

A token's score is what decides: its raw logit for a plain greedy request, the edited logit plus
temperature times the request's own noise for any other. Gaps between scores are in logits either
way.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Protocol

from ddtree.errors import EndpointError
from ddtree.records.sampling import Sampling


@dataclass(frozen=True)
class Position:
    """A token of a text and the scores at its place, given everything before it.

    `top_ids` and `top_scores` are the highest scores, best first (five or more, fewer in a tiny
    vocabulary). `token_score` is None and the tops are empty where the target gives no logits.
    Edges say by how much logits would have to move until a filter decided otherwise about a token:
    above 0 for kept tokens, at most 0 for dropped ones, which are among the tops only near the
    edge; `top_edges` is empty where nothing filters. `scale` is the highest raw logit, whose last
    place is what rounding moves. `before` and `share` are the final distribution's mass of better
    tokens and of the token, None where nothing is sampled.
    """

    token_id: int
    token_score: float | None
    top_ids: tuple[int, ...]
    top_scores: tuple[float, ...]
    token_edge: float = math.inf
    top_edges: tuple[float, ...] = ()
    scale: float | None = None
    before: float | None = None
    share: float | None = None

    @property
    def has_scores(self) -> bool:
        """Whether the token can be judged here."""
        return self.token_score is not None and bool(self.top_scores)

    @property
    def unit_logit(self) -> float:
        """The raw logit whose last place is the unit of gaps."""
        return self.top_scores[0] if self.scale is None else self.scale

    @property
    def candidates(self) -> tuple["Candidate", ...]:
        """The tops, best first."""
        edges = self.top_edges or (math.inf,) * len(self.top_ids)
        return tuple(map(Candidate, self.top_ids, self.top_scores, edges))

    @property
    def choice(self) -> "Candidate":
        """The reference's own token: the best that its filters keep."""
        return next((c for c in self.candidates if c.edge > 0), self.candidates[0])

    def find(self, token_id: int) -> "Candidate | None":
        """Any token that is known here: the text's own or one of the tops."""
        for candidate in self.candidates:
            if candidate.token_id == token_id:
                return candidate
        if token_id == self.token_id and self.token_score is not None:
            return Candidate(token_id, self.token_score, self.token_edge)
        return None


@dataclass(frozen=True)
class Candidate:
    """A token, its score and its filter edge at a position."""

    token_id: int
    score: float
    edge: float


class Scorer(Protocol):
    """Teacher forcing by the target alone, without any drafter."""

    async def score(
        self, token_ids: Sequence[int], score_from: int, rows: int, sampling: Sampling
    ) -> Sequence[Position]:
        """Positions score_from .. len(token_ids) - 1, in order, as a request with `sampling` and a
        prompt of score_from tokens sees them.

        `rows` 1 is one-row decoding, the reference; m scores m rows in each pass.
        """
        ...


class CachedScorer:
    """Remembers scores by what was asked: many arms give the same output."""

    def __init__(self, scorer: Scorer) -> None:
        self._scorer = scorer
        self._known: dict[tuple[tuple[int, ...], int, int, Sampling], tuple[Position, ...]] = {}

    async def score(
        self, token_ids: Sequence[int], score_from: int, rows: int, sampling: Sampling
    ) -> tuple[Position, ...]:
        """As the scorer's; EndpointError when the answer is not about this text."""
        key = (tuple(token_ids), score_from, rows, sampling)
        if key not in self._known:
            positions = tuple(await self._scorer.score(token_ids, score_from, rows, sampling))
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
        tops = position.top_scores
        ordered = all(a >= b for a, b in pairwise(tops))
        if len(tops) != len(position.top_ids) or not ordered:
            raise EndpointError(f"scoring: position {index} has top scores {tops}: not best first")
        if position.token_score is None or not tops:
            continue
        # Written so that NaN fails as well. What a filter dropped may have any score.
        if position.token_edge > 0 and not position.token_score <= tops[0]:
            raise EndpointError(
                f"scoring: position {index} gives its token {position.token_score}, above or not "
                f"comparable with the highest score {tops[0]}"
            )
