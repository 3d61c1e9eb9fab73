"""Statistics against published values, enumeration and simulation; and planted bugs."""

import functools
import itertools
import math

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ddtree.errors import ConfigError
from ddtree.evals import statistics as stats
from ddtree.records.summary import Interval
from mutations.planting import Mutation, planted

# Newcombe 1998, table I, method 3; the last is 85 % of HumanEval.
WILSON = (
    (81, 263, 0.2553, 0.3662),
    (15, 148, 0.0624, 0.1605),
    (0, 20, 0.0000, 0.1611),
    (1, 29, 0.0061, 0.1718),
    (139, 164, 0.785, 0.895),
)
COUNTS = st.tuples(st.integers(0, 12), st.integers(0, 12))


def check_wilson() -> None:
    for passed, total, low, high in WILSON:
        interval = stats.wilson(passed, total)
        assert interval.low == pytest.approx(low, abs=6e-4)
        assert interval.high == pytest.approx(high, abs=6e-4)


def check_mcnemar() -> None:
    """6 : 0 is the smallest pattern of losses alone that is significant."""
    assert stats.mcnemar(6, 0) == 0.03125
    assert stats.mcnemar(5, 0) == 0.0625
    assert stats.mcnemar(0, 0) == stats.mcnemar(3, 3) == 1
    for b, c in itertools.product(range(5), range(5)):
        tossed = [sum(coins) for coins in itertools.product((0, 1), repeat=b + c)]
        as_far = sum(abs(2 * heads - b - c) >= abs(b - c) for heads in tossed)
        assert stats.mcnemar(b, c) == pytest.approx(as_far / len(tossed))


def check_pass_at_k() -> None:
    for n in range(1, 7):
        for c, k in itertools.product(range(n + 1), range(1, n + 1)):
            draws = list(itertools.combinations([True] * c + [False] * (n - c), k))
            share = sum(any(draw) for draw in draws) / len(draws)
            assert stats.pass_at_k(n, c, k) == pytest.approx(share)


def check_mean_pass_at() -> None:
    assert stats.mean_pass_at([(2, 1), (4, 4)], 2) == 1.0
    assert stats.mean_pass_at([(2, 1), (4, 2)], 1) == 0.5
    assert stats.mean_pass_at([(2, 1), (1, 1)], 2) is None
    assert stats.mean_pass_at([], 1) is None


def check_no_discordant_tasks() -> None:
    for n, points in ((164, 1.8), (300, 1.0), (164 + 378, 0.55), (1140, 0.26)):
        bound = stats.excluded_loss(0, 0, n)
        assert bound == pytest.approx(1 - 0.05 ** (1 / n), rel=1e-4)
        assert 100 * bound == pytest.approx(points, abs=0.05)


def check_exact_test_agrees() -> None:
    for b, c in itertools.product(range(9), range(14)):
        tail = sum(math.comb(b + c, i) for i in range(b + 1)) / 2 ** (b + c)
        assert (stats.excluded_loss(b, c, 40) < 0) == (tail <= 0.05), (b, c)


def check_against_draws() -> None:
    """The slow twin: the same confidence distribution, by drawing from it."""
    rng = np.random.default_rng(5)
    for b, c, n in ((3, 1, 164), (1, 3, 164), (0, 8, 164), (10, 12, 300), (9, 0, 20), (2, 3, 5)):
        lean = 2 * rng.beta(b + 1, c, 400_000) - 1 if c else np.ones(400_000)
        d = b + c
        least = rng.beta(d, n - d + 1, 400_000)
        most = rng.beta(d + 1, n - d, 400_000) if d < n else np.ones(400_000)
        bound = float(np.quantile(np.where(lean < 0, lean * least, lean * most), 0.95))
        assert stats.excluded_loss(b, c, n) == pytest.approx(bound, abs=0.002 + 0.01 * abs(bound))


