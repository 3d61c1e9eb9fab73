"""DDTREE on stock SGLang with a large target of random weights: what a round costs there.

NOT A MEASUREMENT OF A MODEL: weights are random, and how many tokens each round accepts is drawn
from the histograms that `sglang_gpu.py` recorded with a small trained pair (forced/). Times are
real. A drafter of its own for the large target would accept more or less.

    python benchmarks/sglang_forced.py --device cuda --recorded sglang_gpu.json --out RESULT
"""

import argparse
import importlib.metadata
import json
import random
import tempfile
from dataclasses import replace
from pathlib import Path

from common import one_line_lists, provenance
from sglang_gpu import BLOCK, speed, split, trees_of
from sglang_servers import Pair, arms_of, machine_flags, running

FORCED = Path(__file__).parent / "forced"
# Llama 3.1 8B, and a drafter of five of its layers.
TARGET = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "vocab_size": 128256,
    "max_position_embeddings": 8192,
    "rms_norm_eps": 1e-5,
    "rope_theta": 500000.0,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "bos_token_id": 0,
    "eos_token_id": 1,
}
SMALL = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 6, "head_dim": 16}
SMALL |= {"num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 4096}


def main() -> None:
    """Speeds and splits of all arms, into one file."""
    args = _arguments()
    recorded = json.loads(args.recorded.read_text())
    with tempfile.TemporaryDirectory() as folder:
        pair = write_pair(Path(folder), TARGET | (SMALL if args.small else {}))
        cpu = args.device == "cpu"
        arms = arms_of(pair, BLOCK, args.window, trees_of(args.trees), cpu=cpu)
        arms = [forced_arm(arm, recorded) for arm in arms]
        flags, environment = machine_flags(cpu=cpu)
        most = str(max(args.at_once))
        flags = [*flags, "--load-format", "dummy", "--max-total-tokens", str(args.kv)]
        flags += ["--max-running-requests", most]
        if not cpu:
            flags += ["--mem-fraction-static", "0.97", "--cuda-graph-max-bs", most]
        environment["PYTHONPATH"] = f"{FORCED}:{environment['PYTHONPATH']}"
        logs = args.logs or Path(folder)
        with running(pair.target, arms, logs, flags, environment) as servers:
            prompts = prompts_of(args.contexts)
            result = {
                "label": "random weights, forced acceptance",
                "sglang": importlib.metadata.version("sglang"),
                "target": json.loads((pair.target / "config.json").read_text()),
                "flags": flags,
                "arms": {arm.name: [*arm.flags, *map("=".join, arm.environment)] for arm in arms},
                "speed": speed(servers, prompts, args),
                "split": {} if cpu else split(servers, prompts, args),
            }
    text = json.dumps({"provenance": provenance(args), **result}, indent=1)
    args.out.write_text(one_line_lists(text) + "\n")


def _arguments():
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--recorded", type=Path, required=True, help="sglang_gpu.py's result")
    options.add_argument("--out", type=Path, required=True)
    options.add_argument("--device", default="cuda")
    options.add_argument("--small", action="store_true", help="tiny shapes, to try the script")
    options.add_argument("--trees", default="8:4,16:4,32:8,64:8", help="budget:topk,...")
    options.add_argument("--window", type=int, default=1024)
    options.add_argument("--contexts", type=int, nargs="+", default=[60])
    options.add_argument("--at-once", type=int, nargs="+", default=[1, 8, 32])
    options.add_argument("--tokens", type=int, default=128)
    options.add_argument("--passes", type=int, default=2)
    options.add_argument("--kv", type=int, default=12_000, help="tokens of KV cache")
    options.add_argument("--logs", type=Path)
    return options.parse_args()


def write_pair(folder, target):
    """Two folders with a config.json each: SGLang makes the weights itself."""
    layers = target["num_hidden_layers"]
    drafter = target | {
        "architectures": ["DFlashDraftModel"],
        "model_type": "qwen3",
        "num_hidden_layers": min(5, layers),
        "intermediate_size": target["hidden_size"] * 3,
        "num_target_layers": layers,
        "block_size": BLOCK,
        "dflash_config": {
            "mask_token_id": 2,
            "target_layer_ids": [1, layers // 2, layers - 2],
        },
    }
    for name, config in (("target", target), ("drafter", drafter)):
        (folder / name).mkdir()
        (folder / name / "config.json").write_text(json.dumps(config, indent=1))
    return Pair(folder / "target", folder / "drafter")


def forced_arm(arm, recorded):
    """The arm with its own recorded acceptance at the fewest requests and the shortest context."""
    cells = [c for c in recorded["sections"]["speed"]["cells"] if c["arm"] == arm.name]
    cell = min(cells, key=lambda cell: (cell["at_once"], cell["context"]))
    given = ("FORCED_HISTOGRAM", json.dumps(cell["histogram"] or [1]))
    return replace(arm, environment=(*arm.environment, given))


def prompts_of(contexts):
    """By context: random prompts."""
    draw = random.Random(0)
    return {n: [[draw.randrange(100, 4000) for _ in range(n)] for _ in range(64)] for n in contexts}


if __name__ == "__main__":
    main()
