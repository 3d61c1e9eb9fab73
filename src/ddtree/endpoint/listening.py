"""Reading a response's bytes in the call that brings them, a few arrivals at a time.

At thousands of events a second most of a client's time would go into waking tasks and into code
that the caches have lost since the last event, and a busy client delays the server it shares cores
with. So an arrival is stamped at once, and parsed together with the next ones.
"""

import asyncio
import time
from collections.abc import Callable
from functools import partial

import aiohttp
from aiohttp.client_proto import ResponseHandler

# Arrivals of one connection that may wait: more would keep the loop from stamping others.
_MOST_HELD = 32
_HELD_BYTES = 4096
_LAST = b"[DONE]\n\n\r\n"


class ListeningHandler(ResponseHandler):
    """Calls `listener` for each arrival of data with the time it came, and when all is over.

    Arrivals of whole events wait for the next ones, unless they look like the end or an error;
    `catch_up` ends the wait.
    """

    listener: Callable[[float], None] | None = None

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(loop=loop)
        self._held: list[tuple[bytes, float]] = []

    def data_received(self, data: bytes) -> None:
        """Stamp, and parse once something can't wait."""
        # Without data it is a reader's own call to let parsing go on.
        if not data or self.listener is None:
            super().data_received(data)
            return
        self._held.append((data, time.monotonic()))
        if len(self._held) == _MOST_HELD or not _can_wait(data):
            self.catch_up()

    def catch_up(self) -> None:
        """Parse and tell what has been held."""
        held, self._held = self._held, []
        for data, at_s in held:
            super().data_received(data)
            if self.listener is not None:
                self.listener(at_s)

    def resume_reading(self, resume_parser: bool = True) -> None:
        """Not at every read, as aiohttp asks for, but where reading was paused."""
        if self._reading_paused or self._buffer_paused:
            super().resume_reading(resume_parser)

    def connection_lost(self, exc: BaseException | None) -> None:
        """Let go, then tell."""
        self.catch_up()
        super().connection_lost(exc)
        if self.listener is not None:
            self.listener(time.monotonic())


def _can_wait(data: bytes) -> bool:
    """Whether this is a chunk of whole events, by its end, and not the last or an error.

    It is asked at every arrival, and `in` looks the whole of it through: hence the one search.
    """
    return (
        data.endswith(b"\n\n\r\n")
        and not data.endswith(_LAST)
        and len(data) < _HELD_BYTES
        and b"error" not in data
    )


class ListeningConnector(aiohttp.TCPConnector):
    """Makes connections that can be listened to, and uses none twice."""

    def __init__(self) -> None:
        super().__init__(limit=0, limit_per_host=0, force_close=True)
        # aiohttp has no public way to name the protocol of its connections.
        self._factory = partial(  # type: ignore[assignment]
            ListeningHandler, loop=asyncio.get_running_loop()
        )


def handler_of(response: aiohttp.ClientResponse) -> ListeningHandler | None:
    """What handles the response's connection; None where it is gone or can't be listened to."""
    connection = response.connection
    handler = None if connection is None else connection.protocol
    return handler if isinstance(handler, ListeningHandler) else None


async def listen(
    handler: ListeningHandler,
    content: aiohttp.StreamReader,
    take: Callable[[bytes, float], bool],
) -> None:
    """Hand each arrival of the body to `take`, with its time, until that is False or no more comes.

    `take` may hear of an arrival later than it came. Returns at the end of the body or of the
    connection: what is left, an error included, is then read as usual. Raises what `take` raises.
    """
    over: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def look(at_s: float) -> None:
        if over.done():
            return
        try:
            chunk = b"" if content.exception() is not None else content.read_nowait()
            ended = content.exception() is not None or bool(chunk and not take(chunk, at_s))
        except Exception as error:  # noqa: BLE001 - goes on in the task that waits
            over.set_exception(error)
            return
        if ended or content.at_eof() or handler.transport is None:
            over.set_result(None)

    handler.listener = look
    try:
        look(time.monotonic())
        await over
    finally:
        # What came since belongs to whoever reads on.
        handler.catch_up()
        handler.listener = None
