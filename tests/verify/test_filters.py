"""Tokens at the edge of sampling's filters: moved across by rounding, or a filter not applied."""

import pytest

from ddtree.verify.classify import judge
from ddtree.verify.scoring import Position

FAR = 1e30


def position(token, score, edge, *tops):
    """`tops`: (id, score, edge), best first; the highest raw logit is 20, its unit 0.125."""
    ids, scores, edges = zip(*tops, strict=True)
    return Position(token, score, ids, scores, edge, edges, scale=20.0)


def verdict(found, token, dtype="bfloat16", tolerance=0.0):
    return judge(0, found, token, tolerance, dtype).verdict


def test_the_choice_is_the_best_kept_token():
    found = position(2, 19.0, 5.0, (1, 25.0, -0.1), (2, 19.0, 5.0), (3, 18.0, 5.0))
    assert found.choice.token_id == 2


def test_a_better_token_just_outside_is_a_filter_edge():
    """Token 1 scores best and a filter drops it by less than rounding moves."""
    tops = ((1, 25.0, -0.1), (2, 19.0, 5.0))
    assert verdict(position(1, 25.0, -0.1, *tops), 1) == "filter-edge"


def test_a_better_token_far_outside_is_a_bug():
    tops = ((2, 19.0, 5.0), (3, 18.0, 5.0))
    found = judge(0, position(1, 25.0, -3.0, *tops), 1, 0.0, "bfloat16")
    assert found.verdict == "bug"
    assert found.filtered


def test_a_worse_token_just_outside_is_no_edge_case():
    """Were token 1 kept it still wouldn't be chosen."""
    tops = ((2, 19.0, 5.0), (1, 15.0, -0.1))
    found = judge(0, position(1, 15.0, -0.1, *tops), 1, 0.0, "bfloat16")
    assert found.verdict == "bug"
    assert not found.filtered


def test_the_choice_itself_may_be_at_the_edge():
    """Where rounding drops the choice the next firm token is right, and no other."""
    tops = ((1, 25.0, 0.05), (2, 19.0, 5.0), (3, 15.0, 5.0))
    assert verdict(position(2, 19.0, 5.0, *tops), 2) == "filter-edge"
    assert verdict(position(3, 15.0, 5.0, *tops), 3) == "bug"


def test_a_firm_choice_excuses_nothing():
    tops = ((1, 25.0, 5.0), (2, 19.0, 5.0))
    assert verdict(position(2, 19.0, 5.0, *tops), 2) == "bug"


def test_near_ties_between_kept_tokens_stay_near_ties():
    tops = ((1, 20.0, 5.0), (2, 19.9, 5.0))
    assert verdict(position(2, 19.9, 5.0, *tops), 2) == "near-tie"
    assert verdict(position(2, 20.0, 5.0, (1, 20.0, 5.0), (2, 20.0, 5.0)), 2) == "tie"


@pytest.mark.parametrize(("edge", "expected"), [(-5e-4, "filter-edge"), (-5e-3, "bug")])
def test_float32_edges_are_as_narrow_as_its_gaps(edge, expected):
    tops = ((1, 25.0, edge), (2, 19.0, FAR))
    assert verdict(position(1, 25.0, edge, *tops), 1, "float32") == expected


def test_the_control_widens_the_edge():
    tops = ((1, 25.0, -0.4), (2, 19.0, 5.0))
    assert verdict(position(1, 25.0, -0.4, *tops), 1) == "suspect"
    assert verdict(position(1, 25.0, -0.4, *tops), 1, tolerance=0.5) == "filter-edge"


def test_unfiltered_positions_know_no_edges():
    found = Position(4, 19.9, (1, 2, 3, 4), (20.0, 19.9, 19.9, 19.9))
    assert verdict(found, 4) == "near-tie"
    below = Position(5, 19.8, (1, 2, 3, 4, 5), (20.0, 19.9, 19.9, 19.9, 19.8))
    assert verdict(below, 5) == "suspect"
