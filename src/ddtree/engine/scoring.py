"""Teacher-forced scores of given tokens: what the target would have chosen at every position."""

from collections.abc import Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor

from ddtree.engine.loop import RoundLoop
from ddtree.errors import EngineError


@dataclass(frozen=True)
class Score:
    """One scored position: the given token's raw logit and log-probability, and the best tokens
    with their raw logits, best first."""

    token_id: int
    token_logit: float
    token_logprob: float
    top_ids: tuple[int, ...]
    top_logits: tuple[float, ...]


@dataclass(eq=False)
class ScoreJob:
    """Scores `ids[first:]`, position by position, in one slot.

    The first `first` tokens are prefilled like a prompt; the rest are decoded `rows` tokens per
    pass. With rows = 1 the arithmetic is that of decoding one token at a time.
    """

    ids: tuple[int, ...]
    first: int
    rows: int
    top: int
    chunk: int
    slot: int = -1
    length: int = 0
    scores: list[Score] = field(default_factory=list)
    finished: bool = False
    _passes: Iterator[None] | None = None

    def advance(self, loop: RoundLoop) -> None:
        """One forward pass; `finished` is set after the last."""
        if self._passes is None:
            self._passes = self._run(loop)
        if next(self._passes, StopIteration) is StopIteration:
            self.finished = True

    def _run(self, loop: RoundLoop) -> Iterator[None]:
        for start in range(0, self.first, self.chunk):
            hidden, _ = loop.extend(self, self.ids[start : min(start + self.chunk, self.first)])
            yield
        self._score(loop, hidden[:, -1:])
        for start in range(self.first, len(self.ids) - 1, self.rows):
            hidden, _ = loop.extend(
                self, self.ids[start : min(start + self.rows, len(self.ids) - 1)]
            )
            self._score(loop, hidden)
            yield

    @torch.inference_mode()
    def _score(self, loop: RoundLoop, hidden: Tensor) -> None:
        """Rows of hidden [1, S, E] predict the S tokens after those already scored."""
        logits = loop.target.head(hidden)[0].double()  # [S, V]
        given = self.ids[self.first + len(self.scores) :][: len(logits)]
        total = torch.logsumexp(logits, -1)
        if not bool(total.isfinite().all()):
            raise EngineError("the target's logits hold NaN or infinity; scores would mean nothing")
        best = torch.sort(logits, dim=-1, descending=True, stable=True)
        for row, token in enumerate(given):
            logit = float(logits[row, token])
            self.scores.append(
                Score(
                    token,
                    logit,
                    logit - float(total[row]),
                    tuple(best.indices[row, : self.top].tolist()),
                    tuple(best.values[row, : self.top].tolist()),
                )
            )
