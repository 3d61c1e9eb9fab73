"""LiveCodeBench's packed tests, base64 of zlib of pickle, opened without running anything.

A pickle is a program for a small machine. Here the machine has no way to reach a class or a
function, so that it can build nothing but plain values, and only texts, lists and dicts go on.
"""

import base64
import io
import json
import pickle
import zlib
from typing import Any

from ddtree.errors import ConfigError

MAX_BYTES = 1 << 30
"""What the tests of one task may unpack to."""

# What the pickle machine raises on input that is broken or out to do harm.
_PICKLE_ERRORS = (
    pickle.UnpicklingError,
    EOFError,
    ValueError,
    TypeError,
    AttributeError,
    LookupError,
    OverflowError,
    MemoryError,
)


class _PlainUnpickler(pickle.Unpickler):
    """Looks nothing up: a pickle that names a class or a function is refused."""

    def find_class(self, module_name: str, global_name: str, /) -> Any:
        raise pickle.UnpicklingError(f"it names {module_name}.{global_name}")


def unpacked(text: str, where: str) -> Any:
    """The JSON value inside, or the texts, lists and dicts themselves.

    ConfigError where the text is not packed so, unpacks to more than MAX_BYTES, or holds anything
    but texts, lists and dicts; nothing in it is run in any case.
    """
    raw = _inflated(text, where)
    try:
        value = _PlainUnpickler(io.BytesIO(raw)).load()
        _check_plain(value)
        return json.loads(value) if isinstance(value, str) else value
    except (*_PICKLE_ERRORS, RecursionError) as error:
        raise ConfigError(
            f"{where}: packed tests: expected a pickle of texts, lists and dicts alone ({error})"
        ) from None


def _inflated(text: str, where: str) -> bytes:
    machine = zlib.decompressobj()
    try:
        raw = machine.decompress(base64.b64decode(text, validate=True), MAX_BYTES)
    except (ValueError, zlib.error) as error:
        raise ConfigError(
            f"{where}: packed tests: expected base64 of zlib data ({error})"
        ) from None
    if not machine.eof:
        raise ConfigError(f"{where}: packed tests: cut short, or over {MAX_BYTES} bytes unpacked")
    return raw


def _check_plain(value: object) -> None:
    """ValueError where anything is no text, list or dict; RecursionError on a loop."""
    if type(value) is list:
        for item in value:
            _check_plain(item)
    elif type(value) is dict:
        for key, item in value.items():
            _check_plain(key)
            _check_plain(item)
    elif type(value) is not str:
        raise ValueError(f"it holds a value of type {type(value).__name__}")
