"""The engine on a thread of its own, and the bridge to asyncio."""

import asyncio
import contextlib
import logging
import queue
import threading
import time
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field

from ddtree.engine import Engine, Work
from ddtree.errors import EngineError, OverloadedError, RequestError
from ddtree.serve.metrics import ServerMetrics

_LOG = logging.getLogger(__name__)

_SHUTTING_DOWN = "the server is shutting down"


@dataclass(frozen=True)
class Tokens:
    """Tokens of one step; `last` ends the request."""

    ids: tuple[int, ...]
    last: bool


@dataclass
class Ticket:
    """A request in flight: its events arrive in `events` on the event loop that submitted it.

    Events that nobody fetches stay there; they are as many as the request has tokens at most.
    `submitted_s` is of `time.perf_counter`.
    """

    work: Work
    loop: asyncio.AbstractEventLoop
    submitted_s: float = field(default_factory=time.perf_counter)
    events: asyncio.Queue[Tokens | EngineError] = field(default_factory=asyncio.Queue)

    def send(self, event: Tokens | EngineError) -> None:
        """Any thread may call it; a loop that is gone wants nothing."""
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

    async def finish(self) -> None:
        """Wait for the last event; EngineError if the engine died."""
        async for _ in self.stream():
            pass


class EngineWorker:
    """Runs `engine.step` while there is work, sleeps while there is none.

    max_queue: works that may be in flight beyond the number of slots, None for any number.
    stall_s: a busy engine that gives no sign of life for so long counts as hung. One is given with
    every layer of a forward pass, so that a long prompt on a slow machine is no hang.
    """

    def __init__(self, engine: Engine, max_queue: int | None = None, stall_s: float = 5.0) -> None:
        self.engine, self.max_queue, self.stall_s = engine, max_queue, stall_s
        self.metrics = ServerMetrics(engine)
        self._commands: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        # Of the works in flight, by identity: from submission to the end that the engine knows of.
        self._tickets: dict[int, Ticket] = {}
        self._lock = threading.Lock()  # holds _tickets and _fault
        self._fault: str | None = None
        self._draining = False
        self._busy_since: float | None = None
        self._thread = threading.Thread(target=self._run, name="ddtree-engine", daemon=True)

    @property
    def in_flight(self) -> int:
        """Works submitted and not over."""
        return len(self._tickets)

    @property
    def is_draining(self) -> bool:
        """Whether new work is refused because the server shuts down."""
        return self._draining

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def drain(self) -> None:
        """Refuse new work from here on; what is in flight goes on. Safe in a signal handler."""
        self._draining = True

    def cancel_all(self) -> None:
        """Tell everything in flight that the server shuts down, whatever the engine is doing."""
        with self._lock:
            tickets = list(self._tickets.values())
        for ticket in tickets:
            ticket.send(EngineError(_SHUTTING_DOWN))
            self.abort(ticket)

    def stop(self, timeout_s: float = 10.0) -> None:
        """End the thread after its current step; requests in flight get an error. A step that
        takes longer than `timeout_s` is left behind: a hang must not keep the process."""
        self._commands.put(None)
        self._thread.join(timeout_s)
        if self._thread.is_alive():
            _LOG.error("the engine hangs in a step and is left behind")

    def submit(self, work: Work) -> Ticket:
        """`submit_all` for one."""
        return self.submit_all([work])[0]

    def submit_all(self, works: Sequence[Work], field: str = "n") -> list[Ticket]:
        """Queue works made by `make_request`, `make_score` or `make_replay`, all or none of them;
        call on an event loop.

        EngineError if nothing can be served any more, OverloadedError if the queue has no room,
        RequestError, naming the `field` that asks for so many, if it never has.
        """
        loop = asyncio.get_running_loop()
        tickets = tuple(Ticket(work, loop) for work in works)
        with self._lock:
            self._check_open(len(works), field)
            self._tickets |= {id(ticket.work): ticket for ticket in tickets}

        def add() -> None:
            for ticket in tickets:
                if id(ticket.work) in self._tickets:  # a fault in between has ended it
                    self.engine.enqueue(ticket.work)

        self._commands.put(add)
        return list(tickets)

    def abort(self, ticket: Ticket) -> None:
        """End a request early; nothing happens if it is over."""

        def drop() -> None:
            if self._tickets.get(id(ticket.work)) is ticket:
                self.engine.abort(ticket.work)
                self._end(ticket, "abort")

        self._commands.put(drop)

    def problem(self) -> str | None:
        """Why the engine can't be relied on, None if it can."""
        if self._fault is not None:
            return self._fault
        if self._draining:
            return _SHUTTING_DOWN
        if self._thread.ident is not None and not self._thread.is_alive():
            return "the engine's thread has ended"
        since = self._busy_since
        if since is not None:
            silent = time.monotonic() - max(since, self.engine.pulse.at)
            if silent > self.stall_s:
                return f"the engine hangs: no sign of life for {silent:.1f} s"
        return None

    def _check_open(self, count: int, field: str) -> None:
        """Raise unless `count` more works can be taken."""
        if self._fault is not None:
            raise EngineError(self._fault)
        if self._draining:
            raise EngineError(_SHUTTING_DOWN)
        if self.max_queue is None:
            return
        room = self.engine.config.slots + self.max_queue
        if count > room:
            raise RequestError(
                field, f"asks for {count} answers at once, this server takes {room}; ask for fewer"
            )
        if len(self._tickets) + count > room:
            raise OverloadedError(
                f"the queue is full: {len(self._tickets)} requests are in flight and {count} more "
                f"would exceed {room} (slots and max_queue together); try again later"
            )

    def _run(self) -> None:
        """Serve until told to stop; after a fault go on answering, with the fault."""
        while True:
            try:
                if not self._take_commands():
                    return
                self._step()
            except Exception as error:  # noqa: BLE001 - whatever it is, requests must hear of it
                _LOG.exception("the engine stopped")
                self._fail(f"the engine stopped: {type(error).__name__}: {error}")

    def _take_commands(self) -> bool:
        """Run queued commands, waiting for one if there is nothing else to do; False to end."""
        while True:
            idle = self._fault is not None or self.engine.is_idle
            if idle:
                self._busy_since = None
            elif self._busy_since is None:
                self._busy_since = time.monotonic()
            try:
                command = self._commands.get(block=idle)
            except queue.Empty:
                return True
            if command is None:
                self._fail(_SHUTTING_DOWN)
                return False
            if self._fault is None:
                command()

    def _step(self) -> None:
        """One step of the engine. What it gained is counted before it is told, so that who has an
        answer finds it in the metrics."""
        for progress in self.engine.step():
            ticket = self._tickets.get(id(progress.work))
            if ticket is None:
                continue
            self.metrics.gained(progress.work, len(progress.tokens), ticket.submitted_s)
            if progress.finished:
                self._end(ticket)
            ticket.send(Tokens(progress.tokens, progress.finished))

    def _fail(self, reason: str) -> None:
        """End everything in flight with an error and take nothing more."""
        with self._lock:
            self._fault = self._fault or reason
            tickets = list(self._tickets.values())
        self._busy_since = None
        for ticket in tickets:
            with contextlib.suppress(Exception):  # whatever state the fault has left it in
                self.engine.abort(ticket.work)
            self._end(ticket, "error")
            ticket.send(EngineError(reason))

    def _end(self, ticket: Ticket, how: str | None = None) -> None:
        """`how` as in `ServerMetrics.ended`."""
        with self._lock:
            del self._tickets[id(ticket.work)]
        self.metrics.ended(ticket.work, how, ticket.submitted_s)
