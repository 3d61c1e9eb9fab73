"""Speed-up ratios with intervals, from measurements in blocks; quantiles; several tests at once.

The block is the unit of replication: what disturbs one measurement of a block disturbs its
neighbours too, so prompts inside a block are not independent evidence.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from ddtree.errors import ConfigError
from ddtree.records.summary import Interval

DRAWS = 10_000
MIN_BLOCKS = 3
QUANTILE_RISK = 0.05
OUTLIER_MADS = 5.0
OUTLIER_MIN = 8
# Smaller deviations than this, in logs, are no outliers however much closer the others lie.
_OUTLIER_FLOOR = 0.001
_SLAB = 4_000_000


@dataclass(frozen=True)
class Estimate:
    """A ratio with its interval; `interval` is None with fewer than MIN_BLOCKS blocks (n too
    small), `value` is None without any pair.

    `p_value` is two-sided, of the ratio being 1: Student's t of the logarithm's mean over the
    draws' spread, by blocks - 1 degrees. None with the interval.
    """

    value: float | None
    interval: Interval | None
    blocks: int
    pairs: int
    p_value: float | None = None


@dataclass(frozen=True)
class Outliers:
    """`count` ratios far from the others, and the geometric mean of the others."""

    count: int
    ratio_without: float


def paired_ratio(
    blocks: Sequence[Sequence[float]], seed: int, *, draws: int = DRAWS, level: float = 0.95
) -> Estimate:
    """Geometric mean of paired ratios, `blocks[b][p]` = candidate / baseline of one prompt.

    Hierarchical bootstrap: each draw takes blocks with replacement, then prompts inside each
    taken block. The draws' spread around the estimate is widened for few blocks (Student's
    quantile and the n - 1 divisor). Blocks may differ in size, empty ones don't count. The same
    seed gives the same interval. ConfigError on a ratio that is not a positive number.
    """
    logs = [_logs(block) for block in blocks if len(block)]
    pairs = sum(len(block) for block in logs)
    if not pairs:
        return Estimate(None, None, 0, 0)
    centre = float(np.concatenate(logs).mean())
    if len(logs) < MIN_BLOCKS:
        return Estimate(math.exp(centre), None, len(logs), pairs)
    means = _resampled_means(logs, np.random.default_rng(seed), draws)
    interval = _interval(centre, means, len(logs), level)
    p_value = _p_value(centre, means, len(logs))
    return Estimate(math.exp(centre), interval, len(logs), pairs, p_value)


def unpaired_ratio(
    candidate: Sequence[Sequence[float]], baseline: Sequence[Sequence[float]], seed: int
) -> Estimate:
    """Ratio of two geometric means of speeds by block, measured on prompts that don't match.

    Each side is resampled by itself, as in `paired_ratio`; the smaller number of blocks widens
    the interval. `pairs` is 0. ConfigError on a speed that is not a positive number.
    """
    sides = [[_logs(block) for block in side if len(block)] for side in (candidate, baseline)]
    if not all(sides):
        return Estimate(None, None, 0, 0)
    means = [float(np.concatenate(side).mean()) for side in sides]
    centre, blocks = means[0] - means[1], min(map(len, sides))
    if blocks < MIN_BLOCKS:
        return Estimate(math.exp(centre), None, blocks, 0)
    rng = np.random.default_rng(seed)
    drawn = [_resampled_means(side, rng, DRAWS) for side in sides]
    difference = drawn[0] - drawn[1]
    interval = _interval(centre, difference, blocks, 0.95)
    return Estimate(math.exp(centre), interval, blocks, 0, _p_value(centre, difference, blocks))


def quantile_minimum(q: float) -> int:
    """Smallest number of values that can bound their quantile `q` with 95 % confidence.

    Of n values the largest is below the q-quantile of what they are drawn from with probability
    q ** n; for q under a half the smallest value and 1 - q count. 5 for the median, 29 for p10
    and p90, 59 for p95, 299 for p99.
    """
    return math.ceil(math.log(QUANTILE_RISK) / math.log(max(q, 1 - q)))


def quantile(values: Sequence[float], q: float) -> float | None:
    """The value of rank ceil(q * n), None where `quantile_minimum` asks for more values."""
    if len(values) < quantile_minimum(q):
        return None
    return sorted(values)[max(0, math.ceil(q * len(values)) - 1)]


def mean_interval(
    clusters: Sequence[tuple[float, float]], seed: int, draws: int
) -> Interval | None:
    """95 % interval of sum(total) / sum(weight) over `clusters` of (total, weight).

    Clusters are drawn with replacement, since what is inside one depends on the rest of it. None
    with fewer than MIN_BLOCKS of them.
    """
    count = len(clusters)
    if count < MIN_BLOCKS:
        return None
    table = np.asarray(clusters, dtype=np.float64)
    taken = np.random.default_rng(seed).integers(count, size=(draws, count))
    totals, weights = table[:, 0][taken].sum(1), table[:, 1][taken].sum(1)
    centre = float(table[:, 0].sum() / table[:, 1].sum())
    low, high = np.quantile(totals / weights, (0.025, 0.975)) - centre
    widen = _small_sample_factor(count, 0.95)
    return Interval(centre + widen * float(low), centre + widen * float(high))


def outliers(ratios: Sequence[float]) -> Outliers | None:
    """Ratios whose logarithm is over OUTLIER_MADS median absolute deviations from the median.

    None where there is none, and with fewer than OUTLIER_MIN ratios, among which any may look
    far away.
    """
    if len(ratios) < OUTLIER_MIN:
        return None
    logs = _logs(ratios)
    distance = np.abs(logs - np.median(logs))
    far = distance > OUTLIER_MADS * max(float(np.median(distance)), _OUTLIER_FLOOR)
    if not far.any():
        return None
    return Outliers(int(far.sum()), math.exp(float(logs[~far].mean())))


def holm(p_values: Sequence[float], risk: float = 0.05) -> tuple[bool, ...]:
    """Which hypotheses fall, in the order given, when `risk` is that of rejecting any true one.

    Holm's step-down: the smallest p must be at most risk / m, the next risk / (m - 1), and so on;
    the first that is not ends it.
    """
    rejected = [False] * len(p_values)
    for rank, place in enumerate(sorted(range(len(p_values)), key=p_values.__getitem__)):
        if p_values[place] > risk / (len(p_values) - rank):
            break
        rejected[place] = True
    return tuple(rejected)


def throughput_ratio(candidate: Sequence[float], baseline: Sequence[float], seed: int) -> Estimate:
    """Geometric mean of candidate[b] / baseline[b], one throughput for each block of a pair.

    ConfigError when the two differ in length.
    """
    if len(candidate) != len(baseline):
        raise ConfigError(
            f"throughputs: {len(candidate)} blocks against {len(baseline)}; pair them by block"
        )
    return paired_ratio([[a / b] for a, b in zip(candidate, baseline, strict=True)], seed)


def student_quantile(level: float, degrees: int) -> float:
    """Two-sided quantile of Student's t, for degrees >= 2, to 0.3 % at levels up to 0.99."""
    if degrees == 2:
        return level * math.sqrt(2 / (1 - level**2))
    z = NormalDist().inv_cdf((1 + level) / 2)
    # Cornish-Fisher expansion in 1 / degrees.
    terms = (
        z,
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
        (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / 92160,
    )
    return math.fsum(term / float(degrees) ** power for power, term in enumerate(terms))


def student_tail(t: float, degrees: int) -> float:
    """Two-sided tail of Student's t beyond |t|, exact: the finite series for whole degrees."""
    angle = math.atan(abs(t) / math.sqrt(degrees))
    cosine = math.cos(angle)
    odd = degrees % 2
    term, total = (cosine if odd else 1.0), 0.0
    for step in range(1 + odd, degrees, 2):
        total += term
        term *= cosine**2 * step / (step + 1)
    inside = math.sin(angle) * total
    if odd:
        inside = 2 / math.pi * (angle + inside)
    # Far out the series cancels to nothing, or to less than nothing.
    return min(1.0, max(0.0, 1 - inside))


def _interval(centre: float, means: NDArray[np.float64], blocks: int, level: float) -> Interval:
    """Of the ratio, from draws of the logarithm's mean."""
    tail = (1 - level) / 2
    low, high = np.quantile(means, (tail, 1 - tail)) - centre
    widen = _small_sample_factor(blocks, level)
    return Interval(
        math.exp(centre + widen * float(low)), math.exp(centre + widen * float(high)), level
    )


def _p_value(centre: float, means: NDArray[np.float64], blocks: int) -> float:
    error = float(means.std()) * math.sqrt(blocks / (blocks - 1))
    if not error:
        return 0.0 if centre else 1.0
    return student_tail(centre / error, blocks - 1)


def _small_sample_factor(blocks: int, level: float) -> float:
    z = NormalDist().inv_cdf((1 + level) / 2)
    return student_quantile(level, blocks - 1) / z * math.sqrt(blocks / (blocks - 1))


def _logs(block: Sequence[float]) -> NDArray[np.float64]:
    ratios = np.asarray(block, dtype=np.float64)
    if not (np.isfinite(ratios).all() and (ratios > 0).all()):
        raise ConfigError(f"ratios: expected positive numbers, got {list(block)}")
    return np.log(ratios)


def _resampled_means(
    logs: Sequence[NDArray[np.float64]], rng: np.random.Generator, draws: int
) -> NDArray[np.float64]:
    """Mean of all prompts of each draw, [draws]."""
    sizes = np.array([len(block) for block in logs])
    count, width = len(logs), int(sizes.max())
    if width == 1:
        # One prompt to a block: there is nothing to draw inside.
        alone: NDArray[np.float64] = np.concatenate(logs)
        means_alone: NDArray[np.float64] = alone[rng.integers(count, size=(draws, count))].mean(1)
        return means_alone
    table = np.zeros((count, width))
    for row, block in zip(table, logs, strict=True):
        row[: len(block)] = block
    slab = max(1, _SLAB // (count * width))
    means = []
    for start in range(0, draws, slab):
        taken = rng.integers(count, size=(min(slab, draws - start), count))
        inside = rng.random((*taken.shape, width)) * sizes[taken][..., None]
        values = table[taken[..., None], inside.astype(np.int64)]
        live = np.arange(width) < sizes[taken][..., None]
        means.append((values * live).sum((1, 2)) / live.sum((1, 2)))
    return np.concatenate(means)
