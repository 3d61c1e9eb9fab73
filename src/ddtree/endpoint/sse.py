"""Server-sent events from bytes: incremental, exact at every split of the input.

Lines end in CRLF, CR or LF and in nothing else (U+2028 inside a value is text). Bytes become text
only once their line is whole, so a split inside a UTF-8 sequence can't be seen.
"""

import re

from ddtree.errors import EndpointError

_LINE_END = re.compile(rb"\r\n|\r|\n")
_BOM = b"\xef\xbb\xbf"


class SSEParser:
    """Bytes in, the data of events out, in order. One instance per stream.

    An event's `data` lines are joined by LF; its name and id are ignored. EndpointError on bytes
    that are not UTF-8. A stream that ends inside an event (no final blank
    line) gives that event from `finish`: servers do end that way, and dropping a whole line of
    data would hide tokens.
    """

    def __init__(self) -> None:
        self._tail: list[bytes] = []
        self._skip_lf = False
        self._at_start = True
        self._data: list[str] = []

    def feed(self, chunk: bytes) -> list[str]:
        """Events completed by `chunk`."""
        if not chunk:
            return []
        if self._is_whole(chunk):
            return [_text(chunk[6:-2])]
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

    def _is_whole(self, chunk: bytes) -> bool:
        """Whether nothing is open and the chunk is one event of one line, as most reads are."""
        if self._at_start or self._skip_lf or self._data or any(self._tail):
            return False
        first = chunk.find(b"\n")
        one = first == len(chunk) - 2 and chunk.endswith(b"\n\n") and chunk.startswith(b"data: ")
        return one and b"\r" not in chunk

    def finish(self) -> list[str]:
        """The event left open by a stream that ended without its blank line, if any."""
        rest = b"".join(self._tail)
        self._tail = []
        if rest:
            self._line(rest)
        event = self._dispatch()
        return [] if event is None else [event]

    def _line(self, line: bytes) -> str | None:
        if self._at_start:
            self._at_start = False
            line = line.removeprefix(_BOM)
        if not line:
            return self._dispatch()
        name, _, value = _text(line).partition(":")
        if name == "data":
            self._data.append(value.removeprefix(" "))
        return None

    def _dispatch(self) -> str | None:
        data, self._data = self._data, []
        return "\n".join(data) if data else None


def _text(line: bytes) -> str:
    try:
        return line.decode("utf-8")
    except UnicodeDecodeError as error:
        raise EndpointError(f"event stream: line is not UTF-8 ({error})") from None
