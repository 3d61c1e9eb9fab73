"""Pass rates with honest intervals, one arm or two arms on the same tasks.

The task is the unit: samples of one task are not independent evidence, and two arms that answer
the same tasks are compared task by task. Shares and differences are of 1, never in per cent.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from ddtree.errors import ConfigError
from ddtree.records.statistics import DRAWS, mean_interval
from ddtree.records.summary import Interval

_CELLS = 4_000
_SPREADS = 16.0
_BISECTIONS = 60
_POINT = 1e-12


def wilson(passed: float, total: int, level: float = 0.95) -> Interval:
    """Wilson's score interval of a share of `total` tasks (Wilson 1927).

    `passed` may be a sum of shares. Without tasks it is all of 0 to 1. ConfigError where `passed`
    is not between 0 and `total`.
    """
    if not 0 <= passed <= total:
        raise ConfigError(f"passed: expected 0 to {total}, got {passed}")
    if not total:
        return Interval(0.0, 1.0, level)
    z = NormalDist().inv_cdf((1 + level) / 2)
    share = passed / total
    centre = share + z * z / (2 * total)
    half = z * math.sqrt(share * (1 - share) / total + (z / (2 * total)) ** 2)
    scale = 1 + z * z / total
    low, high = (centre - half) / scale, (centre + half) / scale
    # Rounding must not leave a share of 0 or 1 outside its own interval.
    return Interval(min(max(low, 0.0), share), max(min(high, 1.0), share), level)


def mcnemar(b: int, c: int) -> float:
    """Exact two-sided p-value of b against c discordant tasks being a fair coin's (McNemar).

    1 where there are none.
    """
    tail = sum(math.comb(b + c, i) for i in range(min(b, c) + 1))
    return min(1.0, 2 * tail / (1 << (b + c)))


def pass_at_k(n: int, c: int, k: int) -> float:
    """Chance that k of n samples, c of which pass, hold one that passes (Chen et al. 2021).

    Unbiased for k fresh samples. ConfigError where 1 <= k <= n and 0 <= c <= n don't hold.
    """
    if not (1 <= k <= n and 0 <= c <= n):
        raise ConfigError(f"pass@k: expected 1 <= k <= n and 0 <= c <= n, got {k=}, {n=}, {c=}")
    return 1 - math.comb(n - c, k) / math.comb(n, k)


def mean_pass_at(counts: Sequence[tuple[int, int]], k: int) -> float | None:
    """Mean over tasks of pass@k, `counts` being (samples, passing samples) by task.

    None where any task has fewer than k samples, and without tasks: leaving such tasks out would
    change what the number is about.
    """
    if not counts or any(n < k for n, _ in counts):
        return None
    return math.fsum(pass_at_k(n, c, k) for n, c in counts) / len(counts)


def cluster_interval(per_task: Sequence[float], seed: int) -> Interval:
    """95 % interval of the mean of `per_task`, each the share of a task's samples that pass.

    A bootstrap over tasks, `DRAWS` times. It shows no spread where all tasks agree and needs a few
    of them; there it is Wilson's, whose variance no shares of that mean exceed.
    """
    interval = mean_interval([(value, 1.0) for value in per_task], seed, DRAWS)
    if interval is None or len(set(per_task)) == 1:
        return wilson(math.fsum(per_task), len(per_task))
    return Interval(max(interval.low, 0.0), min(interval.high, 1.0), interval.level)


def paired_difference(
    baseline: Sequence[float], arm: Sequence[float], seed: int
) -> tuple[float, Interval | None]:
    """Mean over tasks of arm - baseline, and its 95 % interval by a bootstrap over tasks.

    Both are shares of samples that pass, in the same order of tasks. None for the interval where
    no task differs or fewer than three were run: there is nothing to draw from, and
    `excluded_loss` speaks instead. ConfigError where the two differ in length or are empty.
    """
    if len(baseline) != len(arm) or not arm:
        raise ConfigError(
            f"pass rates: {len(arm)} tasks against {len(baseline)}; pair them by task"
        )
    differences = [a - b for a, b in zip(arm, baseline, strict=True)]
    mean = math.fsum(differences) / len(differences)
    if not any(differences):
        return 0.0, None
    interval = mean_interval([(value, 1.0) for value in differences], seed, DRAWS)
    if interval is None:
        return mean, None
    return mean, Interval(max(interval.low, -1.0), min(interval.high, 1.0), interval.level)


def excluded_loss(b: int, c: int, n: int, level: float = 0.95) -> float:
    """A loss in pass rate of more than this is excluded, one-sided at `level`.

    b of n tasks pass with the baseline alone, c with the arm alone. Negative where a gain of at
    least so much is shown, 1 without tasks. ConfigError where b + c exceeds n.

    The loss is rate * (2 * lean - 1): the share of discordant tasks times how they lean. Each has
    its exact (Clopper-Pearson) confidence distribution, a beta, and the bound is the quantile of
    the product (Fay & Lumbard 2021, "Confidence intervals for difference in proportions for
    matched pairs compatible with exact McNemar's or sign tests"): below 0 exactly where the
    one-sided exact test finds a gain, 1 - (1 - level) ** (1 / n) without discordant tasks, and
    covering at least `level` in every case that was enumerated.
    """
    if b < 0 or c < 0 or b + c > n:
        raise ConfigError(f"discordant tasks: expected b + c <= n, got {b=}, {c=}, {n=}")
    if not n:
        return 1.0
    discordant = b + c
    lean = _beta(b + 1, c)
    scale = lean.edges[1:] + lean.edges[:-1] - 1
    # A lean of exactly nothing would divide by zero; the weight of one cell is no matter.
    scale = np.where(np.abs(scale) < _POINT, _POINT, scale)
    weights = np.diff(lean.cumulative)
    most, least = _beta(discordant + 1, n - discordant), _beta(discordant, n - discordant + 1)

    def share_below(loss: float) -> float:
        rate = loss / scale
        gains = 1 - np.interp(rate, least.edges, least.cumulative)
        losses = np.interp(rate, most.edges, most.cumulative)
        return float((weights * np.where(scale < 0, gains, losses)).sum())

    low, high = -1.0, 1.0
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        low, high = (low, middle) if share_below(middle) >= level else (middle, high)
    return high


@dataclass(frozen=True)
class _Distribution:
    """On an interval in cells: `cumulative[i]` is the share below `edges[i]`, both [cells + 1]."""

    edges: NDArray[np.float64]
    cumulative: NDArray[np.float64]


def _beta(a: int, b: int) -> _Distribution:
    """The beta distribution for whole a and b, of which one may be 0: all of it at that end."""
    if not a or not b:
        end = 1.0 if a else 0.0
        return _Distribution(np.array([end - _POINT, end]), np.array([0.0, 1.0]))
    mean = a / (a + b)
    spread = math.sqrt(mean * (1 - mean) / (a + b + 1))
    ends = max(0.0, mean - _SPREADS * spread), min(1.0, mean + _SPREADS * spread)
    edges = np.linspace(*ends, _CELLS + 1)
    middles = (edges[1:] + edges[:-1]) / 2
    logs = (a - 1) * np.log(middles) + (b - 1) * np.log1p(-middles)
    masses = np.exp(logs - logs.max())
    return _Distribution(edges, np.concatenate([[0.0], np.cumsum(masses)]) / masses.sum())
