import math
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddtree.bench.narrowing import (
    best_everywhere,
    choose,
    keep,
    predict,
    probe_arms,
    round_seconds,
)
from ddtree.bench.spec import TuningSpec
from ddtree.records.arms import Arm
from ddtree.records.settings import Setting
from ddtree.records.summary import Prediction

AR, CHAIN = Arm("ar"), Arm("chain")
HERE, THERE = Setting(60, 1), Setting(1024, 1)
TUNING = TuningSpec(candidates=4, prompts=2, growth=3, finalists=2, predict=True)
GRID = tuple(Arm("ddtree", b, k, w) for b, k, w in product((4, 8, 16), (2, 4, 8), (64, "full")))
# Round times in which nothing is a multiple of anything else.
TIMES = {("ar", 0): 0.040, ("chain", 0): 0.055, ("ddtree", 4): 0.050, ("ddtree", 16): 0.074}


def tree(budget: int, topk: int = 4, window: object = None) -> Arm:
    return Arm("ddtree", budget, topk, window)  # type: ignore[arg-type]


def foretold(arm: Arm, length: float, seconds: float, setting: Setting = HERE) -> Prediction:
    return Prediction(arm, setting, length, seconds, length * 0.04 / seconds, False, "")


def test_the_probe_runs_each_cost_once() -> None:
    probes = probe_arms((AR, CHAIN, *GRID))
    assert probes == (AR, CHAIN, tree(4, 4, "full"), tree(8, 4, "full"), tree(16, 4, "full"))


def test_round_times_are_interpolated_between_budgets() -> None:
    assert round_seconds(tree(4), TIMES) == 0.050
    assert round_seconds(tree(10), TIMES) == pytest.approx(0.062)
    assert round_seconds(tree(2), TIMES) == 0.050
    assert round_seconds(tree(64), TIMES) == 0.074
    assert round_seconds(CHAIN, {("ar", 0): 0.04}) is None


def test_predicted_speed_is_acceptance_over_cost() -> None:
    acceptance = {CHAIN: 2.0, tree(4): 2.5, tree(16): 3.0}
    found = predict(HERE, acceptance, TIMES)
    assert [p.arm for p in found] == [tree(4), tree(16), CHAIN]
    assert found[0].speedup == pytest.approx(2.5 * 0.040 / 0.050)
    assert found[2].speedup == pytest.approx(2.0 * 0.040 / 0.055)
    assert predict(HERE, acceptance, {("ddtree", 4): 0.05}) == ()


def test_front_first_then_neighbours_then_speed() -> None:
    lengths = {arm: 2 + 0.01 * GRID.index(arm) for arm in GRID}
    lengths[tree(8, 4, 64)] = 3.5
    predictions = predict(HERE, {CHAIN: 1.5, **lengths}, TIMES)
    chosen = [p for p in choose(predictions, 6) if p.chosen and p.arm != CHAIN]
    assert len(chosen) == 6
    best = chosen[0]
    assert best.arm == tree(8, 4, 64)
    assert "Pareto" in best.reason
    near = {p.arm for p in chosen if "next to ddtree(8,4) w=64" in p.reason}
    assert near <= {tree(4, 4, 64), tree(16, 4, 64), tree(8, 2, 64), tree(8, 8, 64)} | {
        tree(8, 4, "full")
    }
    left = [p for p in choose(predictions, 6) if not p.chosen]
    assert {p.reason for p in left} == {"not among the 6 to be tried"}
    assert len(left) == len(GRID) - 6


def test_baselines_always_run() -> None:
    (found,) = choose([foretold(CHAIN, 1.2, 0.06)], 3)
    assert found.chosen
    assert found.reason == "a baseline"


@given(
    st.lists(st.floats(1, 8), min_size=len(GRID), max_size=len(GRID)),
    st.integers(1, 20),
)
def test_the_fastest_is_always_chosen(lengths: list[float], limit: int) -> None:
    predictions = predict(HERE, dict(zip(GRID, lengths, strict=True)), TIMES)
    found = choose(predictions, limit)
    assert found[0].chosen
    assert sum(p.chosen for p in found) == min(limit, len(GRID))
    assert [p.arm for p in found] == [p.arm for p in predictions]


def test_a_rung_keeps_a_share_but_never_less_than_the_finalists() -> None:
    speeds = {tree(n): float(n) for n in range(1, 13)}
    assert keep(speeds, TUNING) == (tree(12), tree(11), tree(10), tree(9))
    few = {tree(n): float(n) for n in range(1, 4)}
    assert keep(few, TUNING) == (tree(3), tree(2))


def test_arms_without_a_ratio_come_last_and_go() -> None:
    speeds = {tree(1): None, tree(2): 1.1, tree(3): None}
    assert keep(speeds, TUNING) == (tree(2),)
    nothing = dict.fromkeys([tree(1), tree(2)])
    assert keep(nothing, TUNING) == (tree(1),)


def test_one_arm_goes_on_whatever_it_did() -> None:
    speeds: dict[Arm, float | None] = {tree(n): float(n) for n in range(1, 7)}
    assert keep(speeds, TUNING, [tree(1)]) == (tree(6), tree(5), tree(1))


def test_ties_keep_the_smaller() -> None:
    assert keep({tree(8): 2.0, tree(4): 2.0, tree(16): 2.0}, TUNING) == (tree(4), tree(8))


def test_the_best_everywhere_is_a_geometric_mean() -> None:
    here = [foretold(tree(4), 4.0, 0.04), foretold(tree(8), 2.6, 0.04)]
    there = [foretold(tree(4), 1.0, 0.04, THERE), foretold(tree(8), 2.0, 0.04, THERE)]
    assert math.sqrt(4.0 * 1.0) < math.sqrt(2.6 * 2.0)
    assert best_everywhere({HERE: here, THERE: there}) == tree(8)
    assert best_everywhere({HERE: here, THERE: there[:1]}) == tree(4)
    assert best_everywhere({HERE: here[:1], THERE: there[1:]}) is None
