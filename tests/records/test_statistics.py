import math

import numpy as np
import pytest

from ddtree.errors import ConfigError
from ddtree.records import statistics
from ddtree.records.statistics import (
    Estimate,
    paired_ratio,
    student_quantile,
    throughput_ratio,
)
from ddtree.records.summary import Interval

TRUTH = 1.05


def simulate(
    rng: np.random.Generator, blocks: int, prompts: int
) -> tuple[list[list[float]], list[list[float]]]:
    """(candidate, baseline) speeds: prompts differ by 25 %, blocks drift by 3 %, shared by both
    arms, each arm's block by 1 % and each measurement by 1 %.
    """
    candidate, baseline = [], []
    for _ in range(blocks):
        shared = rng.normal(0, 0.03) + rng.normal(0, 0.25, prompts)
        arms = rng.normal(0, 0.01, (2, 1)) + rng.normal(0, 0.01, (2, prompts))
        speeds = np.exp(shared + arms) * np.array([[TRUTH], [1.0]])
        candidate.append(speeds[0].tolist())
        baseline.append(speeds[1].tolist())
    return candidate, baseline


def ratios(candidate: list[list[float]], baseline: list[list[float]]) -> list[list[float]]:
    return [
        [a / b for a, b in zip(mine, base, strict=True)]
        for mine, base in zip(candidate, baseline, strict=True)
    ]


def covered(interval: Interval | None, truth: float = TRUTH) -> bool:
    assert interval is not None
    return interval.low <= truth <= interval.high


def test_value_is_the_geometric_mean_over_prompts() -> None:
    estimate = paired_ratio([[2.0, 8.0], [4.0]], seed=0)
    assert estimate == Estimate(pytest.approx(4.0), None, 2, 3)  # type: ignore[arg-type]


def test_same_seed_same_interval_and_another_seed_another() -> None:
    blocks = ratios(*simulate(np.random.default_rng(1), 6, 3))
    assert paired_ratio(blocks, seed=7) == paired_ratio(blocks, seed=7)
    assert paired_ratio(blocks, seed=7) != paired_ratio(blocks, seed=8)


def test_n_too_small_has_no_interval() -> None:
    assert paired_ratio([[1.1], [1.2]], seed=0).interval is None
    assert paired_ratio([[1.1], [1.2], [1.15]], seed=0).interval is not None
    # Eight prompts of one block are one replication.
    assert paired_ratio([[1.1] * 8], seed=0).interval is None
    assert paired_ratio([[1.1], [], [1.2]], seed=0) == Estimate(
        pytest.approx(math.sqrt(1.32)),  # type: ignore[arg-type]
        None,
        2,
        2,
    )
    assert paired_ratio([[], []], seed=0) == Estimate(None, None, 0, 0)


def test_equal_ratios_have_a_point_interval() -> None:
    estimate = paired_ratio([[1.5, 1.5]] * 4, seed=0)
    assert estimate.interval is not None
    assert estimate.interval.low == pytest.approx(1.5)
    assert estimate.interval.high == pytest.approx(1.5)


@pytest.mark.parametrize("bad", [0.0, -1.0, math.nan, math.inf])
def test_a_ratio_must_be_a_positive_number(bad: float) -> None:
    with pytest.raises(ConfigError, match="positive"):
        paired_ratio([[1.0, bad]], seed=0)


def test_ragged_blocks_weigh_by_prompts_and_never_read_padding() -> None:
    # All ratios are 3: a padded zero in the table would pull draws towards 1.
    blocks = [[3.0], [3.0, 3.0, 3.0], [3.0, 3.0]]
    interval = paired_ratio(blocks, seed=0).interval
    assert interval is not None
    assert interval.low == pytest.approx(3.0)
    assert interval.high == pytest.approx(3.0)


