"""Our `ar` against transformers' batched greedy decode: a slow baseline would flatter every tree.

For each context and concurrency both decode the same prompts in one batch, in turns, several
times over; the speed is that of the decode steps alone (the time to a first token is measured by
a run of one token and taken off).

    OMP_WAIT_POLICY=passive GOMP_SPINCOUNT=0 \\
      python benchmarks/ar_baseline.py --out benchmarks/results/HARDWARE/ar_baseline.json
"""

import time

import torch
from common import humaneval_prompts, load, parser, progress, ratio_of, write

from ddtree.engine import EngineConfig, SamplingParams, Speculation
from ddtree.models.compat import load_causal_lm
from ddtree.records.statistics import paired_ratio


def main() -> None:
    """Measure every context and concurrency."""
    options = parser(__doc__)
    options.add_argument("--contexts", default="60,1024")
    options.add_argument("--concurrencies", default="1,4,8")
    options.add_argument("--tokens", type=int, default=32)
    options.add_argument("--repeats", type=int, default=5)
    options.add_argument("--dtype", default="bfloat16")
    args = options.parse_args()
    sizes = [int(c) for c in args.concurrencies.split(",")]
    config = EngineConfig(slots=max(sizes), max_context=2048)
    loaded = load(args, args.dtype, config)
    model = load_causal_lm(loaded.paths.target, getattr(torch, args.dtype), args.device)
    text = "\n\n".join(humaneval_prompts(args.humaneval))
    ids = loaded.tokenizer(text).input_ids
    cells = []
    for context in (int(c) for c in args.contexts.split(",")):
        for size in sizes:
            prompts = [ids[i * context : (i + 1) * context] for i in range(size)]
            ours, theirs = measure(loaded.engine, model, prompts, args)
            estimate = paired_ratio([[a / b] for a, b in zip(ours, theirs, strict=True)], seed=0)
            cells.append(
                {
                    "context": context,
                    "concurrency": size,
                    "ours_tokens_per_s": ours,
                    "transformers_tokens_per_s": theirs,
                    **ratio_of(estimate),
                }
            )
            progress(cells[-1])
    write(args, {"cells": cells})


def measure(engine, model, prompts, args) -> tuple[list[float], list[float]]:
    """Decode tokens per second of both, repeat by repeat, the order reversed each time."""
    decoders = [
        lambda count: decode_ours(engine, prompts, count),
        lambda count: decode_theirs(model, prompts, count, args.device),
    ]
    for decode in decoders:
        decode(4)
    speeds = ([], [])
    for repeat in range(args.repeats):
        for which in (0, 1) if repeat % 2 == 0 else (1, 0):
            speeds[which].append(decode_speed(decoders[which], len(prompts), args.tokens))
    return speeds


def decode_speed(decode, size, tokens) -> float:
    """Tokens per second of the steps after the first token."""
    times = []
    for count in (1, tokens + 1):
        start = time.perf_counter()
        decode(count)
        times.append(time.perf_counter() - start)
    return size * tokens / (times[1] - times[0])


def decode_ours(engine, prompts, count) -> None:
    """All prompts are prefilled before the first round, as in the batch of transformers."""
    sampling = SamplingParams(count, ignore_eos=True)
    requests = [engine.submit(p, sampling, Speculation("ar")) for p in prompts]
    run_round = engine.loop.run_round
    ready = {"all": False}

    def wait(batch):
        """Hold rounds back until every request decodes."""
        ready["all"] = ready["all"] or len(batch) == len(prompts)
        return run_round(batch) if ready["all"] else None

    apply = engine._apply
    engine.loop.run_round = wait
    engine._apply = lambda result: [] if result is None else apply(result)
    try:
        while not engine.is_idle:
            engine.step()
    finally:
        engine.loop.run_round, engine._apply = run_round, apply
    assert all(len(r.output) == count for r in requests)


@torch.inference_mode()
def decode_theirs(model, prompts, count, device) -> None:
    """transformers' generate with its defaults."""
    ids = torch.tensor(prompts, device=device)
    output = model.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        do_sample=False,
        max_new_tokens=count,
        min_new_tokens=count,
    )
    assert output.shape[1] == ids.shape[1] + count


if __name__ == "__main__":
    main()
