"""HTTP over a connection, and impatience with clients that neither speak nor listen."""

import asyncio
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol


class ImpatientProtocol(H11Protocol):
    """uvicorn's protocol, ending a connection on which for `patience_s` seconds no whole request
    head has come, or nothing has been taken of what waits for the client.

    The app sees a client that has left, and so its requests end.
    """

    def __init__(self, patience_s: float, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._patience_s = patience_s
        self._write_timer: asyncio.TimerHandle | None = None
        self._head_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """A client is there."""
        super().connection_made(transport)
        # Whatever the system's own buffer has no room for makes the app wait.
        transport.set_write_buffer_limits(high=0)
        self._await_head()

    def data_received(self, data: bytes) -> None:
        """The client speaks."""
        super().data_received(data)
        self._await_head()

    def pause_writing(self) -> None:
        """The client takes less than there is."""
        super().pause_writing()
        self._await_taking()

    def resume_writing(self) -> None:
        """It has taken all."""
        self._stop_write_timer()
        super().resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        """The client is gone."""
        self._stop_write_timer()
        self._stop_head_timer()
        super().connection_lost(exc)

    @property
    def _is_answering(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def _await_head(self) -> None:
        if self._is_answering:
            self._stop_head_timer()
        elif self._head_timer is None:
            self._head_timer = self.loop.call_later(self._patience_s, self._judge_silence)

    def _judge_silence(self) -> None:
        self._head_timer = None
        if not self._is_answering:
            self.transport.abort()

    def _await_taking(self) -> None:
        waiting = self.transport.get_write_buffer_size()
        self._write_timer = self.loop.call_later(self._patience_s, self._judge_taking, waiting)

    def _judge_taking(self, before: int) -> None:
        if self.transport.get_write_buffer_size() < before:
            self._await_taking()
        else:
            self.transport.abort()

    def _stop_head_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _stop_write_timer(self) -> None:
        if self._write_timer is not None:
            self._write_timer.cancel()
            self._write_timer = None
