"""Did the way in which code was found change between two arms?"""

import math
from collections.abc import Mapping

from ddtree.records.statistics import holm

RISK = 0.01
"""Of an alarm where nothing shifted."""


def method_shift(baseline: Mapping[str, int], arm: Mapping[str, int]) -> str | None:
    """What moved, in words, where the mix of `method` and `missing` differs more than chance.

    Both count answers by a name of how they were found. Each name's share is compared by Fisher's
    exact test, two-sided, and Holm's correction over all names keeps the risk of a false alarm at
    1 %. Two arms answer the same tasks alike, so that the true risk is smaller. None where nothing
    shifted, or where one side has no answers.
    """
    totals = sum(baseline.values()), sum(arm.values())
    if not all(totals):
        return None
    names = sorted({*baseline, *arm})
    pairs = [(baseline.get(name, 0), arm.get(name, 0)) for name in names]
    odds = [fisher(pair, totals) for pair in pairs]
    shifted = [
        f"{name} {pair[0]} of {totals[0]} -> {pair[1]} of {totals[1]} (p = {p:.1g})"
        for name, pair, p, real in zip(names, pairs, odds, holm(odds, RISK), strict=True)
        if real
    ]
    return "; ".join(shifted) or None


def fisher(hits: tuple[int, int], totals: tuple[int, int]) -> float:
    """Two-sided p-value of `hits[i]` of `totals[i]` being shares of one urn (Fisher 1935).

    Of all ways to deal the hits among all answers, the share of those that are at most as likely
    as this one, in whole numbers.
    """
    every, dealt = sum(totals), sum(hits)
    least, most = max(0, dealt - totals[1]), min(dealt, totals[0])
    ways = math.comb(totals[0], least) * math.comb(totals[1], dealt - least)
    table = []
    for inside in range(least, most + 1):
        table.append(ways)
        # The next C(totals[0], inside) * C(totals[1], dealt - inside), exactly.
        ways = ways * (totals[0] - inside) * (dealt - inside)
        ways //= (inside + 1) * (totals[1] - dealt + inside + 1)
    seen = table[hits[0] - least]
    return sum(way for way in table if way <= seen) / math.comb(every, dealt)
