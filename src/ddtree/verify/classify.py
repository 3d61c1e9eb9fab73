"""Near-tie or bug: what a gap between two logits says about a token.

Thresholds are in units of the last place of the highest logit, because that is what reordered
sums of a correct model move.
"""

import math
from dataclasses import dataclass
from typing import Literal

from ddtree.errors import ConfigError
from ddtree.verify.scoring import Position

Class = Literal["tie", "near-tie", "suspect", "bug"]

# Explicit fraction bits: a unit in the last place of z is 2^(exponent of z - bits).
_FRACTION_BITS = {"bfloat16": 7, "float16": 10, "float32": 23, "float64": 52}
_GAP_UNIT = "bfloat16"
_EXACT_DTYPES = ("float32", "float64")
_EXACT_GAP = 1e-3
_BUG_NATS = 1.0


@dataclass(frozen=True)
class Finding:
    """A token that is not the reference's choice, at `index` of the arm's output.

    `of_baseline` marks the baseline's token at the first divergence, judged like the arm's.
    `rank` is None outside the top five; `gap_ulps` is in units of the highest logit's last place
    in bfloat16, whatever the model's dtype, so that gaps of all runs compare.
    """

    index: int
    token_id: int
    reference_id: int
    rank: int | None
    gap: float
    gap_ulps: float
    verdict: Class
    of_baseline: bool = False


def ulp(value: float, dtype: str) -> float:
    """Distance between neighbouring `dtype` numbers at |value|; ConfigError on another dtype."""
    if dtype not in _FRACTION_BITS:
        raise ConfigError(f"dtype: got {dtype!r}, expected one of {', '.join(_FRACTION_BITS)}")
    # frexp's mantissa is in [0.5, 1), hence the 1; no smaller than the smallest normal bfloat16.
    exponent = math.frexp(max(abs(value), 2.0**-126))[1] - 1
    return 2.0 ** (exponent - _FRACTION_BITS[dtype])


def gap_unit(top_logit: float) -> float:
    """The unit in which gaps are reported: bfloat16's last place at the highest logit."""
    return ulp(top_logit, _GAP_UNIT)


def classify(
    gap: float, rank: int | None, top_logit: float, control_quantile: float, dtype: str
) -> Class:
    """Judge a token that isn't the reference's choice.

    `gap` is the highest logit minus the token's, `rank` the token's (1-based, None outside the
    top five), `control_quantile` what the control explains (0 without one). In float32 and
    float64 there is nothing between a near-tie (gap under 1e-3) and a bug.
    """
    unit = ulp(top_logit, dtype)
    if not math.isfinite(gap):
        return "bug"
    if gap == 0:
        return "tie"
    if dtype in _EXACT_DTYPES:
        return "near-tie" if gap < _EXACT_GAP else "bug"
    if gap > max(_BUG_NATS, 4 * unit) or (rank is None and gap > 4 * unit):
        return "bug"
    near = rank is not None and (rank <= 2 or (rank == 3 and gap <= unit))
    return "near-tie" if near and gap <= max(2 * unit, control_quantile) else "suspect"


def judge(
    index: int,
    position: Position,
    token_id: int,
    tolerance: float,
    dtype: str,
    *,
    baseline: bool = False,
) -> Finding:
    """Class `token_id` at a position of an output; `tolerance` is the control's quantile."""
    top = position.top_logits[0]
    logit = position.logit_of(token_id)
    # A token below the tops has at least the last one's gap: the least that can be held against it.
    known = position.top_logits[-1] if logit is None else logit
    rank = None if logit is None else position.rank_of(logit)
    gap = top - known
    verdict = classify(gap, rank, top, tolerance, dtype)
    if logit is None and verdict in ("tie", "near-tie"):
        verdict = "suspect"
    return Finding(
        index=index,
        token_id=token_id,
        reference_id=position.top_ids[0],
        rank=rank,
        gap=gap,
        gap_ulps=gap / gap_unit(top),
        verdict=verdict,
        of_baseline=baseline,
    )
