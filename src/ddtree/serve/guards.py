"""What stands before the routes: keys, the size of bodies, and a count of what was refused.

Plain ASGI, so that a body is judged before anything parses it. Answers have OpenAI's error shape.
"""

import asyncio
import hmac
from dataclasses import dataclass

from fastapi import FastAPI
from fastapi.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ddtree.errors import ConfigError
from ddtree.serve.errors import INVALID, error_body
from ddtree.serve.metrics import ServerMetrics

# What watches the server has no key, and what it is told is no refusal.
OPEN_PATHS = ("/health", "/metrics")


@dataclass(frozen=True)
class Guards:
    """api_keys: any of them opens; none: no key is asked for. max_body_bytes: the largest request
    body. body_timeout_s: seconds for a body to arrive. ConfigError for values that can't be
    meant."""

    api_keys: tuple[str, ...] = ()
    max_body_bytes: int = 16 * 2**20
    body_timeout_s: float = 60.0

    def __post_init__(self) -> None:
        if not all(key.isascii() and key.isprintable() and key.strip() for key in self.api_keys):
            raise ConfigError(
                "api_keys: a key is empty or holds what a header can't carry; use printable ASCII"
            )
        if self.max_body_bytes < 1:
            raise ConfigError(f"max_body_bytes: got {self.max_body_bytes}, expected at least 1")

    def install(self, app: FastAPI, metrics: ServerMetrics) -> None:
        """Put them before the app's routes: counted is what any of the others refuses too."""
        app.add_middleware(BodyLimit, limit=self.max_body_bytes, timeout_s=self.body_timeout_s)
        if self.api_keys:
            app.add_middleware(KeyGuard, keys=self.api_keys)
        app.add_middleware(RefusalCount, metrics=metrics)


class KeyGuard:
    """401 without `Authorization: Bearer` and one of the keys, but on `OPEN_PATHS`."""

    def __init__(self, app: ASGIApp, keys: tuple[str, ...]) -> None:
        self._app, self._keys = app, [key.encode() for key in keys]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] in OPEN_PATHS:
            await self._app(scope, receive, send)
            return
        scheme, _, key = _header(scope, b"authorization").partition(b" ")
        if scheme.lower() == b"bearer" and self._is_known(key.strip()):
            await self._app(scope, receive, send)
            return
        message = (
            "the API key is not one of this server's"
            if key
            else "no API key came; send it as 'Authorization: Bearer KEY'"
        )
        body = error_body(message, INVALID, code="invalid_api_key")
        await JSONResponse(body, 401, {"WWW-Authenticate": "Bearer"})(scope, receive, send)

    def _is_known(self, key: bytes) -> bool:
        """Takes as long for a wrong key as for a right one."""
        return any([hmac.compare_digest(key, known) for known in self._keys])


class BodyLimit:
    """413 for a body of more than `limit` bytes, declared or sent; 408 for one that takes longer
    than `timeout_s`.

    The body is read whole before the routes see the call, which need it whole; no more than the
    limit is ever held.
    """

    def __init__(self, app: ASGIApp, limit: int, timeout_s: float) -> None:
        self._app, self._limit, self._timeout_s = app, limit, timeout_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        declared = _header(scope, b"content-length")
        try:
            if declared.isdigit() and int(declared) > self._limit:
                raise _TooLargeError
            async with asyncio.timeout(self._timeout_s):
                body = await self._read(receive)
        except _TooLargeError:
            message = f"the request body is larger than {self._limit} bytes"
            await _refuse(message, 413)(scope, receive, send)
        except TimeoutError:
            message = f"the request body did not arrive within {self._timeout_s:g} s"
            await _refuse(message, 408)(scope, receive, send)
        else:
            if body is not None:
                await self._app(scope, _replay(body, receive), send)

    async def _read(self, receive: Receive) -> bytes | None:
        """The body; None if the client left."""
        parts, size = [], 0
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                return None
            parts.append(message.get("body", b""))
            size += len(parts[-1])
            if size > self._limit:
                raise _TooLargeError
            if not message.get("more_body", False):
                return b"".join(parts)


class RefusalCount:
    """Counts answers with an error status, but those of `OPEN_PATHS`."""

    def __init__(self, app: ASGIApp, metrics: ServerMetrics) -> None:
        self._app, self._metrics = app, metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        is_counted = scope["type"] == "http" and scope["path"] not in OPEN_PATHS
        if not is_counted:
            await self._app(scope, receive, send)
            return
        begun = False

        async def watch(message: Message) -> None:
            nonlocal begun
            if message["type"] == "http.response.start":
                begun = True
                if message["status"] >= 400:
                    self._metrics.refused(message["status"])
            await send(message)

        try:
            await self._app(scope, receive, watch)
        except Exception:
            if not begun:  # answered outside of here
                self._metrics.refused(500)
            raise


class _TooLargeError(Exception):
    pass


def _refuse(message: str, status: int) -> JSONResponse:
    return JSONResponse(error_body(message, INVALID), status)


def _header(scope: Scope, name: bytes) -> bytes:
    """A header's value, empty if there is none."""
    found: bytes = dict(scope["headers"]).get(name, b"")
    return found


def _replay(body: bytes, receive: Receive) -> Receive:
    """Gives the body, held no longer than that, and then what else comes."""
    waiting = [body]

    async def replayed() -> Message:
        if waiting:
            return {"type": "http.request", "body": waiting.pop(), "more_body": False}
        return await receive()

    return replayed
