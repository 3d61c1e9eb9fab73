"""Values keep their types on their way; nothing but plain data goes."""

import json
import math
from collections import Counter, OrderedDict, defaultdict, deque, namedtuple
from decimal import Decimal
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddtree.evals.sandbox.inside import tagged
from ddtree.evals.sandbox.inside.tagged import MAX_DEPTH, UntoldError
from mutations.planting import Mutation, assert_caught

SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.integers(-(2**5000), 2**5000)
    | st.floats(allow_nan=False)
    | st.complex_numbers(allow_nan=False)
    | st.text(st.characters())
    | st.binary()
    | st.fractions()
    | st.decimals(allow_nan=False)
    | st.builds(range, st.integers(-9, 9), st.integers(-9, 9), st.integers(1, 3))
)
HASHABLE = st.recursive(
    SCALARS,
    lambda inner: st.tuples(inner, inner) | st.frozensets(inner, max_size=3),
    max_leaves=5,
)
VALUES = st.recursive(
    HASHABLE,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.builds(deque, st.lists(inner, max_size=3))
        | st.dictionaries(HASHABLE, inner, max_size=3)
        | st.sets(HASHABLE, max_size=3)
        | st.binary().map(bytearray)
    ),
    max_leaves=12,
)

Point = namedtuple("Point", "x y")


def there_and_back(value: object) -> object:
    return tagged.heard(json.loads(json.dumps(tagged.told(value))))


def shape(value: object) -> object:
    """The value with the types of everything in it; written out too, since 0.0 equals -0.0."""
    if isinstance(value, list | tuple | deque):
        return type(value), tuple(map(shape, value))
    if isinstance(value, dict):
        return dict, tuple((shape(key), shape(item)) for key, item in value.items())
    if isinstance(value, set | frozenset):
        return type(value), frozenset(map(shape, value))
    return type(value), repr(value), value


@given(VALUES)
def test_values_come_back_as_they_were(value: object) -> None:
    assert shape(there_and_back(value)) == shape(value)


def test_a_nan_comes_back() -> None:
    found = there_and_back([math.nan, -0.0])
    assert isinstance(found, list)
    assert math.isnan(found[0])
    assert math.copysign(1, found[1]) == -1


def check_library_types() -> None:
    for value, plain in (
        (Counter("aab"), {"a": 2, "b": 1}),
        (OrderedDict(b=1, a=2), {"b": 1, "a": 2}),
        (defaultdict(int, a=1), {"a": 1}),
        (Point(1, [2]), (1, [2])),
    ):
        assert shape(there_and_back(value)) == shape(plain)


class Text(str):
    pass


class Whole(int):
    pass


class Row(list):
    pass


class Forged(namedtuple("Forged", "x")):
    def __eq__(self, other: object) -> bool:
        return True

    __hash__ = None  # type: ignore[assignment]


class Loud(type):
    def __eq__(cls, other: object) -> bool:
        return True

    __hash__ = type.__hash__


class Disguised(metaclass=Loud):
    pass


def check_refused() -> None:
    for value in (Text("x"), Whole(1), Row(), Forged(1), object(), len, (x for x in ()), Text):
        for around in (value, [value], {"k": (value,)}):
            with pytest.raises(UntoldError, match="type of its own"):
                tagged.told(around)


def check_depth() -> None:
    value: list[object] = []
    for _ in range(MAX_DEPTH - 1):
        value = [value]
    assert there_and_back(value) == value
    with pytest.raises(UntoldError, match="nested more than"):
        tagged.told([value])
    loop: list[object] = []
    loop.append({"again": loop})
    with pytest.raises(UntoldError, match="nested more than"):
        tagged.told(loop)


@pytest.mark.parametrize("check", [check_library_types, check_refused, check_depth])
def test_on_the_code_as_it_is(check) -> None:
    check()


def test_a_class_that_claims_to_be_another_is_no_scalar() -> None:
    """At worst it is refused by `json`: nothing but data goes over."""
    with pytest.raises((UntoldError, TypeError)):
        json.dumps(tagged.told(Disguised()))


@pytest.mark.parametrize(
    "data",
    [
        {"unknown": 1},
        {},
        {"int": 1},
        {"int": "x"},
        {"tuple": 1},
        {"set": [[]]},
        {"dict": [1]},
        {"Fraction": [1, 0]},
        {"Decimal": "x"},
        {"bytes": "x"},
    ],
)
def test_what_is_never_told_is_not_heard(data: object) -> None:
    with pytest.raises((KeyError, TypeError, ValueError, ArithmeticError)):
        tagged.heard(data)


def test_what_is_told_can_be_compared() -> None:
    assert tagged.told(Fraction(1, 3)) == {"Fraction": [1, 3]}
    assert tagged.told(Decimal("1.50")) == {"Decimal": "1.50"}


MUTATIONS = (
    Mutation(
        "subclasses pass for what they extend",
        tagged.__name__,
        (("if kind is list:", "if isinstance(value, list):"),),
        (check_refused,),
        harmless_to=check_library_types,
        error=BaseException,
    ),
    Mutation(
        "named tuples may define anything",
        tagged.__name__,
        (("return special <= _NAMED_TUPLE", "return True"),),
        (check_refused,),
        harmless_to=check_library_types,
        error=BaseException,
    ),
    Mutation(
        "no bound on depth",
        tagged.__name__,
        (("if depth == MAX_DEPTH:", "if False:"),),
        (check_depth,),
        harmless_to=check_library_types,
        error=BaseException,
    ),
)


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.name)
def test_planted_bugs_are_caught(mutation: Mutation) -> None:
    assert_caught(mutation)
