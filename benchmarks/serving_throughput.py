"""Throughput of `ar` and of `ddtree` at several budgets, by concurrency and context.

The same prompts of exactly one context's length are prefilled once. Every measurement goes back to
that point and decodes until a request has its tokens: all C requests decode all the time, nothing
is admitted or prefilled, and every arm decodes the same text. A block measures each concurrency
with each arm, the order reversed from one block to the next, and takes other prompts than the
block before; ratios are those of a block, with a bootstrap interval over blocks. An arm beats
`ar` where that interval lies above 1.

One context per call keeps a call short; others that the result file holds are kept.

    OMP_WAIT_POLICY=passive GOMP_SPINCOUNT=0 python benchmarks/serving_throughput.py \\
      --context 128 --out benchmarks/results/HARDWARE/serving_throughput.json
"""

import statistics
import time

from common import (
    humaneval_prompts,
    load,
    parser,
    previous,
    progress,
    provenance,
    ratio_of,
    write,
)

from ddtree.engine import EngineConfig, SamplingParams, Speculation
from ddtree.records.rounds import GenerationStats
from ddtree.records.statistics import throughput_ratio

ROOM = 32  # of the last round's run, behind the tokens of a measurement


def main() -> None:
    """Measure one context."""
    options = parser(__doc__)
    options.add_argument("--context", type=int, default=128)
    options.add_argument("--concurrencies", default="1,2,4,8")
    options.add_argument("--trees", default="2:2,4:4,8:4,12:4,16:4", help="budget:topk,...")
    options.add_argument("--tokens", type=int, default=24, help="of each request, a measurement")
    options.add_argument("--blocks", type=int, default=8)
    options.add_argument("--dtype", default="bfloat16")
    options.add_argument("--quick", action="store_true", help="two arms, few tokens")
    args = options.parse_args()
    if args.quick:
        args.context, args.concurrencies, args.trees = 24, "1,2", "4:4"
        args.tokens, args.blocks = 4, 2
    sizes = [int(c) for c in args.concurrencies.split(",")]
    arms = {"ar": Speculation("ar")}
    for tree in args.trees.split(","):
        budget, topk = map(int, tree.split(":"))
        arms[f"ddtree({budget},{topk})"] = Speculation("ddtree", budget, topk)
    bench = Bench(args, max(sizes))
    blocks = [bench.block(number, sizes, arms) for number in range(args.blocks)]
    result = summarise(blocks, sizes, list(arms))
    print(table(args.context, result, sizes))
    contexts = previous(args.out, "contexts")
    contexts[str(args.context)] = {"provenance": provenance(args), **result, "raw": blocks}
    write(args, {"contexts": contexts})


class Bench:
    """Requests that were prefilled once and start again from there."""

    def __init__(self, args, slots) -> None:
        length = args.context
        room = args.tokens + ROOM
        loaded = load(args, args.dtype, EngineConfig(slots=slots, max_context=length + room))
        self.engine, self.tokens = loaded.engine, args.tokens
        if self.engine.draft_window < length + room:
            raise SystemExit(
                f"--context {length}: with {room} more the draft window of "
                f"{self.engine.draft_window} wraps, and no measurement could start again"
            )
        ids = loaded.tokenizer("\n\n".join(humaneval_prompts(args.humaneval))).input_ids
        prompts = [ids[i * length : (i + 1) * length] for i in range(slots)]
        sampling = SamplingParams(room, ignore_eos=True)
        self.requests = [self.engine.make_request(p, sampling) for p in prompts]
        start = time.perf_counter()
        for request in self.requests:
            self.engine.enqueue(request)
        scheduler = self.engine.scheduler
        scheduler.admit()
        while waiting := scheduler.prefilling():  # passes over prompts, without rounds
            self.engine._prefill(waiting, self.engine.config.prefill_chunk)
        progress(f"{slots} prompts of {length}: {time.perf_counter() - start:.1f} s")
        self.first = [request.output[0] for request in self.requests]

    def block(self, number, sizes, arms) -> dict[str, dict[str, dict[str, float]]]:
        """Every concurrency with every arm: {C: {arm: measurement}}."""
        cells = [(size, arm) for size in sizes for arm in arms]
        found = {str(size): {} for size in sizes}
        for size, arm in cells if number % 2 == 0 else cells[::-1]:
            taken = [(number * size + i) % len(self.requests) for i in range(size)]
            found[str(size)][arm] = self.measure(sorted(taken), arms[arm])
        speeds = {c: {a: r["tok_s"] for a, r in cell.items()} for c, cell in found.items()}
        progress(f"block {number}", speeds)
        return found

    def measure(self, taken, speculation) -> dict[str, float]:
        """Decode until a request has its tokens, from the prompts' ends."""
        batch = sorted((self.restart(i, speculation) for i in taken), key=lambda r: r.slot)
        self._rounds(batch, 2)  # warm-up: what this shape of a batch allocates
        batch = sorted((self.restart(i, speculation) for i in taken), key=lambda r: r.slot)
        rounds, start = 0, time.perf_counter()
        while max(len(request.output) for request in batch) <= self.tokens:
            self._rounds(batch, 1)
            rounds += 1
        seconds = time.perf_counter() - start
        gained = sum(len(request.output) - 1 for request in batch)
        accepted = sum(a * n for r in batch for a, n in enumerate(r.stats.accepted_histogram))
        return {
            "tok_s": round(gained / seconds, 3),
            "round_ms": round(1e3 * seconds / rounds, 3),
            "acceptance_length": round(1 + accepted / (rounds * len(batch)), 4),
        }

    def _rounds(self, batch, count) -> None:
        for _ in range(count):
            self.engine._apply(self.engine.loop.run_round(batch))

    def restart(self, index, speculation):
        """A request as it was after its prompt; what was decoded since is out of its length."""
        request = self.requests[index]
        request.length, request.output = len(request.prompt), [self.first[index]]
        request.pending, request.ranks = None, []
        request.speculation = speculation
        request.resolved = self.engine.maker.resolve(speculation)
        request.stats = GenerationStats(prompt_tokens=len(request.prompt), completion_tokens=1)
        return request


