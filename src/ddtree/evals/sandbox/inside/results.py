"""Which results tests get to see.

Tests compare with `==`, and an object of a class of the program's own may claim to equal anything.
Types made in C can't be made by a program, and a few of the standard library's are honest; an
object of any other class is no result.
"""

import functools
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from typing import Any

from ddtree.evals.sandbox.inside.tagged import is_named_tuple

REFUSED = "result of a type of its own"

# Bits of `type.__flags__`: made at run time; made at run time by C code, and closed to changes.
_HEAP_TYPE = 1 << 9
_IMMUTABLE_TYPE = 1 << 8
# The attribute itself: a metaclass may answer `kind.__flags__` as it likes. For the same reason
# classes are compared by identity below.
_flags = type.__dict__["__flags__"].__get__

_LIBRARY = (Fraction, Decimal, Counter, OrderedDict, defaultdict, deque)
_SCALARS = frozenset(map(id, (type(None), bool, int, float, complex, str, bytes)))
_MAPPINGS = frozenset(map(id, (dict, Counter, OrderedDict, defaultdict)))
_ITEMS = frozenset(map(id, (list, tuple, set, frozenset, deque)))


def is_foreign(value: object) -> bool:
    """Whether an object of a program's own class is in `value`, in containers at any depth."""
    seen: set[int] = set()
    waiting: list[Any] = [value]
    while waiting:
        item = waiting.pop()
        kind = type(item)
        if id(kind) in _SCALARS or id(item) in seen:
            continue
        if _made_by_a_program(kind):
            return True
        seen.add(id(item))
        if id(kind) in _MAPPINGS:
            waiting += dict.keys(item)
            waiting += dict.values(item)
        elif id(kind) in _ITEMS or is_named_tuple(kind):
            waiting += item
    return False


def guarded(function: Callable[..., Any], refused: list[str]) -> Callable[..., Any]:
    """`function`, but for foreign results: AssertionError, and `refused` gets a word, which tests
    can't catch."""

    @functools.wraps(function)
    def call(*arguments: Any, **named: Any) -> Any:
        result = function(*arguments, **named)
        if is_foreign(result):
            refused.append(REFUSED)
            raise AssertionError(REFUSED)
        return result

    return call


def _made_by_a_program(kind: type) -> bool:
    flags = _flags(kind)
    if not flags & _HEAP_TYPE or flags & _IMMUTABLE_TYPE:
        return False
    return not any(kind is known for known in _LIBRARY) and not is_named_tuple(kind)
