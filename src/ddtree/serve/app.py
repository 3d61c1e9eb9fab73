"""The routes."""

import asyncio
from collections.abc import AsyncIterator, Coroutine, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response, StreamingResponse
from transformers import PreTrainedTokenizerBase as Tokenizer

from ddtree.errors import DDTreeError, EngineError, RequestError
from ddtree.models.text import encode_chat
from ddtree.serve.choices import Choices, make_choices
from ddtree.serve.completions import CHAT, COMPLETION, Answer, Shape, Wishes, error_body
from ddtree.serve.logprobs import TokenTexts
from ddtree.serve.schema import (
    ChatRequest,
    CompletionRequest,
    DetokenizeRequest,
    GenerationFields,
    TokenizeRequest,
)
from ddtree.serve.scores import score_answer
from ddtree.serve.worker import EngineWorker


@dataclass(frozen=True)
class ServerInfo:
    """The name clients use, and the resolved configuration that /server_info shows."""

    model: str
    resolved: dict[str, Any]


@dataclass(frozen=True)
class Work:
    """A prompt and what to make of it."""

    ids: list[int]
    max_tokens: int
    logprobs: int | None
    shape: Shape


class _Server:
    """What the routes share."""

    def __init__(self, worker: EngineWorker, tokenizer: Tokenizer, info: ServerInfo) -> None:
        self.worker, self.tokenizer, self.info = worker, tokenizer, info
        self.texts = TokenTexts(tokenizer)

    def check_model(self, name: str | None) -> None:
        if name is not None and name != self.info.model:
            raise RequestError("model", f"got {name!r}, this server has {self.info.model!r}")

    def encode(self, prompt: str | list[int], *, add_special_tokens: bool = True) -> list[int]:
        if isinstance(prompt, list):
            return prompt
        check_text("prompt", prompt)
        ids: list[int] = self.tokenizer(prompt, add_special_tokens=add_special_tokens).input_ids
        return ids

    async def generate(self, call: Request, fields: GenerationFields, work: Work) -> Response:
        engine, speculation, count = self.worker.engine, fields.to_speculation(), fields.choices()
        engine.check_ids("stop_token_ids", fields.stop_token_ids or ())
        sampling = fields.sampling(work.max_tokens, self.banned(fields), work.logprobs)
        choices = make_choices(engine, self.tokenizer, work.ids, sampling, speculation, count)
        wishes = Wishes(fields.return_token_ids, fields.return_stats, fields.include_usage)
        running = Choices(self.worker, choices)
        answer = Answer(running, self.texts, work.shape, self.info.model, wishes)
        if fields.stream:
            return StreamingResponse(answer.events(), media_type="text/event-stream")
        return await self.answer(call, answer.whole())

    async def score(self, call: Request, fields: CompletionRequest) -> Response:
        ids = self.encode(fields.prompt)
        first = 1 if fields.score_from is None else fields.score_from
        rows = 1 if fields.score_rows is None else fields.score_rows
        engine = self.worker.engine
        engine.check_ids("stop_token_ids", fields.stop_token_ids or ())
        sampling = fields.score_sampling(self.banned(fields))
        job = engine.make_score(ids, first, rows, fields.logprobs or 0, sampling)
        return await self.answer(call, score_answer(self.worker, job, self.info.model))

    def banned(self, fields: GenerationFields) -> Sequence[Sequence[int]]:
        """`bad_words` as ids: each as it stands, and behind a space where that is spelled with
        other ids."""
        found: dict[tuple[int, ...], None] = {}
        for word in fields.bad_words or ():
            check_text("bad_words", word)
            for text in (word, " " + word.lstrip()):
                found[tuple(self.tokenizer(text, add_special_tokens=False).input_ids)] = None
        return list(found)

    async def answer(self, call: Request, body: Coroutine[Any, Any, dict[str, Any]]) -> Response:
        """The body once it is there; a client that goes away before ends the work."""
        work = asyncio.ensure_future(body)
        gone = asyncio.ensure_future(_disconnected(call))
        try:
            await asyncio.wait({work, gone}, return_when=asyncio.FIRST_COMPLETED)
            return JSONResponse(work.result()) if work.done() else Response(status_code=499)
        finally:
            work.cancel()
            gone.cancel()