def test_throughputs_pair_by_block() -> None:
    assert throughput_ratio([20.0, 45.0], [10.0, 10.0], seed=0).value == pytest.approx(3.0)
    with pytest.raises(ConfigError, match="2 blocks against 1"):
        throughput_ratio([1.0, 2.0], [1.0], seed=0)


@pytest.mark.parametrize(("blocks", "prompts"), [(4, 1), (12, 1), (8, 4)])
def test_coverage_on_simulated_data(blocks: int, prompts: int) -> None:
    # 300 trials at 95 %: binomial sd 1.3 points. Below 91 % would be 3 sd; resampling prompts on
    # top of blocks makes the interval wide with several prompts a block, hence no upper bound.
    rng = np.random.default_rng(5)
    trials = [
        paired_ratio(ratios(*simulate(rng, blocks, prompts)), seed=i, draws=1000).interval
        for i in range(300)
    ]
    assert np.mean([covered(interval) for interval in trials]) >= 0.91
    # Not by being useless: paired, the block noise of 1.4 % is nearly all that is left.
    widths = [interval.high - interval.low for interval in trials if interval is not None]
    assert np.median(widths) < (0.1 if blocks == 4 else 0.05)


def test_coverage_check_catches_a_biased_estimator() -> None:
    # The candidate's own blocks run 3 % hot (as when it always runs last).
    rng = np.random.default_rng(6)
    hits = []
    for i in range(100):
        candidate, baseline = simulate(rng, 12, 1)
        hot = [[speed * 1.03 for speed in block] for block in candidate]
        hits.append(covered(paired_ratio(ratios(hot, baseline), seed=i, draws=1000).interval))
    assert np.mean(hits) < 0.5


def test_unpaired_prompts_cannot_see_the_effect() -> None:
    # Against other prompts' baselines the 25 % between prompts swamps a true 5 %.
    rng = np.random.default_rng(7)
    paired_hits, unpaired_hits = [], []
    for i in range(50):
        candidate, baseline = simulate(rng, 12, 2)
        others = [block[::-1] for block in baseline]
        for blocks, hits in (
            (ratios(candidate, baseline), paired_hits),
            (ratios(candidate, others), unpaired_hits),
        ):
            interval = paired_ratio(blocks, seed=i, draws=1000).interval
            hits.append(interval is not None and interval.low > 1)
    assert np.mean(paired_hits) > 0.95
    assert np.mean(unpaired_hits) < 0.5


def test_prompts_alone_would_claim_too_much() -> None:
    # Taking all prompts as one flat sample ignores what a block's prompts share.
    rng = np.random.default_rng(8)
    flat_hits, block_hits = [], []
    for i in range(150):
        blocks = ratios(*simulate(rng, 5, 12))
        flat = [[ratio] for block in blocks for ratio in block]
        flat_hits.append(covered(paired_ratio(flat, seed=i, draws=500).interval))
        block_hits.append(covered(paired_ratio(blocks, seed=i, draws=500).interval))
    assert np.mean(flat_hits) < 0.75
    assert np.mean(block_hits) >= 0.91


@pytest.mark.parametrize(
    ("degrees", "quantile"),
    [(2, 4.3027), (3, 3.1824), (4, 2.7764), (7, 2.3646), (20, 2.0860), (200, 1.9719)],
)
def test_student_quantile_matches_the_tables(degrees: int, quantile: float) -> None:
    assert student_quantile(0.95, degrees) == pytest.approx(quantile, rel=0.003)


def test_slabs_change_nothing_but_the_order_of_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    blocks = ratios(*simulate(np.random.default_rng(9), 6, 3))
    whole = paired_ratio(blocks, seed=0).interval
    # 18 numbers a draw: slabs of 7 draws, the last one shorter.
    monkeypatch.setattr(statistics, "_SLAB", 7 * 18)
    sliced = paired_ratio(blocks, seed=0).interval
    assert whole is not None
    assert sliced is not None
    assert sliced.low == pytest.approx(whole.low, abs=1e-3)
    assert sliced.high == pytest.approx(whole.high, abs=1e-3)
