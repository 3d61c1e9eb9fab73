"""The answers to one prompt in the making: each a request of its own, read as they come."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, field, replace

from transformers import PreTrainedTokenizerBase as Tokenizer

from ddtree.core import derived_seed
from ddtree.engine import Engine, Request, SamplingParams, Speculation
from ddtree.models.text import TextStream
from ddtree.serve.logprobs import Entry
from ddtree.serve.worker import EngineWorker, Ticket


@dataclass(frozen=True)
class Piece:
    """What one step gave: the text that became certain, ids, and log-probabilities if asked for."""

    text: str
    ids: tuple[int, ...]
    entries: tuple[Entry, ...]
    last: bool


@dataclass
class Choice:
    """One answer; `sent` ids and `length` characters of its text have been given out."""

    index: int
    request: Request
    decoder: TextStream
    ticket: Ticket | None = None
    sent: int = 0
    length: int = 0

    async def next(self) -> Piece:
        """The next step's piece, the stop token's text left out; DDTreeError if there is none.

        The engine's thread may be ahead of the events, so what it says of the request's end
        counts only with the last one.
        """
        assert self.ticket is not None  # for the type checker: `start` comes first
        event = await self.ticket.next()
        if event.last and self.request.failure is not None:
            raise self.request.failure
        text, entries = self._push_all(event.ids)
        if event.last:
            text += self.decoder.finish()
        self.sent += len(event.ids)
        return Piece(text, event.ids, entries, event.last)

    def _push_all(self, ids: Sequence[int]) -> tuple[str, tuple[Entry, ...]]:
        if self.request.sampling.logprobs is None:
            return self._push(ids), ()
        # One by one, to know where each token's text begins.
        text, entries = "", []
        for scores in self.request.logprobs[self.sent : self.sent + len(ids)]:
            entries.append(Entry(scores, self.length))
            text += self._push([scores.token_id])
        return text, tuple(entries)

    def _push(self, ids: Sequence[int]) -> str:
        text = self.decoder.push(self.request.visible(ids))
        self.length += len(text)
        return text


@dataclass(frozen=True)
class Choices:
    """All answers to one prompt, in order of index."""

    worker: EngineWorker
    items: list[Choice] = field(default_factory=list)

    async def pieces(self) -> AsyncGenerator[tuple[Choice, Piece], None]:
        """Submits the requests; pieces of all as they come. However it ends, they end with it."""
        for choice in self.items:
            choice.ticket = self.worker.submit(choice.request)
        coming = {asyncio.ensure_future(choice.next()): choice for choice in self.items}
        try:
            while coming:
                done, _ = await asyncio.wait(coming, return_when=asyncio.FIRST_COMPLETED)
                for task in sorted(done, key=lambda task: coming[task].index):
                    choice, piece = coming[task], task.result()
                    del coming[task]
                    if not piece.last:
                        coming[asyncio.ensure_future(choice.next())] = choice
                    yield choice, piece
        finally:
            for choice in self.items:
                if choice.ticket is not None:
                    self.worker.abort(choice.ticket)
            for task in coming:
                task.cancel()
            # Awaited, since an error that nobody has seen would be logged as forgotten.
            await asyncio.gather(*coming, return_exceptions=True)


def make_choices(
    engine: Engine,
    tokenizer: Tokenizer,
    prompt: Sequence[int],
    sampling: SamplingParams,
    speculation: Speculation | None,
    count: int,
) -> list[Choice]:
    """`count` answers, nothing submitted; RequestError names a field that can't be served.

    Choice i samples with the seed derived from the first one's, be that named or drawn.
    """
    first = engine.make_request(prompt, sampling, speculation)
    requests = [first] + [
        engine.make_request(
            prompt, replace(sampling, seed=derived_seed(first.seed, index)), speculation
        )
        for index in range(1, count)
    ]
    return [Choice(i, r, TextStream(tokenizer, prompt)) for i, r in enumerate(requests)]
