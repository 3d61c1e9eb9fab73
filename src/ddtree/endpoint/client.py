"""Streaming client: sends token ids, stamps every chunk that carried tokens, believes nothing.

A record without `error` is one whose stream ended in order and whose token counts agree in all
the places where the server states them. Chunks are never counted as tokens.
"""

import asyncio
import json
import time
from collections.abc import Awaitable
from types import TracebackType
from typing import Any, Self, TypeVar

import aiohttp

from ddtree.endpoint.calls import (
    CompletionRequest,
    Deadlines,
    RequestLabel,
    ScoredPosition,
)
from ddtree.endpoint.sse import SSEParser
from ddtree.endpoint.stream import StreamState, error_text
from ddtree.errors import EndpointError
from ddtree.records.requests import RequestRecord
from ddtree.records.sampling import Sampling
from ddtree.records.scores import SampledScore

T = TypeVar("T")

# Best tokens to ask for: enough for a verdict; more where a filter may hide some of them.
_TOP, _SAMPLED_TOP = 5, 20
# Room for one read: a long stream must not be throttled by a small buffer.
_READ_BUFFER_BYTES = 1 << 20


class ServerClient:
    """One server. Use as an async context manager; any number of requests may be in flight.

    `model` is the name to ask for; None asks for none, which suits a server of one model.
    """

    def __init__(
        self,
        url: str,
        model: str | None = None,
        deadlines: Deadlines | None = None,
        api_key: str | None = None,
    ) -> None:
        self.url = url.rstrip("/")
        self.model = model
        self.deadlines = deadlines or Deadlines()
        self._headers = {} if api_key is None else {"Authorization": f"Bearer {api_key}"}
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, limit_per_host=0, force_close=True),
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=self.deadlines.first_token_s),
            read_bufsize=_READ_BUFFER_BYTES,
            trust_env=False,
            headers=self._headers,
        )
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def stream_completion(
        self, request: CompletionRequest, label: RequestLabel | None = None
    ) -> RequestRecord:
        """Send one request and follow its stream to the end.

        Never raises for what the server does: every failure is a record whose `error` reads
        `class: detail` (classes in `stream.ERROR_CLASSES`) and which keeps what arrived.
        """
        state = StreamState(request.prompt, request.max_tokens, sent_s=time.monotonic())
        try:
            await self._follow(request, state)
            state.check_complete()
        except _DeadlineError as error:
            state.fail(error.kind, str(error))
        except EndpointError as error:
            state.fail("bad_stream", str(error))
        except aiohttp.ClientConnectorError as error:
            state.fail("connect", str(error))
        except (aiohttp.ClientError, ConnectionError) as error:
            state.fail("broken_stream", f"{type(error).__name__}: {error}")
        label = label or RequestLabel()
        return state.record(label.cell, label.attempt, label.block, label.prompt_id)

    async def score(
        self,
        token_ids: tuple[int, ...],
        score_from: int,
        rows: int = 1,
        sampling: Sampling | None = None,
    ) -> list[ScoredPosition]:
        """Scores of positions score_from.. of `token_ids`, each given the tokens before it.

        `rows` 1 is one-row decoding, the reference; m scores m positions in one pass. score_from
        is at least 1: nothing precedes position 0. With `sampling` each position has `sampled`
        besides, the first score_from tokens being the prompt. EndpointError when the server gives
        no logits.
        """
        body: dict[str, Any] = {
            "prompt": list(token_ids),
            "echo": True,
            "logprobs": _TOP if sampling is None else _SAMPLED_TOP,
            "max_tokens": 0,
            "score_from": score_from,
            "score_rows": rows,
            **({} if sampling is None else sampling.to_request()),
        }
        data = await self._json("POST", "/v1/completions", self._named(body))
        try:
            logprobs = data["choices"][0]["logprobs"]
            return [
                _position(logprobs, i, sampled=sampling is not None)
                for i in range(score_from, len(token_ids))
            ]
        except (KeyError, IndexError, TypeError) as error:
            raise EndpointError(
                f"{self.url}: scoring answer lacks what was asked ({type(error).__name__}: "
                f"{error}); the server must return token_logits, top_ids and top_logits"
            ) from None

    async def tokenize(self, text: str) -> tuple[int, ...]:
        """Token ids of `text`, without special tokens."""
        data = await self._json("POST", "/tokenize", {"prompt": text, "add_special_tokens": False})
        try:
            return tuple(int(i) for i in data["tokens"])
        except (KeyError, TypeError, ValueError) as error:
            raise EndpointError(f"{self.url}/tokenize: unusable answer ({error!r})") from None

    async def detokenize(self, token_ids: tuple[int, ...]) -> str:
        """Text of `token_ids`."""
        data = await self._json("POST", "/detokenize", {"tokens": list(token_ids)})
        return str(data.get("prompt", ""))

    async def server_info(self) -> dict[str, Any]:
        """What the server says of itself."""
        return await self._json("GET", "/server_info", None)

    async def _json(self, verb: str, path: str, body: dict[str, Any] | None) -> dict[str, Any]:
        timeout = aiohttp.ClientTimeout(total=self.deadlines.request_s)
        try:
            async with self._open.request(
                verb, self.url + path, json=body, timeout=timeout
            ) as response:
                raw = await response.read()
                if response.status != 200:
                    raise EndpointError(
                        f"{verb} {self.url}{path}: HTTP {response.status}: {error_text(raw)}"
                    )
        except TimeoutError:
            raise EndpointError(
                f"{verb} {self.url}{path}: no answer in {self.deadlines.request_s:g} s"
            ) from None
        except aiohttp.ClientError as error:
            raise EndpointError(
                f"{verb} {self.url}{path}: {type(error).__name__}: {error}"
            ) from None
        return _object(raw, f"{verb} {self.url}{path}")

    def _named(self, body: dict[str, Any]) -> dict[str, Any]:
        return body if self.model is None else {"model": self.model, **body}

    async def _follow(self, request: CompletionRequest, state: StreamState) -> None:
        post = self._open.post(self.url + "/v1/completions", json=self._named(request.body()))
        response = await self._in_time(state, post)
        try:
            if response.status != 200:
                raw = await self._in_time(state, response.read())
                state.fail(f"http_{response.status}", error_text(raw))
                return
            await self._read(response.content, state)
        finally:
            response.close()

    async def _read(self, content: aiohttp.StreamReader, state: StreamState) -> None:
        parser = SSEParser()
        while not state.over:
            chunk = await self._in_time(state, content.readany())
            now = time.monotonic()
            for event in parser.feed(chunk) if chunk else parser.finish():
                if not state.over:
                    state.event(event, now)
            if not chunk:
                state.ended(now)
                return

    async def _in_time(self, state: StreamState, step: Awaitable[T]) -> T:
        """Await `step` up to the nearest deadline; silence counts from the last token."""
        limits = self.deadlines
        kind, when = "timeout_first_token", state.sent_s + limits.first_token_s
        if state.last_token_s is not None:
            kind, when = "timeout_silence", state.last_token_s + limits.silence_s
        if state.sent_s + limits.request_s < when:
            kind, when = "timeout_total", state.sent_s + limits.request_s
        try:
            async with asyncio.timeout_at(when):
                return await step
        except TimeoutError:
            raise _DeadlineError(kind, f"nothing more in {when - state.sent_s:.3g} s") from None

    @property
    def _open(self) -> aiohttp.ClientSession:
        if self._session is None:
            raise EndpointError("client is closed: use it as an async context manager")
        return self._session


