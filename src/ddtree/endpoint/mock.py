"""A server with known truth: speaks the HTTP contract, decodes by script, fails on demand.

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
from ddtree.endpoint.mock_script import (
    GREEDY,
    VOCABULARY,
    MockAnswer,
    MockScript,
    answer,
    scores,
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
    """Use as an async context manager; `url` is valid inside."""

    def __init__(self, script: MockScript | None = None, port: int = 0) -> None:
        self.script = script or MockScript()
        self.log: list[MockRequest] = []
        self.peak_in_flight = 0
        self.url = ""
        self._port = port
        self._in_flight = 0
        self._seen = 0
        self._pieces: dict[int, str] = {}
        self._slots = asyncio.Semaphore(self.script.slots)
        self._runner: web.AppRunner | None = None

    async def __aenter__(self) -> Self:
        app = web.Application(client_max_size=64 << 20)
        app.add_routes(
            [
                web.post("/v1/completions", self._completions),
                web.post("/tokenize", self._tokenize),
                web.post("/detokenize", self._detokenize),
                web.get("/health", _health),
                web.get("/server_info", self._info),
            ]
        )
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

    async def _completions(self, http: web.Request) -> web.StreamResponse:
        body = await http.json()
        prompt = body["prompt"]
        ids = self._encode(prompt) if isinstance(prompt, str) else tuple(prompt)
        sampling = sampling_of(body)
        if body.get("echo"):
            return _score_answer(ids, body["score_from"], self.script.eos_every, sampling)
        self._seen += 1
        faults = self.script.faults
        if self._seen == faults.exit_at_request:
            os._exit(3)
        if _hits(self._seen, faults.refuse_share):
            return web.json_response({"error": {"message": "queue is full"}}, status=429)
        speculation = body.get("speculation") or {"method": "ar"}
        entry = MockRequest(
            speculation["method"],
            speculation,
            ids,
            body["max_tokens"],
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
        due = time.monotonic()
        for i, (chunk, delay) in enumerate(zip(reply.chunks, reply.delays_s, strict=True)):
            if i == faults.stall_after_chunks:
                await asyncio.sleep(3600)
            if i == faults.cut_after_chunks:
                _drop(http)
                return response
            due += delay
            await asyncio.sleep(max(0.0, due - time.monotonic()))
            last = i == len(reply.chunks) - 1
            entry.chunk_times_s.append(time.monotonic())
            entry.chunk_tokens.append(len(chunk))
            await _send(response, self._chunk(chunk, reply if last else None, entry))
        await self._finish(response, reply)
        entry.ended_s = time.monotonic()
        return response

    def _chunk(
        self, ids: tuple[int, ...], end: MockAnswer | None, entry: MockRequest
    ) -> dict[str, Any]:
        ended = end is not None and not self.script.faults.omit_finish
        choice = {
            "index": 0,
            "text": self._decode(ids),
            "token_ids": list(ids),
            "finish_reason": end.finish_reason if end is not None and ended else None,
        }
        event: dict[str, Any] = {"object": "text_completion", "choices": [choice]}
        if end is not None and ended:
            event["ddtree"] = {**entry.speculation, **end.stats}
        return event

    async def _finish(self, response: web.StreamResponse, reply: MockAnswer) -> None:
        faults = self.script.faults
        prompt = reply.stats["prompt_tokens"] + faults.prompt_offset
        completion = len(reply.token_ids) + faults.usage_offset
        usage = {
            "prompt_tokens": prompt,
            "completion_tokens": completion,
            "total_tokens": prompt + completion,
        }
        if not faults.omit_usage:
            await _send(response, {"choices": [], "usage": usage})
        await response.write(b"data: [DONE]\n\n")

    async def _tokenize(self, http: web.Request) -> web.Response:
        ids = self._encode((await http.json())["prompt"])
        return web.json_response(
            {"tokens": ids, "count": len(ids), "max_model_len": self.script.max_context}
        )

    async def _detokenize(self, http: web.Request) -> web.Response:
        return web.json_response({"prompt": self._decode((await http.json())["tokens"])})

    async def _info(self, http: web.Request) -> web.Response:
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


async def serve_forever(script: MockScript, port: int) -> None:
    """Run a mock on a given port until the process is ended."""
    async with MockServer(script, port):
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


def _score_answer(
    ids: tuple[int, ...], score_from: int, eos_every: int, sampling: Sampling | None
) -> web.Response:
    if sampling is not None and sampling.temperature > 0 and sampling.seed is None:
        message = "seed: is needed above temperature 0"
        return web.json_response({"error": {"message": message}}, status=400)
    logprobs = scores(ids, score_from, eos_every, sampling)
    choice = {"index": 0, "text": "", "logprobs": logprobs, "finish_reason": None}
    return web.json_response({"choices": [choice]})
