"""Tokens a second of the engine under CUDA graphs, one request at a time, all arms in one run.

Prompt by prompt every arm decodes in turn, in an order that is reversed from one prompt to the
next. Speeds are of decoding: tokens after the first over the time they took; `whole` counts the
prompt's pass too. The ratio of two arms is the geometric mean over prompts with a paired bootstrap
interval. `eager` arms are the same engine without graphs and kernels. `--reference` is a folder
with the source of github.com/liranringel/ddtree, whose code decodes on the same weights.

    python benchmarks/gpu_speed.py --device cuda --reference FOLDER \\
      --out benchmarks/results/HARDWARE/gpu_speed.json
"""

import statistics
import time
from pathlib import Path

import torch
from common import humaneval_prompts, load, parser, progress, ratio_of, write
from ddtree_reference import reference_arms

from ddtree.engine import EngineConfig, SamplingParams, Speculation
from ddtree.models.text import encode_chat
from ddtree.records.statistics import paired_ratio

TREES = ((8, 4), (16, 4), (32, 8), (64, 8))
EAGER = (Speculation("ar"), Speculation("ddtree", 16, 4))
CHATS = Path(__file__).parents[1] / "training" / "chat_prompts.txt"


def main() -> None:
    """Decode every prompt with every arm."""
    options = parser(__doc__)
    options.add_argument("--dtype", default="bfloat16")
    options.add_argument("--tokens", type=int, default=256)
    options.add_argument("--chats", type=int, default=4)
    options.add_argument("--code", type=int, default=4)
    options.add_argument("--passes", type=int, default=3)
    options.add_argument("--reference", type=Path)
    args = options.parse_args()
    config = EngineConfig(slots=1, max_context=1024)
    loaded = load(args, args.dtype, config)
    eager = load(args, args.dtype, EngineConfig(slots=1, max_context=1024, rounds="ragged"))
    prepared = loaded.engine.prepare()
    progress("prepared", prepared)
    arms = {label(one): arm_of(loaded.engine, one, args) for one in arms_of()}
    arms |= {f"eager {label(one)}": arm_of(eager.engine, one, args) for one in EAGER}
    if args.reference is not None:
        arms |= reference_arms(args.reference, loaded, [b for b, _ in TREES], args.tokens)
    prompts = prompts_of(loaded.tokenizer, args)
    for run in arms.values():
        run(prompts["chat"][0])
    graphs, found = None if prepared is None else vars(prepared), {}
    for kind, given in prompts.items():
        found[kind] = measure(arms, given, args.passes)
        told = {"dtype": args.dtype, "tokens": args.tokens, "graphs": graphs, "prompts": found}
        write(args, told)


def arms_of() -> list[Speculation]:
    """Baselines and trees."""
    trees = [Speculation("ddtree", budget, topk) for budget, topk in TREES]
    return [Speculation("ar"), Speculation("chain"), *trees]


def label(speculation: Speculation) -> str:
    """Its name in the table."""
    if speculation.budget is None:
        return speculation.method
    return f"({speculation.budget}, {speculation.topk})"


def arm_of(engine, speculation, args):
    """Decodes a prompt; speeds from the engine's stamps and from outside."""

    def decode(prompt):
        start = time.perf_counter()
        request = engine.generate([prompt], SamplingParams(args.tokens), speculation)[0]
        seconds = time.perf_counter() - start
        stats = request.stats
        return {
            "output": request.output,
            "tokens_per_s": request.decode_tokens_per_s,
            "whole": len(request.output) / seconds,
            "rounds": stats.rounds,
            "acceptance_length": stats.acceptance_length,
        }

    return decode


def prompts_of(tokenizer, args) -> dict[str, list[list[int]]]:
    """Token ids of chats and of HumanEval's prompts as they are."""
    texts = CHATS.read_text().strip().splitlines()[: args.chats]
    chats = [encode_chat(tokenizer, [{"role": "user", "content": text}]) for text in texts]
    code = [tokenizer(text).input_ids for text in humaneval_prompts(args.humaneval)[: args.code]]
    return {"chat": chats, "code": code}


@torch.inference_mode()
def measure(arms, prompts, passes):
    """Every arm on every prompt, by median over passes; ratios to `ar` and to each other's best."""
    table = {name: [[] for _ in prompts] for name in arms}
    for turn in range(passes):
        for number, prompt in enumerate(prompts):
            order = list(arms) if (turn + number) % 2 == 0 else list(reversed(arms))
            for name in order:
                if turn == 0 or not name.startswith(("reference", "eager")):
                    table[name][number].append(arms[name](prompt))
    found = {name: arm_summary(runs, table) for name, runs in table.items()}
    for name, arm in found.items():
        progress(name, {k: v for k, v in arm.items() if k != "raw"})
    return found


def arm_summary(runs, table):
    """Speed, acceptance, ratios, and how many outputs are those of `ar` and of its own passes."""
    speeds = speeds_of(runs)
    best = max(
        (n for n in table if n.startswith("reference")), key=lambda n: mean(table[n]), default=None
    )
    summary = {
        "tokens_per_s": statistics.geometric_mean(speeds),
        "whole_tokens_per_s": statistics.geometric_mean(speeds_of(runs, "whole")),
        "acceptance_length": statistics.mean(r[0]["acceptance_length"] for r in runs),
        "round_ms": 1e3
        * statistics.mean(r[0]["acceptance_length"] / s for r, s in zip(runs, speeds, strict=True)),
        "identical_to_ar": sum(
            own[0]["output"] == ar[0]["output"] for own, ar in zip(runs, table["ar"], strict=True)
        ),
        "identical_to_itself": sum(len({tuple(one["output"]) for one in own}) == 1 for own in runs),
        "against_ar": against(speeds, table["ar"]),
    }
    if best is not None:
        summary["against_best_reference"] = {"arm": best, **against(speeds, table[best])}
    return {
        **summary,
        "raw": [[{k: v for k, v in r.items() if k != "output"} for r in own] for own in runs],
    }


def against(speeds, base):
    """Ratio with its interval."""
    pairs = zip(speeds, speeds_of(base), strict=True)
    return ratio_of(paired_ratio([[own / theirs] for own, theirs in pairs], seed=0))


def speeds_of(runs, name="tokens_per_s") -> list[float]:
    """By prompt, the median over passes."""
    return [statistics.median(one[name] for one in own) for own in runs]


def mean(runs) -> float:
    """Over prompts."""
    return statistics.geometric_mean(speeds_of(runs))


if __name__ == "__main__":
    main()
