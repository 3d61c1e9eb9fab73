"""fp32, at and around the context's end: `chain` and `ddtree` give the ids of `ar` up to it.

Prompts leave 40, 2 and 1 tokens of the context; outputs run into its end and must finish with
`length` there. Prompts of the whole context, and of one token more, must be refused. Long and short
prompts also decode in one batch. A difference is followed up by the gap between the two tokens'
logits, as in exactness.py.

    python benchmarks/long_context.py --device cuda \\
      --out benchmarks/results/HARDWARE/long_context.json
"""

import sys

from common import humaneval_prompts, load, parser, progress, write
from exactness import gap_at_divergence

from ddtree.engine import EngineConfig, SamplingParams, Speculation
from ddtree.errors import RequestError

GAP = 1e-3  # a smaller difference of logits is float32 noise between one row and many
LEFT = (40, 2, 1)
TREES = ((8, 4), (16, 4), (33, 8))


def main() -> None:
    """Decode up to the end with every method and window; exit status 1 where anything is off."""
    options = parser(__doc__)
    options.add_argument("--context", type=int, help="default: the target's own limit")
    options.add_argument("--windows", default="64,1024,2048,full")
    args = options.parse_args()
    config = EngineConfig(slots=4, max_context=args.context, draft_window="full")
    loaded = load(args, "float32", config)
    engine = loaded.engine
    context = engine.max_context
    text = "\n\n".join(humaneval_prompts(args.humaneval))
    ids = loaded.tokenizer(text).input_ids
    while len(ids) <= context:
        ids += ids
    prompts = [ids[i : i + context - left] for i, left in enumerate(LEFT)] + [ids[:30]]
    # Stop tokens would end outputs before the context does.
    sampling = SamplingParams(48, ignore_eos=True)
    baseline = [engine.generate([p], sampling, Speculation("ar"))[0] for p in prompts]
    progress(f"ar at {context} tokens: {[len(r.output) for r in baseline]} generated")
    cells = [
        compare(engine, prompts, baseline, sampling, arm) for arm in arms(args.windows.split(","))
    ]
    refused = {str(extra): refusal(engine, ids[: context + extra]) for extra in (0, 1)}
    exact = all(cell["differences"] == [] for cell in cells)
    ended = all(cell["finish_reasons"] == ["length"] * len(prompts) for cell in cells)
    passed = (exact or worst(cells) < GAP) and ended and all(refused.values())
    print(f"context {context}: {len(cells)} arms, exact: {exact}, largest gap {worst(cells)}")
    write(args, {"passed": passed, "context": context, "cells": cells, "refused": refused})
    sys.exit(0 if passed else 1)


def arms(windows) -> list[Speculation]:
    """Every method with every window."""
    chosen = [w if w == "full" else int(w) for w in windows]
    trees = [Speculation("ddtree", *tree, w) for tree in TREES for w in chosen]
    return [Speculation("chain", draft_window=w) for w in chosen] + trees


def compare(engine, prompts, baseline, sampling, arm):
    """All prompts in one batch against each alone."""
    requests = engine.generate(prompts, sampling, arm)
    differences = [
        gap_at_divergence(engine, prompt, alone.output, request.output)
        for prompt, alone, request in zip(prompts, baseline, requests, strict=True)
        if request.output != alone.output
    ]
    return {
        "method": arm.method,
        "budget": arm.budget,
        "topk": arm.topk,
        "draft_window": arm.draft_window,
        "acceptance_lengths": [r.stats.acceptance_length for r in requests],
        "generated": [len(r.output) for r in requests],
        "finish_reasons": [r.finish_reason for r in requests],
        "differences": differences,
    }


def worst(cells) -> float:
    """The largest gap at a difference."""
    return max((gap for cell in cells for gap in cell["differences"]), default=0.0)


def refusal(engine, prompt) -> str | None:
    """Why a prompt is refused, None if it isn't."""
    try:
        engine.make_request(prompt)
    except RequestError as error:
        return str(error)
    return None


if __name__ == "__main__":
    main()
