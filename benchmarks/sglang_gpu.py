"""DDTREE on stock SGLang beside its own decoding and its DFLASH chain: exactness, speed, and where
a round's time goes.

    python benchmarks/sglang_gpu.py --device cuda --model TARGET,DRAFTER --humaneval FILE \\
      --out benchmarks/results/HARDWARE/sglang_gpu.json

Greedy tokens are judged as in the tests of the plugin: the server without speculation scores each
in one prompt pass, beside its own answers, given alone and in batches (A/A). Exit status 1 where a
verdict is bad. Speeds are of several passes over all cells, every other one backwards.
"""

import importlib.metadata
import statistics
import sys
import tempfile
from pathlib import Path

from common import humaneval_prompts, parser, paths_of, previous, progress, provenance, write
from sglang_load import loaded, profiled, split_of
from sglang_servers import Pair, arms_of, machine_flags, running
from tokenizers import Tokenizer

from ddtree.sglang_plugin.drafters import write_drafter
from sglang_plugin.sglang_judging import judged, verdict

PROMPTS = 32
BLOCK = 8


def main() -> None:
    """Each section of `--sections` into the result, beside those of earlier calls."""
    args = _arguments()
    paths, cpu = paths_of(args.model), args.device == "cpu"
    with tempfile.TemporaryDirectory() as folder:
        pair = Pair(paths.target, write_drafter(paths.drafter, Path(folder) / "drafter"))
        arms = arms_of(pair, BLOCK, args.window, trees_of(args.trees), cpu=cpu)
        flags, environment = machine_flags(cpu=cpu)
        most = str(max(args.at_once))
        flags = [*flags, "--max-total-tokens", str(args.kv), "--max-running-requests", most]
        if not cpu:
            flags += ["--mem-fraction-static", "0.95", "--cuda-graph-max-bs", most]
        told = {
            "sglang": importlib.metadata.version("sglang"),
            "flags": flags,
            "arms": {arm.name: [*arm.flags, *map("=".join, arm.environment)] for arm in arms},
        }
        sections = previous(args.out, "sections")
        with running(pair.target, arms, args.logs or Path(folder), flags, environment) as servers:
            prompts = prompts_of(paths.target, args)
            for name in args.sections:
                cells = SECTIONS[name](servers, prompts, args)
                sections[name] = {"provenance": provenance(args), **told, "cells": cells}
                write(args, {"sections": sections})
    verdicts = [cell["verdict"] for cell in sections.get("exactness", {"cells": []})["cells"]]
    sys.exit(0 if not any(verdicts) else 1)


def _arguments():
    options = parser(__doc__)
    options.add_argument("--sections", nargs="+", choices=SECTIONS, default=list(SECTIONS))
    options.add_argument("--trees", default="4:4,8:4,16:4,32:8,64:8", help="budget:topk,...")
    options.add_argument("--window", type=int, default=1024)
    options.add_argument("--contexts", type=int, nargs="+", default=[60, 1024, 4096])
    options.add_argument("--at-once", type=int, nargs="+", default=[1, 8, 32])
    options.add_argument("--tokens", type=int, default=128)
    options.add_argument("--judged-tokens", type=int, default=64)
    options.add_argument("--judged", type=int, default=16, help="prompts, of a context")
    options.add_argument("--passes", type=int, default=3)
    options.add_argument("--kv", type=int, default=200_000, help="tokens of KV cache")
    options.add_argument("--logs", type=Path, help="folder for what the servers print")
    return options.parse_args()


def trees_of(text):
    """(budget, topk) of each."""
    return [tuple(map(int, tree.split(":"))) for tree in text.split(",")]


