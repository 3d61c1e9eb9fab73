"""Short ways to make cell summaries for the recommendation's tests."""

from ddtree.records.arms import Arm
from ddtree.records.summary import CellState, CellSummary, Grade, Interval, Losslessness

AR = Arm("ar")
CHAIN = Arm("chain")


def tree(budget: int, topk: int = 4) -> Arm:
    return Arm("ddtree", budget, topk)


def lossless(grade: Grade = "exact", outputs: int = 10) -> Losslessness:
    differing = {"near-ties": "near_ties", "not-lossless": "bugs"}.get(grade)
    counts = {differing: 1} if differing else {}
    return Losslessness(grade, outputs, outputs - len(counts), **counts)


def cell(
    arm: Arm,
    speedup: float | None = None,
    setting: tuple[int, int] = (60, 1),
    *,
    state: CellState = "ok",
    grade: Grade | None = None,
    interval: tuple[float, float] | str | None = "narrow",
    temperature: float = 0.0,
) -> CellSummary:
    """An `ar` cell is the baseline, any other exact, unless said otherwise; the interval is 1 %
    to each side, and an interval without 1 is beyond all doubt.
    """
    if arm.method == "ar" and speedup is None:
        speedup = 1.0 if state == "ok" else None
    bounds = None
    if interval == "narrow" and arm.method != "ar" and speedup is not None:
        bounds = Interval(speedup * 0.99, speedup * 1.01)
    elif isinstance(interval, tuple):
        bounds = Interval(*interval)
    return CellSummary(
        arm=arm,
        context=setting[0],
        concurrency=setting[1],
        temperature=temperature,
        state=state,
        reason=None if state == "ok" else "a reason",
        requests=10,
        failed_requests=0,
        speedup=speedup,
        speedup_interval=bounds,
        speedup_p=None if bounds is None else 0.5 if bounds.low <= 1 <= bounds.high else 1e-9,
        speedup_vs_chain=None,
        speedup_vs_chain_interval=None,
        end_to_end_speedup=None,
        decode_tokens_per_s=20.0,
        system_tokens_per_s=20.0,
        ttft_s=0.1,
        tpot_s=0.05,
        acceptance_length=None,
        accepted_by_depth=(),
        stage_seconds=None,
        round_s=None,
        losslessness=lossless(grade or ("baseline" if arm.method == "ar" else "exact")),
    )
