"""Drafter configurations: what is read, and that every wrong key is named."""

import copy
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ddtree.errors import ConfigError, ModelError
from ddtree.models.drafter_config import (
    DrafterConfig,
    check_against_target,
    load_drafter_config,
    parse_drafter_config,
)
from ddtree.models.drafter_window import DrafterOverrides
from ddtree.models.zoo import ZOO, shipped_drafter

# The shape of z-lab's first checkpoints: transformers-4 rotary fields, full attention.
BASE: dict[str, Any] = {
    "architectures": ["DFlashDraftModel"],
    "model_type": "qwen3",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "vocab_size": 100,
    "rms_norm_eps": 1e-6,
    "hidden_act": "silu",
    "attention_bias": False,
    "max_position_embeddings": 4096,
    "rope_theta": 1000000,
    "rope_scaling": None,
    "block_size": 16,
    "num_target_layers": 36,
    "dflash_config": {"mask_token_id": 99, "target_layer_ids": [1, 9, 17, 25, 33]},
}
YARN = {
    "rope_type": "yarn",
    "factor": 64,
    "original_max_position_embeddings": 4096,
    "beta_fast": 32,
    "beta_slow": 1,
    "mscale": 1.0,
    "mscale_all_dim": 1.0,
}
ABSENT = object()


def fields(nested: dict[str, Any] | None = None, **changes: Any) -> dict[str, Any]:
    """BASE with changes; ABSENT removes a key."""
    result = copy.deepcopy(BASE)
    result.update(changes)
    result["dflash_config"].update(nested or {})
    for place in (result, result["dflash_config"]):
        for key in [key for key, value in place.items() if value is ABSENT]:
            del place[key]
    return result


def parse(nested: dict[str, Any] | None = None, **changes: Any) -> DrafterConfig:
    return parse_drafter_config(fields(nested, **changes))


def test_reads_full_attention_checkpoint() -> None:
    assert parse() == DrafterConfig(
        hidden_size=64,
        intermediate_size=128,
        num_layers=3,
        num_heads=4,
        num_kv_heads=2,
        head_dim=16,
        vocab_size=100,
        rms_norm_eps=1e-6,
        attention_bias=False,
        rope_theta=1e6,
        rope_scaling=None,
        max_positions=4096,
        block_size=16,
        mask_token_id=99,
        target_layer_ids=(1, 9, 17, 25, 33),
        num_target_layers=36,
        causal=False,
        window=None,
        window_kind="anchored",
        layer_windows=(None, None, None),
        causal_origin="layer types",
        window_kind_origin="layer types",
    )


def test_reads_shipped_drafter() -> None:
    config = load_drafter_config(shipped_drafter(ZOO["smollm2-135m"]))
    assert (config.block_size, config.mask_token_id) == (8, 16)
    assert config.target_layer_ids == (1, 8, 14, 20, 27)
    assert (config.causal, config.window, config.window_kind) == (False, 1024, "anchored")
    assert config.layer_windows == (1024,) * 4
    assert (config.causal_origin, config.window_kind_origin) == ("explicit key", "explicit key")


@pytest.mark.parametrize(
    "key", ["block_size", "num_target_layers", "mask_token_id", "target_layer_ids"]
)
def test_keys_may_sit_in_either_place(key: str) -> None:
    value = {**BASE, **BASE["dflash_config"]}[key]
    at_top = parse({key: ABSENT}, **{key: value})
    nested = parse({key: value}, **{key: ABSENT})
    both = parse({key: value}, **{key: value})
    assert at_top == nested == both == parse()


REQUIRED = [
    *("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads"),
    *("num_key_value_heads", "head_dim", "vocab_size", "rms_norm_eps"),
    *("max_position_embeddings", "rope_theta", "block_size", "num_target_layers"),
    *("mask_token_id", "target_layer_ids"),
]


@pytest.mark.parametrize("key", REQUIRED)
def test_missing_key_is_named(key: str) -> None:
    with pytest.raises(ModelError, match=rf"{key} is missing"):
        parse({key: ABSENT}, **{key: ABSENT})


FRACTIONS = ("rms_norm_eps", "rope_theta")
WRONG = [
    (key, value)
    for key in REQUIRED
    for value in ("many", True, [], -1, 1.5, float("nan"))
    if not (value == 1.5 and key in FRACTIONS)
]


@pytest.mark.parametrize(("key", "value"), WRONG)
def test_wrong_type_or_range_is_named(key: str, value: object) -> None:
    with pytest.raises(ModelError, match=rf"config\.json: {key}: got"):
        parse({key: ABSENT}, **{key: value})