class _DeadlineError(Exception):
    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


def _position(logprobs: dict[str, Any], i: int, *, sampled: bool) -> ScoredPosition:
    return ScoredPosition(
        sampled=_sampled(logprobs, i) if sampled else None,
        token_id=int(logprobs["token_ids"][i]),
        token_logit=float(logprobs["token_logits"][i]),
        top_ids=tuple(int(t) for t in logprobs["top_ids"][i]),
        top_logits=tuple(float(z) for z in logprobs["top_logits"][i]),
    )


def _sampled(logprobs: dict[str, Any], i: int) -> SampledScore:
    return SampledScore(
        score=float(logprobs["scores"][i]),
        edge=float(logprobs["edges"][i]),
        before=float(logprobs["before"][i]),
        share=float(logprobs["share"][i]),
        top_ids=tuple(int(t) for t in logprobs["best_ids"][i]),
        top_scores=tuple(float(z) for z in logprobs["best_scores"][i]),
        top_edges=tuple(float(z) for z in logprobs["best_edges"][i]),
    )


def _object(raw: bytes, what: str) -> dict[str, Any]:
    try:
        data = json.loads(raw)
    except ValueError:
        raise EndpointError(f"{what}: answer is not JSON: {raw[:80]!r}") from None
    if not isinstance(data, dict):
        raise EndpointError(f"{what}: answer is not an object: {raw[:80]!r}")
    return data
