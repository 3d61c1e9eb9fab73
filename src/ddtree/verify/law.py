"""Is sampled text distributed as the target says? A test with guaranteed false-alarm odds.

With the tokens of a position in order of probability, the mass before the token that came plus a
random part of its own share is uniform on (0, 1), independently of all earlier positions, exactly
if the token was drawn from that distribution (Rosenblatt, 1952). The largest distance D between
the empirical distribution of n such numbers and the uniform one exceeds d with a probability of at
most 2 exp(-2 n d^2) (Dvoretzky, Kiefer and Wolfowitz, 1956, with Massart's constant, 1990): no
asymptotics, for any n.
"""

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass

from ddtree.verify.scoring import Position

FALSE_ALARM = 1e-6
"""How often a correct sampler may fail the test."""


@dataclass(frozen=True)
class LawResult:
    """`distance` is D over `positions` numbers, `odds` the bound on a correct sampler's chance of
    one as large. `detectable`: the D from which on the test fails at this number of positions."""

    positions: int
    distance: float
    odds: float
    detectable: float

    @property
    def passed(self) -> bool:
        """Whether a correct sampler does as badly often enough."""
        return self.odds >= FALSE_ALARM


def law_test(positions: Sequence[Position], seed: int) -> LawResult | None:
    """Test positions of sampled outputs, each scored given the output's own prefix; None where
    the target doesn't say what it samples from. `seed` is for the random parts of shares.

    Outputs must differ in seed or prompt: repeated text is no new evidence.
    """
    chance = random.Random(seed)
    values = [
        position.before + chance.random() * position.share
        for position in positions
        if position.before is not None and position.share is not None
    ]
    if not values:
        return None
    distance = _distance(sorted(values))
    count = len(values)
    odds = min(1.0, 2 * math.exp(-2 * count * distance**2))
    return LawResult(count, distance, odds, math.sqrt(math.log(2 / FALSE_ALARM) / (2 * count)))


def _distance(values: Sequence[float]) -> float:
    """Kolmogorov's distance between sorted values and the uniform distribution."""
    count = len(values)
    return max(
        max((index + 1) / count - value, value - index / count)
        for index, value in enumerate(values)
    )