@pytest.mark.parametrize(
    ("nested", "changes", "key"),
    [
        ({"block_size": 8}, {}, "block_size"),
        ({}, {"mask_token_id": 98}, "mask_token_id"),
        ({}, {"target_layer_ids": [1, 2]}, "target_layer_ids"),
        ({"num_target_layers": 30}, {}, "num_target_layers"),
        ({"causal": True}, {"is_causal": False}, "is_causal"),
        ({"hidden_size": 32}, {}, "hidden_size"),
        ({"sliding_window": 8}, {"sliding_window": 16}, "sliding_window"),
        ({"swa_window_size": 8}, {"sliding_window": 16}, "sliding_window"),
    ],
)
def test_contradiction_between_places_is_named(
    nested: dict[str, Any], changes: dict[str, Any], key: str
) -> None:
    with pytest.raises(ModelError, match=rf"{key} is .* but .* is "):
        parse(nested, **changes)


@pytest.mark.parametrize(
    ("nested", "changes", "message"),
    [
        ({"mask_token_id": 100}, {}, "mask_token_id: got 100, expected an id below vocab_size"),
        ({"target_layer_ids": [1, 36]}, {}, "target_layer_ids: .*from 0 to 35"),
        ({"target_layer_ids": [1, 9, 9]}, {}, "target_layer_ids: .*once"),
        ({}, {"num_target_layers": 30}, "target_layer_ids: .*from 0 to 29"),
        ({}, {"block_size": 1}, "block_size: got 1, expected an integer >= 2"),
        ({}, {"hidden_act": "gelu"}, "hidden_act: got 'gelu'"),
        ({}, {"num_key_value_heads": 3}, "num_key_value_heads: got 3, expected a divisor"),
        ({}, {"head_dim": 15}, "head_dim: got 15"),
        ({}, {"attention_bias": "no"}, "attention_bias: got 'no'"),
        ({}, {"architectures": ["DFlash2DraftModel"]}, "architectures: got"),
        ({"selector_rank": 256}, {}, "selector_rank: got 256"),
        ({"projector_type": "domino"}, {}, "projector_type: got 'domino'"),
        ({"attention_mode": "mla"}, {}, "attention_mode: got 'mla'"),
        ({}, {"final_logit_softcapping": 30.0}, "final_logit_softcapping: got 30.0"),
        ({}, {"dflash_config": [1]}, "dflash_config: got"),
    ],
)
def test_unusable_values_are_named(
    nested: dict[str, Any], changes: dict[str, Any], message: str
) -> None:
    broken = copy.deepcopy(BASE)
    broken["dflash_config"].update(nested)
    broken.update(changes)
    with pytest.raises(ModelError, match=message):
        parse_drafter_config(broken)


def sliding(count: int, total: int = 3) -> list[str]:
    return ["sliding_attention"] * count + ["full_attention"] * (total - count)


def test_layer_types_decide_only_where_explicit_keys_are_absent() -> None:
    windows = {"layer_types": sliding(3), "sliding_window": 128}
    legacy = parse(**windows)
    assert (legacy.causal, legacy.window, legacy.window_kind) == (True, 128, "per-query")
    assert parse(is_causal=False, **windows).causal is False
    assert parse({"causal": False}, **windows).causal is False
    assert parse({"window": "anchored"}, **windows).window_kind == "anchored"
    assert parse({"window": "per-query"}, **windows).window_kind == "per-query"
    assert parse(is_causal=True).causal is True


def meaning(overrides: DrafterOverrides | None, nested: Any = None, **changes: Any) -> tuple:
    config = parse_drafter_config(fields(nested, **changes), overrides=overrides)
    return config.window_kind, config.window_kind_origin, config.causal, config.causal_origin


def test_each_meaning_says_what_decided_it() -> None:
    windows = {"layer_types": sliding(3), "sliding_window": 128}
    types, key, override = "layer types", "explicit key", "override"
    assert meaning(None, **windows) == ("per-query", types, True, types)
    assert meaning(None) == ("anchored", types, False, types)
    assert meaning(None, {"window": "anchored", "causal": False}, **windows) == (
        *("anchored", key),
        *(False, key),
    )
    both = DrafterOverrides("anchored", causal=False)
    assert meaning(both, **windows) == ("anchored", override, False, override)
    assert meaning(DrafterOverrides("per-query")) == ("per-query", override, False, types)
    assert meaning(DrafterOverrides(causal=True)) == ("anchored", types, True, override)
    against = DrafterOverrides("per-query", causal=True)
    assert meaning(against, {"window": "anchored"}, is_causal=False, **windows) == (
        *("per-query", override),
        *(True, override),
    )


def test_override_settles_what_mixed_layers_leave_open() -> None:
    windows = {"layer_types": sliding(2), "sliding_window": 128}
    assert meaning(DrafterOverrides(causal=False), **windows) == (
        *("per-query", "layer types"),
        *(False, "override"),
    )


