"""The control: what the target's arithmetic moves by itself, without any drafter."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ddtree.verify.classify import gap_unit, judge
from ddtree.verify.outputs import Output
from ddtree.verify.scoring import Position, Scorer

_CONTROL_QUANTILE = 0.999


@dataclass(frozen=True)
class ControlResult:
    """One row against `rows` rows on the same prefixes, no drafter.

    `flips` counts positions whose best token changed, `faults` those flips that rounding can't
    explain. `quantile` is the 99.9 % quantile of how far the margin between the reference's two
    best tokens moved, in logits; of at most 1,000 positions that is the largest move.
    `largest_gap_ulps` is the furthest it moved, in bfloat16's last places.
    """

    rows: int
    positions: int
    flips: int
    faults: int
    quantile: float
    largest_gap_ulps: float

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
    flips = faults = 0
    for output in baselines:
        text, start = output.prompt + output.token_ids, len(output.prompt)
        one = await scorer.score(text, start, 1)
        many = await scorer.score(text, start, rows)
        for alone, beside in zip(one, many, strict=True):
            if not (alone.has_logits and beside.has_logits and len(alone.top_ids) > 1):
                return None
            moves.append(_margin_move(alone, beside))
            units.append(gap_unit(alone.top_logits[0]))
            if beside.top_ids[0] != alone.top_ids[0]:
                flips += 1
                other = beside.top_ids[0]
                faults += judge(0, alone, other, 0.0, dtype).verdict == "bug"
    if not moves:
        return None
    # The largest of few moves more often lies below the true quantile than above it: as strict a
    # bound, and unlike a fixed one it follows the model. The rate of near-ties is tested besides.
    quantile = float(np.quantile(np.array(moves), _CONTROL_QUANTILE, method="higher"))
    largest = max(move / unit for move, unit in zip(moves, units, strict=True))
    return ControlResult(rows, len(moves), flips, faults, quantile, largest)


def _margin_move(alone: Position, beside: Position) -> float:
    """How far the margin between the reference's two best tokens moves in the wider pass."""
    best, second = alone.top_ids[:2]
    floor = beside.top_logits[-1]
    margins = [beside.logit_of(token) for token in (best, second)]
    high, low = (floor if logit is None else logit for logit in margins)
    return abs((alone.top_logits[0] - alone.top_logits[1]) - (high - low))
