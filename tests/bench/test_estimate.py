import dataclasses
import json
from typing import Any

import pytest
import yaml

from bench.summaries import AR, CHAIN, cell
from ddtree.bench.cells import grid_of
from ddtree.bench.estimate import Pace, estimate, pace_of, part_seconds
from ddtree.bench.outline import outline
from ddtree.bench.spec import BenchSpec
from ddtree.bench.spec_file import parse_spec
from ddtree.records.arms import Arm
from ddtree.records.settings import Setting
from ddtree.records.summary import CellSummary

PACE = Pace(prefill_tokens_per_s=1000, step_s=0.05, slot_share=0.1, launch_s=30)


def spec_of(**changes: Any) -> BenchSpec:
    base = {"model": "m", "contexts": [100], "concurrencies": [1, 4], "max_tokens": 40}
    return parse_spec(yaml.safe_dump(base | changes), "s")


def test_a_part_is_its_prompts_and_its_steps() -> None:
    spec = spec_of(waves=2)
    assert part_seconds(spec, Setting(100, 1), PACE) == pytest.approx(0.1 + 40 * 0.05)
    # Eight prompts, two waves of four slots, each step 30 % longer.
    assert part_seconds(spec, Setting(100, 4), PACE) == pytest.approx(0.8 + 80 * 0.065)


def test_an_open_loop_lasts_as_long_as_its_arrivals() -> None:
    spec = spec_of(arrivals="constant", rates=[2], concurrencies=[4], waves=2)
    seconds = part_seconds(spec, Setting(100, 4, 0.0, 2.0), PACE)
    assert seconds == pytest.approx(8 / 2 + 40 * 0.065)


def test_counts_of_a_whole_run() -> None:
    spec = spec_of(prompts=5, blocks=3, waves=1, control=True)
    found = estimate(spec, grid_of(spec), PACE, launch_per_arm=False)
    assert (found.cells, found.launches) == (4, 2)
    assert [(s.blocks, s.requests) for s in found.settings] == [(5, 10), (3, 24)]
    assert found.requests == 34
    assert found.seconds > 2 * 30


def test_a_launch_for_each_arm_and_block() -> None:
    spec = spec_of(prompts=5, blocks=3, control=False)
    found = estimate(spec, grid_of(spec), PACE, launch_per_arm=True)
    assert found.launches == 5 * 2


def test_the_pace_of_another_run() -> None:
    def seen(arm: Arm, setting: tuple[int, int], ttft_s: float, tpot_s: float) -> CellSummary:
        return dataclasses.replace(cell(arm, setting=setting), ttft_s=ttft_s, tpot_s=tpot_s)

    cells = [
        seen(AR, (100, 1), 0.5, 0.04),
        seen(AR, (400, 1), 1.0, 0.04),
        seen(AR, (100, 5), 9.0, 0.06),
        seen(CHAIN, (100, 1), 0.01, 0.001),
        dataclasses.replace(seen(AR, (9000, 1), 0.001, 0.001), state="invalid"),
    ]
    pace = pace_of(cells, "runs/x")
    assert pace.prefill_tokens_per_s == pytest.approx((200 + 400) / 2)
    assert pace.step_s == 0.04
    assert pace.slot_share == pytest.approx(0.125)
    assert pace.source == "runs/x"
    nothing = pace_of([], "runs/none")
    assert (nothing.step_s, nothing.prefill_tokens_per_s) == (
        Pace.step_s,
        Pace.prefill_tokens_per_s,
    )


def test_outline_says_what_is_left_out_and_why() -> None:
    axes = {"budget": [4], "topk": [2, 8], "draft_window": [64, 4000, "full"]}
    spec = spec_of(axes=axes, exclude=[{"method": "chain", "concurrency": 4}], kv_tokens=580)
    grid = grid_of(spec)
    found = outline(spec, grid, estimate(spec, grid, PACE, launch_per_arm=False))
    text = found.to_text()
    assert f"{sum(map(len, grid.arms.values()))} cells at 2 settings" in text
    assert f"{len(grid.skips)} cells are left out:" in text
    assert "concurrency 1: same trees as an arm that runs" in text
    assert "excluded by the specification" in text
    assert "needs 580 tokens of KV cache" not in text
    data = json.loads(found.to_json())
    assert data["cells"] == found.estimate.cells
    assert len(data["skips"]) == len(grid.skips)
    assert data["settings"][0]["setting"]["context"] == 100


def test_outline_of_a_budget() -> None:
    axes = {"budget": [4, 8], "topk": [2, 4], "draft_window": [64, "full"]}
    spec = spec_of(axes=axes, budget_minutes=30)
    grid = grid_of(spec)
    found = outline(spec, grid, estimate(spec, grid, PACE, launch_per_arm=False))
    assert found.probe_cells == 2 * 4
    assert "in 30 minutes: probes 8 cells, replays" in found.to_text()
    every = outline(spec_of(axes=axes), grid, found.estimate)
    assert "every cell is measured" in every.to_text()
