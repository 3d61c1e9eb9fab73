"""Streaming client: sends token ids, stamps every chunk that carried tokens, believes nothing.

A record without `error` is one whose stream ended in order and whose token counts agree in all
the places where the server states them. Chunks are never counted as tokens. What differs between
kinds of server is in their dialects (`ddtree.endpoint.kinds`).
"""

import asyncio
import json
import time
from types import TracebackType
from typing import Any, Self

import aiohttp
import orjson

from ddtree.endpoint.calls import (
    CompletionRequest,
    Deadlines,
    RequestLabel,
    ScoredPosition,
)
from ddtree.endpoint.kinds import Kind, dialect_of
from ddtree.endpoint.kinds.base import Call
from ddtree.endpoint.kinds.counters import Counters, parse_counters
from ddtree.endpoint.listening import ListeningConnector, handler_of, listen
from ddtree.endpoint.sse import SSEParser
from ddtree.endpoint.stream import StreamState, error_text
from ddtree.endpoint.tokens import LocalTokenizer
from ddtree.errors import ConfigError, EndpointError
from ddtree.records.requests import RequestRecord
from ddtree.records.sampling import Sampling

# Room for one read: a long stream must not be throttled by a small buffer.
_READ_BUFFER_BYTES = 1 << 20
# A server refuses to empty its cache while requests run, and for a moment after the last.
_RESET_S, _RESET_POLL_S = 30.0, 0.1
_JSON = {"Content-Type": "application/json"}


