"""Near-tie or bug: what a gap between two scores says about a token.

Thresholds are in units of the last place of the highest logit, because that is what reordered
sums of a correct model move.
"""

import math
from dataclasses import dataclass
from typing import Literal

from ddtree.errors import ConfigError
from ddtree.verify.scoring import Position

Class = Literal["tie", "near-tie", "filter-edge", "suspect", "bug"]
EXPLAINED: tuple[Class, ...] = ("tie", "near-tie", "filter-edge")

# Explicit fraction bits: a unit in the last place of z is 2^(exponent of z - bits).
_FRACTION_BITS = {"bfloat16": 7, "float16": 10, "float32": 23, "float64": 52}
_GAP_UNIT = "bfloat16"
EXACT_DTYPES = ("float32", "float64")
"""Where rounding is so small that nothing lies between a near-tie and a bug."""
_EXACT_GAP = 1e-3
_BUG_NATS = 1.0


@dataclass(frozen=True)
class Finding:
    """A token that is not the reference's choice, at `index` of the arm's output.

    `of_baseline` marks the baseline's token at the first divergence, judged like the arm's.
    `rank` is None below all tops; `gap_ulps` is in units of the highest logit's last place in
    bfloat16, whatever the model's dtype, so that gaps of all runs compare. A `filter-edge` is a
    token that rounding can move across the edge of what top_k, top_p or min_p keep, `gap` then
    being against the tokens that can't be moved. `filtered`: a filter drops the token, by far.
    `reproduced`: a near-tie because the target alone was seen to choose the token.
    """

    index: int
    token_id: int
    reference_id: int
    rank: int | None
    gap: float
    gap_ulps: float
    verdict: Class
    of_baseline: bool = False
    filtered: bool = False
    reproduced: bool = False


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

    `gap` is the highest score minus the token's, `rank` the token's (1-based, None below all
    tops), `control_quantile` what the control explains (0 without one). In float32 and
    float64 there is nothing between a near-tie (gap under 1e-3) and a bug.
    """
    unit = ulp(top_logit, dtype)
    if not math.isfinite(gap):
        return "bug"
    if gap == 0:
        return "tie"
    if dtype in EXACT_DTYPES:
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
    scale, choice = position.unit_logit, position.choice
    found = position.find(token_id)
    # A token below the tops has at least the last one's gap: the least that can be held against it.
    score = position.top_scores[-1] if found is None else found.score
    edge = math.inf if found is None else found.edge
    near = near_gap(scale, tolerance, dtype)
    rank, gap = _rank(position, score, found is not None), choice.score - score
    # A negative gap belongs to a token that only a filter keeps from being the choice.
    verdict = classify(max(gap, 0.0), rank, scale, tolerance, dtype)
    if edge <= 0:
        far = dtype in EXACT_DTYPES or -edge > max(_BUG_NATS, 4 * ulp(scale, dtype))
        verdict = "bug" if far or verdict == "bug" else "suspect"
    if verdict not in EXPLAINED and -near < edge and min(edge, choice.edge) <= near:
        firm = next((c for c in position.candidates if c.edge > near), None)
        firm_gap = 0.0 if firm is None else max(firm.score - score, 0.0)
        if classify(firm_gap, 1, scale, tolerance, dtype) in ("tie", "near-tie"):
            verdict, gap = "filter-edge", firm_gap
    if found is None and verdict in EXPLAINED:
        verdict = "suspect"
    return Finding(
        index=index,
        token_id=token_id,
        reference_id=choice.token_id,
        rank=rank,
        gap=abs(gap),
        gap_ulps=abs(gap) / gap_unit(scale),
        verdict=verdict,
        of_baseline=baseline,
        filtered=edge <= -near,
    )


def near_gap(scale: float, tolerance: float, dtype: str) -> float:
    """The largest move of a logit that counts as rounding."""
    return _EXACT_GAP if dtype in EXACT_DTYPES else max(2 * ulp(scale, dtype), tolerance)


def _rank(position: Position, score: float, known: bool) -> int | None:
    """1 + the number of better tokens among those that filters keep; None below all of them."""
    kept = [candidate.score for candidate in position.candidates if candidate.edge > 0]
    higher = sum(other > score for other in kept)
    return None if not known or higher == len(position.candidates) else higher + 1
