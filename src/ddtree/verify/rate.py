"""Near-ties explained one by one may still be too many: their rate against the control's."""

import math
from bisect import bisect_left
from dataclasses import dataclass

from ddtree.verify.control import ControlResult

LEVEL = 0.9999
"""Confidence at which an arm's near-ties are called more than the control explains."""


@dataclass(frozen=True)
class NearTieRate:
    """`near_ties` among `tokens` of an arm's outputs, and how many are above the bound."""

    near_ties: int
    tokens: int
    excess: int


def near_tie_rate(near_ties: int, tokens: int, control: ControlResult | None) -> NearTieRate:
    """Compare an arm's near-ties per token with the control's flips per position.

    The bound is the exact one for two Poisson counts at LEVEL: given their sum, the arm's count is
    binomial with its share of all positions, so a control of few positions allows more. `tokens`
    counts every token of the outputs that were compared. Without a control nothing is in excess.
    """
    if control is None or not tokens:
        return NearTieRate(near_ties, tokens, 0)
    # Flips that rounding can't explain excuse none.
    return _rate(near_ties, tokens, control.flips - control.faults, control.positions)


def tie_rate(ties: int, tokens: int, control: ControlResult | None) -> NearTieRate:
    """The same for exact ties: tokens whose score equals the choice's, which has the lowest id.

    One pass of several rows can break a tie of one-row decoding either way, so a tie is no fault;
    many more than the control's are a rule of choice that differs.
    """
    if control is None or not tokens:
        return NearTieRate(ties, tokens, 0)
    return _rate(ties, tokens, control.tie_flips, control.positions)


def _rate(near_ties: int, tokens: int, flips: int, positions: int) -> NearTieRate:
    # Identical outputs belong in `tokens`: counting only outputs that differ would select for
    # near-ties.
    share = tokens / (tokens + positions)

    def is_excess(count: int) -> bool:
        return _tail(count, count + flips, share) < 1 - LEVEL

    allowed = bisect_left(range(near_ties + 1), True, key=is_excess) - 1
    return NearTieRate(near_ties, tokens, near_ties - allowed)


def _tail(least: int, total: int, share: float) -> float:
    """P(X >= least) for X binomial over `total` trials, 0 < share < 1."""
    if least == 0:
        return 1.0
    here, there = math.log(share), math.log1p(-share)
    logs = (
        math.lgamma(total + 1)
        - math.lgamma(count + 1)
        - math.lgamma(total - count + 1)
        + count * here
        + (total - count) * there
        for count in range(least, total + 1)
    )
    return math.fsum(map(math.exp, logs))
