"""Run summaries for the report's tests, with numbers shaped like a small model's on a CPU."""

from dataclasses import replace
from typing import Any

from ddtree.records.arms import Arm
from ddtree.records.summary import (
    CellSummary,
    Choice,
    Control,
    Interval,
    Losslessness,
    RunSummary,
    Spread,
    TreeUse,
    Verdict,
)

AR, CHAIN = Arm("ar"), Arm("chain")
TREES = tuple(Arm("ddtree", budget=b, topk=k) for b, k in ((8, 2), (8, 4), (16, 2), (16, 4)))
ARMS = (AR, CHAIN, *TREES)
CONTEXTS, CONCURRENCIES = (256, 900), (1, 8)
SHIP = Arm("ddtree", budget=8, topk=4)


def cell(arm: Arm, context: int, concurrency: int, **changes: Any) -> CellSummary:
    """A valid cell of `arm` with numbers that differ from every other cell's."""
    budget, topk = arm.budget or 7, arm.topk or 1
    step = (0.0301 + context * 3e-6) * (1 + 0.21 * (concurrency - 1))
    tree = {"ar": 0.0, "chain": 1.0, "ddtree": 1.12}[arm.method]
    length = 1 + tree * 1.52 * (1 + 0.055 * budget**0.5 + 0.03 * topk) - context * 2e-4
    cost = 1.0 if arm == AR else 1.42 + 0.011 * budget * (1 + 0.32 * (concurrency - 1))
    speedup = 1.0 if arm == AR else length / cost
    round_s = step * cost
    rate = 0.0 if arm == AR else (length - 1) / length
    chain = None
    if arm.method == "ddtree":
        chain = speedup / (cell(CHAIN, context, concurrency).speedup or 1.0)
    base = CellSummary(
        arm=arm,
        context=context,
        concurrency=concurrency,
        temperature=0.0,
        state="ok",
        reason=None,
        requests=40,
        failed_requests=0,
        speedup=None if arm == AR else speedup,
        speedup_interval=None if arm == AR else around(speedup, 0.035),
        speedup_vs_chain=chain,
        speedup_vs_chain_interval=None if chain is None else around(chain, 0.028),
        end_to_end_speedup=None if arm == AR else 1 + 0.8 * (speedup - 1),
        decode_tokens_per_s=speedup / step,
        system_tokens_per_s=concurrency * speedup / step * 0.97,
        ttft_s=0.081 + context * 4.1e-4 * (1 + 0.5 * (concurrency - 1)) + budget * 1e-4,
        tpot_s=step / speedup,
        acceptance_length=None if arm == AR else length,
        accepted_by_depth=() if arm == AR else tuple(rate ** (0.55 + 0.62 * d) for d in range(7)),
        stage_seconds=_stages(arm, round_s, budget),
        round_s=round_s,
        losslessness=_grade(arm, context, concurrency),
        end_to_end_interval=None if arm == AR else around(1 + 0.8 * (speedup - 1), 0.03),
        ttft=spread(0.081 + context * 4.1e-4),
        tpot=spread(step / speedup),
        end_to_end=spread(0.081 + context * 4.1e-4 + 127 * step / speedup),
        acceptance_source=None if arm == AR else "server",
        acceptance_gain=None if arm == AR else length,
        round_cost=None if arm == AR else cost,
        tree=_tree(arm, length),
        ratio_deciles=() if arm == AR else tuple(speedup * (0.8 + 0.05 * d) for d in range(1, 10)),
        achieved_concurrency=0.98 * concurrency,
        loop_lag_s=0.0011,
        cached_tokens=0,
    )
    return replace(base, **changes)


def spread(middle: float, count: int = 40) -> Spread:
    """Quantiles around `middle`; so many requests bound no p95 and no p99 unless `count` does."""
    p95, p99 = (1.4 * middle if count >= 59 else None, 1.7 * middle if count >= 299 else None)
    return Spread(count, 0.9 * middle, middle, 1.2 * middle, p95, p99)


def _tree(arm: Arm, length: float) -> TreeUse | None:
    if arm == AR:
        return None
    nodes = arm.budget or 7
    weights = [0.86**n for n in range(nodes)]
    gains = tuple((length - 1) * weight / sum(weights) for weight in weights)
    if arm.method == "chain":
        return TreeUse((1.0,), 0.0, length, (length - 1) / nodes, gains)
    ranks = (0.78, 0.13, 0.06, 0.03)[: arm.topk]
    ranks = tuple(share / sum(ranks) for share in ranks)
    return TreeUse(ranks, 0.31, 0.87 * length, (length - 1) / nodes, gains)


