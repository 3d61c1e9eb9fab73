"""Values as JSON with their types: what a sandbox and its parent tell each other.

None, bool, int, float, str and list stand for themselves, anything else is an object of one key,
the name of its type. Only plain data goes over: subclasses are refused, but for the standard
library's (`Counter` is told as dict) and named tuples (told as tuple).
"""

from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from typing import Any

MAX_DEPTH = 100
"""How deep containers may nest: both sides recurse, and a result must not make the parent fail."""

# Python may refuse to write, or read, ints of more than 640 decimal digits.
_DECIMAL = 1 << 1024

_ITEMS: dict[type, str] = {
    tuple: "tuple",
    set: "set",
    frozenset: "frozenset",
    deque: "deque",
}
_MAPPINGS = frozenset((dict, Counter, OrderedDict, defaultdict))
_ATOMS: dict[type, tuple[str, Callable[[Any], Any]]] = {
    complex: ("complex", lambda value: [value.real, value.imag]),
    bytes: ("bytes", lambda value: value.hex()),
    bytearray: ("bytearray", lambda value: value.hex()),
    range: ("range", lambda value: told([value.start, value.stop, value.step])),
    Fraction: ("Fraction", lambda value: told([value.numerator, value.denominator])),
    Decimal: ("Decimal", str),
}
# What `namedtuple` and `NamedTuple` define by themselves; nothing that compares or iterates.
_NAMED_TUPLE = frozenset(
    (
        "__annotate__",
        "__annotate_func__",
        "__annotations__",
        "__annotations_cache__",
        "__doc__",
        "__firstlineno__",
        "__getnewargs__",
        "__match_args__",
        "__module__",
        "__new__",
        "__orig_bases__",
        "__qualname__",
        "__replace__",
        "__repr__",
        "__slots__",
        "__static_attributes__",
        "__str__",
    )
)


class UntoldError(Exception):
    """A value that is no plain data; the message says in what way."""


def is_named_tuple(kind: type) -> bool:
    """Whether a class is a named tuple that behaves as a tuple in everything."""
    if type(kind) is not type or kind.__bases__ != (tuple,) or "_fields" not in vars(kind):
        return False
    special = {name for name in vars(kind) if name.startswith("__") and name.endswith("__")}
    return special <= _NAMED_TUPLE


def told(value: Any, depth: int = 0) -> Any:
    """`value` as something that `json` can write; UntoldError where it is no plain data."""
    kind = type(value)
    if kind is type(None) or kind in (bool, float, str):
        return value
    if kind is int:
        return value if -_DECIMAL < value < _DECIMAL else {"int": hex(value)}
    if depth == MAX_DEPTH:
        raise UntoldError(f"result nested more than {MAX_DEPTH} deep")
    if kind is list:
        return [told(item, depth + 1) for item in value]
    if kind in _MAPPINGS:
        return {"dict": [[told(k, depth + 1), told(v, depth + 1)] for k, v in value.items()]}
    if kind in _ATOMS:
        tag, tell = _ATOMS[kind]
        return {tag: tell(value)}
    if kind in _ITEMS or is_named_tuple(kind):
        items = [told(item, depth + 1) for item in tuple(value)]
        return {_ITEMS.get(kind, "tuple"): items}
    raise UntoldError("result of a type of its own")


def heard(data: Any) -> Any:
    """The inverse of `told`.

    Raises KeyError, TypeError, ValueError, ArithmeticError or RecursionError on what `told` does
    not write.
    """
    if isinstance(data, list):
        return [heard(item) for item in data]
    if not isinstance(data, dict):
        return data
    ((tag, inside),) = data.items()
    return _HEARERS[tag](inside)


_HEARERS: dict[str, Callable[[Any], Any]] = {
    "int": lambda digits: int(digits, 16),
    "tuple": lambda items: tuple(heard(items)),
    "set": lambda items: set(heard(items)),
    "frozenset": lambda items: frozenset(heard(items)),
    "deque": lambda items: deque(heard(items)),
    "dict": lambda pairs: dict(heard(pairs)),
    "complex": lambda parts: complex(*parts),
    "bytes": bytes.fromhex,
    "bytearray": bytearray.fromhex,
    "range": lambda parts: range(*heard(parts)),
    "Fraction": lambda parts: Fraction(*heard(parts)),
    "Decimal": Decimal,
}
