"""A round's time against its floor, by budget, concurrency and context; what of it is the models'.

Requests are set up in a round's tables as if they had decoded to a context, their keys random. The
whole round is timed, then each pass of a model alone, all recorded as CUDA graphs. The floor is
the larger of bytes over the bandwidth and operations over the rate measured in the same run.

    python benchmarks/gpu_rounds.py --device cuda --out benchmarks/results/HARDWARE/gpu_rounds.json
"""

import itertools

import torch
from common import load, parser, progress, write
from gpu_timing import ceilings, seconds_of, split_of

from ddtree.engine import Engine, EngineConfig, SamplingParams, Speculation
from ddtree.engine.fixed.round import FixedRound, Kind

KEPT = 4  # rounds' tokens for which a request's run has room in a timing


def main() -> None:
    """Time every cell and print a table."""
    options = parser(__doc__)
    options.add_argument("--dtype", default="bfloat16")
    options.add_argument("--budgets", type=numbers, default=[0, 8, 16, 32, 64, 128])
    options.add_argument("--topk", type=int, default=8)
    options.add_argument("--concurrency", type=numbers, default=[1, 8, 32, 64])
    options.add_argument("--contexts", type=numbers, default=[60, 1024, 4096, 8000])
    options.add_argument("--repeats", type=int, default=30)
    options.add_argument("--split", action="store_true", help="kernels by name, per cell")
    args = options.parse_args()
    rounds = "graphs" if args.device.startswith("cuda") else "stepped"
    config = EngineConfig(
        slots=max(args.concurrency),
        max_budget=max(*args.budgets, 1),
        max_context=min(max(args.contexts) + 192, 8192),
        rounds=rounds,
    )
    engine = load(args, args.dtype, config).engine
    engine.pool.cells.normal_()
    engine.drafting.pool.cells.normal_()
    limits = ceilings(engine.target.device, engine.target.dtype)
    progress(limits)
    cells = []
    for context, count in itertools.product(args.contexts, args.concurrency):
        for budget in args.budgets:
            cells.append(measure(engine, args, limits, (context, count, budget)))
            progress(row_of(cells[-1]))
        write(args, {"ceilings": limits, "cells": cells})


def numbers(text: str) -> list[int]:
    """Integers with commas between."""
    return [int(part) for part in text.split(",")]


@torch.inference_mode()
def measure(engine: Engine, args, limits, cell):
    """One cell: seconds of the round and of its models' passes, and the floor."""
    context, count, budget = cell
    runner = engine.fixed
    slots = placed(engine, context, count, (budget, args.topk))
    kind = Kind(budget, args.topk if budget else 1, False, False, False)
    launch = runner.launches.of(kind, count)
    one = runner.launches.round_of(runner.launches.fitting(kind))
    listed = slots.tolist()
    whole = seconds_of(lambda: launch(listed), args.repeats, recorded=True)
    placed(engine, context, count, (budget, args.topk))
    passes = passes_of(one, slots, args.repeats)
    bytes_, operations = cost(engine, cell)
    floor = max(bytes_ / limits["bytes_per_s"], operations / limits["operations_per_s"])
    found = {
        "context": context,
        "concurrency": count,
        "budget": budget,
        "round_s": whole,
        **passes,
        "bytes": bytes_,
        "operations": operations,
        "floor_s": floor,
        "over_floor": whole / floor,
        "outside_models": 1 - sum(passes.values()) / whole,
    }
    if args.split:
        placed(engine, context, count, (budget, args.topk))
        found["kernels"] = split_of(lambda: one(slots))
    return found


def placed(engine: Engine, context: int, count: int, tree) -> torch.Tensor:
    """Slots of `count` requests that have decoded to `context` tokens."""
    generator = torch.Generator().manual_seed(context)
    budget, topk = tree
    speculation = Speculation("ddtree", budget, topk) if budget else Speculation("ar")
    most = engine.max_context
    for slot in range(count):
        prompt = torch.randint(0, engine.target.shape.vocab_size, (context,), generator=generator)
        request = engine.make_request(
            prompt.tolist(), SamplingParams(most - context, ignore_eos=True), speculation
        )
        request.slot, request.base = slot, slot * engine.sizes.longest
        request.length = context
        request.output.append(1)
        engine.fixed.state.store(request, None)
    return torch.arange(count, device=engine.target.device)


def passes_of(one: FixedRound, slots: torch.Tensor, repeats: int) -> dict[str, float]:
    """Seconds of each model's pass of a round on its own."""
    rows = one.state.rows(one.parts.open(one.state.ints, slots))
    grown, bad = one.draft(rows)
    hidden, features = one.verify(rows, grown)
    head = one.models.decoder.head
    found = {
        "target_s": seconds_of(lambda: head(one.verify(rows, grown)[0]), repeats),
        "draft_s": 0.0,
        "feed_s": 0.0,
    }
    drafting = one.models.drafting
    if drafting is None or features is None:
        return found
    ints = one.state.ints.clone()
    settled = one.parts.settle(ints, rows, grown, one.choose(rows, head(hidden), grown), bad)
    fed = drafting.kept(rows, settled, features)
    found["draft_s"] = seconds_of(lambda: drafting.logits(rows), repeats)
    found["feed_s"] = seconds_of(lambda: drafting.feed(fed), repeats)
    return found


def cost(engine: Engine, cell) -> tuple[int, int]:
    """Bytes that a round must read or write at least once, and its multiply-adds times two."""
    context, count, budget = cell
    target, size = engine.target, engine.target.dtype.itemsize
    model = target.model
    weights = weight_count(model.base_model) + model.lm_head.weight.numel()
    weights -= model.base_model.embed_tokens.weight.numel()
    rows = count * (budget + 1)
    shape = target.shape
    pair = 2 * shape.num_layers * shape.num_kv_heads * shape.head_dim
    heads = model.config.num_attention_heads
    bytes_ = size * (weights + count * pair * (context + budget + 1))
    operations = 2 * rows * weights
    operations += 4 * rows * shape.num_layers * heads * shape.head_dim * (context + budget + 1)
    if not budget:
        return bytes_, operations
    drafter, head = engine.drafting.drafter, model.lm_head.weight.numel()
    seen, own = min(context, engine.draft_window), weight_count(drafter)
    config = drafter.config
    block = count * engine.block_size
    bytes_ += size * (own + head)
    bytes_ += size * count * 2 * config.num_layers * config.num_kv_heads * config.head_dim * seen
    operations += 2 * block * (own + head)
    operations += 4 * block * config.num_layers * config.num_heads * config.head_dim * seen
    return bytes_, operations


def weight_count(module: torch.nn.Module) -> int:
    """Its parameters, each once."""
    return sum(parameter.numel() for parameter in module.parameters())


def row_of(cell) -> str:
    """A line of the table."""
    times = [f"{cell[name] * 1e3:7.3f}" for name in ("round_s", "draft_s", "target_s", "feed_s")]
    return (
        f"context {cell['context']:5} C {cell['concurrency']:3} budget {cell['budget']:4}: round "
        f"{times[0]} ms (draft {times[1]}, target {times[2]}, feed {times[3]}), floor "
        f"{cell['floor_s'] * 1e3:7.3f}, x{cell['over_floor']:5.2f}, outside models "
        f"{cell['outside_models']:6.1%}"
    )


if __name__ == "__main__":
    main()
