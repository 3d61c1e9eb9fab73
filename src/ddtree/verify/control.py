"""The control: what the target's arithmetic moves by itself, without any drafter."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ddtree.verify.classify import Class, gap_unit, judge
from ddtree.verify.outputs import Output
from ddtree.verify.scoring import Position, Scorer

_CONTROL_QUANTILE = 0.999


@dataclass(frozen=True)
class ControlResult:
    """One row against `rows` rows on the same prefixes, no drafter.

    `flips` counts positions whose token changed, `tie_flips` those between equal scores, `faults`
    those that rounding can't explain. `quantile` is the 99.9 % quantile of how far the margin
    between the reference's two best tokens moved, in logits; of at most 1,000 positions that is
    the largest move. `largest_gap_ulps` is the furthest it moved, in bfloat16's last places.
    """

    rows: int
    positions: int
    flips: int
    faults: int
    quantile: float
    largest_gap_ulps: float
    tie_flips: int = 0

    @property
    def tolerance(self) -> float:
        """The quantile, or 0 where the control itself is at fault and so excuses nothing."""
        return 0.0 if self.faults else self.quantile


async def run_control(
    baselines: Sequence[Output], scorer: Scorer, rows: int, dtype: str
) -> ControlResult | None:
    """Score each baseline by one row and by `rows` rows; None where there are no logits.

    `rows` is the widest arm's budget + 1.
    """
    moves, units = [], []
    changed: list[tuple[Position, int]] = []
    for output in baselines:
        text, start = output.prompt + output.token_ids, len(output.prompt)
        one = await scorer.score(text, start, 1, output.sampling)
        many = await scorer.score(text, start, rows, output.sampling)
        for alone, beside in zip(one, many, strict=True):
            if not (alone.has_scores and beside.has_scores):
                return None
            moves.append(_margin_move(alone, beside))
            units.append(gap_unit(alone.unit_logit))
            other = beside.choice.token_id
            if other != alone.choice.token_id:
                changed.append((alone, other))
    if not moves:
        return None
    # The largest of few moves more often lies below the true quantile than above it: as strict a
    # bound, and unlike a fixed one it follows the model. The rate of near-ties is tested besides.
    quantile = float(np.quantile(np.array(moves), _CONTROL_QUANTILE, method="higher"))
    flips: Counter[Class] = Counter(
        judge(0, alone, other, quantile, dtype).verdict for alone, other in changed
    )
    largest = max(move / unit for move, unit in zip(moves, units, strict=True))
    return ControlResult(
        rows, len(moves), flips.total(), flips["bug"], quantile, largest, flips["tie"]
    )


def _margin_move(alone: Position, beside: Position) -> float:
    """How far the margin between the reference's two best tokens moves in the wider pass; 0 where
    filters leave less than two to compare."""
    if len(alone.candidates) < 2:
        return 0.0
    best, second = alone.candidates[:2]
    floor = beside.top_scores[-1]
    found = [beside.find(candidate.token_id) for candidate in (best, second)]
    if beside.top_edges and None in found:
        return 0.0  # beyond a filter's edge: its score is not known
    high, low = (floor if candidate is None else candidate.score for candidate in found)
    return abs((best.score - second.score) - (high - low))
