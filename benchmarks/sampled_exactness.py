"""fp32, sampled: `ddtree` gives the ids of `ar` for a seed, alone and in a batch of mixed requests.

HumanEval's prompts at several temperatures with top_p; each prompt has a seed of its own. `ar`
decodes them one at a time. Each tree decodes them one at a time as well, and then in batches of
eight, half of whose members sample otherwise (greedy, no filter, top_k, penalties). Where ids part
the perturbed gap (logits plus temperature times noise, by one-row decoding) at the first
divergence is noted: under 1e-3 it is float32 noise between one row and many. `coupled_drafting`
says whether the drafter has a calibration, `coupled` whether a cell's trees looked at the noise.

    python benchmarks/sampled_exactness.py --out benchmarks/results/HARDWARE/sampled_exactness.json
"""

import time

from common import humaneval_prompts, load, parser, progress, write

from ddtree.engine import EngineConfig, SamplingParams, Speculation

GAP = 1e-3
BATCH = 8


def main() -> None:
    """Decode all and compare."""
    options = parser(__doc__)
    options.add_argument("--prompts", type=int, default=50)
    options.add_argument("--tokens", type=int, default=64)
    options.add_argument("--budgets", default="4,8,32")
    options.add_argument("--topk", type=int, default=4)
    options.add_argument("--temperatures", default="0.7,1.0")
    options.add_argument("--top-p", type=float, default=0.95)
    args = options.parse_args()
    config = EngineConfig(slots=BATCH, max_context=1024)
    loaded = load(args, "float32", config)
    engine = loaded.engine
    texts = humaneval_prompts(args.humaneval)[: args.prompts]
    prompts = [loaded.tokenizer(text).input_ids for text in texts]
    cells, start = [], time.monotonic()
    for temperature in map(float, args.temperatures.split(",")):
        samplings = [
            SamplingParams(args.tokens, temperature=temperature, top_p=args.top_p, seed=seed)
            for seed in range(len(prompts))
        ]
        work = list(zip(prompts, samplings, strict=True))
        baseline = [alone(engine, p, s, Speculation("ar")) for p, s in work]
        for budget in map(int, args.budgets.split(",")):
            tree = Speculation("ddtree", budget, args.topk)
            found = {
                "alone": [alone(engine, p, s, tree) for p, s in work],
                "batched": among_others(engine, work, tree),
            }
            for how, requests in found.items():
                cells.append(compare(engine, baseline, requests))
                cells[-1] = {
                    "temperature": temperature,
                    "top_p": args.top_p,
                    "budget": budget,
                    "topk": args.topk,
                    "how": how,
                    "coupled": engine.drafting.weights_for(samplings[0]) is not None,
                    **cells[-1],
                }
                progress(f"{time.monotonic() - start:7.0f} s", cells[-1])
    worst = max((gap for cell in cells for gap in cell["gaps"]), default=0.0)
    exact = all(cell["identical"] == cell["outputs"] for cell in cells)
    verdict = "exact" if exact else f"perturbed gaps up to {worst:.2g}"
    write(
        args,
        {
            "verdict": verdict,
            "passed": worst < GAP,
            "prompt_tokens": [len(p) for p in prompts],
            "tokens": args.tokens,
            "coupled_drafting": engine.coupled_drafting,
            "cells": cells,
        },
    )
    print(verdict)


def alone(engine, prompt, sampling, speculation):
    """One request by itself."""
    return engine.generate([prompt], sampling, speculation)[0]


def among_others(engine, work, speculation):
    """All requests, as many at once as there are slots, each beside one that differs in
    everything: members join and leave as they end."""
    tokens = work[0][1].max_tokens
    others = [
        (SamplingParams(tokens), Speculation("ddtree", 16, 4)),
        (SamplingParams(tokens, temperature=1.0, seed=5), Speculation("ar")),
        (SamplingParams(tokens, temperature=0.5, top_k=20, seed=6), Speculation("chain")),
        (
            SamplingParams(tokens, temperature=1.2, repetition_penalty=1.2, seed=7),
            Speculation("ddtree", 4, 8),
        ),
        (SamplingParams(tokens, frequency_penalty=0.5), Speculation("ddtree", 8, 4)),
        (SamplingParams(tokens, temperature=0.7, min_p=0.1, seed=8), Speculation("ddtree", 8, 2)),
        (SamplingParams(tokens, temperature=1.0, top_p=0.9, seed=9), Speculation("ddtree", 33, 8)),
    ]
    requests = []
    for number, (prompt, sampling) in enumerate(work):
        requests.append(engine.submit(prompt, sampling, speculation))
        engine.submit(prompt, *others[number % len(others)])
    while not engine.is_idle:
        engine.step()
    return requests


def compare(engine, baseline, requests) -> dict[str, object]:
    """How many outputs are identical, and the perturbed gap where others part."""
    gaps = [
        gap_at_divergence(engine, base, request)
        for base, request in zip(baseline, requests, strict=True)
        if base.output != request.output
    ]
    rounds = sum(r.stats.rounds for r in requests)
    accepted = sum(r.stats.num_accepted for r in requests)
    return {
        "outputs": len(requests),
        "identical": len(requests) - len(gaps),
        "gaps": gaps,
        "acceptance_length": 1 + accepted / rounds,
    }


def gap_at_divergence(engine, base, request) -> float:
    """How far apart the two tokens' perturbed logits are; infinite if an output only stops
    earlier."""
    pairs = enumerate(zip(base.output, request.output, strict=False))
    first = next((i for i, (a, b) in pairs if a != b), None)
    if first is None:
        return float("inf")
    scores = []
    for token in (base.output[first], request.output[first]):
        ids = [*base.prompt, *base.output[:first], token]
        found = engine.score(ids, len(base.prompt), sampling=base.sampling)[-1].sampled
        scores.append(found.score)
    return abs(scores[0] - scores[1])


if __name__ == "__main__":
    main()
