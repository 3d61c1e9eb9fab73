"""Answers to completion requests: whole and streamed."""

import json
import time
import uuid
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any

from fastapi.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from ddtree.errors import DDTreeError
from ddtree.serve.choices import Choice, Choices, Piece
from ddtree.serve.errors import body_of
from ddtree.serve.logprobs import Entry, Spelling, TokenTexts, chat_logprobs, legacy_logprobs

EVENT_STREAM = "text/event-stream"


@dataclass(frozen=True)
class Shape:
    """How a kind of answer is spelled: object names, and where text goes."""

    whole: str
    chunk: str
    prefix: str
    is_chat: bool
    logprobs: Spelling

    def choice(self, index: int, text: str, *, streamed: bool) -> dict[str, Any]:
        """A choice's text in its place."""
        if not self.is_chat:
            return {"index": index, "text": text}
        if streamed:
            return {"index": index, "delta": {"content": text}}
        return {"index": index, "message": {"role": "assistant", "content": text}}


COMPLETION = Shape(
    "text_completion", "text_completion", "cmpl", is_chat=False, logprobs=legacy_logprobs
)
CHAT = Shape(
    "chat.completion", "chat.completion.chunk", "chatcmpl", is_chat=True, logprobs=chat_logprobs
)


@dataclass(frozen=True)
class Wishes:
    """What an answer should carry besides text. echo: texts of the prompts, to open each answer
    with."""

    token_ids: bool
    stats: bool
    usage: bool
    echo: tuple[str, ...] | None = None


@dataclass
class Answer:
    """The answer to one call, all its choices included, in the making."""

    choices: Choices
    texts: TokenTexts
    shape: Shape
    model: str
    wishes: Wishes
    created: int = field(default_factory=lambda: int(time.time()))
    name: str = field(default_factory=lambda: uuid.uuid4().hex)

    async def whole(self) -> dict[str, Any]:
        """The answer in one piece; DDTreeError if any choice failed."""
        parts: dict[int, list[Piece]] = {choice.index: [] for choice in self._all}
        async with aclosing(self.choices.pieces()) as pieces:
            async for choice, piece in pieces:
                parts[choice.index].append(piece)
        listed = [self._finished(choice, parts[choice.index]) for choice in self._all]
        body = self._head(self.shape.whole) | {"choices": listed, "usage": self._usage()}
        return body | self._shared_stats()

    async def events(self) -> AsyncIterator[str]:
        """Server-sent events; a client that goes away ends the requests."""
        try:
            for opening in self._openings():
                yield self._event({"choices": [opening]})
            open_choices = len(self._all)
            async with aclosing(self.choices.pieces()) as pieces:
                async for choice, piece in pieces:
                    open_choices -= piece.last
                    stats = {} if open_choices else self._shared_stats()
                    yield self._event({"choices": [self._chunk(choice, piece)]} | stats)
            if self.wishes.usage:
                yield self._event({"choices": [], "usage": self._usage()})
            yield "data: [DONE]\n\n"
        except DDTreeError as error:
            yield f"data: {json.dumps(body_of(error)[1])}\n\n"

    def _openings(self) -> list[dict[str, Any]]:
        """What comes before the first token: a chat's role, the prompt if it is to be echoed."""
        if self.shape.is_chat:
            delta = {"role": "assistant", "content": ""}
            bodies: list[dict[str, Any]] = [{"index": c.index, "delta": delta} for c in self._all]
        elif self.wishes.echo is not None:
            bodies = [self.shape.choice(c.index, self._echo(c), streamed=True) for c in self._all]
        else:
            return []
        ids: dict[str, Any] = {"token_ids": []} if self.wishes.token_ids else {}
        return [body | {"finish_reason": None, "logprobs": None} | ids for body in bodies]

    def _echo(self, choice: Choice) -> str:
        """The text that opens an answer."""
        if self.wishes.echo is None:
            return ""
        return self.wishes.echo[choice.index // self.choices.per_prompt]

    @property
    def _all(self) -> list[Choice]:
        return self.choices.items

    def _finished(self, choice: Choice, pieces: Sequence[Piece]) -> dict[str, Any]:
        """A choice of an answer in one piece."""
        text = self._echo(choice) + "".join(piece.text for piece in pieces)
        entries = [entry for piece in pieces for entry in piece.entries]
        body = self.shape.choice(choice.index, text, streamed=False)
        body |= {"finish_reason": choice.request.finish_reason, "logprobs": None}
        body |= self._logprobs(choice, entries) | self._own_stats(choice)
        if self.wishes.token_ids:
            body["token_ids"] = choice.request.output
        return body

    def _chunk(self, choice: Choice, piece: Piece) -> dict[str, Any]:
        """A choice of a chunk."""
        body = self.shape.choice(choice.index, piece.text, streamed=True)
        body["finish_reason"] = choice.request.finish_reason if piece.last else None
        body |= {"logprobs": None} | self._logprobs(choice, piece.entries)
        if self.wishes.token_ids:
            body["token_ids"] = list(piece.ids)
        return body | (self._own_stats(choice) if piece.last else {})

    def _logprobs(self, choice: Choice, entries: Sequence[Entry]) -> dict[str, Any]:
        if choice.request.sampling.logprobs is None:
            return {}
        return {"logprobs": self.shape.logprobs(entries, self.texts)}

    def _head(self, kind: str) -> dict[str, Any]:
        return {
            "id": f"{self.shape.prefix}-{self.name}",
            "object": kind,
            "created": self.created,
            "model": self.model,
        }

    def _event(self, body: dict[str, Any]) -> str:
        # Where the usage is asked for, all chunks have the field and the last one has it filled.
        to_come = {"usage": None} if self.wishes.usage else {}
        return f"data: {json.dumps(self._head(self.shape.chunk) | to_come | body)}\n\n"

    def _usage(self) -> dict[str, int]:
        """Tokens of all choices; each prompt counts once."""
        stats = [choice.request.stats for choice in self._all]
        prompt = sum(s.prompt_tokens for s in stats[:: self.choices.per_prompt])
        completion = sum(s.completion_tokens for s in stats)
        return usage(prompt, completion)

    def _shared_stats(self) -> dict[str, Any]:
        """Of an answer with one choice, beside `choices`."""
        if not self.wishes.stats or len(self._all) > 1:
            return {}
        return {"ddtree": self._all[0].request.summary()}

    def _own_stats(self, choice: Choice) -> dict[str, Any]:
        """Of one of several choices, inside it."""
        if not self.wishes.stats or len(self._all) == 1:
            return {}
        return {"ddtree": choice.request.summary()}


def usage(prompt: int, completion: int) -> dict[str, int]:
    """OpenAI's account of tokens."""
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
    }


class EventStream(StreamingResponse):
    """Streams events, and runs `end` however it ends: also if not one event was taken."""

    def __init__(self, events: AsyncIterator[str], end: Callable[[], None]) -> None:
        super().__init__(events, media_type=EVENT_STREAM)
        self._end = end

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """The response, as ASGI has it."""
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._end()
