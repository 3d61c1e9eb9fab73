"""Lines of a data file as objects whose fields are checked when they are taken."""

import gzip
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from ddtree.errors import ConfigError

_GZIP_MAGIC = b"\x1f\x8b"
_SHOWN_CHARS = 60


@dataclass(frozen=True)
class Record:
    """One JSON object of a file; `where` names file and place in messages."""

    where: str
    fields: Mapping[str, Any]

    def text(self, key: str) -> str:
        """A text that must be there; it may be empty."""
        return str(self._typed(key, str, "a text"))

    def optional_text(self, key: str) -> str | None:
        """None where the field is absent or null."""
        return None if self.fields.get(key) is None else self.text(key)

    def items(self, key: str) -> list[Any]:
        """A list that must be there."""
        return list(self._typed(key, list, "a list"))

    def number(self, key: str) -> float:
        """A number that must be there; true and false are none."""
        value = self._typed(key, (int, float), "a number")
        if isinstance(value, bool):
            raise self.refused(f"{key}: expected a number, got {value}")
        return float(value)

    def refused(self, message: str) -> ConfigError:
        """The error that says what is wrong here."""
        return ConfigError(f"{self.where}: {message}")

    def _typed(self, key: str, kind: type | tuple[type, ...], expected: str) -> Any:
        if key not in self.fields:
            raise self.refused(f"{key}: missing, expected {expected}")
        value = self.fields[key]
        if not isinstance(value, kind):
            raise self.refused(f"{key}: expected {expected}, got {shown(value)}")
        return value


def json_lines(data: bytes, where: str) -> Iterator[Record]:
    """Objects of a JSON lines file, gzipped or not; empty lines are passed over.

    ConfigError names `where` and the line that holds no object.
    """
    # Text's own splitlines would break at separators that JSON strings may hold.
    for number, line in enumerate(decoded(data, where).split("\n"), 1):
        if line.strip():
            yield _object(line, f"{where}, line {number}")


def decoded(data: bytes, where: str) -> str:
    """The file's text, unpacked where it is gzipped; ConfigError where it is neither."""
    try:
        if data.startswith(_GZIP_MAGIC):
            data = gzip.decompress(data)
        return data.decode("utf-8-sig")
    except (OSError, EOFError, UnicodeDecodeError) as error:
        raise ConfigError(f"{where}: neither UTF-8 nor gzip ({error}); fetch it again") from None


def shown(value: object) -> str:
    """A value as it stands in a message, cut where it is long."""
    text = repr(value)
    return text if len(text) <= _SHOWN_CHARS else f"{text[:_SHOWN_CHARS]}…"


def _object(line: str, where: str) -> Record:
    try:
        fields = json.loads(line)
    except ValueError as error:
        raise ConfigError(f"{where}: not JSON ({error})") from None
    if not isinstance(fields, dict):
        raise ConfigError(f"{where}: expected an object, got {type(fields).__name__}")
    return Record(where, fields)
