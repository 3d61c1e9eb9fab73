"""From a request's fields to a response: prompts, limits, submission, and the client's going."""

import asyncio
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass
from typing import Any

from fastapi import Request
from fastapi.responses import JSONResponse, Response
from transformers import PreTrainedTokenizerBase as Tokenizer

from ddtree.errors import RequestError
from ddtree.serve.choices import ChoiceMaker, Choices
from ddtree.serve.completions import CHAT, COMPLETION, Answer, EventStream, Shape, Wishes
from ddtree.serve.logprobs import TokenTexts
from ddtree.serve.prompts import Prompt, TextLimit, banned_ids, read_chat, read_prompts
from ddtree.serve.schema import (
    DEFAULT_MAX_TOKENS,
    MAX_CHOICES,
    ChatRequest,
    CompletionRequest,
    GenerationFields,
)
from ddtree.serve.scores import Scoring
from ddtree.serve.speculating import DefaultSpeculation
from ddtree.serve.worker import EngineWorker

# The client is gone; nobody sees it.
_GONE = 499


@dataclass(frozen=True)
class Work:
    """Prompts and what to make of them."""

    prompts: Sequence[Prompt]
    max_tokens: int
    logprobs: int | None
    shape: Shape
    echo: bool = False


class Generation:
    """Answers generation calls. Texts become ids beside the event loop, which a long one would
    keep from everybody else's tokens."""

    def __init__(
        self,
        worker: EngineWorker,
        tokenizer: Tokenizer,
        model: str,
        default: DefaultSpeculation,
    ) -> None:
        self.worker, self.tokenizer, self.model = worker, tokenizer, model
        self.default = default
        self.texts = TokenTexts(tokenizer)
        self._limit = TextLimit(tokenizer, worker.engine.max_context)

    async def complete(self, call: Request, body: CompletionRequest) -> Response:
        """Answer /v1/completions."""
        for text in body.texts():
            self._limit.check("prompt", len(text))
        prompts = await asyncio.to_thread(read_prompts, self.tokenizer, body.prompt)
        if body.asks_for_scores():
            return await self._score(call, body, prompts)
        most = self._most_tokens("max_tokens", body.max_tokens, DEFAULT_MAX_TOKENS)
        work = Work(prompts, most, body.logprobs, COMPLETION, bool(body.echo))
        return await self._generate(call, body, work)

    async def chat(self, call: Request, body: ChatRequest) -> Response:
        """Answer /v1/chat/completions."""
        logprobs, context = body.num_logprobs(), self.worker.engine.max_context
        most = self._most_tokens("max_tokens", body.max_tokens, context)
        most = self._most_tokens("max_completion_tokens", body.max_completion_tokens, most)
        self._limit.check("messages", sum(message.length for message in body.messages))
        prompt = await asyncio.to_thread(
            read_chat, self.tokenizer, body.messages, body.chat_template_kwargs
        )
        try:
            return await self._generate(call, body, Work([prompt], most, logprobs, CHAT))
        except RequestError as error:
            if error.field != "prompt":
                raise
            raise RequestError("messages", str(error).removeprefix("prompt: ")) from None

    def _most_tokens(self, field: str, asked: int | None, default: int) -> int:
        """The limit of an answer; RequestError for one that no prompt leaves room for."""
        context = self.worker.engine.max_context
        if asked is not None and asked > context:
            raise RequestError(
                field, f"got {asked}, this server's context has {context} tokens, prompt included"
            )
        return min(default, context) if asked is None else asked

    async def _generate(self, call: Request, fields: GenerationFields, work: Work) -> Response:
        engine, speculation, count = self.worker.engine, fields.to_speculation(), fields.choices()
        total = count * len(work.prompts)
        if total > MAX_CHOICES:
            raise RequestError(
                "prompt",
                f"got {len(work.prompts)} prompts with {count} answers each, which makes {total}; "
                f"a call has at most {MAX_CHOICES}: send several",
            )
        wishes = self._wishes(fields, work)
        sampling = fields.sampling(work.max_tokens, await self._banned(fields), work.logprobs)
        running = min(engine.config.slots, self.worker.in_flight + total)
        maker = ChoiceMaker(engine, self.tokenizer, self.default, running)
        made = maker.make([prompt.ids for prompt in work.prompts], sampling, speculation, count)
        choices = Choices(self.worker, made, count)
        answer = Answer(choices, self.texts, work.shape, self.model, wishes)
        # Before the response begins, so that a refusal for load has a status of its own.
        choices.start()
        if fields.stream:
            return EventStream(answer.events(), choices.abandon)
        try:
            return await answered(call, answer.whole())
        finally:
            choices.abandon()

    async def _score(
        self, call: Request, fields: CompletionRequest, prompts: Sequence[Prompt]
    ) -> Response:
        first = 1 if fields.score_from is None else fields.score_from
        rows = 1 if fields.score_rows is None else fields.score_rows
        engine, top = self.worker.engine, fields.logprobs or 0
        sampling = fields.score_sampling(await self._banned(fields))
        jobs = [engine.make_score(p.ids, first, rows, top, sampling) for p in prompts]
        scoring = Scoring(self.worker, jobs, self.tokenizer, self.texts, self.model)
        scoring.start()
        try:
            return await answered(call, scoring.whole())
        finally:
            scoring.abandon()

    def _wishes(self, fields: GenerationFields, work: Work) -> Wishes:
        return Wishes(
            bool(fields.return_token_ids),
            bool(fields.return_stats),
            fields.include_usage(),
            tuple(p.spelled(self.tokenizer) for p in work.prompts) if work.echo else None,
        )

    async def _banned(self, fields: GenerationFields) -> list[tuple[int, ...]]:
        return await asyncio.to_thread(banned_ids, self.tokenizer, fields.bad_words or ())


async def answered(call: Request, body: Coroutine[Any, Any, dict[str, Any]]) -> Response:
    """The body once it is there; a client that goes away before ends the wait."""
    work = asyncio.ensure_future(body)
    gone = asyncio.ensure_future(_disconnected(call))
    try:
        await asyncio.wait({work, gone}, return_when=asyncio.FIRST_COMPLETED)
        return JSONResponse(work.result()) if work.done() else Response(status_code=_GONE)
    finally:
        work.cancel()
        gone.cancel()


async def _disconnected(call: Request) -> None:
    """Return when the client is gone; its body has been read already."""
    while (await call.receive())["type"] != "http.disconnect":
        pass
