"""The alarm for another mix of methods, against enumeration."""

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddtree.evals.extract import mix
from mutations.planting import Mutation, planted

COUNTS = st.integers(0, 8)


def slow_fisher(hits: tuple[int, int], totals: tuple[int, int]) -> float:
    """By its definition: every way to deal the hits among all answers is equally likely."""
    every = range(sum(totals))
    first = set(range(totals[0]))
    seen: dict[int, int] = {}
    for dealt in itertools.combinations(every, sum(hits)):
        inside = len(first.intersection(dealt))
        seen[inside] = seen.get(inside, 0) + 1
    own = seen[hits[0]]
    return sum(ways for ways in seen.values() if ways <= own) / sum(seen.values())


def test_fisher_is_its_definition():
    for n, m in itertools.product(range(1, 6), repeat=2):
        for hits in itertools.product(range(n + 1), range(m + 1)):
            expected = slow_fisher(hits, (n, m))
            assert mix.fisher(hits, (n, m)) == pytest.approx(expected, rel=1e-12)


def test_fisher_of_a_known_table():
    # Fisher's tea: 3 of 4 and 1 of 4.
    assert mix.fisher((3, 1), (4, 4)) == pytest.approx(34 / 70)
    assert mix.fisher((4, 0), (4, 4)) == pytest.approx(2 / 70)


@given(COUNTS, COUNTS, COUNTS, COUNTS)
def test_fisher_does_not_care_for_sides(a, b, n, m):
    hits, totals = (a, b), (a + n, b + m)
    p = mix.fisher(hits, totals)
    assert 0 < p <= 1
    assert math.isclose(p, mix.fisher(hits[::-1], totals[::-1]))
    assert math.isclose(p, mix.fisher((n, m), totals))


def test_large_counts():
    assert mix.fisher((8000, 8000), (16400, 16400)) == pytest.approx(1.0)


def check_alarm() -> None:
    base = {"fence": 160, "bare": 4}
    shifted = mix.method_shift(base, {"fence": 130, "none, no_code": 34})
    assert shifted is not None
    assert "fence 160 of 164 -> 130 of 164" in shifted
    assert "none, no_code 0 of 164 -> 34 of 164" in shifted
    assert "bare" not in shifted


def check_no_alarm() -> None:
    base = {"fence": 160, "bare": 4}
    assert mix.method_shift(base, base) is None
    assert mix.method_shift(base, {"fence": 158, "bare": 5, "body": 1}) is None
    # 6 against none: p = 0.03 of 164, no alarm at 1 %.
    assert mix.method_shift({"fence": 164}, {"fence": 158, "body": 6}) is None
    assert mix.method_shift({"fence": 164}, {"fence": 152, "body": 12}) is not None


def check_holm() -> None:
    """One of twenty kinds at p = 0.003 is chance."""
    base = {f"kind {n}": 10 for n in range(20)} | {"odd": 0}
    arm = base | {"odd": 9}
    assert mix.fisher((0, 9), (200, 209)) < mix.RISK
    assert mix.method_shift(base, arm) is None


def test_alarm():
    check_alarm()


def test_no_alarm():
    check_no_alarm()


def test_many_kinds():
    check_holm()


def test_nothing_to_compare():
    assert mix.method_shift({}, {}) is None
    assert mix.method_shift({}, {"fence": 3}) is None


BUGS = (
    (check_alarm, "        if real\n", "        if not real\n"),
    (check_alarm, "if way <= seen", "if way >= seen"),
    (check_no_alarm, "RISK = 0.01", "RISK = 0.5"),
    (check_holm, "holm(odds, RISK)", "(p <= RISK for p in odds)"),
)


@pytest.mark.parametrize(("check", "old", "new"), BUGS)
def test_planted_bug_is_caught(check, old, new):
    bug = Mutation("mix", "ddtree.evals.extract.mix", ((old, new),), (check,))
    with planted(bug), pytest.raises(AssertionError):
        check()
