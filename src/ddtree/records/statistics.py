"""Speed-up ratios with intervals, from paired measurements in blocks.

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
_SLAB = 4_000_000


@dataclass(frozen=True)
class Estimate:
    """A ratio with its interval; `interval` is None with fewer than MIN_BLOCKS blocks (n too
    small), `value` is None without any pair.
    """

    value: float | None
    interval: Interval | None
    blocks: int
    pairs: int


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
    interval = None
    if len(logs) >= MIN_BLOCKS:
        means = _resampled_means(logs, np.random.default_rng(seed), draws)
        tail = (1 - level) / 2
        low, high = np.quantile(means, (tail, 1 - tail)) - centre
        widen = _small_sample_factor(len(logs), level)
        interval = Interval(
            math.exp(centre + widen * float(low)), math.exp(centre + widen * float(high)), level
        )
    return Estimate(math.exp(centre), interval, len(logs), pairs)


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
