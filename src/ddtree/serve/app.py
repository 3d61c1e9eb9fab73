"""The routes."""

import asyncio
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response
from transformers import PreTrainedTokenizerBase as Tokenizer

from ddtree import __version__
from ddtree.serve import answers
from ddtree.serve.bodies import JsonRoute
from ddtree.serve.errors import UnknownModelError, add_error_handlers
from ddtree.serve.generation import Generation
from ddtree.serve.guards import Guards
from ddtree.serve.metrics import MEDIA_TYPE
from ddtree.serve.openapi import UNHEALTHY, describe, document, text_answer
from ddtree.serve.prompts import encode
from ddtree.serve.replay import ReplayAnswer, Replaying, ReplayRequest
from ddtree.serve.schema import (
    ChatRequest,
    CompletionRequest,
    DetokenizeRequest,
    TokenizeRequest,
)
from ddtree.serve.speculating import DefaultSpeculation
from ddtree.serve.worker import EngineWorker

_OF_A_BODY = (400, 401, 404, 408, 413, 415)
_OF_THE_ENGINE = (429, 503)


@dataclass(frozen=True)
class ServerInfo:
    """The name clients use, and the resolved configuration that /server_info shows."""

    model: str
    resolved: dict[str, Any]


@dataclass(frozen=True)
class _Server:
    """What the routes share."""

    worker: EngineWorker
    tokenizer: Tokenizer
    info: ServerInfo
    default: DefaultSpeculation

    def check_model(self, name: str | None) -> None:
        if name is not None and name != self.info.model:
            raise UnknownModelError("model", f"got {name!r}, this server has {self.info.model!r}")

    def entry(self) -> dict[str, Any]:
        return {"id": self.info.model, "object": "model", "created": 0, "owned_by": "ddtree"}


def create_app(
    worker: EngineWorker,
    tokenizer: Tokenizer,
    info: ServerInfo,
    guards: Guards | None = None,
    default: DefaultSpeculation | None = None,
) -> FastAPI:
    """The application; its lifetime is the engine thread's."""

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        worker.start()
        yield
        # On a thread of its own: others may be busy with long texts.
        with ThreadPoolExecutor(1) as stopping:
            await asyncio.get_running_loop().run_in_executor(stopping, worker.stop)

    app = FastAPI(title="ddtree", version=__version__, lifespan=lifespan)
    app.router.route_class = JsonRoute
    app.openapi = document(app)  # type: ignore[method-assign]
    server = _Server(worker, tokenizer, info, default or DefaultSpeculation())
    add_error_handlers(app)
    _add_generation(app, server)
    _add_replay(app, server)
    _add_models(app, server)
    _add_information(app, server)
    _add_texts(app, server)
    (guards or Guards()).install(app, worker.metrics)
    return app


def _add_generation(app: FastAPI, server: _Server) -> None:
    generation = Generation(server.worker, server.tokenizer, server.info.model, server.default)
    errors = (*_OF_A_BODY, *_OF_THE_ENGINE)

    @app.post(
        "/v1/completions",
        response_model=None,
        responses=describe(answers.Completion, *errors, streams=True),
    )
    async def completions(call: Request, body: CompletionRequest) -> Response:
        """Continue a prompt, or score its tokens."""
        server.check_model(body.model)
        return await generation.complete(call, body)

    @app.post(
        "/v1/chat/completions",
        response_model=None,
        responses=describe(answers.ChatCompletion, *errors, streams=True),
    )
    async def chat(call: Request, body: ChatRequest) -> Response:
        """The assistant's turn, by the model's own chat template."""
        server.check_model(body.model)
        return await generation.chat(call, body)


def _add_replay(app: FastAPI, server: _Server) -> None:
    replaying = Replaying(server.worker)

    @app.post(
        "/v1/replay",
        response_model=None,
        responses=describe(ReplayAnswer, *_OF_A_BODY, *_OF_THE_ENGINE),
    )
    async def replay(call: Request, body: ReplayRequest) -> Response:
        """What other ways of drafting would have accepted of an answer."""
        server.check_model(body.model)
        return await replaying.answer(call, body)


def _add_models(app: FastAPI, server: _Server) -> None:
    @app.get("/v1/models", response_model=None, responses=describe(answers.Models, 401))
    async def models() -> dict[str, Any]:
        """The one model."""
        return {"object": "list", "data": [server.entry()]}

    # A name may hold slashes.
    @app.get(
        "/v1/models/{name:path}", response_model=None, responses=describe(answers.Model, 401, 404)
    )
    async def model(name: str) -> dict[str, Any]:
        """The model of this name."""
        server.check_model(name)
        return server.entry()


def _add_information(app: FastAPI, server: _Server) -> None:
    @app.get("/health", response_model=None, responses=describe(answers.Health) | UNHEALTHY)
    async def health() -> Response:
        """Whether the engine can be relied on; 503 with a reason if not."""
        problem = server.worker.problem()
        if problem is None:
            return JSONResponse({"status": "ok"})
        return JSONResponse({"status": "unhealthy", "reason": problem}, 503)

    @app.get("/metrics", response_class=Response, responses=text_answer(MEDIA_TYPE))
    async def metrics() -> Response:
        """Prometheus metrics."""
        return Response(server.worker.metrics.render(), media_type=MEDIA_TYPE)

    @app.get("/server_info", responses=describe(None, 401))
    async def server_info() -> dict[str, Any]:
        """The resolved configuration, running and waiting requests."""
        engine = server.worker.engine
        live = {"running": engine.num_running, "waiting": engine.num_waiting}
        return server.info.resolved | {"model": server.info.model} | live


def _add_texts(app: FastAPI, server: _Server) -> None:
    @app.post("/tokenize", response_model=None, responses=describe(answers.Tokens, *_OF_A_BODY))
    async def tokenize(body: TokenizeRequest) -> Response:
        """A text as token ids."""
        server.check_model(body.model)

        def answer() -> Response:
            ids = encode(server.tokenizer, body.prompt, add_special_tokens=body.add_special_tokens)
            limit = server.worker.engine.max_context
            return JSONResponse({"tokens": ids, "count": len(ids), "max_model_len": limit})

        # A long list takes long to write, too.
        return await asyncio.to_thread(answer)

    @app.post("/detokenize", response_model=None, responses=describe(answers.Text, *_OF_A_BODY))
    async def detokenize(body: DetokenizeRequest) -> dict[str, Any]:
        """Token ids as a text, special tokens included."""
        server.check_model(body.model)
        server.worker.engine.check_ids("tokens", body.tokens)
        return {"prompt": await asyncio.to_thread(server.tokenizer.decode, body.tokens)}