def summarise(blocks, sizes, arms) -> dict[str, object]:
    """Medians and ratios by concurrency, the best budget, and where none gains any more."""
    result = {"concurrencies": {}}
    ar = {size: column(blocks, size, "ar", "tok_s") for size in sizes}
    for size in sizes:
        cells = {}
        for arm in arms:
            speeds = column(blocks, size, arm, "tok_s")
            lengths = column(blocks, size, arm, "acceptance_length")
            cells[arm] = {
                "tok_s": statistics.median(speeds),
                "round_ms": statistics.median(column(blocks, size, arm, "round_ms")),
                "acceptance_length": statistics.mean(lengths),
                "against_ar": ratio_of(throughput_ratio(speeds, ar[size], seed=0)),
            }
        trees = [arm for arm in arms if arm != "ar"]
        best = max(trees, key=lambda arm: cells[arm]["against_ar"]["ratio"])
        result["concurrencies"][str(size)] = {
            "arms": cells,
            "best": best,
            "gains": any(beats(cells[arm]["against_ar"]) for arm in trees),
        }
    no_gain = [size for size in sizes if not result["concurrencies"][str(size)]["gains"]]
    result["crossover"] = str(no_gain[0]) if no_gain else f"none up to {sizes[-1]}"
    batching = throughput_ratio(ar[sizes[-1]], ar[sizes[0]], seed=0)
    result["ar_batching"] = {"concurrencies": [sizes[-1], sizes[0]], **ratio_of(batching)}
    return result


def column(blocks, size, arm, name) -> list[float]:
    """One measurement of all blocks."""
    return [block[str(size)][arm][name] for block in blocks]


def beats(found) -> bool:
    """Whether a ratio is above 1, by its interval where there is one."""
    return (found["ratio"] if found["interval"] is None else found["interval"][0]) > 1


def table(context, result, sizes) -> str:
    """For people."""
    lines = [f"context {context}"]
    for size in sizes:
        found = result["concurrencies"][str(size)]
        for arm, got in found["arms"].items():
            ratio, span = got["against_ar"]["ratio"], got["against_ar"]["interval"]
            about = "" if span is None else f" ({span[0]:.2f} to {span[1]:.2f})"
            lines.append(
                f"C={size} {arm:>14} {got['tok_s']:>8.1f} tok/s {got['round_ms']:>8.1f} ms/round "
                f"accept {got['acceptance_length']:.2f} against ar {ratio:.2f}{about}"
                + (" <- best" if arm == found["best"] else "")
            )
    batching = result["ar_batching"]
    most, least = batching["concurrencies"]
    lines.append(f"ar C={most} against C={least}: {batching['ratio']:.2f} {batching['interval']}")
    lines.append(f"no tree beats ar from C: {result['crossover']}")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
