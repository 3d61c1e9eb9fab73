"""Answers to scoring calls: a choice for each prompt, an entry for each of its tokens."""

import asyncio
import itertools
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from transformers import PreTrainedTokenizerBase as Tokenizer

from ddtree.engine import Score, ScoreJob, TokenLogprob
from ddtree.errors import EngineError
from ddtree.models.text import TextStream
from ddtree.serve.completions import usage
from ddtree.serve.logprobs import Entry, TokenTexts, legacy_logprobs
from ddtree.serve.worker import EngineWorker, Ticket

# Names in the answer, and where a position's score has them.
_RAW = {
    "token_logits": "token_logit",
    "top_ids": "top_ids",
    "top_logits": "top_logits",
}
_SAMPLED = {
    "scores": "score",
    "edges": "edge",
    "before": "before",
    "share": "share",
    "best_ids": "top_ids",
    "best_scores": "top_scores",
    "best_edges": "top_edges",
}


@dataclass
class Scoring:
    """The jobs of one call."""

    worker: EngineWorker
    jobs: Sequence[ScoreJob]
    tokenizer: Tokenizer
    texts: TokenTexts
    model: str
    tickets: list[Ticket] = field(default_factory=list)

    def start(self) -> None:
        """Submit the jobs, all or none. Whoever starts them calls `abandon` in the end."""
        self.tickets = self.worker.submit_all(self.jobs, "prompt")

    def abandon(self) -> None:
        """End what is not over yet; nothing happens if all is."""
        for ticket in self.tickets:
            self.worker.abort(ticket)

    async def whole(self) -> dict[str, Any]:
        """Scores of every prompt, one entry per position, null where none was asked for."""
        await asyncio.gather(*(ticket.finish() for ticket in self.tickets))
        return {
            "id": f"cmpl-{uuid.uuid4().hex}",
            "object": "text_completion",
            "created": int(time.time()),
            "model": self.model,
            "choices": [self._choice(index, job) for index, job in enumerate(self.jobs)],
            "usage": usage(sum(len(job.ids) for job in self.jobs), 0),
        }

    def _choice(self, index: int, job: ScoreJob) -> dict[str, Any]:
        if job.error is not None:
            raise EngineError(job.error)
        stream = TextStream(self.tokenizer)
        pieces = [stream.push([token]) for token in job.ids]
        offsets = list(itertools.accumulate(map(len, pieces), initial=0))[:-1]
        text = "".join([*pieces, stream.finish()])
        found = self._logprobs(job, offsets)
        return {"index": index, "text": text, "finish_reason": "length", "logprobs": found}

    def _logprobs(self, job: ScoreJob, offsets: Sequence[int]) -> dict[str, list[Any]]:
        blank: list[Any] = [None] * job.first
        entries = [
            Entry(_plain(score), offset)
            for score, offset in zip(job.scores, offsets[job.first :], strict=True)
        ]
        legacy = legacy_logprobs(entries, self.texts)
        found: dict[str, list[Any]] = {
            "tokens": [self.texts(token) for token in job.ids],
            "token_logprobs": blank + legacy["token_logprobs"],
            "top_logprobs": blank + legacy["top_logprobs"],
            "text_offset": list(offsets),
            "token_ids": list(job.ids),
        }
        for name, source in _RAW.items():
            found[name] = blank + [getattr(score, source) for score in job.scores]
        if job.sampling is not None:
            for name, source in _SAMPLED.items():
                found[name] = blank + [getattr(score.sampled, source) for score in job.scores]
        return found


def _plain(score: Score) -> TokenLogprob:
    """Its log-probabilities alone."""
    best = tuple(zip(score.top_ids, score.top_logprobs, strict=True))
    return TokenLogprob(score.token_id, score.token_logprob, best)
