"""A server with known truth: speaks a kind's HTTP, decodes by script, fails on demand.

`MockServer.log` says what was sent and when, `peak_in_flight` how many requests overlapped.
"""

import asyncio
import json
import os
import re
import secrets
import time
import zlib
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

from aiohttp import web

from ddtree.endpoint.mock_sampling import sampling_of
from ddtree.endpoint.mock_scores import echo_scores, input_logprobs, prompt_logprobs
from ddtree.endpoint.mock_script import (
    GREEDY,
    VOCABULARY,
    MockAnswer,
    MockScript,
    answer,
    first_due,
)
from ddtree.endpoint.mock_talk import (
    CompletionEvents,
    DraftCounters,
    GenerateEvents,
    MockTalk,
    Piece,
)
from ddtree.records.sampling import Sampling

_PIECE = re.compile(r"\s*\w+|\s*[^\w\s]|\s+")


@dataclass
class MockRequest:
    """One completion request as the server saw it; times on its monotonic clock.

    `ended_s` is None while it runs and for one that the server broke off.
    """

    method: str
    speculation: dict[str, Any]
    prompt: tuple[int, ...]
    max_tokens: int
    sampling: Sampling
    started_s: float
    chunk_times_s: list[float] = field(default_factory=list)
    chunk_tokens: list[int] = field(default_factory=list)
    ended_s: float | None = None


