"""Recipes come to the words that SGLang takes; whether it takes them is asked of SGLang itself."""

import dataclasses
import itertools
import json
import shlex
from pathlib import Path
from typing import Any

import pytest

from ddtree.errors import ConfigError
from ddtree.models import zoo
from ddtree.sglang_plugin.drafters import for_sglang, write_drafter
from ddtree.sglang_plugin.recipes import (
    RECIPES,
    changed,
    command_of,
    flags_of,
    recipe_of,
    shell_line,
)


def test_a_line_is_variables_then_words() -> None:
    recipe = changed(recipe_of("qwen3-8b"), budget=8, topk=2, window=512, port=1)
    line = shell_line(recipe, ("--port", "2"))
    assert line.startswith(
        "DDTREE_TOPK=2 python3 -m sglang.launch_server --model-path Qwen/Qwen3-8B"
    )
    words = shlex.split(line)
    assert words[1:] == command_of(recipe, ("--port", "2"))
    after = dict(itertools.pairwise(words))
    assert after["--speculative-num-draft-tokens"] == "9"
    assert after["--speculative-draft-window-size"] == "512"
    assert words[-2:] == ["--port", "2"]


@pytest.mark.parametrize("name", RECIPES)
def test_every_recipe_verifies_trees(name: str) -> None:
    flags = flags_of(changed(recipe_of(name), drafter="d"))
    for pair in (("--attention-backend", "triton"), ("--page-size", "1")):
        assert pair in itertools.pairwise(flags)


def test_what_cannot_be_is_named() -> None:
    with pytest.raises(ConfigError, match=r"recipe: got 'x', expected one of kimi-k2\.6, qwen3-8b"):
        recipe_of("x")
    with pytest.raises(ConfigError, match="tp: got 0, expected at least 1"):
        changed(recipe_of("qwen3-8b"), tp=0)
    with pytest.raises(ConfigError, match=r"drafter: .* say --drafter FOLDER"):
        flags_of(recipe_of("smollm2-135m"))


def test_the_shipped_drafter_gets_plain_layers(tmp_path: Path) -> None:
    source = zoo.shipped_drafter(zoo.ZOO["smollm2-135m"])
    out = write_drafter(source, tmp_path / "out")
    was, now = (json.loads((folder / "config.json").read_text()) for folder in (source, out))
    assert "layer_types" in was
    gone = {"layer_types", "sliding_window", "max_window_layers"}
    kept = {name: value for name, value in was.items() if name not in gone}
    assert now == kept | {"use_sliding_window": False}
    weights = "model.safetensors"
    assert (out / weights).read_bytes() == (source / weights).read_bytes()


@pytest.mark.parametrize(
    "flash", [{}, {"causal": True, "window": "anchored"}, {"causal": False, "window": "per-query"}]
)
def test_other_drafters_keep_their_layers(flash: dict[str, Any]) -> None:
    config = {"layer_types": ["sliding_attention"], "sliding_window": 8, "dflash_config": flash}
    assert for_sglang(config) == config


def test_a_folder_that_is_no_drafter_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no config\.json there"):
        write_drafter(tmp_path, tmp_path / "out")
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(ConfigError, match="names no dflash_config"):
        write_drafter(tmp_path, tmp_path / "out")
    (tmp_path / "config.json").write_text('{"dflash_config": {}}')
    with pytest.raises(ConfigError, match="is there already"):
        write_drafter(tmp_path, tmp_path)


def test_recipes_are_data() -> None:
    assert all(dataclasses.is_dataclass(recipe) for recipe in RECIPES.values())
    assert RECIPES["kimi-k2.6"].window == 2048
