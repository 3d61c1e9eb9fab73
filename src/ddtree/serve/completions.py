"""Answers to completion requests: whole, streamed, or scores."""

import json
import time
import uuid
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

from ddtree.engine import Request, ScoreJob
from ddtree.errors import EngineError
from ddtree.models.text import TextStream
from ddtree.serve.worker import EngineWorker, Ticket


@dataclass(frozen=True)
class Shape:
    """How a kind of answer is spelled: object names, and where text goes."""

    whole: str
    chunk: str
    prefix: str
    is_chat: bool

    def choice(self, text: str, *, streamed: bool) -> dict[str, Any]:
        """A choice's text in its place."""
        if not self.is_chat:
            return {"index": 0, "text": text}
        if streamed:
            return {"index": 0, "delta": {"content": text}}
        return {"index": 0, "message": {"role": "assistant", "content": text}}


COMPLETION = Shape("text_completion", "text_completion", "cmpl", is_chat=False)
CHAT = Shape("chat.completion", "chat.completion.chunk", "chatcmpl", is_chat=True)


@dataclass(frozen=True)
class Wishes:
    """What an answer should carry besides text."""

    token_ids: bool
    stats: bool
    usage: bool


@dataclass(frozen=True)
class _Piece:
    text: str
    ids: list[int]
    last: bool


@dataclass
class Answer:
    """One request's answer in the making."""

    worker: EngineWorker
    ticket: Ticket
    decoder: TextStream
    shape: Shape
    model: str
    wishes: Wishes
    created: int = field(default_factory=lambda: int(time.time()))
    name: str = field(default_factory=lambda: uuid.uuid4().hex)

    @property
    def request(self) -> Request:
        """The engine's side; scoring jobs are answered by `score_answer`."""
        assert isinstance(self.ticket.work, Request)  # for the type checker
        return self.ticket.work

    async def whole(self) -> dict[str, Any]:
        """The answer in one piece; EngineError if the request failed."""
        text = "".join([piece.text async for piece in self._pieces()])
        choice = self.shape.choice(text, streamed=False)
        choice |= {"finish_reason": self.request.finish_reason, "logprobs": None}
        if self.wishes.token_ids:
            choice["token_ids"] = self.request.output
        body = self._head(self.shape.whole) | {"choices": [choice], "usage": self._usage()}
        return body | (self._stats() if self.wishes.stats else {})

    async def events(self) -> AsyncIterator[str]:
        """Server-sent events; a client that goes away ends the request."""
        try:
            if self.shape.is_chat:
                opening = {"index": 0, "delta": {"role": "assistant", "content": ""}}
                yield self._event({"choices": [opening | {"finish_reason": None}]})
            async for piece in self._pieces():
                choice = self.shape.choice(piece.text, streamed=True)
                choice["finish_reason"] = self.request.finish_reason if piece.last else None
                if self.wishes.token_ids:
                    choice["token_ids"] = piece.ids
                stats = self._stats() if piece.last and self.wishes.stats else {}
                yield self._event({"choices": [choice]} | stats)
            if self.wishes.usage:
                yield self._event({"choices": [], "usage": self._usage()})
            yield "data: [DONE]\n\n"
        except EngineError as error:
            yield f"data: {json.dumps(error_body(str(error), 'server_error'))}\n\n"
        finally:
            self.worker.abort(self.ticket)

    async def _pieces(self) -> AsyncIterator[_Piece]:
        """Text and ids of each step, the stop token's text left out.

        The engine's thread may be ahead of the events, so what it says of the request's end
        counts only with the last one.
        """
        async for event in self.ticket.stream():
            text = self.decoder.push(self.request.visible(event.ids))
            if event.last:
                if self.request.error is not None:
                    raise EngineError(self.request.error)
                text += self.decoder.finish()
            yield _Piece(text, list(event.ids), event.last)

    def _head(self, kind: str) -> dict[str, Any]:
        return {
            "id": f"{self.shape.prefix}-{self.name}",
            "object": kind,
            "created": self.created,
            "model": self.model,
        }

    def _event(self, body: dict[str, Any]) -> str:
        return f"data: {json.dumps(self._head(self.shape.chunk) | body)}\n\n"

    def _usage(self) -> dict[str, int]:
        stats = self.request.stats
        return {
            "prompt_tokens": stats.prompt_tokens,
            "completion_tokens": stats.completion_tokens,
            "total_tokens": stats.prompt_tokens + stats.completion_tokens,
        }

    def _stats(self) -> dict[str, Any]:
        return {"ddtree": self.request.summary()}


async def score_answer(ticket: Ticket, model: str) -> dict[str, Any]:
    """Scores of a prompt, one entry per prompt position, null where none was asked for."""
    job = ticket.work
    assert isinstance(job, ScoreJob)  # for the type checker
    async for _ in ticket.stream():
        pass
    blank: list[Any] = [None] * job.first
    logprobs = {
        "token_ids": list(job.ids),
        "token_logprobs": blank + [s.token_logprob for s in job.scores],
        "token_logits": blank + [s.token_logit for s in job.scores],
        "top_ids": blank + [s.top_ids for s in job.scores],
        "top_logits": blank + [s.top_logits for s in job.scores],
    }
    choice = {"index": 0, "text": "", "finish_reason": "length", "logprobs": logprobs}
    usage = {"prompt_tokens": len(job.ids), "completion_tokens": 0, "total_tokens": len(job.ids)}
    return {
        "id": f"cmpl-{uuid.uuid4().hex}",
        "object": "text_completion",
        "created": int(time.time()),
        "model": model,
        "choices": [choice],
        "usage": usage,
    }


def error_body(message: str, kind: str, param: str | None = None) -> dict[str, Any]:
    """OpenAI's error shape."""
    return {"error": {"message": message, "type": kind, "param": param, "code": None}}
