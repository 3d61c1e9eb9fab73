from pathlib import Path
from typing import Any

import pytest
import yaml

from ddtree.bench.cells import grid_of
from ddtree.bench.spec import differences
from ddtree.bench.spec_file import load_spec, parse_spec, preset, preset_names
from ddtree.errors import ConfigError
from ddtree.records.arms import Arm
from ddtree.records.sampling import Sampling
from ddtree.records.settings import Setting

MINIMAL: dict[str, Any] = {"model": "m", "contexts": [60], "concurrencies": [1, 4]}


def parse(**changes: Any) -> Any:
    return parse_spec(yaml.safe_dump(MINIMAL | changes), "s.yaml")


def test_ar_and_chain_are_always_there_and_first() -> None:
    assert parse().arms == (Arm("ar"), Arm("chain"))
    listed = parse(arms=[{"method": "ddtree", "budget": 8, "topk": 4}, {"method": "ar"}]).arms
    assert listed == (Arm("ar"), Arm("chain"), Arm("ddtree", 8, 4))


def test_axes_are_a_product_and_join_the_list() -> None:
    axes = {"budget": [4, 8], "topk": [2], "draft_window": [None, 64, "full"]}
    arms = parse(arms=[{"method": "ddtree", "budget": 8, "topk": 2}], axes=axes).arms
    assert len(arms) == len(set(arms)) == 2 + 6
    assert Arm("ddtree", 8, 2, "full") in arms
    assert Arm("ddtree", 4, 2, 64) in arms


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"promts": 3}, r"s\.yaml: promts: unknown key; known are title, model"),
        ({"deadlines": {"first": 3}}, r"deadlines\.first: unknown key; known are first_token_s"),
        ({"arms": [{"method": "ar", "k": 1}]}, r"arms\.0\.k: unknown key; known are method"),
        ({"contexts": []}, r"contexts: List should have at least 1"),
        ({"contexts": [60, 60]}, r"contexts: \[60, 60\] holds a value twice"),
        ({"prompts": 0}, r"prompts: .*greater than or equal to 1, got 0"),
        ({"waves": 0}, r"waves: .*got 0"),
        ({"dtype": "float16"}, r"dtype: .*'float32' or 'bfloat16'.*'float16'"),
        ({"arms": [{"method": "ddtree", "budget": 4}]}, r"arms: topk: ddtree needs"),
        ({"arms": [{"method": "chain", "budget": 4}]}, r"arms: budget and topk belong to ddtree"),
        ({"max_tokens": 1}, r"max_tokens: "),
        ({"temperatures": []}, r"temperatures: List should have at least 1"),
        ({"temperatures": [0, 0.0]}, r"temperatures: \[0\.0, 0\.0\] holds a value twice"),
        ({"temperatures": [-0.1]}, r"temperatures\.0: .*greater than or equal to 0, got -0\.1"),
        ({"temperatures": [float("inf")]}, r"temperatures\.0: .*finite"),
        ({"temperatures": [float("nan")]}, r"temperatures\.0: "),
        ({"temperatures": [1], "top_p": 0}, r"s\.yaml: top_p: got 0\.0, expected a .* above 0"),
        ({"temperatures": [1], "top_k": -2}, r"s\.yaml: top_k: got -2, expected .* at least -1"),
        ({"temperatures": [1], "min_p": 1.5}, r"s\.yaml: min_p: got 1\.5, .* at most 1"),
        ({"top_p": 0.9}, r"s\.yaml: top_p: has no effect while all temperatures are 0"),
        ({"temperatures": [0], "top_k": 5}, r"s\.yaml: top_k: has no effect"),
        ({"min_p": 0.1}, r"s\.yaml: min_p: has no effect"),
        ({"rates": [1]}, r"rates: a closed loop has none"),
        ({"arrivals": "poisson"}, r"rates: missing; arrivals poisson needs requests per second"),
        ({"arrivals": "constant", "rates": [0]}, r"rates\.0: .*greater than 0, got 0"),
        ({"arrivals": "constant", "rates": [2, 2.0]}, r"rates: \[2\.0, 2\.0\] holds a value twice"),
        ({"arrivals": "bursts"}, r"arrivals: .*'closed', 'poisson' or 'constant', got 'bursts'"),
        ({"workload": "tex"}, r"workload: got 'tex', expected one of code, humaneval, .*file:PATH"),
        ({"contexts": ["own"]}, r"contexts: own needs a file of prompts, the workload is code"),
        ({"exclude": [{}]}, r"exclude\.0: empty"),
        ({"exclude": [{"window": 3}]}, r"exclude\.0\.window: unknown key; known are method"),
        ({"exclude": [{"context": 60}]}, r"exclude: leaves out ar, the baseline"),
        ({"chat": {"before": "a"}}, r"chat\.after: missing"),
        ({"tuning": {"growth": 1}}, r"tuning\.growth: .*greater than or equal to 2"),
        ({"tuning": {"arms": 1}}, r"tuning\.arms: unknown key; known are candidates, prompts"),
        ({"budget_minutes": 0}, r"budget_minutes: .*greater than 0"),
    ],
)
def test_what_cannot_be_used_is_named(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse(**changes)


@pytest.mark.parametrize(
    ("text", "message"), [("a: [", "not YAML"), ("- 1", "expected keys"), ("model: m", "missing")]
)
def test_not_a_spec(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse_spec(text, "s.yaml")


def test_missing_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="can't be read"):
        load_spec(tmp_path / "none.yaml")


def test_resolved_yaml_gives_the_same_spec_and_hash(tmp_path: Path) -> None:
    axes = {"budget": [4, 8], "topk": [2], "draft_window": [None, "full"]}
    spec = parse(axes=axes, warmup_context=30, temperatures=[0, 0.7], top_k=5)
    path = tmp_path / "spec.yaml"
    path.write_text(spec.to_yaml())
    assert load_spec(path) == spec
    assert load_spec(path).hash == spec.hash


def test_every_setting_changes_the_hash_and_is_named() -> None:
    sampled = {"temperatures": [0, 1], "arrivals": "poisson", "rates": [2.0]}
    spec = parse(**sampled)
    changes: dict[str, Any] = {
        "title": "x",
        "model": "x",
        "drafter": "x",
        "dtype": "float32",
        "arms": [{"method": "ddtree", "budget": 1, "topk": 1}],
        "contexts": [61],
        "concurrencies": [2],
        "temperatures": [0.7],
        "top_p": 0.9,
        "top_k": 9,
        "min_p": 0.1,
        "prompts": 9,
        "blocks": 9,
        "waves": 3,
        "max_tokens": 65,
        "endpoint": {"kind": "openai", "url": "http://x:1"},
        "exclude": [{"method": "chain"}],
        "arrivals": "constant",
        "rates": [3.0],
        "workload": "document",
        "chat": {"before": "a", "after": "b"},
        "reuse_prompts": True,
        "lead_in": True,
        "budget_minutes": 9,
        "tuning": {"finalists": 9},
        "sentinel_every": 9,
        "kv_tokens": 10_000,
        "warmup_context": 9,
        "warmup_tokens": 9,
        "calibration_tokens": 9,
        "deadlines": {"silence_s": 9},
        "control": False,
        "control_outputs": 9,
        "ignore_eos": True,
        "seed": 9,
    }
    assert set(changes) == set(spec.to_dict())
    for name, value in changes.items():
        other = parse(**(sampled | {name: value}))
        assert other.hash != spec.hash
        (difference,) = differences(spec, other)
        assert difference.startswith(f"{name}: ")


@pytest.mark.parametrize(
    ("concurrency", "prompts", "blocks", "waves", "size", "count"),
    [
        (1, 5, 3, 1, 1, 5),
        (1, 2, 3, 2, 1, 3),
        (4, 5, 1, 1, 4, 2),
        (4, 8, 3, 2, 8, 3),
        (4, 17, 1, 2, 8, 3),
        (4, 17, 1, 5, 20, 1),
    ],
)
def test_block_sizes(
    concurrency: int, prompts: int, blocks: int, waves: int, size: int, count: int
) -> None:
    spec = parse(prompts=prompts, blocks=blocks, waves=waves)
    assert spec.block_prompts(concurrency) == size
    assert spec.block_count(concurrency) == count


def test_filters_belong_to_temperatures_above_zero() -> None:
    spec = parse(temperatures=[0, 0.7], top_p=0.9, top_k=5, min_p=0.1)
    assert spec.temperatures == (0.0, 0.7)
    assert spec.sampling(0.0) == Sampling()
    assert spec.sampling(0.7) == Sampling(0.7, top_p=0.9, top_k=5, min_p=0.1)
    assert parse().temperatures == (0.0,)


def test_demo_preset() -> None:
    demo = preset("demo")
    assert [arm.label for arm in demo.arms] == [
        "ar",
        "chain",
        *(f"ddtree({b},{k})" for b, k in [(4, 4), (8, 4), (16, 4), (16, 8), (32, 8)]),
    ]
    assert demo.contexts == (60, 1024)
    assert demo.concurrencies == (1, 4)
    assert {demo.block_count(c) for c in demo.concurrencies} == {3}
    assert demo.control
    assert not demo.ignore_eos


def test_settings_in_the_order_they_run() -> None:
    spec = parse(temperatures=[0, 1], arrivals="poisson", rates=[2, 5], concurrencies=[4])
    assert spec.settings == (
        Setting(60, 4, 0.0, 2.0),
        Setting(60, 4, 0.0, 5.0),
        Setting(60, 4, 1.0, 2.0),
        Setting(60, 4, 1.0, 5.0),
    )
    assert parse().settings == (Setting(60, 1), Setting(60, 4))


def test_own_length_is_written_as_it_was_read() -> None:
    spec = parse(contexts=["own", 60], workload="file:mine.jsonl")
    assert spec.contexts == (0, 60)
    assert parse_spec(spec.to_yaml(), "s") == spec


@pytest.mark.parametrize("name", preset_names())
def test_presets_plan_something_and_fit_their_own_words(name: str) -> None:
    spec = preset(name)
    grid = grid_of(spec)
    assert set(grid.arms) == set(spec.settings)
    assert parse_spec(spec.to_yaml(), "s") == spec


def test_presets_shipped() -> None:
    assert {"demo", "quick", "night", "kimi-k2.6"} == set(preset_names())


def test_two_waves_unless_asked_otherwise() -> None:
    assert parse().block_prompts(4) == 8
    assert parse(waves=5).block_prompts(4) == 20
    assert parse().block_prompts(1) == 1


def test_calibration_is_short_for_one_slot_only() -> None:
    spec = parse(calibration_tokens=8, max_tokens=48)
    assert (spec.calibration_length(1), spec.calibration_length(2)) == (8, 48)
    assert parse(calibration_tokens=64, max_tokens=48).calibration_length(2) == 64


def test_unknown_preset_lists_the_known() -> None:
    with pytest.raises(ConfigError, match=f"there are {', '.join(preset_names())}"):
        preset("nope")
