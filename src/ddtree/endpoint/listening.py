"""Reading a response's bytes in the call that brings them, without waking a task for each.

At thousands of events a second most of a client's time would go into waking tasks, and a busy
client delays the server it shares cores with.
"""

import asyncio
from collections.abc import Callable
from functools import partial

import aiohttp
from aiohttp.client_proto import ResponseHandler


class ListeningHandler(ResponseHandler):
    """Calls `listener` after data came, and once more when the connection is gone."""

    listener: Callable[[], None] | None = None

    def data_received(self, data: bytes) -> None:
        """Parse, then tell."""
        super().data_received(data)
        # Without data it is a reader's own call to let parsing go on.
        if data and self.listener is not None:
            self.listener()

    def connection_lost(self, exc: BaseException | None) -> None:
        """Let go, then tell."""
        super().connection_lost(exc)
        if self.listener is not None:
            self.listener()


class ListeningConnector(aiohttp.TCPConnector):
    """Makes connections that can be listened to, and uses none twice."""

    def __init__(self) -> None:
        super().__init__(limit=0, limit_per_host=0, force_close=True)
        # aiohttp has no public way to name the protocol of its connections.
        self._factory = partial(  # type: ignore[assignment]
            ListeningHandler, loop=asyncio.get_running_loop()
        )


async def listen(response: aiohttp.ClientResponse, take: Callable[[bytes], bool]) -> None:
    """Hand each chunk of the body to `take` as it comes, until that is False or no more comes.

    Returns early where the connection can't be listened to, and at the end of the body or of the
    connection: what is left, an error included, is then read as usual. Raises what `take` raises.
    """
    connection, content = response.connection, response.content
    handler = None if connection is None else connection.protocol
    if not isinstance(handler, ListeningHandler):
        return
    over: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def look() -> None:
        if over.done():
            return
        try:
            chunk = b"" if content.exception() is not None else content.read_nowait()
            ended = content.exception() is not None or bool(chunk and not take(chunk))
        except Exception as error:  # noqa: BLE001 - goes on in the task that waits
            over.set_exception(error)
            return
        if ended or content.at_eof() or handler.transport is None:
            over.set_result(None)

    handler.listener = look
    try:
        look()
        await over
    finally:
        handler.listener = None
