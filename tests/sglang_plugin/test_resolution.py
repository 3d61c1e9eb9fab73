"""Every recipe, and every refusal, through SGLang's own resolution of arguments."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ddtree.sglang_plugin.recipes import RECIPES, changed, environment_of, flags_of, recipe_of
from sglang_plugin.sglang_server import STUBS

pytestmark = pytest.mark.sglang

# A process that has imported SGLang forks one for each case: plugins are loaded once a process, and
# arguments live in its context.
RESOLVE = """
import json, os, sys
import sglang.srt.managers.scheduler
from sglang.srt.plugins import load_plugins
from sglang.srt.server_args import prepare_server_args
NAMES = ("speculative_num_draft_tokens", "attention_backend", "page_size", "tp_size",
         "speculative_draft_window_size", "speculative_draft_attention_backend",
         "disable_overlap_schedule", "max_running_requests")
for line in sys.stdin:
    case = json.loads(line)
    child = os.fork()
    if child == 0:
        output = os.open(case["output"], os.O_WRONLY | os.O_CREAT)
        os.dup2(output, 1), os.dup2(output, 2)
        os.environ.update(case["environment"])
        load_plugins()
        args = prepare_server_args(case["flags"])
        found = {"ddtree": args.ddtree, **{name: getattr(args, name) for name in NAMES}}
        print("RESOLVED", json.dumps(found), flush=True)
        os._exit(0)
    os.waitpid(child, 0)
    print("done", flush=True)
"""
LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 128,
    "max_position_embeddings": 4096,
    "rms_norm_eps": 1e-5,
    "torch_dtype": "bfloat16",
}
QWEN = LLAMA | {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "head_dim": 16}
# Kimi's text model without its vision tower: latent attention.
LATENT = LLAMA | {
    "architectures": ["DeepseekV3ForCausalLM"],
    "model_type": "deepseek_v3",
    "q_lora_rank": 32,
    "kv_lora_rank": 32,
    "qk_rope_head_dim": 16,
    "qk_nope_head_dim": 16,
    "v_head_dim": 16,
    "n_routed_experts": 8,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "n_shared_experts": 1,
    "first_k_dense_replace": 1,
    "n_group": 1,
    "topk_group": 1,
    "num_key_value_heads": 4,
}
TARGETS: dict[str, dict[str, Any]] = {
    "kimi-k2.6": LATENT,
    "qwen3-8b": QWEN,
    "smollm2-135m": LLAMA,
}


def drafter_of(block: int) -> dict[str, Any]:
    flash = {"mask_token_id": 16, "target_layer_ids": [1, 2]}
    return QWEN | {
        "architectures": ["DFlashDraftModel"],
        "block_size": block,
        "num_target_layers": 4,
        "dflash_config": flash,
    }


def folder_of(path: Path, config: dict[str, Any]) -> str:
    path.mkdir()
    (path / "config.json").write_text(json.dumps(config))
    return str(path)


@pytest.fixture(scope="module")
def sglang() -> Iterator[subprocess.Popen[str]]:
    """The process that forks."""
    inherited = {n: v for n, v in os.environ.items() if not n.startswith("DDTREE_")}
    process = subprocess.Popen(
        [sys.executable, "-c", RESOLVE],
        env={**inherited, "PYTHONPATH": str(STUBS), "HF_HUB_OFFLINE": "1"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    yield process
    process.communicate()


def resolved(
    sglang: subprocess.Popen[str], output: Path, flags: list[str], environment: dict[str, str]
) -> tuple[dict[str, Any] | None, str]:
    """What SGLang makes of flags; None and its output where it refuses them."""
    flags = [*flags, "--device", "cuda"]
    case = {"flags": flags, "environment": environment, "output": str(output)}
    assert sglang.stdin is not None
    assert sglang.stdout is not None
    sglang.stdin.write(json.dumps(case) + "\n")
    sglang.stdin.flush()
    while sglang.stdout.readline() != "done\n":
        assert sglang.poll() is None
    text = output.read_text()
    lines = [line for line in text.splitlines() if line.startswith("RESOLVED ")]
    return json.loads(lines[0].removeprefix("RESOLVED ")) if lines else None, text


def flags_for(tmp_path: Path, name: str, block: int = 8, **changes: Any) -> list[str]:
    target = folder_of(tmp_path / "target", TARGETS[name])
    drafter = folder_of(tmp_path / "drafter", drafter_of(block))
    return flags_of(changed(recipe_of(name), model=target, drafter=drafter, **changes))


@pytest.mark.parametrize("name", RECIPES)
def test_every_recipe_resolves_to_what_it_says(
    sglang: subprocess.Popen[str], name: str, tmp_path: Path
) -> None:
    recipe = recipe_of(name)
    flags = flags_for(tmp_path, name)
    found, output = resolved(sglang, tmp_path / "output", flags, environment_of(recipe))
    assert found is not None, output[-2000:]
    assert found["ddtree"] == {
        "block": 8,
        "budget": recipe.budget,
        "topk": recipe.topk,
        "window": recipe.window,
        "ranks": False,
    }
    assert found["speculative_num_draft_tokens"] == recipe.budget + 1
    assert found["attention_backend"] == found["speculative_draft_attention_backend"] == "triton"
    assert found["page_size"] == 1
    assert found["tp_size"] == recipe.tp
    assert found["disable_overlap_schedule"] is False


def test_the_block_may_be_larger_than_the_tree(
    sglang: subprocess.Popen[str], tmp_path: Path
) -> None:
    flags = flags_for(tmp_path, "smollm2-135m", block=16, budget=4)
    found, output = resolved(sglang, tmp_path / "output", flags, {"DDTREE_TOPK": "2"})
    assert found is not None, output[-2000:]
    assert (found["ddtree"]["budget"], found["ddtree"]["block"]) == (4, 16)
    assert found["speculative_num_draft_tokens"] == 16


@pytest.mark.parametrize(
    ("extra", "environment", "reason"),
    [
        (["--page-size", "16"], {}, "DDTREE: --page-size: got 16, expected 1"),
        (["--attention-backend", "fa3"], {}, "DDTREE: --attention-backend: got fa3"),
        (["--speculative-num-draft-tokens", "1"], {}, "--speculative-num-draft-tokens: got 1"),
        (["--speculative-draft-window-size", "4"], {}, "--speculative-draft-window-size: got 4"),
        ([], {"DDTREE_TOPK": "none"}, "DDTREE_TOPK: got 'none'"),
        ([], {"DDTREE_TOPKS": "4"}, "DDTREE_TOPKS: unknown"),
        (
            ["--speculative-accept-threshold-single", "0.5"],
            {},
            "DDTREE: --speculative-accept-threshold-single",
        ),
        (["--enable-custom-logit-processor"], {}, "DDTREE: --enable-custom-logit-processor"),
    ],
)
def test_what_trees_cannot_follow_stops_the_start(
    sglang: subprocess.Popen[str],
    extra: list[str],
    environment: dict[str, str],
    reason: str,
    tmp_path: Path,
) -> None:
    flags = [*flags_for(tmp_path, "smollm2-135m"), *extra]
    found, output = resolved(sglang, tmp_path / "output", flags, environment)
    assert found is None
    assert reason in output
