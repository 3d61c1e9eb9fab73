import asyncio
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from synthetic import ULP, Target, output

from ddtree.errors import ConfigError, EndpointError
from ddtree.records.sampling import Sampling
from ddtree.verify.classify import Class, classify, judge, ulp
from ddtree.verify.control import run_control
from ddtree.verify.outputs import compare
from ddtree.verify.scoring import CachedScorer, Position


@pytest.mark.parametrize(
    ("value", "dtype", "step"),
    [
        (8.0, "bfloat16", 0.0625),
        (15.9, "bfloat16", 0.0625),
        (-16.0, "bfloat16", 0.125),
        (31.5, "bfloat16", 0.125),
        (32.0, "bfloat16", 0.25),
        (1.0, "bfloat16", 2.0**-7),
        (16.0, "float16", 2.0**-6),
        (16.0, "float32", 2.0**-19),
        (1.0, "float64", 2.0**-52),
    ],
)
def test_units_in_the_last_place(value: float, dtype: str, step: float) -> None:
    assert ulp(value, dtype) == step


def test_unit_of_zero_is_tiny_and_another_dtype_is_refused() -> None:
    assert 0 < ulp(0.0, "bfloat16") < 1e-38
    with pytest.raises(ConfigError, match="int8"):
        ulp(1.0, "int8")


# At a top logit of 20 the step u is 0.125: 2u = 0.25, 4u = 0.5, and max(1, 4u) = 1.
CASES: list[tuple[float, int | None, float, Class]] = [
    (0.0, 1, 0, "tie"),
    (0.0, None, 0, "tie"),
    (0.125, 2, 0, "near-tie"),
    (0.25, 2, 0, "near-tie"),
    (0.26, 2, 0, "suspect"),
    (0.26, 2, 0.3, "near-tie"),
    (0.125, 3, 0, "near-tie"),
    (0.13, 3, 0, "suspect"),
    (0.13, 3, 0.9, "suspect"),
    (0.125, 4, 0, "suspect"),
    (1.0, 2, 0, "suspect"),
    (1.01, 2, 0, "bug"),
    (1.01, 2, 99.0, "bug"),
    (0.5, None, 0, "suspect"),
    (0.51, None, 0, "bug"),
    (math.nan, 1, 0, "bug"),
    (math.inf, 2, 0, "bug"),
]


@pytest.mark.parametrize(("gap", "rank", "quantile", "verdict"), CASES)
def test_thresholds(gap: float, rank: int | None, quantile: float, verdict: Class) -> None:
    assert classify(gap, rank, 20.0, quantile, "bfloat16") == verdict


def test_large_logits_have_wider_steps() -> None:
    # At 200 a step is 1: four of them are no bug yet, though over one nat.
    assert classify(2.0, 2, 200.0, 0, "bfloat16") == "near-tie"
    assert classify(4.0, 2, 200.0, 0, "bfloat16") == "suspect"
    assert classify(4.1, 2, 200.0, 0, "bfloat16") == "bug"


@given(
    gap=st.floats(0, 10),
    more=st.floats(0, 5),
    rank=st.sampled_from([2, 3, 4, 5, None]),
    top=st.floats(-100, 100),
    quantile=st.floats(0, 5),
    dtype=st.sampled_from(["bfloat16", "float16", "float32", "float64"]),
)
def test_a_larger_gap_is_never_judged_milder(
    gap: float, more: float, rank: int | None, top: float, quantile: float, dtype: str
) -> None:
    order = ["tie", "near-tie", "suspect", "bug"]
    small = order.index(classify(gap, rank, top, quantile, dtype))
    large = order.index(classify(gap + more, rank, top, quantile, dtype))
    assert small <= large


def test_rank_counts_higher_logits_so_equal_ones_share_it() -> None:
    position = Position(4, 5.0, (1, 2, 3, 4, 5), (9.0, 5.0, 5.0, 5.0, 1.0))
    assert judge(0, position, 4, 0, "bfloat16").rank == 2
    assert judge(0, position, 9, 0, "bfloat16").rank is None


def test_a_token_whose_logit_is_unknown_is_never_excused() -> None:
    # Five equal logits on top: what lies below them may be anywhere.
    position = Position(1, 20.0, (1, 2, 3, 4, 5), (20.0,) * 5)
    assert judge(0, position, 3, 0, "bfloat16").verdict == "tie"
    assert judge(0, position, 9, 0, "bfloat16").verdict == "suspect"
    assert judge(0, position, 9, 0, "float32").verdict == "suspect"


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_gaps_are_in_bfloat16_units_whatever_the_dtype(dtype: str) -> None:
    position = Position(2, 19.75, (1, 2), (20.0, 19.75))
    assert judge(0, position, 2, 0, dtype).gap_ulps == 2.0
    target = Target(margins={n: ULP for n in range(20)}, wobble=ULP)
    base = output((1, 1), target.greedy((1, 1), 10))
    control = asyncio.run(run_control([base], target, 9, dtype))
    assert control is not None
    assert control.largest_gap_ulps in (1.0, 2.0)