def around(value: float, share: float) -> Interval:
    """An interval of `share` on both sides."""
    return Interval(value * (1 - share), value * (1 + share))


def _stages(arm: Arm, round_s: float, budget: int) -> dict[str, float]:
    if arm == AR:
        return {"verify": 0.975 * round_s, "commit": 0.01 * round_s, "host": 0.015 * round_s}
    rest = {"build": 6e-5 + 9e-6 * budget, "layout": 2.1e-4, "accept": 3.3e-4, "commit": 5.2e-4}
    rest["host"] = 8.1e-4
    left = round_s - sum(rest.values())
    return {"draft": 0.21 * left, "verify": 0.79 * left, **rest}


def _grade(arm: Arm, context: int, concurrency: int) -> Losslessness:
    if arm == AR:
        return Losslessness("baseline", outputs=40, identical=40)
    if context == 256 and concurrency == 1:
        return Losslessness("exact", 40, 40, control_rows=(arm.budget or 7) + 1)
    near = 1 + (arm.budget or 0) // 8
    return Losslessness(
        "near-ties",
        outputs=40,
        identical=40 - near,
        near_ties=near,
        largest_gap_ulps=0.875,
        control_rows=(arm.budget or 7) + 1,
        control_positions=5120,
        control_flips=9,
        control_largest_gap_ulps=1.125,
    )


def not_lossless(**changes: Any) -> Losslessness:
    """A grade with two bugs and a suspect."""
    grade = Losslessness(
        "not-lossless",
        outputs=40,
        identical=37,
        suspects=1,
        bugs=2,
        largest_gap_ulps=41.5,
        control_rows=17,
        control_positions=5120,
        control_flips=9,
        control_largest_gap_ulps=1.125,
    )
    return replace(grade, **changes)


def good_run() -> RunSummary:
    """Six arms, two contexts, two concurrencies; everything valid and lossless."""
    cells = tuple(cell(a, ctx, c) for ctx in CONTEXTS for c in CONCURRENCIES for a in ARMS)
    return RunSummary(
        title="SmolLM2-135M: autoregressive, chain and tree",
        created="2026-12-01T17:48:03+00:00",
        model="smollm2-135m",
        dtype="bfloat16",
        verdict=Verdict(
            arm=SHIP,
            headline=(
                "Ship ddtree(8,4): 1.90 times the speed of ar over four settings, every output "
                "equal up to near-ties."
            ),
            speedup=1.90,
            choices=tuple(_choice(cells, ctx, c) for ctx in CONTEXTS for c in CONCURRENCIES),
            warnings=("Context 900, concurrency 8: ddtree(8,4) and ddtree(16,4) differ by 1.1 %.",),
        ),
        cells=cells,
        controls=tuple(
            Control(ctx, c, 0.991 + 0.006 * i + 0.004 * j, Interval(0.982, 1.013), 40)
            for i, ctx in enumerate(CONTEXTS)
            for j, c in enumerate(CONCURRENCIES)
        ),
        spec={
            "model": "smollm2-135m",
            "dtype": "bfloat16",
            "contexts": list(CONTEXTS),
            "concurrencies": list(CONCURRENCIES),
            "arms": [arm.to_request() for arm in ARMS],
            "max_tokens": 128,
            "blocks": 5,
            "prompts": {"source": "humaneval", "count": 8},
        },
        provenance={
            "ddtree": "0.1.0",
            "git": {"revision": "a6ec395d0c1be2f1", "dirty": False},
            "versions": {"python": "3.11.7", "torch": "2.13.0+cpu", "transformers": "5.24.0"},
            "cpu": "2 cores",
            "memory_bytes": 25769803776,
            "threads": {"OMP_NUM_THREADS": "2", "OMP_WAIT_POLICY": "passive"},
            "seed": 17,
            "command": ["ddtree", "bench", "run", "--preset", "demo", "--out", "runs/demo"],
        },
    )


def _choice(cells: tuple[CellSummary, ...], context: int, concurrency: int) -> Choice:
    here = [c for c in cells if (c.context, c.concurrency) == (context, concurrency)]
    best = max(here, key=lambda c: c.speedup or 1.0)
    reason = "Fastest by more than 2 %." if concurrency == 1 else "Fewest nodes within 2 %."
    return Choice(context, concurrency, 0.0, best.arm, best.speedup or 1.0, reason)


