"""What the draft window bounds: the drafter's memory and the time of its pass, as contexts grow.

For each window an engine per context decodes one request; round by round all of them take turns,
in an order that is reversed from one round to the next. The draft stage holds all the drafter does:
keys and values of the tokens committed before, and the pass over the block. A window's ratio is
that of its draft times to those at the shortest context, paired by round.

    OMP_WAIT_POLICY=passive GOMP_SPINCOUNT=0 \\
      python benchmarks/draft_window.py --out benchmarks/results/HARDWARE/draft_window.json
"""

import time

from common import (
    humaneval_prompts,
    load,
    median_interval,
    parser,
    progress,
    ratio_of,
    write,
)

from ddtree.engine import Engine, EngineConfig, SamplingParams, Speculation
from ddtree.records.statistics import paired_ratio

ROOM = 256  # tokens that rounds may add to a context


def main() -> None:
    """Measure every window at every context."""
    options = parser(__doc__)
    options.add_argument("--contexts", default="1024,4096,7936")
    options.add_argument("--windows", default="1024,2048,full")
    options.add_argument("--rounds", type=int, default=40)
    options.add_argument("--dtype", default="bfloat16")
    options.add_argument("--quick", action="store_true", help="short contexts, few rounds")
    args = options.parse_args()
    if args.quick:
        args.contexts, args.windows, args.rounds = "48,160", "32,full", 6
    contexts = [int(c) for c in args.contexts.split(",")]
    windows = [w if w == "full" else int(w) for w in args.windows.split(",")]
    loaded = load(args, args.dtype, EngineConfig(slots=1, max_context=max(contexts) + ROOM))
    ids = loaded.tokenizer("\n\n".join(humaneval_prompts(args.humaneval))).input_ids
    while len(ids) < max(contexts):
        ids += ids
    decoders = {
        (window, context): Decoder(loaded.engine, window, ids[:context], max(contexts) + ROOM)
        for window in windows
        for context in contexts
    }
    order = list(decoders.values())
    for _ in range(3):  # warm-up
        for decoder in order:
            decoder.round()
    for number in range(args.rounds):
        for decoder in order if number % 2 == 0 else order[::-1]:
            decoder.seconds.append(decoder.round())
    cells = [cell(decoders, key, contexts[0]) for key in decoders]
    print(table(cells))
    write(args, {"rounds": args.rounds, "cells": cells})


class Decoder:
    """One request in an engine of its own; its target and drafter are everybody's."""

    def __init__(self, base, window, prompt, max_context) -> None:
        config = EngineConfig(slots=1, max_context=max_context, draft_window=window)
        self.engine = Engine(base.target, base.drafting.drafter, config, self._observe)
        sampling = SamplingParams(ROOM, ignore_eos=True)
        self.request = self.engine.submit(prompt, sampling, Speculation("ddtree", 8, 4))
        self.seconds: list[float] = []
        start = time.perf_counter()
        while not self.request.output:
            self.engine.step()
        progress(f"window {window}, {len(prompt)} tokens: {time.perf_counter() - start:.1f} s")

    def _observe(self, result) -> None:
        self.last = result.stage_seconds["draft"]

    def round(self) -> float:
        """Seconds of the draft stage of one more round."""
        self.engine.step()
        if self.request.finish_reason is not None:
            raise SystemExit(f"--rounds: {ROOM} tokens were reached; ask for fewer rounds")
        return self.last


def cell(decoders, key, shortest) -> dict[str, object]:
    """One window at one context."""
    window, context = key
    decoder = decoders[key]
    base = decoders[window, shortest].seconds
    ratio = paired_ratio([[a / b] for a, b in zip(decoder.seconds, base, strict=True)], seed=0)
    milliseconds = [round(1e3 * s, 3) for s in decoder.seconds]
    return {
        "window": window,
        "context": context,
        "drafter_cache_bytes": decoder.engine.drafting.pool.num_bytes,
        "draft_ms": median_interval(milliseconds),
        "against_shortest": ratio_of(ratio),
        "raw_ms": milliseconds,
    }


def table(cells) -> str:
    """For people."""
    lines = [f"{'window':>8} {'context':>8} {'MiB':>8} {'draft ms':>20} {'against shortest':>22}"]
    for found in cells:
        low, high = found["draft_ms"]["interval"]
        ratio = found["against_shortest"]
        span = ratio["interval"]
        about = "" if span is None else f" ({span[0]:.2f} to {span[1]:.2f})"
        lines.append(
            f"{found['window']:>8} {found['context']:>8} "
            f"{found['drafter_cache_bytes'] / 2**20:>8.2f} "
            f"{found['draft_ms']['median']:>8.2f} ({low:.2f} to {high:.2f})"
            f"{ratio['ratio']:>8.3f}{about}"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    main()
