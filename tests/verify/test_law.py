"""The distribution test passes what is drawn from the target and fails what isn't."""

import random

import pytest

from ddtree.verify.law import FALSE_ALARM, law_test
from ddtree.verify.scoring import Position

COUNT = 2000


def positions(draw, count=COUNT, seed=0):
    """Positions with random distributions over four tokens, most probable first; `draw(chance,
    shares)` is the sampler under test and gives the rank that came."""
    chance = random.Random(seed)
    found = []
    for _ in range(count):
        weights = sorted((chance.random() ** 2 for _ in range(4)), reverse=True)
        shares = [weight / sum(weights) for weight in weights]
        rank = draw(chance, shares)
        found.append(
            Position(rank, 0.0, (0,), (0.0,), before=sum(shares[:rank]), share=shares[rank])
        )
    return found


def fair(chance, shares):
    return chance.choices(range(4), shares)[0]


def test_a_fair_sampler_passes():
    for seed in range(20):
        found = law_test(positions(fair, seed=seed), seed)
        assert found.passed
        assert found.positions == COUNT
        assert found.distance < found.detectable


@pytest.mark.parametrize(
    "unfair",
    [
        lambda chance, shares: 0,
        lambda chance, shares: fair(chance, [s**2 for s in shares]),
        lambda chance, shares: fair(chance, [s**0.5 for s in shares]),
        lambda chance, shares: 0 if chance.random() < 0.2 else fair(chance, shares),
        lambda chance, shares: chance.randrange(4),
        lambda chance, shares: 3,
    ],
    ids=["greedy", "colder", "hotter", "a fifth greedy", "uniform", "worst"],
)
def test_an_unfair_sampler_fails(unfair):
    found = law_test(positions(unfair), 0)
    assert not found.passed
    assert found.odds < FALSE_ALARM
    assert found.distance > found.detectable


def test_few_positions_fail_nothing_wrongly():
    found = law_test(positions(fair, count=1), 0)
    assert found.passed
    assert found.detectable > 1  # no distance is as large


def test_false_alarms_are_rarer_than_the_bound():
    """At a bound of 0.1 no more than a tenth of fair samplers are below it, give or take."""
    odds = [law_test(positions(fair, count=60, seed=s), s).odds for s in range(300)]
    assert sum(value < 0.1 for value in odds) < 0.1 * 300 + 3 * (300 * 0.1 * 0.9) ** 0.5


def test_nothing_to_test_without_masses():
    assert law_test([Position(1, 2.0, (1,), (2.0,))], 0) is None
    assert law_test([], 0) is None