def prompts_of(target, args):
    """By context: prompts of so many tokens, each the end of a different HumanEval prompt after
    others."""
    tokenizer = Tokenizer.from_file(str(target / "tokenizer.json"))
    texts = humaneval_prompts(args.humaneval)
    found = {}
    for context in args.contexts:
        per = max(1, context // 60)
        joined = ("\n\n".join(texts[(i + k) % 164] for k in range(per, -1, -1)) for i in range(164))
        ids = (tokenizer.encode(text).ids for text in joined)
        found[context] = [list(i[-context:]) for i in ids if len(i) >= context][:PROMPTS]
    return found


def exactness(servers, prompts, args):
    """A cell for each arm, context and number at once; of the baseline at more than one it is
    A/A."""
    cells = []
    ar = servers["ar"]
    for context, whole in prompts.items():
        every = whole[: args.judged]
        alone = ar.ask_all(every, 1, max_new_tokens=args.judged_tokens)
        own = judged(ar, every, alone)
        for name, server in servers.items():
            for at_once in args.at_once:
                answers = server.ask_all(every, at_once, max_new_tokens=args.judged_tokens)
                given = judged(ar, every, answers)
                same = sum(a.ids == b.ids for a, b in zip(answers, alone, strict=True))
                cells.append(
                    {
                        "arm": name,
                        "context": context,
                        "at_once": at_once,
                        "answers": len(answers),
                        "same_as_ar_alone": same,
                        "tokens": given.tokens,
                        "near_ties": len(given.gaps),
                        "ar_near_ties": len(own.gaps),
                        "largest_gap_nats": max(given.gaps, default=0.0),
                        "verdict": verdict(own, given),
                    }
                )
                progress(cells[-1])
    return cells


def speed(servers, prompts, args):
    """Every arm, context and number at once, in passes back and forth."""
    keys = [(n, c, a) for c in prompts for a in args.at_once for n in servers]
    for name, context, at_once in keys:  # what a first time costs
        servers[name].ask_all(prompts[context][:at_once], at_once, max_new_tokens=8)
    return in_passes(servers, keys, prompts, args)


def in_passes(servers, keys, prompts, args, **how):
    """A cell for each (arm, context, number at once), every other pass backwards."""
    measured = {key: [] for key in keys}
    for turn in range(args.passes):
        for name, context, at_once in keys if turn % 2 == 0 else reversed(keys):
            chosen = (prompts[context] * 2)[: max(4, 2 * at_once)]
            found = loaded(servers[name], chosen, at_once, args.tokens, **how)
            measured[name, context, at_once].append(found)
        progress(f"pass {turn + 1} of {args.passes}")
    return [summary(*key, found) for key, found in measured.items()]


def summary(name, context, at_once, found):
    """Medians over passes, and the passes."""
    middle = {
        key: statistics.median(each[key] for each in found)
        for key in ("tokens_per_s", "decode_tokens_per_s", "round_ms")
    }
    told = found[-1]
    drafted = sum(count * n for count, n in enumerate(told["histogram"]))
    return {
        "arm": name,
        "context": context,
        "at_once": at_once,
        **middle,
        "acceptance_length": 1 + drafted / told["rounds"],
        "histogram": told["histogram"],
        "passes": [{k: each[k] for k in ("wall_s", "prompts_s", "rounds")} for each in found],
    }


def sampled(servers, prompts, args):
    """At temperature 1, the shortest context."""
    counts = [count for count in args.at_once if count <= 8]
    keys = [(name, min(prompts), at_once) for at_once in counts for name in servers]
    return in_passes(servers, keys, prompts, args, temperature=1.0)


def split(servers, prompts, args):
    """The rounds of one request on the GPU, at the shortest and the longest context."""
    cells = []
    with tempfile.TemporaryDirectory() as folder:
        for context in sorted({min(prompts), max(prompts)}):
            for name, server in servers.items():
                place = Path(folder) / f"{name}-{context}"
                trace = profiled(server, prompts[context][0], place)
                cells.append({"arm": name, "context": context, **split_of(trace)})
                progress(cells[-1])
    return cells


SECTIONS = {"exactness": exactness, "split": split, "speed": speed, "sampled": sampled}


if __name__ == "__main__":
    main()
