"""Server-sent events from bytes: incremental, exact at every split of the input.

Lines end in CRLF, CR or LF and in nothing else (U+2028 inside a value is text). Bytes become text
only once their line is whole, so a split inside a UTF-8 sequence can't be seen.
"""

import re
from dataclasses import dataclass

from ddtree.errors import EndpointError

_LINE_END = re.compile(rb"\r\n|\r|\n")
_BOM = b"\xef\xbb\xbf"


@dataclass(frozen=True)
class SSEEvent:
    """One dispatched event: `data` lines joined by LF; `event` and `id` as last set, or empty."""

    data: str
    event: str = ""
    id: str = ""


class SSEParser:
    """Bytes in, events out, in order. One instance per stream.

    EndpointError on bytes that are not UTF-8. A stream that ends inside an event (no final blank
    line) gives that event from `finish`: servers do end that way, and dropping a whole line of
    data would hide tokens.
    """

    def __init__(self) -> None:
        self._tail: list[bytes] = []
        self._skip_lf = False
        self._at_start = True
        self._data: list[str] = []
        self._event = ""
        self._id = ""

    def feed(self, chunk: bytes) -> list[SSEEvent]:
        """Events completed by `chunk`."""
        if not chunk:
            return []
        if self._skip_lf and chunk.startswith(b"\n"):
            chunk = chunk[1:]
        self._skip_lf = chunk.endswith(b"\r")
        lines = _LINE_END.split(chunk)
        if len(lines) == 1:
            self._tail.append(chunk)
            return []
        lines[0] = b"".join((*self._tail, lines[0]))
        self._tail = [lines.pop()]
        return [event for line in lines if (event := self._line(line)) is not None]

    def finish(self) -> list[SSEEvent]:
        """The event left open by a stream that ended without its blank line, if any."""
        rest = b"".join(self._tail)
        self._tail = []
        if rest:
            self._line(rest)
        event = self._dispatch()
        return [] if event is None else [event]

    def _line(self, line: bytes) -> SSEEvent | None:
        if self._at_start:
            self._at_start = False
            line = line.removeprefix(_BOM)
        if not line:
            return self._dispatch()
        try:
            text = line.decode("utf-8")
        except UnicodeDecodeError as error:
            raise EndpointError(f"event stream: line is not UTF-8 ({error})") from None
        name, _, value = text.partition(":")
        self._field(name, value.removeprefix(" "))
        return None

    def _field(self, name: str, value: str) -> None:
        if name == "data":
            self._data.append(value)
        elif name == "event":
            self._event = value
        elif name == "id" and "\0" not in value:
            self._id = value

    def _dispatch(self) -> SSEEvent | None:
        data, event = self._data, self._event
        self._data, self._event = [], ""
        return SSEEvent("\n".join(data), event, self._id) if data else None