def test_unknown_override_is_refused() -> None:
    with pytest.raises(ConfigError, match="window_kind: got 'sliding', expected anchored or per-q"):
        DrafterOverrides("sliding")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="draft_causal: got 'yes'"):
        DrafterOverrides(causal="yes")  # type: ignore[arg-type]


def test_layers_of_one_type_take_the_draft_window() -> None:
    windows = {"is_causal": False, "sliding_window": 128}
    alike = parse(layer_types=sliding(3), **windows)
    mixed = parse(layer_types=sliding(2), **windows)
    assert [alike.own_window(layer) for layer in range(3)] == [None] * 3
    assert [mixed.own_window(layer) for layer in range(3)] == [128, 128, None]


@pytest.mark.parametrize("overrides", [None, DrafterOverrides("per-query")])
def test_per_query_window_inside_the_block_is_named(overrides: DrafterOverrides | None) -> None:
    windows = {"layer_types": sliding(3), "sliding_window": 15}
    kinds = {} if overrides is None else {"window": "anchored"}
    with pytest.raises(ModelError, match=r"sliding_window: got 15, .* block_size \(16\)"):
        meaning(overrides, kinds, **windows)
    assert parse({"window": "anchored"}, **windows).window == 15
    assert parse(**{**windows, "sliding_window": 16}).window == 16


@pytest.mark.parametrize(
    ("wanted", "max_context", "anchored", "per_query"),
    [
        (None, 8192, (128, 128), (128, 128)),
        (None, 100, (100, 100), (116, 100)),
        (2048, 8192, (2048, 2048), (2048, 2048)),
        (4096, 8192, (4096, 4096), (4096, 4096)),
        ("full", 1000, (1000, 1000), (1016, 1000)),
        ("full", 8192, (4096, 4096), (4112, 4096)),
    ],
)
def test_draft_window_is_resolved(
    wanted: Any, max_context: int, anchored: tuple, per_query: tuple
) -> None:
    """(tokens of the window, tokens kept) under both kinds; the drafter ends at 4,096, and no
    window reaches further than a block past the context."""
    windows = {"layer_types": sliding(3), "sliding_window": 128}
    for kind, expected in (("anchored", anchored), ("per-query", per_query)):
        found = parse({"window": kind}, **windows).resolve_window(wanted, max_context)
        assert (found.tokens, found.ring) == expected


def test_draft_window_beyond_the_drafter_is_refused() -> None:
    config = parse()
    with pytest.raises(ConfigError, match="draft_window: got 4097, the drafter's own"):
        config.resolve_window(4097, 8192)
    assert config.check_window(4096) is None


def test_mixed_layers_have_no_common_window() -> None:
    config = parse(is_causal=False, layer_types=sliding(2), sliding_window=128)
    assert config.layer_windows == (128, 128, None)
    assert config.window is None
    assert config.window_kind == "per-query"
    with pytest.raises(ModelError, match="is_causal is missing and layer_types mixes"):
        parse(layer_types=sliding(2), sliding_window=128)


def test_without_layer_types_depth_decides_which_layers_slide() -> None:
    changes = {"use_sliding_window": True, "sliding_window": 128, "is_causal": False}
    assert parse(max_window_layers=1, **changes).layer_windows == (None, 128, 128)
    assert parse(max_window_layers=3, **changes).layer_windows == (None,) * 3
    assert parse(sliding_window=128).layer_windows == (None,) * 3
    with pytest.raises(ModelError, match="max_window_layers is missing"):
        parse(**changes)


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"layer_types": sliding(3)}, "sliding_window"),
        ({"layer_types": sliding(3), "sliding_window": 0}, "sliding_window"),
        ({"layer_types": sliding(2, 4), "sliding_window": 8}, "layer_types"),
        ({"layer_types": ["linear_attention"] * 3}, "layer_types"),
        ({"layer_types": "full_attention"}, "layer_types"),
        (
            {"layer_types": sliding(3), "sliding_window": 8, "use_sliding_window": False},
            "use_sliding_window",
        ),
        ({"use_sliding_window": "yes"}, "use_sliding_window"),
        ({"window": 128}, "window"),
        ({"is_causal": 0}, "is_causal"),
    ],
)
def test_unusable_windows_are_named(changes: dict[str, Any], key: str) -> None:
    with pytest.raises(ModelError, match=rf"config\.json: {key}: got"):
        parse(**changes)


