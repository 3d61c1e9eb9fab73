from typing import Any

import pytest
import yaml

from ddtree.bench.cells import canonical, dominated, grid_of
from ddtree.bench.spec import BenchSpec
from ddtree.bench.spec_file import parse_spec
from ddtree.records.arms import Arm
from ddtree.records.settings import Setting

AR, CHAIN = Arm("ar"), Arm("chain")


def spec_of(**changes: Any) -> BenchSpec:
    base = {"model": "m", "contexts": [60, 1000], "concurrencies": [1, 4], "max_tokens": 40}
    return parse_spec(yaml.safe_dump(base | changes), "s")


def axes(budget: list[int], topk: list[int], window: list[Any]) -> dict[str, Any]:
    return {"budget": budget, "topk": topk, "draft_window": window}


def test_every_arm_at_every_setting() -> None:
    grid = grid_of(spec_of(axes=axes([4, 8], [2], [None, 64])))
    assert grid.settings == tuple(Setting(c, n) for c in (60, 1000) for n in (1, 4))
    assert {len(arms) for arms in grid.arms.values()} == {6}
    assert all(arms[:2] == (AR, CHAIN) for arms in grid.arms.values())
    assert grid.skips == ()


def test_topk_beyond_the_budget_adds_nothing() -> None:
    grid = grid_of(spec_of(axes=axes([4], [2, 4, 8, 16], [None])))
    for setting, arms in grid.arms.items():
        assert arms == (AR, CHAIN, Arm("ddtree", 4, 2), Arm("ddtree", 4, 4))
        same = [s for s in grid.skips if s.setting == setting]
        assert [s.arm.topk for s in same] == [8, 16]
        assert {s.same_as for s in same} == {Arm("ddtree", 4, 4)}


def test_windows_beyond_the_longest_context_are_the_full_one() -> None:
    spec = spec_of(axes=axes([4], [2], [64, 100, 1040, "full"]))
    grid = grid_of(spec)
    windows = {
        context: [a.draft_window for a in grid.arms[Setting(context, 1)][2:]]
        for context in (60, 1000)
    }
    assert windows == {60: [64, 100], 1000: [64, 100, 1040]}
    (skip,) = [s for s in grid.skips if s.setting == Setting(1000, 1)]
    assert (skip.arm.draft_window, skip.same_as) == ("full", Arm("ddtree", 4, 2, 1040))
    assert "same trees as ddtree(4,2) w=1040" in skip.reason
    # One token less, and the last round's context is longer than the window.
    assert canonical(Arm("ddtree", 4, 2, 1039), spec, Setting(1000, 1)).draft_window == 1039


def test_own_length_prompts_keep_every_window() -> None:
    spec = spec_of(axes=axes([4], [2], [64, 4000, "full"]), contexts=["own"], workload="file:x")
    assert len(grid_of(spec).arms[Setting(0, 1)]) == 5


def test_exclusions_name_cells_by_any_key() -> None:
    exclude = [
        {"budget": [8, 16], "context": 1000, "concurrency": 4},
        {"method": "chain", "context": 60},
    ]
    grid = grid_of(spec_of(axes=axes([4, 8, 16], [2], [None]), exclude=exclude))
    assert [a.label for a in grid.arms[Setting(1000, 4)]] == ["ar", "chain", "ddtree(4,2)"]
    assert len(grid.arms[Setting(1000, 1)]) == 5
    assert CHAIN not in grid.arms[Setting(60, 1)]
    assert {s.reason for s in grid.skips} == {"excluded by the specification"}
    assert len(grid.skips) == 4


def test_cells_that_do_not_fit_into_the_cache() -> None:
    grid = grid_of(spec_of(axes=axes([4, 64], [2], [None]), kv_tokens=4 * (1000 + 40 + 5)))
    assert [a.label for a in grid.arms[Setting(1000, 4)]] == ["ar", "chain", "ddtree(4,2)"]
    (skip,) = grid.skips
    assert skip.reason == "needs 4420 tokens of KV cache, kv_tokens is 4180"


def test_settings_whose_baseline_does_not_fit_are_gone() -> None:
    grid = grid_of(spec_of(kv_tokens=2000))
    assert Setting(1000, 4) not in grid.arms
    assert {s.setting for s in grid.skips} == {Setting(1000, 4)}


@pytest.mark.parametrize(
    ("arm", "setting", "expected"),
    [
        (Arm("ddtree", 16, 4), Setting(1000, 4), True),
        (Arm("ddtree", 32, 2), Setting(4096, 8), True),
        (Arm("ddtree", 8, 4), Setting(4096, 8), False),
        (Arm("ddtree", 16, 4), Setting(60, 8), False),
        (Arm("ddtree", 16, 4), Setting(4096, 1), False),
        (CHAIN, Setting(4096, 8), False),
    ],
)
def test_what_asks_for_no_less_is_dominated(arm: Arm, setting: Setting, expected: bool) -> None:
    assert dominated(arm, setting, (Arm("ddtree", 16, 4), Setting(1000, 4))) is expected
