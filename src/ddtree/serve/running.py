"""The process around the app: uvicorn, a shutdown that lets requests end, impatience with clients
that stop reading."""

import functools
import time
from dataclasses import dataclass
from types import FrameType

import uvicorn
from fastapi import FastAPI

from ddtree.serve.protocol import ImpatientProtocol
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
                http=functools.partial(ImpatientProtocol, settings.write_timeout_s),  # type: ignore[arg-type]
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