def sampled_run() -> RunSummary:
    """The good run, and the same once more at temperature 0.7, a little slower."""
    run = good_run()
    slower = tuple(
        replace(
            c,
            temperature=0.7,
            speedup=None if c.speedup is None else 0.9 * c.speedup,
            speedup_interval=None if c.speedup is None else around(0.9 * c.speedup, 0.02),
        )
        for c in run.cells
    )
    choices = tuple(
        replace(c, temperature=t, speedup=c.speedup * (0.9 if t else 1.0))
        for c in run.verdict.choices
        for t in (0.0, 0.7)
    )
    cells = (*run.cells, *slower)
    return replace(run, cells=cells, verdict=replace(run.verdict, choices=choices))


def faulty_run() -> RunSummary:
    """The good run with a not-lossless, an invalid, a failed, an unclassified and a missing cell.

    The not-lossless one, ddtree(16,4) at context 900 and concurrency 8, has the largest speed-up.
    """
    run = good_run()
    blank = dict.fromkeys(
        ("speedup", "speedup_interval", "speedup_vs_chain", "speedup_vs_chain_interval")
    )
    gone = dict.fromkeys(
        (
            "end_to_end_speedup",
            "decode_tokens_per_s",
            "system_tokens_per_s",
            "ttft_s",
            "tpot_s",
            "acceptance_length",
            "stage_seconds",
            "round_s",
        )
    )
    changes: dict[tuple[Arm, int, int], dict[str, Any]] = {
        (TREES[3], 900, 8): {
            "speedup": 9.87,
            "speedup_interval": Interval(9.81, 9.93),
            "losslessness": not_lossless(),
        },
        (TREES[0], 900, 8): {
            "state": "invalid",
            "reason": "other processes took 23 % CPU",
            **blank,
        },
        (TREES[2], 900, 1): {
            "state": "failed",
            "reason": "the server broke off: connection reset by peer",
            "failed_requests": 40,
            "accepted_by_depth": (),
            "losslessness": Losslessness("unclassified", 0, 0),
            **blank,
            **gone,
        },
        (TREES[1], 256, 8): {"losslessness": Losslessness("unclassified", 40, 38)},
    }
    cells = tuple(
        replace(c, **changes.get((c.arm, c.context, c.concurrency), {}))
        for c in run.cells
        if (c.arm, c.context, c.concurrency) != (TREES[3], 256, 8)
    )
    verdict = Verdict(
        arm=CHAIN,
        headline="Ship chain: 1.69 times the speed of ar; no tree counts everywhere.",
        speedup=1.69,
        choices=(Choice(256, 1, 0.0, TREES[3], 2.02, "Fastest by more than 2 %."),),
        warnings=("4 of 23 cells cannot count.",),
    )
    controls = (replace(run.controls[0], ratio=0.931, ratio_interval=None), *run.controls[1:])
    return replace(run, cells=cells, verdict=verdict, controls=controls)


def no_verdict_run() -> RunSummary:
    """Every speculative cell slower than the baseline: nothing to recommend."""
    run = good_run()
    cells = tuple(
        c if c.arm == AR else replace(c, speedup=0.83, speedup_interval=around(0.83, 0.02))
        for c in run.cells
    )
    choices = tuple(
        Choice(ctx, c, 0.0, AR, 1.0, "Nothing beats ar.") for ctx in (256, 900) for c in (1, 8)
    )
    verdict = Verdict(None, "Nothing to ship: no arm is faster than ar.", None, choices)
    return replace(run, cells=cells, verdict=verdict)


def one_cell_run() -> RunSummary:
    """One tree cell, alone, with neither control nor choice nor chain."""
    run = good_run()
    verdict = Verdict(None, "Too few cells to recommend anything.", None, ())
    return replace(
        run, cells=(cell(SHIP, 900, 1),), controls=(), verdict=verdict, spec={}, provenance={}
    )


def large_run() -> RunSummary:
    """Draft windows and many trees: more arms than there are line styles."""
    trees = [
        Arm("ddtree", budget=b, topk=k, draft_window=w)
        for w in (256, "full")
        for b in (4, 8, 16, 32, 64)
        for k in (1, 2, 4, 8)
    ]
    chains = [Arm("chain", draft_window=256), Arm("chain", draft_window="full")]
    cells = tuple(
        cell(a, ctx, c) for ctx in (1024,) for c in (1, 16) for a in (AR, *chains, *trees)
    )
    choices = tuple(
        Choice(1024, c, 0.0, trees[6], 1.9, "Fewest nodes within 2 %.") for c in (1, 16)
    )
    return replace(good_run(), cells=cells, verdict=Verdict(trees[6], "A wide run.", 1.4, choices))
