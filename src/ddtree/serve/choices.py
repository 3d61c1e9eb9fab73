"""The answers of one call in the making: each a request of its own, read as they come."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, field, replace

from transformers import PreTrainedTokenizerBase as Tokenizer

from ddtree.core import derived_seed
from ddtree.engine import Engine, Request, SamplingParams, Speculation
from ddtree.errors import RequestError
from ddtree.models.text import TextStream
from ddtree.serve.logprobs import Entry
from ddtree.serve.speculating import DefaultSpeculation
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
    """One answer; `sent` of its ids have been given out.

    `decoder` ends the text where the engine ended it: both look for the same stop strings in the
    same ids. `uncut` tells where each token's text begins, whatever is held back.
    """

    index: int
    request: Request
    decoder: TextStream
    uncut: TextStream
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
        entries = self._entries(event.ids)
        text = self.decoder.push(self.request.visible(event.ids))
        if event.last:
            text += self.decoder.finish()
        self.sent += len(event.ids)
        return Piece(text, event.ids, entries, event.last)

    def _entries(self, ids: Sequence[int]) -> tuple[Entry, ...]:
        if self.request.sampling.logprobs is None:
            return ()
        entries = []
        for scores in self.request.logprobs[self.sent : self.sent + len(ids)]:
            entries.append(Entry(scores, self.length))
            self.length += len(self.uncut.push(self.request.visible([scores.token_id])))
        return tuple(entries)


@dataclass
class Choices:
    """All answers to one call, in order of index: `per_prompt` to each prompt."""

    worker: EngineWorker
    items: list[Choice] = field(default_factory=list)
    per_prompt: int = 1

    def start(self) -> None:
        """Submit the requests, all or none. Whoever starts them calls `abandon` in the end."""
        asking = "n" if self.per_prompt > 1 else "prompt"
        tickets = self.worker.submit_all([choice.request for choice in self.items], asking)
        for choice, ticket in zip(self.items, tickets, strict=True):
            choice.ticket = ticket

    def abandon(self) -> None:
        """End what is not over yet; nothing happens if all is."""
        for choice in self.items:
            if choice.ticket is not None:
                self.worker.abort(choice.ticket)

    async def pieces(self) -> AsyncGenerator[tuple[Choice, Piece], None]:
        """Pieces of all, as they come. However it ends, the requests end with it."""
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
            self.abandon()
            for task in coming:
                task.cancel()
            # Awaited, since an error that nobody has seen would be logged as forgotten.
            await asyncio.gather(*coming, return_exceptions=True)


@dataclass(frozen=True)
class ChoiceMaker:
    """Makes requests; nothing is submitted. `running` is how many of the engine's slots will be
    busy once they run, as far as is known when they come."""

    engine: Engine
    tokenizer: Tokenizer
    default: DefaultSpeculation = field(default_factory=DefaultSpeculation)
    running: int = 1

    def make(
        self,
        prompts: Sequence[Sequence[int]],
        sampling: SamplingParams,
        speculation: Speculation | None,
        count: int,
    ) -> list[Choice]:
        """`count` answers to each prompt; RequestError names a field that can't be served.

        A prompt gets what it would in a call of its own. Its choice i samples with the seed
        derived from its first one's, be that named or drawn.
        """
        made: list[Choice] = []
        for place, prompt in enumerate(prompts):
            try:
                requests = self._requests(prompt, sampling, speculation, count)
            except RequestError as error:
                if error.field != "prompt" or len(prompts) == 1:
                    raise
                reason = str(error).removeprefix("prompt: ")
                raise RequestError(f"prompt[{place}]", reason) from None
            made += [self._choice(len(made) + i, request) for i, request in enumerate(requests)]
        return made

    def _requests(
        self,
        prompt: Sequence[int],
        sampling: SamplingParams,
        speculation: Speculation | None,
        count: int,
    ) -> list[Request]:
        if speculation is None:
            temperature = sampling.temperature
            speculation = self.default.choose(len(prompt), self.running, temperature)
        first = self.engine.make_request(prompt, sampling, speculation)
        seeds = [derived_seed(first.seed, index) for index in range(1, count)]
        others = [replace(sampling, seed=seed) for seed in seeds]
        return [first] + [self.engine.make_request(prompt, one, speculation) for one in others]

    def _choice(self, index: int, request: Request) -> Choice:
        stops, least = request.sampling.stop, request.sampling.min_tokens
        decoder = TextStream(self.tokenizer, request.prompt, stops, least)
        return Choice(index, request, decoder, TextStream(self.tokenizer, request.prompt))
