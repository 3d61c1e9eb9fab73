"""Margins to the filters' edges: no smaller move of the logits changes a token's side."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from core.sampling_checks import rules_of
from ddtree import core
from ddtree.engine import SamplingParams

PARAMS = st.builds(
    SamplingParams,
    temperature=st.sampled_from([0.5, 1.0, 2.0]),
    top_k=st.integers(0, 6),
    top_p=st.sampled_from([0.05, 0.3, 0.5, 0.68, 0.8, 0.95, 1.0]),
    min_p=st.sampled_from([0.0, 0.05, 0.4, 1.0]),
    seed=st.just(0),
)
LOGITS = st.lists(st.integers(-2, 2).map(float) | st.floats(-3, 3), min_size=1, max_size=6)


def margins_of(logits, params):
    """By token id: margin and whether it is kept, of logits [V]."""
    rules = rules_of([params], len(logits))
    ranked = core.rank(logits[None], rules)
    found = core.edge_margins(ranked, rules)[0]
    by_id = torch.empty_like(found).scatter_(0, ranked.ids[0], found)
    kept = torch.empty_like(ranked.kept[0]).scatter_(0, ranked.ids[0], ranked.kept[0])
    return by_id, kept


def check_promise(logits, params, moves):
    """Tokens that changed sides when scaled logits moved by at most `size` had a margin of twice
    that at most."""
    margins, kept = margins_of(logits, params)
    moved = logits + moves * params.temperature
    _, after = margins_of(moved, params)
    size = float(moves.abs().max())
    for token in (kept != after).nonzero()[:, 0].tolist():
        assert abs(float(margins[token])) <= 2 * size + 1e-9, (
            f"token {token} of {logits.tolist()}, {params}: {margins[token]} moved by {size}"
        )


@given(LOGITS, PARAMS, st.floats(0, 1.5), st.data())
def test_no_smaller_move_changes_a_side(values, params, size, data):
    signs = st.lists(st.floats(-1, 1) | st.sampled_from([-1.0, 1.0]), min_size=len(values))
    logits = torch.tensor(values, dtype=torch.float64)
    moves = torch.tensor(data.draw(signs)[: len(values)], dtype=torch.float64) * size
    check_promise(logits, params, moves)


def test_no_smaller_move_changes_a_side_of_near_ties():
    """Many rows of shares that lie close to one another and to top_p, where places change most."""
    generator = torch.Generator().manual_seed(0)
    for _ in range(200):
        logits = torch.rand(5, generator=generator, dtype=torch.float64)
        top_p = float(torch.rand((), generator=generator)) * 0.99 + 0.005
        params = SamplingParams(temperature=1.0, seed=0, top_p=top_p, top_k=int(top_p * 100) % 6)
        for size in (0.02, 0.1, 0.5):
            signs = torch.randint(-1, 2, (5,), generator=generator).double()
            check_promise(logits, params, signs * size)


@given(LOGITS, PARAMS)
def test_signs_say_the_side(values, params):
    margins, kept = margins_of(torch.tensor(values, dtype=torch.float64), params)
    assert (margins[kept] >= 0).all()
    assert (margins[~kept] <= 0).all()
    assert not margins.isnan().any()


def test_no_filter_has_no_edge_and_a_ban_no_way_back():
    logits = torch.tensor([1.0, -math.inf, 0.0])
    margins, _ = margins_of(logits, SamplingParams(temperature=1.0, seed=0))
    assert margins.tolist() == [math.inf, -math.inf, math.inf]


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"top_k": 2}, [2.0, 1.5, -1.5]),  # changing places over the cut
        ({"min_p": math.exp(-2)}, [2.0, 1.5, 0.0]),
        ({"top_k": 2, "min_p": math.exp(-1)}, [1.0, 0.5, -1.5]),
        ({"top_k": 2, "temperature": 2.0}, [1.0, 0.75, -0.75]),
    ],
)
def test_margins_by_hand(settings, expected):
    params = SamplingParams(**{"temperature": 1.0, "seed": 0, **settings})
    margins, _ = margins_of(torch.tensor([2.0, 1.5, 0.0], dtype=torch.float64), params)
    # Moving exactly onto min_p's edge is neither side's business: compared up to rounding.
    assert margins.tolist() == pytest.approx(expected, abs=1e-12)


def logit(p):
    return math.log(p / (1 - p))


def test_top_p_margins_by_hand():
    """Shares .5 .3 .2 and top_p .6: the third token is 0.8 before it, too late by the log-odds."""
    shares = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64)
    margins, kept = margins_of(shares.log(), SamplingParams(temperature=1.0, seed=0, top_p=0.6))
    assert kept.tolist() == [True, True, False]
    assert float(margins[1]) == pytest.approx(min(logit(0.6) - logit(0.5), math.log(0.3 / 0.2)))
    assert float(margins[2]) == pytest.approx(max(logit(0.6) - logit(0.8), math.log(0.2 / 0.3)))


def test_a_kept_token_leaves_by_falling_behind_its_equals():
    """Shares .34 .33 .329 .001 and top_p .68. The best token leaves if it falls behind the other
    two and they grow to .68, long before it falls to the fourth."""
    shares = torch.tensor([0.34, 0.33, 0.329, 0.001], dtype=torch.float64)
    params = SamplingParams(temperature=1.0, seed=0, top_p=0.68)
    margins, kept = margins_of(shares.log(), params)
    assert kept.tolist() == [True, True, True, False]
    assert 0 < float(margins[0]) < 0.1
    moved = shares.log() + torch.tensor([-0.06, 0.06, 0.06, 0.0])
    assert not margins_of(moved, params)[1][0]