class MockServer:
    """Use as an async context manager; `url` is valid inside.

    With `prefix_cache` a prompt that comes again is answered out of a cache, until it is reset.
    """

    def __init__(
        self,
        script: MockScript | None = None,
        port: int = 0,
        talk: MockTalk | None = None,
        *,
        prefix_cache: bool = False,
    ) -> None:
        self.script = script or MockScript()
        self.talk = talk or MockTalk()
        self.log: list[MockRequest] = []
        self.peak_in_flight = 0
        self.resets = 0
        self.url = ""
        self._port = port
        self._in_flight = 0
        self._seen = 0
        self._pieces: dict[int, str] = {}
        self._cache: set[tuple[int, ...]] | None = set() if prefix_cache else None
        self._counters = DraftCounters()
        self._slots = asyncio.Semaphore(self.script.slots)
        self._runner: web.AppRunner | None = None

    async def __aenter__(self) -> Self:
        app = web.Application(client_max_size=64 << 20)
        app.add_routes(self._routes())
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", self._port, backlog=1024).start()
        host, port = self._runner.addresses[0][:2]
        self.url = f"http://{host}:{port}"
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._runner is not None:
            await self._runner.cleanup()

    def _routes(self) -> list[web.RouteDef]:
        kind = self.talk.kind
        if kind == "openai":
            return [
                web.post("/v1/completions", self._completions),
                web.get("/v1/models", self._models),
            ]
        routes = [
            web.post("/tokenize", self._tokenize),
            web.post("/detokenize", self._detokenize),
            web.get("/health", _health),
            web.get("/server_info", self._info),
        ]
        if kind == "sglang":
            return [
                *routes,
                web.post("/generate", self._generate),
                web.post("/flush_cache", self._reset),
            ]
        routes.append(web.post("/v1/completions", self._completions))
        if kind == "vllm":
            routes.append(web.post("/reset_prefix_cache", self._reset))
            routes.append(web.get("/metrics", self._metrics))
        return routes

    async def _completions(self, http: web.Request) -> web.StreamResponse:
        body = await http.json()
        prompt = body["prompt"]
        ids = self._encode(prompt) if isinstance(prompt, str) else tuple(prompt)
        sampling = sampling_of(body)
        if body.get("echo"):
            return echo_scores(ids, body["score_from"], self.script.eos_every, sampling)
        if "prompt_logprobs" in body:
            return web.json_response(prompt_logprobs(ids, self.script.eos_every))
        speculation = {"method": self.talk.method}
        if self.talk.kind == "ddtree":
            speculation = body.get("speculation") or {"method": "ar"}
        return await self._admit(http, speculation, ids, body["max_tokens"], sampling)

    async def _generate(self, http: web.Request) -> web.StreamResponse:
        body = await http.json()
        ids = tuple(body["input_ids"]) if "input_ids" in body else self._encode(body["text"])
        fields = dict(body["sampling_params"])
        if body.get("return_logprob"):
            start = body["logprob_start_len"]
            return web.json_response(input_logprobs(ids, start, self.script.eos_every))
        fields["top_k"] = max(fields.get("top_k", 0), 0)
        if "sampling_seed" in fields:
            fields["seed"] = fields["sampling_seed"]
        limit = fields["max_new_tokens"]
        return await self._admit(
            http, {"method": self.talk.method}, ids, limit, sampling_of(fields)
        )

    async def _admit(
        self,
        http: web.Request,
        speculation: dict[str, Any],
        ids: tuple[int, ...],
        max_tokens: int,
        sampling: Sampling | None,
    ) -> web.StreamResponse:
        self._seen += 1
        faults = self.script.faults
        if self._seen == faults.exit_at_request:
            os._exit(3)
        if _hits(self._seen, faults.refuse_share):
            return web.json_response({"error": {"message": "queue is full"}}, status=429)
        entry = MockRequest(
            speculation["method"],
            speculation,
            ids,
            max_tokens,
            _with_seed(sampling or GREEDY),
            time.monotonic(),
        )
        self.log.append(entry)
        self._in_flight += 1
        self.peak_in_flight = max(self.peak_in_flight, self._in_flight)
        try:
            async with self._slots:
                return await self._stream(http, entry, _hits(self._seen, faults.error_share))
        finally:
            self._in_flight -= 1

    async def _stream(
        self, http: web.Request, entry: MockRequest, broken: bool
    ) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(http)
        if broken:
            await _send(response, {"error": {"message": "scripted error", "code": 500}})
            await response.write(b"data: [DONE]\n\n")
            return response
        faults = self.script.faults
        reply = answer(self.script, entry.method, entry.prompt, entry.max_tokens, entry.sampling)
        events = self._events(reply, entry)
        for event in events.before():
            await _send(response, event)
        delay = reply.delays_s[0]
        due = first_due(self.script, entry.method, time.monotonic(), delay) - delay
        for i, (chunk, delay) in enumerate(zip(reply.chunks, reply.delays_s, strict=True)):
            if i == faults.stall_after_chunks:
                await asyncio.sleep(3600)
            if i == faults.cut_after_chunks:
                _drop(http)
                return response
            due += delay
            await asyncio.sleep(max(0.0, due - time.monotonic()))
            before = sum(entry.chunk_tokens)
            entry.chunk_times_s.append(time.monotonic())
            entry.chunk_tokens.append(len(chunk))
            last = i == len(reply.chunks) - 1
            await _send(response, events.chunk(Piece(chunk, self._decode(chunk), before, last)))
        for event in events.after():
            await _send(response, event)
        await response.write(b"data: [DONE]\n\n")
        if entry.method != "ar":
            self._counters.add(reply)
        entry.ended_s = time.monotonic()
        return response

    def _events(self, reply: MockAnswer, entry: MockRequest) -> CompletionEvents | GenerateEvents:
        cached = None
        if self._cache is not None:
            cached = len(entry.prompt) - 1 if entry.prompt in self._cache else 0
            self._cache.add(entry.prompt)
        faults = self.script.faults
        if self.talk.kind == "sglang":
            return GenerateEvents(self.talk, faults, reply, cached)
        return CompletionEvents(self.talk, faults, reply, entry.speculation, cached)

    async def _tokenize(self, http: web.Request) -> web.Response:
        ids = self._encode((await http.json())["prompt"])
        return web.json_response(
            {"tokens": ids, "count": len(ids), "max_model_len": self.script.max_context}
        )

    async def _detokenize(self, http: web.Request) -> web.Response:
        name = "text" if self.talk.kind == "sglang" else "prompt"
        return web.json_response({name: self._decode((await http.json())["tokens"])})

    async def _reset(self, http: web.Request) -> web.Response:
        if self._in_flight:
            return web.Response(status=400, text="Cache is not flushed: requests are running.")
        self.resets += 1
        if self._cache is not None:
            self._cache.clear()
        return web.Response(text="")

    async def _metrics(self, http: web.Request) -> web.Response:
        return web.Response(text=self._counters.text())

    async def _models(self, http: web.Request) -> web.Response:
        return web.json_response({"object": "list", "data": [{"id": "mock"}]})

    async def _info(self, http: web.Request) -> web.Response:
        if self.talk.kind != "ddtree":
            return web.json_response(dict(self.talk.reported))
        return web.json_response(
            {
                "version": "mock",
                "model": "mock",
                "dtype": "float32",
                "device": "cpu",
                "threads": 1,
                "slots": self.script.slots,
                "max_context": self.script.max_context,
                "max_budget": 64,
                "max_topk": 8,
                "block_size": 8,
                "draft_window": None,
                "window_kind": "sliding",
                "drafter": None,
            }
        )

    def _encode(self, text: str) -> tuple[int, ...]:
        pieces = _PIECE.findall(text)
        ids = tuple(1 + zlib.crc32(piece.encode()) % (VOCABULARY - 1) for piece in pieces)
        self._pieces.update(zip(ids, pieces, strict=True))
        return ids

    def _decode(self, ids: tuple[int, ...] | list[int]) -> str:
        return "".join(self._pieces.get(i, f" t{i}") for i in ids)


async def serve_forever(script: MockScript, port: int, talk: MockTalk | None = None) -> None:
    """Run a mock on a given port until the process is ended."""
    async with MockServer(script, port, talk):
        await asyncio.Event().wait()


async def _health(_: web.Request) -> web.Response:
    return web.json_response({"status": "ok"})


async def _send(response: web.StreamResponse, event: dict[str, Any]) -> None:
    await response.write(b"data: " + json.dumps(event).encode() + b"\n\n")


def _drop(http: web.Request) -> None:
    if http.transport is not None:
        http.transport.abort()


def _hits(number: int, share: float) -> bool:
    """True for exactly `share` of the numbers 1, 2, ..., evenly spread."""
    return int(number * share) > int((number - 1) * share)


def _with_seed(sampling: Sampling) -> Sampling:
    """A seed is drawn for requests that name none."""
    return sampling if sampling.seed is not None else sampling.with_seed(secrets.randbits(32))