@pytest.mark.parametrize(
    "changes",
    [
        {"rope_scaling": YARN},
        {"rope_scaling": {"type": "yarn", **{k: v for k, v in YARN.items() if k != "rope_type"}}},
        {"rope_theta": ABSENT, "rope_parameters": {**YARN, "rope_theta": 1e6}},
        {
            "rope_theta": ABSENT,
            "rope_parameters": {
                "full_attention": {**YARN, "rope_theta": 1e6},
                "sliding_attention": {**YARN, "rope_theta": 1e6},
            },
        },
        {"rope_scaling": YARN, "rope_parameters": {**YARN, "rope_theta": 1e6}},
    ],
)
def test_rope_forms_of_both_generations_agree(changes: dict[str, Any]) -> None:
    config = parse(**changes)
    assert config.rope_theta == 1e6
    assert config.rope_scaling == {**YARN, "factor": 64.0, "beta_fast": 32.0, "beta_slow": 1.0}


def test_plain_rope_has_no_scaling() -> None:
    modern = {"rope_type": "default", "rope_theta": 5e4, "partial_rotary_factor": 1.0}
    config = parse(rope_theta=ABSENT, rope_parameters=modern)
    assert (config.rope_theta, config.rope_scaling) == (5e4, None)
    assert parse(rope_scaling={"rope_type": "default"}).rope_scaling is None


def test_linear_and_llama3_are_read() -> None:
    linear = parse(rope_scaling={"type": "linear", "factor": 2})
    assert linear.rope_scaling == {"rope_type": "linear", "factor": 2.0}
    llama3 = {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }
    assert parse(rope_scaling=llama3).rope_scaling == llama3


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rope_scaling": {"rope_type": "dynamic", "factor": 2}}, r"rope_scaling\.rope_type"),
        ({"rope_scaling": {"type": "longrope"}}, r"rope_scaling\.rope_type: got 'longrope'"),
        ({"rope_scaling": {"factor": 2}}, r"rope_scaling\.rope_type"),
        ({"rope_scaling": {**YARN, "type": "linear"}}, r"rope_scaling\.rope_type"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 2}}, "original_max_.* is missing"),
        ({"rope_scaling": {"rope_type": "linear", "factor": "2"}}, r"rope_scaling\.factor"),
        ({"rope_scaling": {"rope_type": "linear", "factor": 0}}, r"rope_scaling\.factor"),
        ({"rope_scaling": {**YARN, "mrope_section": [1]}}, r"rope_scaling\.mrope_section"),
        ({"rope_scaling": {**YARN, "truncate": 1}}, r"rope_scaling\.truncate"),
        ({"rope_scaling": "yarn"}, "rope_scaling: got 'yarn'"),
        ({"rope_scaling": YARN, "rope_parameters": {"rope_type": "default"}}, "says .* but"),
        ({"rope_parameters": {"rope_theta": 5.0}}, r"rope_parameters\.rope_theta: got 5.0"),
        ({"rope_parameters": {"partial_rotary_factor": 0.5}}, "partial_rotary_factor: got 0.5"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor: got 0.5"),
        ({"rope_theta": ABSENT, "rope_parameters": {"rope_type": "default"}}, "rope_theta is miss"),
        (
            {"rope_parameters": {"full_attention": YARN, "sliding_attention": {}}},
            "one rotary embedding for all layers",
        ),
        ({"rope_parameters": {"full_attention": {}, "factor": 2}}, r"rope_parameters\.factor"),
    ],
)
def test_unusable_rope_is_named(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelError, match=message):
        parse(**changes)


def target(**changes: int) -> SimpleNamespace:
    return SimpleNamespace(
        **{"hidden_size": 64, "vocab_size": 100, "num_hidden_layers": 36, **changes}
    )


def test_matching_target_passes() -> None:
    check_against_target(parse(), target(), fc_in_features=5 * 64)


@pytest.mark.parametrize(
    ("changes", "features", "key"),
    [
        ({"hidden_size": 128}, 5 * 128, "hidden_size"),
        ({"vocab_size": 101}, 5 * 64, "vocab_size"),
        ({"num_hidden_layers": 35}, 5 * 64, "num_target_layers"),
        ({}, 4 * 64, r"fc\.weight"),
    ],
)
def test_mismatch_with_target_is_named(changes: dict[str, int], features: int, key: str) -> None:
    with pytest.raises(ModelError, match=rf"drafter {key}: "):
        check_against_target(parse(), target(**changes), features)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "cannot be read"),
        ("{", "not valid JSON"),
        ("[]", "expected a JSON object, got list"),
        (json.dumps(fields(block_size=1)), r"config\.json: block_size: got 1"),
    ],
)
def test_unreadable_file_is_named(tmp_path: Path, text: str | None, message: str) -> None:
    if text is not None:
        (tmp_path / "config.json").write_text(text)
    with pytest.raises(ModelError, match=message) as caught:
        load_drafter_config(tmp_path)
    assert str(tmp_path) in str(caught.value)
