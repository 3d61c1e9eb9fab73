"""The bound on near-ties, beside values worked out apart from it."""

import random
from fractions import Fraction
from math import comb

import pytest

from ddtree.verify.control import ControlResult
from ddtree.verify.rate import LEVEL, near_tie_rate


def control(flips: int, positions: int) -> ControlResult:
    return ControlResult(9, positions, flips, 0, 0.0, 0.0)


def is_likely(near: int, tokens: int, flips: int, positions: int) -> bool:
    """P(X >= near) >= 1 - LEVEL, X binomial, in exact arithmetic."""
    share, total = Fraction(tokens, tokens + positions), near + flips
    tail = sum(
        comb(total, k) * share**k * (1 - share) ** (total - k) for k in range(near, total + 1)
    )
    return tail >= 1 - LEVEL


@pytest.mark.parametrize("flips", [0, 1, 7, 40])
@pytest.mark.parametrize(("tokens", "positions"), [(500, 500), (3000, 400), (200, 5000)])
def test_the_bound_is_the_largest_likely_count(flips: int, tokens: int, positions: int) -> None:
    near = 1000
    rate = near_tie_rate(near, tokens, control(flips, positions))
    allowed = near - rate.excess
    assert allowed < near
    assert is_likely(allowed, tokens, flips, positions)
    assert not is_likely(allowed + 1, tokens, flips, positions)
    assert near_tie_rate(allowed, tokens, control(flips, positions)).excess == 0


def test_equal_exposures_and_no_flips_allow_thirteen() -> None:
    # 2^-13 is above 0.01 %, 2^-14 below.
    assert near_tie_rate(13, 1000, control(0, 1000)).excess == 0
    assert near_tie_rate(16, 1000, control(0, 1000)).excess == 3


def test_nothing_is_in_excess_without_a_control_or_near_ties() -> None:
    assert near_tie_rate(50, 1000, None).excess == 0
    assert near_tie_rate(0, 1000, control(0, 1000)).excess == 0
    assert near_tie_rate(0, 0, control(0, 1000)).excess == 0


def test_equal_rates_are_almost_never_called_unequal() -> None:
    rng = random.Random(5)

    def count(positions: int) -> int:
        return sum(rng.random() < 0.02 for _ in range(positions))

    called = sum(
        near_tie_rate(count(1500), 1500, control(count(500), 500)).excess > 0 for _ in range(300)
    )
    assert called <= 3
    many = sum(
        near_tie_rate(count(15000), 1500, control(count(500), 500)).excess > 0 for _ in range(50)
    )
    assert many == 50