def check_cluster_interval() -> None:
    """Samples of one task that agree are one piece of evidence, not ten."""
    per_task = [1.0] * 30 + [0.0] * 10
    found, single = stats.cluster_interval(per_task, seed=1), stats.wilson(30, 40)
    assert found.high - found.low == pytest.approx(single.high - single.low, rel=0.15)
    assert stats.cluster_interval([1.0] * 40, seed=1) == stats.wilson(40, 40)
    assert stats.cluster_interval([0.5, 1.0], seed=1) == stats.wilson(1.5, 2)
    assert found == stats.cluster_interval(per_task, seed=1)
    uneven = [n % 7 / 6 for n in range(40)]
    assert stats.cluster_interval(uneven, seed=1) != stats.cluster_interval(uneven, seed=2)


def check_paired_difference() -> None:
    baseline, arm = [1.0] * 40, [1.0] * 36 + [0.0] * 4
    value, interval = stats.paired_difference(baseline, arm, seed=3)
    assert value == pytest.approx(-0.1)
    assert interval is not None
    assert -0.25 < interval.low < -0.1 < interval.high < 0
    assert stats.paired_difference(arm, arm, seed=3) == (0.0, None)
    assert stats.paired_difference([0.0, 1.0], [1.0, 1.0], seed=3) == (0.5, None)


CHECKS = (
    check_wilson,
    check_mcnemar,
    check_pass_at_k,
    check_mean_pass_at,
    check_no_discordant_tasks,
    check_exact_test_agrees,
    check_against_draws,
    check_cluster_interval,
    check_paired_difference,
)


@pytest.mark.parametrize("check", CHECKS)
def test_on_the_code_as_it_is(check) -> None:
    check()


@functools.cache
def bound_of(b: int, c: int, n: int) -> float:
    return stats.excluded_loss(b, c, n)


def coverage(p_b: float, p_c: float, n: int) -> float:
    """Probability that the bound is not below the loss, over all tables of n tasks."""
    share = 0.0
    for b in range(n + 1):
        for c in range(n + 1 - b):
            ways = math.comb(n, b) * math.comb(n - b, c)
            chance = ways * p_b**b * p_c**c * (1 - p_b - p_c) ** (n - b - c)
            if bound_of(b, c, n) >= p_b - p_c:
                share += chance
    return share


@pytest.mark.parametrize(
    ("p_b", "p_c"),
    [(0.02, 0.0), (0.1, 0.0), (0.1, 0.1), (0.25, 0.2), (0.05, 0.3), (0.4, 0.1), (0.8, 0.1)],
)
def test_the_bound_covers(p_b: float, p_c: float) -> None:
    assert coverage(p_b, p_c, 16) >= 0.95 - 1e-6


def test_the_bound_is_not_idle() -> None:
    """As many losses as gains: the bound is far below what the losses alone would say."""
    losses_alone = stats.excluded_loss(10, 0, 164)
    assert stats.excluded_loss(10, 10, 164) < 0.75 * losses_alone


@given(COUNTS, st.integers(0, 200))
@example((0, 0), 0)
def test_more_losses_exclude_less(counts: tuple[int, int], rest: int) -> None:
    b, c = counts
    bound = stats.excluded_loss(b, c, b + c + rest + 1)
    assert -1 <= bound <= 1
    assert stats.excluded_loss(b + 1, c, b + c + rest + 1) > bound
    assert bound >= (b - c) / (b + c + rest + 1) - 1e-9


def test_task_level_intervals_cover() -> None:
    rng = np.random.default_rng(11)
    hits = 0
    for seed in range(120):
        rates = rng.beta(0.6, 0.4, 50)
        interval = stats.cluster_interval((rng.binomial(4, rates) / 4).tolist(), seed)
        hits += interval.low <= 0.6 <= interval.high
    # 95 % of 120 is 114; fewer than 105 has odds of 1 in 4,000.
    assert hits >= 105


@given(st.integers(0, 60), st.integers(0, 60))
def test_wilson_holds_the_share(passed: int, more: int) -> None:
    interval = stats.wilson(passed, passed + more)
    assert 0 <= interval.low <= interval.high <= 1
    if passed + more:
        assert interval.low <= passed / (passed + more) <= interval.high


