"""fp32: `ddtree` gives the ids of `ar`, token for token, over budgets x topk x draft windows.

Each configuration decodes the same prompts (HumanEval's first ones, and some of over a thousand
tokens so that every window cuts something off) in batches of mixed lengths; `ar` decodes them one
at a time. A difference is followed up: the gap between the two tokens' logits at the first
divergence, scored by one-row decoding. Also checked: topk 1 with budget block_size - 1 accepts
what the chain accepts, round by round.

    python benchmarks/exactness.py --out benchmarks/results/HARDWARE/exactness.json
"""

import itertools
import time

from common import humaneval_prompts, load, parser, progress, write

from ddtree.engine import EngineConfig, SamplingParams, Speculation

GAP = 1e-3  # a smaller difference of logits is float32 noise between one row and many


def main() -> None:
    """Decode the grid and compare."""
    options = parser(__doc__)
    options.add_argument("--prompts", type=int, default=20)
    options.add_argument("--long", type=int, default=4, help="prompts of over 1,024 tokens")
    options.add_argument("--tokens", type=int, default=64)
    options.add_argument("--budgets", default="1,4,7,8,16,33,64")
    options.add_argument("--topks", default="1,2,4,8")
    options.add_argument("--windows", default="64,1024,full")
    options.add_argument("--slots", type=int, default=10)
    args = options.parse_args()
    config = EngineConfig(slots=args.slots, max_context=1600, draft_window="full")
    loaded = load(args, "float32", config)
    engine = loaded.engine
    prompts = make_prompts(loaded.tokenizer, args)
    sampling = SamplingParams(args.tokens)
    baseline = [engine.generate([p], sampling, Speculation("ar"))[0].output for p in prompts]
    grid = itertools.product(
        map(int, args.budgets.split(",")),
        map(int, args.topks.split(",")),
        [w if w == "full" else int(w) for w in args.windows.split(",")],
    )
    cells = []
    start = time.monotonic()
    for budget, topk, window in grid:
        speculation = Speculation("ddtree", budget, topk, window)
        requests = engine.generate(prompts, sampling, speculation)
        gaps = [
            gap_at_divergence(engine, p, b, r.output)
            for p, b, r in zip(prompts, baseline, requests, strict=True)
            if r.output != b
        ]
        rounds = sum(r.stats.rounds for r in requests)
        accepted = sum(r.stats.num_accepted for r in requests)
        cells.append(
            {
                "budget": budget,
                "topk": topk,
                "draft_window": window,
                "outputs": len(prompts),
                "identical": len(prompts) - len(gaps),
                "gaps": gaps,
                "rounds": rounds,
                "acceptance_length": 1 + accepted / rounds,
            }
        )
        progress(f"{time.monotonic() - start:7.0f} s", cells[-1])
    chain = [chain_counts(engine, prompts, sampling, w) for w in (64, "full")]
    worst = max((g for c in cells for g in c["gaps"]), default=0.0)
    exact = all(c["identical"] == c["outputs"] for c in cells)
    verdict = "exact" if exact else f"gaps up to {worst:.2g}"
    write(
        args,
        {
            "verdict": verdict,
            "passed": worst < GAP and all(c["equal"] for c in chain),
            "prompt_tokens": [len(p) for p in prompts],
            "tokens": args.tokens,
            "chain_equals_topk1": chain,
            "cells": cells,
        },
    )
    print(verdict, "chain equal:", [c["equal"] for c in chain])


def make_prompts(tokenizer, args) -> list[list[int]]:
    """HumanEval prompts; the last `--long` of them behind many others as filler."""
    texts = humaneval_prompts(args.humaneval)
    short = [tokenizer(t).input_ids for t in texts[: args.prompts - args.long]]
    filler = iter(texts[40:])
    long = []
    for task in texts[args.prompts - args.long : args.prompts]:
        ids, end = [], tokenizer("\n\n" + task).input_ids
        while len(ids) + len(end) < 1100:
            ids += tokenizer(next(filler) + "    pass\n\n").input_ids
        long.append(ids + end)
    return short + long


def gap_at_divergence(engine, prompt, baseline, output) -> float:
    """How far apart the two tokens' logits are where the outputs part; infinite if one output
    only stops earlier."""
    pairs = enumerate(zip(baseline, output, strict=False))
    first = next((i for i, (a, b) in pairs if a != b), None)
    if first is None:
        return float("inf")
    logits = []
    for token in (baseline[first], output[first]):
        ids = [*prompt, *baseline[:first], token]
        logits.append(engine.score(ids, len(prompt))[-1].token_logit)
    return abs(logits[0] - logits[1])


def chain_counts(engine, prompts, sampling, window) -> dict[str, object]:
    """Accepted counts of the chain and of the tree that should equal it."""
    depth = engine.block_size - 1
    histograms = [
        [r.stats.accepted_histogram for r in engine.generate(prompts, sampling, speculation)]
        for speculation in (
            Speculation("chain", draft_window=window),
            Speculation("ddtree", depth, 1, window),
        )
    ]
    return {"draft_window": window, "equal": histograms[0] == histograms[1]}


if __name__ == "__main__":
    main()
