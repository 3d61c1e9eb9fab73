"""What building trees costs, next to the heap it replaces, from the same top-k tables.

python benchmarks/builder_cost.py --out benchmarks/results/HARDWARE/builder_cost.json
"""

import statistics
import time

import torch
from common import parser, progress, write

from ddtree.core import LevelwiseBuilder, build_heap, layout_tree, top_candidates


def main() -> None:
    """Measure every batch size, budget and topk."""
    options = parser(__doc__)
    options.add_argument("--repeats", type=int, default=200)
    args = options.parse_args()
    device = torch.device(args.device)
    generator = torch.Generator().manual_seed(0)
    rows = []
    for batch in (1, 8, 32):
        logits = torch.randn(batch, 7, 49152, generator=generator).mul(4).bfloat16().to(device)
        for budget, topk in ((8, 4), (16, 4), (64, 8)):
            rows.append(measure(logits, budget, topk, args.repeats))
            progress(rows[-1])
    write(args, {"rows": rows})


@torch.inference_mode()
def measure(logits, budget, topk, repeats) -> dict[str, object]:
    """Median milliseconds of each part for one batch."""
    batch, depth, _ = logits.shape
    candidates = top_candidates(logits, topk)
    builder = LevelwiseBuilder(budget, topk, depth, logits.device)
    budgets = torch.full((batch,), budget, device=logits.device)
    topks = torch.full((batch,), topk, device=logits.device)
    tree = builder(candidates, budgets, topks)
    device_is_cpu = logits.device.type == "cpu"
    roots = torch.zeros(batch, dtype=torch.int64, device=logits.device)
    parts = {
        "candidates_ms": lambda: top_candidates(logits, topk, 1 if device_is_cpu else None),
        "build_ms": lambda: builder(candidates, budgets, topks),
        "layout_ms": lambda: layout_tree(tree, roots, roots),
        "heap_ms": lambda: build_heap(candidates, [budget] * batch, [topk] * batch),
    }
    return {"batch": batch, "budget": budget, "topk": topk} | {
        name: median_ms(part, repeats if name != "heap_ms" else 20) for name, part in parts.items()
    }


def median_ms(part, repeats) -> float:
    """Median wall time of a call, in milliseconds."""
    times = []
    for _ in range(repeats + 5):
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        start = time.perf_counter()
        part()
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        times.append(time.perf_counter() - start)
    return 1e3 * statistics.median(times[5:])


if __name__ == "__main__":
    main()
