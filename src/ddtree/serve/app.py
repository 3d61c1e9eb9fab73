"""The routes."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response, StreamingResponse
from transformers import PreTrainedTokenizerBase as Tokenizer

from ddtree.errors import DDTreeError, EngineError, RequestError
from ddtree.models.text import TextStream, encode_chat
from ddtree.serve.completions import (
    CHAT,
    COMPLETION,
    Answer,
    Shape,
    Wishes,
    error_body,
    score_answer,
)
from ddtree.serve.schema import (
    ChatRequest,
    CompletionRequest,
    DetokenizeRequest,
    GenerationFields,
    TokenizeRequest,
)
from ddtree.serve.worker import EngineWorker


@dataclass(frozen=True)
class ServerInfo:
    """The name clients use, and the resolved configuration that /server_info shows."""

    model: str
    resolved: dict[str, Any]


class _Server:
    """What the routes share."""

    def __init__(self, worker: EngineWorker, tokenizer: Tokenizer, info: ServerInfo) -> None:
        self.worker, self.tokenizer, self.info = worker, tokenizer, info

    def check_model(self, name: str | None) -> None:
        if name is not None and name != self.info.model:
            raise RequestError("model", f"got {name!r}, this server has {self.info.model!r}")

    def encode(self, prompt: str | list[int]) -> list[int]:
        if isinstance(prompt, list):
            return prompt
        try:
            prompt.encode()
        except UnicodeEncodeError:
            raise RequestError("prompt", "holds a lone surrogate, which is no text") from None
        ids: list[int] = self.tokenizer(prompt).input_ids
        return ids

    async def generate(
        self, fields: GenerationFields, ids: list[int], max_tokens: int, shape: Shape
    ) -> Response:
        request = self.worker.engine.make_request(
            ids, fields.sampling(max_tokens), fields.to_speculation()
        )
        ticket = self.worker.submit(request)
        wishes = Wishes(fields.return_token_ids, fields.return_stats, fields.include_usage)
        decoder = TextStream(self.tokenizer)
        answer = Answer(self.worker, ticket, decoder, shape, self.info.model, wishes)
        if fields.stream:
            return StreamingResponse(answer.events(), media_type="text/event-stream")
        try:
            return JSONResponse(await answer.whole())
        except asyncio.CancelledError:
            self.worker.abort(ticket)
            raise


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
    async def completions(body: CompletionRequest) -> Response:
        server.check_model(body.model)
        ids = server.encode(body.prompt)
        if not body.is_scoring:
            return await server.generate(body, ids, body.max_tokens, COMPLETION)
        job = server.worker.engine.make_score(
            ids, body.score_from, body.score_rows, body.logprobs or 0
        )
        return JSONResponse(await score_answer(server.worker.submit(job), server.info.model))

    @app.post("/v1/chat/completions", response_model=None)
    async def chat(body: ChatRequest) -> Response:
        server.check_model(body.model)
        messages = [{"role": m.role, "content": m.content} for m in body.messages]
        ids = encode_chat(server.tokenizer, messages)
        return await server.generate(body, ids, body.token_limit, CHAT)


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
        ids = server.tokenizer(body.prompt, add_special_tokens=body.add_special_tokens).input_ids
        limit = server.worker.engine.max_context
        return {"tokens": ids, "count": len(ids), "max_model_len": limit}

    @app.post("/detokenize")
    async def detokenize(body: DetokenizeRequest) -> dict[str, Any]:
        server.check_model(body.model)
        return {"prompt": server.tokenizer.decode(body.tokens)}


def _add_error_handlers(app: FastAPI) -> None:
    @app.exception_handler(RequestValidationError)
    async def invalid(_: Request, error: RequestValidationError) -> JSONResponse:
        first = error.errors()[0]
        broken = first["type"] == "json_invalid"
        field = "" if broken else ".".join(str(part) for part in first["loc"] if part != "body")
        return JSONResponse(
            error_body(
                f"{field or 'body'}: {first['msg']}", "invalid_request_error", field or None
            ),
            400,
        )

    @app.exception_handler(DDTreeError)
    async def refused(_: Request, error: DDTreeError) -> JSONResponse:
        if isinstance(error, RequestError):
            body = error_body(str(error), "invalid_request_error", error.field)
            return JSONResponse(body, 404 if error.field == "model" else 400)
        status = 503 if isinstance(error, EngineError) else 400
        return JSONResponse(error_body(str(error), "server_error"), status)
