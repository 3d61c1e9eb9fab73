"""Quantiles, outliers, clusters and several tests at once, against what is known without them."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddtree.errors import ConfigError
from ddtree.records import statistics
from ddtree.records.statistics import (
    Estimate,
    holm,
    mean_interval,
    outliers,
    paired_ratio,
    quantile,
    quantile_minimum,
    student_tail,
    unpaired_ratio,
)
from mutations.planting import Mutation, planted


@pytest.mark.parametrize(
    ("q", "least"), [(0.5, 5), (0.1, 29), (0.9, 29), (0.95, 59), (0.05, 59), (0.99, 299)]
)
def test_a_quantile_needs_enough_values_to_be_bounded(q: float, least: int) -> None:
    assert quantile_minimum(q) == least
    assert quantile([1.0] * (least - 1), q) is None
    assert quantile([1.0] * least, q) == 1.0
    # What the number means: the largest of so many exceeds the quantile with 95 % confidence.
    tail = max(q, 1 - q)
    assert tail**least <= 0.05 < tail ** (least - 1)


@given(st.lists(st.floats(-1e6, 1e6), min_size=59, max_size=120), st.sampled_from([0.1, 0.5, 0.95]))
def test_a_quantile_is_an_order_statistic(values: list[float], q: float) -> None:
    found = quantile(values, q)
    assert found in values
    below = sum(value <= found for value in values)
    assert below >= q * len(values)
    assert sum(value < found for value in values) < q * len(values)


def test_a_failure_moves_every_quantile_behind_it() -> None:
    values = [*range(1, 59), math.inf]
    assert quantile(values, 0.5) == 30
    assert quantile(values, 0.95) == 57
    assert quantile([*values[:-1], *[math.inf] * 4], 0.95) == math.inf


# Two-sided critical values from any table.
@pytest.mark.parametrize(
    ("t", "degrees", "p"),
    [
        (12.7062, 1, 0.05),
        (4.30265, 2, 0.05),
        (9.92484, 2, 0.01),
        (3.18245, 3, 0.05),
        (2.36462, 7, 0.05),
        (2.30600, 8, 0.05),
        (3.76763, 23, 0.001),
        (0.0, 5, 1.0),
        (-2.36462, 7, 0.05),
    ],
)
def test_students_tail_is_the_tables(t: float, degrees: int, p: float) -> None:
    assert student_tail(t, degrees) == pytest.approx(p, rel=1e-4)


def test_a_tail_far_out_is_no_less_than_nothing() -> None:
    assert 0 <= student_tail(1e9, 40) < 1e-12


def check_p_values_hold_their_level() -> None:
    """Without any effect p < 0.05 in about one case in twenty, also with three blocks."""
    rng = np.random.default_rng(3)
    for blocks in (3, 8):
        ratios = np.exp(rng.normal(0, 0.05, (400, blocks, 1))).tolist()
        found = [
            statistics.paired_ratio(one, seed, draws=500).p_value for seed, one in enumerate(ratios)
        ]
        assert 0.025 < np.mean([p < 0.05 for p in found if p is not None]) < 0.085, blocks


def test_p_values_hold_their_level() -> None:
    check_p_values_hold_their_level()
    bug = Mutation(
        "few blocks count as many",
        "ddtree.records.statistics",
        (("student_tail(centre / error, blocks - 1)", "student_tail(centre / error, 200)"),),
        (check_p_values_hold_their_level,),
    )
    with planted(bug), pytest.raises(AssertionError):
        check_p_values_hold_their_level()


def test_p_value_goes_with_the_interval() -> None:
    sure = paired_ratio([[1.5], [1.51], [1.49], [1.5]], seed=0)
    assert sure.p_value is not None
    assert sure.p_value < 1e-4
    assert paired_ratio([[1.5], [1.5]], seed=0).p_value is None
    assert paired_ratio([[1.0]] * 4, seed=0).p_value == 1.0
    assert paired_ratio([[2.0]] * 4, seed=0).p_value == 0.0


def test_one_prompt_a_block_is_drawn_like_any_other_block() -> None:
    rng = np.random.default_rng(5)
    logs = rng.normal(0.3, 0.1, 12)
    alone = paired_ratio([[math.exp(x)] for x in logs], seed=1).interval
    # A second, equal prompt in each block adds nothing and goes the general way.
    doubled = paired_ratio([[math.exp(x)] * 2 for x in logs], seed=1).interval
    assert alone is not None
    assert doubled is not None
    assert alone.low == pytest.approx(doubled.low, rel=0.01)
    assert alone.high == pytest.approx(doubled.high, rel=0.01)


def test_unpaired_ratio_compares_means_and_is_wider() -> None:
    base = [[10.0], [20.0], [40.0], [80.0]]
    mine = [[2 * x for x in block] for block in base]
    found = unpaired_ratio(mine, base, seed=0)
    assert found.value == pytest.approx(2.0)
    assert (found.blocks, found.pairs) == (4, 0)
    assert found.interval is not None
    # Paired, the ratio is exact; unpaired, prompts that differ eightfold hide it.
    assert found.interval.low < 1 < found.interval.high
    assert unpaired_ratio(mine[:2], base, seed=0).interval is None
    assert unpaired_ratio([[]], base, seed=0) == Estimate(None, None, 0, 0)
    with pytest.raises(ConfigError, match="positive"):
        unpaired_ratio([[0.0]] * 3, base, seed=0)


def test_clusters_are_what_is_drawn() -> None:
    # Two kinds of prompts, each of many equal rounds: rounds say much less than prompts do.
    few = mean_interval([(100.0, 100.0), (300.0, 100.0)] * 2, 0, 2000)
    many = mean_interval([(100.0, 100.0), (300.0, 100.0)] * 50, 0, 2000)
    assert few is not None
    assert many is not None
    assert few.high - few.low > 4 * (many.high - many.low)
    assert many.low < 2.0 < many.high
    assert mean_interval([(1.0, 1.0)] * 2, 0, 2000) is None


def test_a_weighted_mean_stays_where_all_clusters_agree() -> None:
    found = mean_interval([(2.0, 1.0), (20.0, 10.0), (200.0, 100.0)], 0, 500)
    assert found is not None
    assert (found.low, found.high) == (pytest.approx(2.0), pytest.approx(2.0))


def test_outliers_are_counted_and_left_out_of_the_second_mean_alone() -> None:
    usual = [1.5, 1.51, 1.49, 1.52, 1.48, 1.5, 1.51]
    found = outliers([*usual, 3.0])
    assert found is not None
    assert found.count == 1
    assert found.ratio_without == pytest.approx(math.exp(np.mean(np.log(usual))))
    assert outliers([*usual, 1.53]) is None
    # Seven ratios are too few to say which of them is odd.
    assert outliers([*usual[:6], 3.0]) is None
    # Equal ratios make any rounding infinitely many deviations.
    assert outliers([1.5] * 9 + [1.5 + 1e-9]) is None


def test_holm_is_the_textbooks() -> None:
    assert holm([0.01, 0.04, 0.03, 0.005]) == (True, False, False, True)
    assert holm([0.04]) == (True,)
    assert holm([0.04, 0.04]) == (False, False)
    assert holm([]) == ()


@given(st.lists(st.floats(0, 1), max_size=20))
def test_holm_lies_between_bonferroni_and_nothing(p_values: list[float]) -> None:
    rejected = holm(p_values)
    for p, found in zip(p_values, rejected, strict=True):
        assert found or p > 0.05 / len(p_values)
        assert not found or p <= 0.05


def check_holm_ends_at_the_first_survivor() -> None:
    # The third would pass its own step, but the second did not.
    assert statistics.holm([0.001, 0.03, 0.04]) == (True, False, False)


def test_a_holm_that_goes_on_is_caught() -> None:
    check_holm_ends_at_the_first_survivor()
    bug = Mutation(
        "goes on",
        "ddtree.records.statistics",
        (
            (
                "            break\n        rejected[place] = True",
                "            continue\n        rejected[place] = True",
            ),
        ),
        (check_holm_ends_at_the_first_survivor,),
    )
    with planted(bug), pytest.raises(AssertionError):
        check_holm_ends_at_the_first_survivor()