async def _disconnected(call: Request) -> None:
    """Return when the client is gone; its body has been read already."""
    while (await call.receive())["type"] != "http.disconnect":
        pass


def check_text(field: str, text: str) -> None:
    """RequestError for a string that is no text."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise RequestError(field, "holds a lone surrogate, which is no text") from None


def create_app(worker: EngineWorker, tokenizer: Tokenizer, info: ServerInfo) -> FastAPI:
    """The application; its lifetime is the engine thread's."""

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        worker.start()
        yield
        await asyncio.to_thread(worker.stop)

    app = FastAPI(title="ddtree", lifespan=lifespan)
    server = _Server(worker, tokenizer, info)
    _add_error_handlers(app)
    _add_generation(app, server)
    _add_information(app, server)
    return app


def _add_generation(app: FastAPI, server: _Server) -> None:
    @app.post("/v1/completions", response_model=None)
    async def completions(call: Request, body: CompletionRequest) -> Response:
        server.check_model(body.model)
        if body.asks_for_scores():
            return await server.score(call, body)
        ids = server.encode(body.prompt)
        work = Work(ids, body.max_tokens, body.logprobs, COMPLETION)
        return await server.generate(call, body, work)

    @app.post("/v1/chat/completions", response_model=None)
    async def chat(call: Request, body: ChatRequest) -> Response:
        server.check_model(body.model)
        for message in body.messages:
            check_text("messages", message.content)
        messages = [{"role": m.role, "content": m.content} for m in body.messages]
        ids = encode_chat(server.tokenizer, messages)
        work = Work(ids, body.token_limit(), body.num_logprobs(), CHAT)
        return await server.generate(call, body, work)


def _add_information(app: FastAPI, server: _Server) -> None:
    @app.get("/health", response_model=None)
    async def health() -> Response:
        problem = server.worker.problem()
        if problem is None:
            return JSONResponse({"status": "ok"})
        return JSONResponse({"status": "unhealthy", "reason": problem}, 503)

    @app.get("/v1/models")
    async def models() -> dict[str, Any]:
        entry = {"id": server.info.model, "object": "model", "created": 0, "owned_by": "ddtree"}
        return {"object": "list", "data": [entry]}

    @app.get("/server_info")
    async def server_info() -> dict[str, Any]:
        engine = server.worker.engine
        live = {"running": engine.num_running, "waiting": engine.num_waiting}
        return server.info.resolved | {"model": server.info.model} | live

    @app.post("/tokenize")
    async def tokenize(body: TokenizeRequest) -> dict[str, Any]:
        server.check_model(body.model)
        ids = server.encode(body.prompt, add_special_tokens=body.add_special_tokens)
        limit = server.worker.engine.max_context
        return {"tokens": ids, "count": len(ids), "max_model_len": limit}

    @app.post("/detokenize")
    async def detokenize(body: DetokenizeRequest) -> dict[str, Any]:
        server.check_model(body.model)
        server.worker.engine.check_ids("tokens", body.tokens)
        return {"prompt": server.tokenizer.decode(body.tokens)}


def _add_error_handlers(app: FastAPI) -> None:
    @app.exception_handler(RequestValidationError)
    async def invalid(_: Request, error: RequestValidationError) -> JSONResponse:
        first = error.errors()[0]
        broken = first["type"] == "json_invalid"
        path = [] if broken else [str(part) for part in first["loc"] if part != "body"]
        # A map's keys are the client's own: the culprit is the field that holds them.
        param = path[:1] if path[:1] == ["logit_bias"] else path
        message = f"{'.'.join(path) or 'body'}: {first['msg']}"
        return JSONResponse(
            error_body(message, "invalid_request_error", ".".join(param) or None), 400
        )

    @app.exception_handler(DDTreeError)
    async def refused(_: Request, error: DDTreeError) -> JSONResponse:
        if isinstance(error, RequestError):
            # logit_bias[7] is in the field logit_bias.
            field = error.field.partition("[")[0]
            body = error_body(str(error), "invalid_request_error", field)
            return JSONResponse(body, 404 if error.field == "model" else 400)
        status = 503 if isinstance(error, EngineError) else 400
        return JSONResponse(error_body(str(error), "server_error"), status)
