"""Accounts of rounds, however much of them a server tells."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddtree.records import acceptance as module
from ddtree.records.acceptance import (
    accepted_of,
    account_error,
    by_depth_of,
    length_of,
    source_of,
)
from mutations.planting import Mutation, planted


def test_a_histogram_counts_for_more_than_a_total() -> None:
    assert accepted_of({"accepted_histogram": [1, 2, 3]}) == 8
    assert accepted_of({"num_accepted": 5}) == 5
    assert accepted_of({"accepted_histogram": [1, 2], "num_accepted": 99}) == 2
    assert accepted_of({"rounds": 4}) is None


def check_length_is_of_all_rounds_together() -> None:
    # 1 of 1 round and 0 of 9: the mean of lengths would be 1.5.
    accounts = [{"rounds": 1, "num_accepted": 1}, {"rounds": 9, "accepted_histogram": [9]}]
    assert module.length_of(accounts) == pytest.approx(1.1)


def test_length_is_of_all_rounds_together() -> None:
    check_length_is_of_all_rounds_together()
    bug = Mutation(
        "counts the bonus twice",
        "ddtree.records.acceptance",
        (("return 1 + sum(accepted", "return 2 + sum(accepted"),),
        (check_length_is_of_all_rounds_together,),
    )
    with planted(bug), pytest.raises(AssertionError):
        check_length_is_of_all_rounds_together()


def test_what_says_nothing_of_acceptance_counts_no_rounds() -> None:
    assert length_of([{"rounds": 4, "num_accepted": 4}, {"rounds": 100}]) == 2.0
    assert length_of([{"rounds": 100}]) is None
    assert length_of([]) is None
    assert by_depth_of([{"rounds": 4, "num_accepted": 4}]) == ()


@given(st.lists(st.lists(st.integers(0, 9), max_size=6), max_size=5))
def test_survival_sums_to_the_length(histograms: list[list[int]]) -> None:
    accounts = [{"rounds": sum(h), "accepted_histogram": h} for h in histograms]
    length = length_of(accounts)
    if length is None:
        assert not any(map(sum, histograms))
    else:
        assert length == pytest.approx(1 + sum(by_depth_of(accounts)))


@pytest.mark.parametrize(
    ("sources", "expected"),
    [
        (["server"], "server"),
        ([None], "server"),
        (["counters", "server"], "counters"),
        (["server", "estimate", "counters"], "estimate"),
        ([], None),
    ],
)
def test_the_least_certain_source_is_named(sources: list[str | None], expected: str | None) -> None:
    accounts = [{"rounds": 1} | ({} if name is None else {"source": name}) for name in sources]
    assert source_of(accounts) == expected


GOOD = {"completion_tokens": 8, "rounds": 3, "cut_tokens": 1}


@pytest.mark.parametrize("told", [{"num_accepted": 5}, {"accepted_histogram": [1, 0, 1, 1]}])
def test_an_account_with_or_without_a_histogram_reconciles(told: dict[str, object]) -> None:
    account = GOOD | told
    assert account_error(account, 8) is None
    assert account_error(account, 9) == "8 tokens in stats, 9 in usage"
    for name in ("completion_tokens", "rounds", "cut_tokens"):
        assert "does not reconcile" in str(account_error(account | {name: 4}, 8))
        less = {key: value for key, value in account.items() if key != name}
        assert account_error(less, 8) == f"stats lack {name!r}"
    assert account_error(GOOD, 8) == "stats lack 'accepted_histogram'"


def test_a_histogram_of_other_rounds_is_named() -> None:
    account = GOOD | {"accepted_histogram": [0, 0, 1, 1]}
    assert account_error(account, 8) == "histogram [0, 0, 1, 1] does not sum to 3"