class ServerClient:
    """One server. Use as an async context manager; any number of requests may be in flight.

    `url` is the server's root; a path before the routes is kept, a closing /v1 is not. `model` is
    the name to ask for; None asks for none, which suits a server of one model. `tokenizer` takes
    the place of the server's own.
    """

    def __init__(
        self,
        url: str,
        model: str | None = None,
        deadlines: Deadlines | None = None,
        api_key: str | None = None,
        kind: Kind = "ddtree",
        tokenizer: LocalTokenizer | None = None,
    ) -> None:
        self.url = url.rstrip("/").removesuffix("/v1").rstrip("/")
        self.model = model
        self.deadlines = deadlines or Deadlines()
        self.dialect = dialect_of(kind)
        self._tokenizer = tokenizer
        self._headers = {} if api_key is None else {"Authorization": f"Bearer {api_key}"}
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        self._session = aiohttp.ClientSession(
            connector=ListeningConnector(),
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
        reader = self.dialect.reader(request)
        state = StreamState(request.prompt, request.max_tokens, time.monotonic(), reader)
        try:
            await self._in_time(request, state)
            state.check_complete()
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

        `rows` 1 is one-row decoding, the reference; m scores m positions in one pass (SGLang and
        vLLM score in passes of their own choice). score_from is at least 1: nothing precedes
        position 0. With `sampling` each position has `sampled` besides, the first score_from
        tokens being the prompt. EndpointError when the server gives no scores.
        """
        call = self.dialect.scoring(token_ids, score_from, rows, sampling)
        data = await self.call("POST", call.path, self._body(call))
        try:
            return self.dialect.scores(data, token_ids, score_from, sampled=sampling is not None)
        except (KeyError, IndexError, TypeError, ValueError) as error:
            raise EndpointError(
                f"{self.url}: scoring answer lacks what was asked ({type(error).__name__}: "
                f"{error}); the server must return scores of each token and of the best ones"
            ) from None

    async def tokenize(self, text: str) -> tuple[int, ...]:
        """Token ids of `text`, without special tokens; ConfigError where nobody can tell."""
        if self._tokenizer is not None:
            return self._tokenizer.encode(text)
        self._require_tokenizer()
        body = self._named({"prompt": text, "add_special_tokens": False})
        data = await self.call("POST", "/tokenize", body)
        try:
            return tuple(int(i) for i in data["tokens"])
        except (KeyError, TypeError, ValueError) as error:
            raise EndpointError(f"{self.url}/tokenize: unusable answer ({error!r})") from None

    async def detokenize(self, token_ids: tuple[int, ...]) -> str:
        """Text of `token_ids`; ConfigError where nobody can tell."""
        if self._tokenizer is not None:
            return self._tokenizer.decode(token_ids)
        self._require_tokenizer()
        data = await self.call("POST", "/detokenize", self._named({"tokens": list(token_ids)}))
        return str(data.get("prompt", data.get("text", "")))

    async def server_info(self) -> dict[str, Any]:
        """What the server says of itself, under our own server's names (`Dialect.describe`)."""
        return self.dialect.describe(await self.call("GET", self.dialect.info_path, None))

    async def reset_cache(self) -> bool:
        """Empty the prefix cache; False where the kind has no way to.

        Waits while requests still run. EndpointError when the server refuses.
        """
        path = self.dialect.cache_reset
        if path is None:
            return not self.dialect.has_prefix_cache
        end = time.monotonic() + _RESET_S
        while True:
            status, raw = await self._answer("POST", path, None)
            if status == 200 and b'"success":false' not in raw.replace(b" ", b""):
                return True
            if status not in (200, 400) or time.monotonic() > end:
                raise EndpointError(
                    f"POST {self.url}{path}: HTTP {status}: {error_text(raw)}; the prefix cache "
                    "is not empty (vLLM has the route with VLLM_SERVER_DEV_MODE=1 alone)"
                )
            await asyncio.sleep(_RESET_POLL_S)

    async def read_counters(self) -> Counters | None:
        """The server's speculation counters; None for kinds that report by request."""
        if self.dialect.kind != "vllm":
            return None
        status, raw = await self._answer("GET", "/metrics", None)
        if status != 200:
            raise EndpointError(f"GET {self.url}/metrics: HTTP {status}: {error_text(raw)}")
        return parse_counters(raw.decode("utf-8", "replace"))

    async def call(self, verb: str, path: str, body: dict[str, Any] | None) -> dict[str, Any]:
        """One JSON answer; EndpointError on anything but a 200 with an object."""
        status, raw = await self._answer(verb, path, body)
        if status != 200:
            raise EndpointError(f"{verb} {self.url}{path}: HTTP {status}: {error_text(raw)}")
        return _object(raw, f"{verb} {self.url}{path}")

    async def _answer(self, verb: str, path: str, body: dict[str, Any] | None) -> tuple[int, bytes]:
        """HTTP status and body; EndpointError when there is none."""
        timeout = aiohttp.ClientTimeout(total=self.deadlines.request_s)
        try:
            async with self._open.request(
                verb, self.url + path, json=body, timeout=timeout
            ) as response:
                return response.status, await response.read()
        except TimeoutError:
            raise EndpointError(
                f"{verb} {self.url}{path}: no answer in {self.deadlines.request_s:g} s"
            ) from None
        except aiohttp.ClientError as error:
            raise EndpointError(
                f"{verb} {self.url}{path}: {type(error).__name__}: {error}"
            ) from None

    def _require_tokenizer(self) -> None:
        if not self.dialect.can_tokenize:
            raise ConfigError(
                f"tokenizer: an endpoint of kind {self.dialect.kind} has no route for it; name "
                "the model's tokenizer.json, or its folder"
            )

    def _body(self, call: Call) -> dict[str, Any]:
        return self._named(dict(call.body)) if call.named else dict(call.body)

    def _named(self, body: dict[str, Any]) -> dict[str, Any]:
        return body if self.model is None else {"model": self.model, **body}

    async def _in_time(self, request: CompletionRequest, state: StreamState) -> None:
        """Follow the stream up to the nearest deadline; silence counts from the last token.

        One timer a request looks whether its deadline has moved since: moving it with every chunk
        would cost as much as reading the chunk.
        """
        loop = asyncio.get_running_loop()
        timer: asyncio.TimerHandle | None = None

        def look() -> None:
            nonlocal timer
            state.catch_up()
            _, when = self._deadline(state)
            if loop.time() < when:
                timer = loop.call_at(when, look)
            else:
                limit.reschedule(when)

        try:
            async with asyncio.timeout(None) as limit:
                look()
                await self._follow(request, state)
        except TimeoutError:
            kind, when = self._deadline(state)
            state.fail(kind, f"nothing more in {when - state.sent_s:.3g} s")
        finally:
            if timer is not None:
                timer.cancel()

    def _deadline(self, state: StreamState) -> tuple[str, float]:
        """The nearest deadline's error class and time."""
        limits = self.deadlines
        kind, when = "timeout_first_token", state.sent_s + limits.first_token_s
        if state.last_token_s is not None:
            kind, when = "timeout_silence", state.last_token_s + limits.silence_s
        if state.sent_s + limits.request_s < when:
            kind, when = "timeout_total", state.sent_s + limits.request_s
        return kind, when

    async def _follow(self, request: CompletionRequest, state: StreamState) -> None:
        call = self.dialect.completion(request)
        body = orjson.dumps(self._body(call))
        response = await self._open.post(self.url + call.path, data=body, headers=_JSON)
        try:
            if response.status != 200:
                state.fail(f"http_{response.status}", error_text(await response.read()))
                return
            await self._read(response, state)
        finally:
            response.close()

    async def _read(self, response: aiohttp.ClientResponse, state: StreamState) -> None:
        parser = SSEParser()

        def take(chunk: bytes, at_s: float) -> bool:
            for event in parser.feed(chunk) if chunk else parser.finish():
                if not state.over:
                    state.event(event, at_s)
            if not chunk:
                state.ended(at_s)
            return bool(chunk) and not state.over

        if (handler := handler_of(response)) is not None:
            state.catch_up = handler.catch_up
            await listen(handler, response.content, take)
        while not state.over and take(await response.content.readany(), time.monotonic()):
            pass

    @property
    def _open(self) -> aiohttp.ClientSession:
        if self._session is None:
            raise EndpointError("client is closed: use it as an async context manager")
        return self._session


def _object(raw: bytes, what: str) -> dict[str, Any]:
    try:
        data = json.loads(raw)
    except ValueError:
        raise EndpointError(f"{what}: answer is not JSON: {raw[:80]!r}") from None
    if not isinstance(data, dict):
        raise EndpointError(f"{what}: answer is not an object: {raw[:80]!r}")
    return data