def test_outputs_of_other_prompts_are_not_compared() -> None:
    with pytest.raises(ConfigError, match="prompt id"):
        compare(output((1,), (2,)), output((3,), (2,)))


def test_control_counts_flips_and_margins() -> None:
    # Margins of one step, wobble of one step: the margin moves by 0, 1 or 2 steps.
    target = Target(margins={n: ULP for n in range(100)}, wobble=ULP)
    baselines = [output((n, n), target.greedy((n, n), 10)) for n in range(1, 11)]
    control = asyncio.run(run_control(baselines, target, 9, "bfloat16"))
    assert control is not None
    assert (control.rows, control.positions, control.faults) == (9, 100, 0)
    assert 0 < control.flips < 50
    # z1 may lie a step below 20 only in the wider pass: units come from the one-row pass.
    assert control.quantile == pytest.approx(2 * ULP)
    assert control.largest_gap_ulps == pytest.approx(2.0)
    assert control.tolerance == control.quantile


def test_control_of_a_still_target_moves_nothing() -> None:
    target = Target()
    control = asyncio.run(run_control([output((1,), target.greedy((1,), 5))], target, 9, "float32"))
    assert control is not None
    assert (control.flips, control.quantile, control.largest_gap_ulps) == (0, 0.0, 0.0)


def test_control_with_a_broken_wide_pass_excuses_nothing() -> None:
    # As when the wide pass masks the wrong rows: margins of 3 flip.
    target = Target(wobble=4.0)
    baselines = [output((n,), target.greedy((n,), 10)) for n in range(1, 6)]
    control = asyncio.run(run_control(baselines, target, 9, "bfloat16"))
    assert control is not None
    assert control.faults > 0
    assert control.quantile > 1
    assert control.tolerance == 0


def test_no_control_without_logits_or_outputs() -> None:
    silent = Target(has_logits=False)
    assert asyncio.run(run_control([output((1,), (2,))], silent, 9, "bfloat16")) is None
    assert asyncio.run(run_control([], Target(), 9, "bfloat16")) is None


class Fixed:
    """Answers every call with the same positions."""

    def __init__(self, *positions: Position) -> None:
        self.positions = positions

    async def score(
        self, token_ids: object, score_from: int, rows: int, sampling: object
    ) -> tuple[Position, ...]:
        return self.positions


class ByRows:
    """One token: margin 0.1 for token 1 in one row, for token 2 in several."""

    async def score(
        self, token_ids: object, score_from: int, rows: int, sampling: object
    ) -> tuple[Position, ...]:
        ids = (1, 2) if rows == 1 else (2, 1)
        return (Position(1, 20.0 if rows == 1 else 19.9, ids, (20.0, 19.9)),)


def test_a_flip_moves_the_margin_of_the_same_two_tokens() -> None:
    # From +0.1 to -0.1, although best minus second best is 0.1 both times.
    control = asyncio.run(run_control([output((5,), (1,))], ByRows(), 9, "bfloat16"))
    assert control is not None
    assert (control.flips, control.quantile) == (1, pytest.approx(0.2))


GREEDY = Sampling()
GOOD = Position(2, 3.0, (1, 2), (4.0, 3.0))


@pytest.mark.parametrize(
    ("positions", "words"),
    [
        ((), "asked for 1"),
        ((GOOD, GOOD), "asked for 1"),
        ((Position(9, 3.0, (1, 2), (4.0, 3.0)),), "other tokens"),
        ((Position(2, 3.0, (1, 2), (3.0, 4.0)),), "best first"),
        ((Position(2, 3.0, (1,), (4.0, 3.0)),), "best first"),
        ((Position(2, 5.0, (1, 2), (4.0, 3.0)),), "highest"),
        ((Position(2, math.nan, (1, 2), (4.0, 3.0)),), "highest"),
    ],
)
def test_nonsense_from_a_server_is_an_error(positions: tuple[Position, ...], words: str) -> None:
    scorer = CachedScorer(Fixed(*positions))
    with pytest.raises(EndpointError, match=words):
        asyncio.run(scorer.score((1, 2), 1, 1, GREEDY))


def test_cache_tells_rows_texts_and_seeds_apart() -> None:
    target = Target()
    scorer = CachedScorer(target)

    async def ask() -> None:
        for text, rows in (((1, 2), 1), ((1, 2), 9), ((1, 3), 1), ((1, 2), 1)):
            await scorer.score(text, 1, rows, GREEDY)
        for seed in (1, 2, 1):
            await scorer.score((1, 2), 1, 1, Sampling(0.7, seed=seed))

    asyncio.run(ask())
    assert target.calls == [(1, 1), (1, 9), (1, 1), (1, 1), (1, 1)]
