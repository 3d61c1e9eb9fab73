"""Which arms of a large grid are worth measuring: predictions, then successive halving.

Everything here is a function of numbers; what runs the servers is `ddtree.bench.tuned`. Halving on
a grid is Jamieson and Talwalkar's successive halving (AISTATS 2016) with every arm's blocks paired
with the baseline's.
"""

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise

from ddtree.bench.spec import TuningSpec
from ddtree.records.arms import Arm, window_size
from ddtree.records.settings import Setting
from ddtree.records.summary import Prediction

BASELINES = ("ar", "chain")

Cost = tuple[str, int]
"""What a round's time is measured for: the method and its budget (0 where it has none)."""


def cost_of(arm: Arm) -> Cost:
    """A round's rows, and so its time, follow from the budget; topk and window matter little."""
    return arm.method, arm.budget or 0


def probe_arms(arms: Sequence[Arm]) -> tuple[Arm, ...]:
    """The arms whose rounds stand for all: `ar`, and of each cost the one with the widest window
    and then the middle topk."""
    chosen = []
    for cost in sorted({cost_of(arm) for arm in arms}, key=_cost_order):
        same = [arm for arm in arms if cost_of(arm) == cost]
        widest = max(window_size(arm.draft_window) for arm in same)
        same = [arm for arm in same if window_size(arm.draft_window) == widest]
        same.sort(key=lambda arm: arm.topk or 0)
        chosen.append(same[len(same) // 2])
    return tuple(chosen)


def round_seconds(arm: Arm, measured: Mapping[Cost, float]) -> float | None:
    """Seconds of an arm's round, interpolated between the budgets that were measured.

    Beyond them the nearest counts; None where nothing of the method was measured.
    """
    method, budget = cost_of(arm)
    known = sorted((n, seconds) for (name, n), seconds in measured.items() if name == method)
    if not known:
        return None
    for (low, low_s), (high, high_s) in pairwise(known):
        if low <= budget <= high:
            return low_s + (high_s - low_s) * (budget - low) / (high - low)
    return known[0][1] if budget < known[0][0] else known[-1][1]


def predict(
    setting: Setting,
    acceptance: Mapping[Arm, float],
    measured: Mapping[Cost, float],
) -> tuple[Prediction, ...]:
    """Foretold speed-ups over `ar`, fastest first: acceptance length over the round's cost.

    `measured` holds seconds of a round by cost, `ar`'s step among them; arms without a round time
    are left out. Nothing is chosen yet.
    """
    step = measured.get(("ar", 0))
    if not step:
        return ()
    found = []
    for arm, length in acceptance.items():
        seconds = round_seconds(arm, measured)
        if arm.method != "ar" and seconds:
            found.append(
                Prediction(arm, setting, length, seconds, length * step / seconds, False, "")
            )
    return tuple(sorted(found, key=lambda p: (-p.speedup, p.arm.size)))


def choose(predictions: Sequence[Prediction], limit: int) -> tuple[Prediction, ...]:
    """At most `limit` trees chosen, each with the reason; chains are baselines and always run.

    First the Pareto front of acceptance length against the round's time, then the grid's
    neighbours of the fastest (prediction is not exact, so its surroundings are worth a look), then
    what else is fastest.
    """
    trees = [p for p in predictions if p.arm.method not in BASELINES]
    front = [p for p in trees if not any(_beats(other, p) for other in trees)]
    near = [p for p in trees if trees and _are_neighbours(p.arm, trees[0].arm, trees)]
    reasons: dict[Arm, str] = {}
    for group, reason in (
        (front, "on the Pareto front of acceptance length and round time"),
        (near, f"next to {trees[0].arm.label}, the fastest predicted" if trees else ""),
        (trees, "among the fastest predicted"),
    ):
        for p in group:
            if len(reasons) < limit:
                reasons.setdefault(p.arm, reason)
    return tuple(
        Prediction(
            p.arm,
            p.setting,
            p.acceptance_length,
            p.round_s,
            p.speedup,
            p.arm in reasons or p.arm.method in BASELINES,
            "a baseline"
            if p.arm.method in BASELINES
            else reasons.get(p.arm, f"not among the {limit} to be tried"),
        )
        for p in predictions
    )


def keep(
    speedups: Mapping[Arm, float | None], tuning: TuningSpec, always: Sequence[Arm] = ()
) -> tuple[Arm, ...]:
    """The arms of a rung that go on, fastest first: one in `growth`, no fewer than `finalists`.

    An arm without a ratio comes last. `always` go on besides.
    """
    count = max(tuning.finalists, math.ceil(len(speedups) / tuning.growth))
    order = sorted(speedups, key=lambda arm: (-(speedups[arm] or 0.0), arm.size))
    kept = [arm for arm in order[:count] if speedups[arm]] or order[:1]
    return tuple(dict.fromkeys([*kept, *(arm for arm in order if arm in always)]))


def best_everywhere(predictions: Mapping[Setting, Sequence[Prediction]]) -> Arm | None:
    """The tree with the best geometric mean of foretold speed-ups over all settings; None where
    no tree is foretold at every one."""
    by_arm: dict[Arm, list[float]] = {}
    for found in predictions.values():
        for p in found:
            if p.arm.method not in BASELINES and p.speedup > 0:
                by_arm.setdefault(p.arm, []).append(math.log(p.speedup))
    everywhere = {a: logs for a, logs in by_arm.items() if len(logs) == len(predictions)}
    if not everywhere:
        return None
    return max(everywhere, key=lambda arm: (sum(everywhere[arm]), [-n for n in arm.size]))


def _cost_order(cost: Cost) -> tuple[bool, str, int]:
    return cost[0] != "ar", cost[0], cost[1]


def _beats(other: Prediction, one: Prediction) -> bool:
    """Whether `other` accepts as much in as little time, and more or in less."""
    longer = other.acceptance_length - one.acceptance_length
    sooner = one.round_s - other.round_s
    if longer < 0 or sooner < 0:
        return False
    return longer > 0 or sooner > 0 or other.arm.size < one.arm.size


def _are_neighbours(arm: Arm, best: Arm, trees: Sequence[Prediction]) -> bool:
    """Whether an arm is one step of the grid away from `best` along one axis."""
    steps = []
    for name in ("budget", "topk"):
        steps.append(_steps([getattr(p.arm, name) or 0 for p in trees], arm, best, name))
    widths = sorted({window_size(p.arm.draft_window) for p in trees})
    places = [widths.index(window_size(a.draft_window)) for a in (arm, best)]
    steps.append(abs(places[0] - places[1]))
    return sorted(steps) == [0, 0, 1]


def _steps(values: Sequence[int], arm: Arm, best: Arm, name: str) -> int:
    order = sorted(set(values))
    return abs(order.index(getattr(arm, name) or 0) - order.index(getattr(best, name) or 0))