@given(st.lists(st.tuples(st.floats(0, 1), st.floats(0, 1)), min_size=1, max_size=8))
def test_swapping_the_arms_turns_the_sign(pairs: list[tuple[float, float]]) -> None:
    baseline, arm = [a for a, _ in pairs], [b for _, b in pairs]
    there, _ = stats.paired_difference(baseline, arm, 0)
    back, _ = stats.paired_difference(arm, baseline, 0)
    assert there == pytest.approx(-back)


def test_what_can_not_be_counted_is_refused() -> None:
    assert stats.wilson(0, 0) == Interval(0.0, 1.0)
    assert stats.excluded_loss(0, 0, 0) == 1.0
    with pytest.raises(ConfigError, match="expected 0 to 3, got 4"):
        stats.wilson(4, 3)
    with pytest.raises(ConfigError, match="k=3"):
        stats.pass_at_k(2, 1, 3)
    with pytest.raises(ConfigError, match="b=2, c=2, n=3"):
        stats.excluded_loss(2, 2, 3)
    with pytest.raises(ConfigError, match="1 tasks against 2"):
        stats.paired_difference([0.0, 1.0], [1.0], 0)


MODULE = "ddtree.evals.statistics"
MUTATIONS = (
    Mutation(
        "Wald's interval in place of Wilson's",
        MODULE,
        (("centre = share + z * z / (2 * total)", "centre = share"),),
        (check_wilson,),
    ),
    Mutation("a one-sided test", MODULE, (("2 * tail /", "tail /"),), (check_mcnemar,)),
    Mutation(
        "samples drawn with replacement",
        MODULE,
        (("1 - math.comb(n - c, k) / math.comb(n, k)", "1 - (1 - c / n) ** k"),),
        (check_pass_at_k,),
    ),
    Mutation(
        "tasks with few samples left out",
        MODULE,
        (
            ("if not counts or any(n < k for n, _ in counts):", "if not counts:"),
            (
                "return math.fsum(pass_at_k(n, c, k) for n, c in counts) / len(counts)",
                "return math.fsum(pass_at_k(n, c, k) for n, c in counts if n >= k) / len(counts)",
            ),
        ),
        (check_mean_pass_at,),
    ),
    Mutation(
        "losses and gains swapped",
        MODULE,
        (("lean = _beta(b + 1, c)", "lean = _beta(c + 1, b)"),),
        (check_exact_test_agrees, check_against_draws),
        harmless_to=check_no_discordant_tasks,
    ),
    Mutation(
        "the lower confidence distribution of the lean",
        MODULE,
        (("lean = _beta(b + 1, c)", "lean = _beta(b, c + 1)"),),
        (check_no_discordant_tasks, check_exact_test_agrees),
    ),
    Mutation(
        "the lower distribution of the rate of discordant tasks",
        MODULE,
        (("_beta(discordant + 1, n - discordant), ", "_beta(discordant, n - discordant + 1), "),),
        (check_no_discordant_tasks, check_against_draws),
    ),
    Mutation(
        "a two-sided level",
        MODULE,
        ((">= level else", ">= (1 + level) / 2 else"),),
        (check_no_discordant_tasks, check_against_draws),
    ),
    Mutation(
        "no spread shown as certainty",
        MODULE,
        (("if interval is None or len(set(per_task)) == 1:", "if interval is None:"),),
        (check_cluster_interval,),
    ),
    Mutation(
        "the wrong arm subtracted",
        MODULE,
        (("[a - b for a, b in", "[b - a for a, b in"),),
        (check_paired_difference,),
    ),
)


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.name)
def test_planted_bugs_are_caught(mutation: Mutation) -> None:
    with planted(mutation):
        for check in mutation.caught_by:
            with pytest.raises(AssertionError):
                check()
        if mutation.harmless_to is not None:
            mutation.harmless_to()
