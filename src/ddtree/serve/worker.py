"""The engine on a thread of its own, and the bridge to asyncio."""

import asyncio
import logging
import queue
import threading
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field

from ddtree.engine import Engine, Request, ScoreJob
from ddtree.errors import EngineError

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True)
class Tokens:
    """Tokens of one step; `last` ends the request."""

    ids: tuple[int, ...]
    last: bool


@dataclass
class Ticket:
    """A request in flight: its events arrive in `events` on the event loop that submitted it."""

    work: Request | ScoreJob
    loop: asyncio.AbstractEventLoop
    events: asyncio.Queue[Tokens | EngineError] = field(default_factory=asyncio.Queue)

    def send(self, event: Tokens | EngineError) -> None:
        """Called on the engine's thread; a loop that is gone wants nothing."""
        try:
            self.loop.call_soon_threadsafe(self.events.put_nowait, event)
        except RuntimeError:
            _LOG.debug("the event loop of a request is closed")

    async def next(self) -> Tokens:
        """The next event; none comes after the last. EngineError if the engine died."""
        event = await self.events.get()
        if isinstance(event, EngineError):
            raise event
        return event

    async def stream(self) -> AsyncIterator[Tokens]:
        """Events until the last; EngineError if the engine died."""
        while True:
            event = await self.next()
            yield event
            if event.last:
                return


class EngineWorker:
    """Runs `engine.step` while there is work, sleeps while there is none."""

    # A step of a large prompt chunk takes seconds on a small CPU; longer is a hang.
    STALL_S = 60.0

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self._commands: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._tickets: dict[int, Ticket] = {}
        self._fault: str | None = None
        self._busy_since: float | None = None
        self._thread = threading.Thread(target=self._run, name="ddtree-engine", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """End the thread after its current step; requests in flight get an error."""
        self._commands.put(None)
        self._thread.join()

    def submit(self, work: Request | ScoreJob) -> Ticket:
        """Queue work made by `engine.make_request` or `make_score`; call on an event loop."""
        ticket = Ticket(work, asyncio.get_running_loop())

        def add() -> None:
            if self._fault is not None:
                ticket.send(EngineError(self._fault))
                return
            self._tickets[id(work)] = ticket
            self.engine.enqueue(work)

        self._commands.put(add)
        return ticket

    def abort(self, ticket: Ticket) -> None:
        """End a request early; nothing happens if it is over."""

        def drop() -> None:
            if self._tickets.pop(id(ticket.work), None) is not None and self._fault is None:
                self.engine.abort(ticket.work)

        self._commands.put(drop)

    def problem(self) -> str | None:
        """Why the engine can't be relied on, None if it can."""
        if self._fault is not None:
            return self._fault
        since = self._busy_since
        if since is not None and time.monotonic() - since > self.STALL_S:
            return f"the engine has been in one step for {time.monotonic() - since:.0f} s"
        return None

    def _run(self) -> None:
        """Serve until told to stop; after a fault go on answering, with the fault."""
        while self._take_commands():
            if self.engine.is_idle:
                continue
            try:
                self._step()
            except Exception as error:  # noqa: BLE001 - whatever it is, requests must hear of it
                _LOG.exception("the engine stopped")
                self._fail(f"the engine stopped: {type(error).__name__}: {error}")

    def _take_commands(self) -> bool:
        """Run queued commands, waiting for one if there is nothing else to do; False to end."""
        block = self._fault is not None or self.engine.is_idle
        while True:
            try:
                command = self._commands.get(block=block)
            except queue.Empty:
                return True
            if command is None:
                self._fail("the server is shutting down")
                while not self._commands.empty():
                    late = self._commands.get()
                    if late is not None:
                        late()
                return False
            command()
            block = self._fault is not None or self.engine.is_idle

    def _step(self) -> None:
        self._busy_since = time.monotonic()
        for progress in self.engine.step():
            work = progress.work
            ticket = self._tickets.get(id(work))
            if progress.finished:
                self._tickets.pop(id(work), None)
            if ticket is not None:
                ticket.send(Tokens(progress.tokens, progress.finished))
        self._busy_since = None

    def _fail(self, reason: str) -> None:
        self._fault = self._fault or reason
        self._busy_since = None
        for ticket in self._tickets.values():
            ticket.send(EngineError(reason))
        self._tickets.clear()
