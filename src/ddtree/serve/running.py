"""The process around the app: uvicorn, a shutdown that lets requests end, impatience with clients
that stop reading."""

import asyncio
import time
from dataclasses import dataclass
from types import FrameType

import uvicorn
from fastapi import FastAPI
from uvicorn.protocols.http.h11_impl import H11Protocol

from ddtree.serve.worker import EngineWorker

# Seconds for responses to be written once their requests have been cancelled.
_FLUSH_S = 3


@dataclass(frozen=True)
class ServeSettings:
    """shutdown_timeout_s: what requests in flight get to end after SIGTERM or SIGINT.
    write_timeout_s: how long a client may take nothing of what waits for it."""

    host: str = "127.0.0.1"
    port: int = 8000
    shutdown_timeout_s: float = 30.0
    write_timeout_s: float = 30.0


class DrainingServer(uvicorn.Server):
    """Serves until SIGTERM or SIGINT, then until what is in flight has ended.

    The first signal makes /health answer 503 and refuses new generation with 503; requests in
    flight go on. When they are over, or are cancelled after `shutdown_timeout_s`, the process ends
    with status 0. The second signal ends it at once, by that signal.
    """

    def __init__(self, app: FastAPI, worker: EngineWorker, settings: ServeSettings) -> None:
        super().__init__(
            uvicorn.Config(
                app,
                host=settings.host,
                port=settings.port,
                log_level="warning",
                ws="none",
                http=_protocol(settings.write_timeout_s),
                timeout_graceful_shutdown=_FLUSH_S,
            )
        )
        self._worker, self._settings = worker, settings
        self._deadline: float | None = None

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Called by the signal handler."""
        if not self._worker.is_draining:
            self._worker.drain()
            return
        self.config.timeout_graceful_shutdown = 0
        self.force_exit = True
        super().handle_exit(sig, frame)

    async def on_tick(self, counter: int) -> bool:
        """Whether to stop listening."""
        if await super().on_tick(counter):
            return True
        if not self._worker.is_draining:
            return False
        now = time.monotonic()
        if self._deadline is None:
            self._deadline = now + self._settings.shutdown_timeout_s
        # A request may be over for the engine while its answer is still being read.
        if not self._worker.in_flight and not self.server_state.tasks:
            return True
        if now < self._deadline:
            return False
        self._worker.cancel_all()
        return True


def _protocol(write_timeout_s: float) -> type[H11Protocol]:
    """uvicorn's protocol, ending a connection whose client has taken nothing of what waits for it
    for so long. The app sees a client that has left, and so its requests end."""

    class ImpatientProtocol(H11Protocol):
        _write_timer: asyncio.TimerHandle | None = None

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            # Whatever the system's own buffer has no room for makes the app wait.
            transport.set_write_buffer_limits(high=0)

        def pause_writing(self) -> None:
            super().pause_writing()
            self._watch()

        def resume_writing(self) -> None:
            self._unwatch()
            super().resume_writing()

        def connection_lost(self, exc: Exception | None) -> None:
            self._unwatch()
            super().connection_lost(exc)

        def _watch(self) -> None:
            waiting = self.transport.get_write_buffer_size()
            self._write_timer = self.loop.call_later(write_timeout_s, self._judge, waiting)

        def _unwatch(self) -> None:
            if self._write_timer is not None:
                self._write_timer.cancel()
                self._write_timer = None

        def _judge(self, before: int) -> None:
            if self.transport.get_write_buffer_size() < before:
                self._watch()
            else:
                self.transport.abort()

    return ImpatientProtocol
