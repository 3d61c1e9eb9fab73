"""Tree building: the heaviest prefixes, by the heap and level by level."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from core.core_checks import (
    CPU,
    build_both,
    check_builders,
    check_full_vocabulary,
    check_order,
    rank_tuples,
    token_paths,
)
from ddtree import core

TIED = st.integers(-2, 3).map(float)
SPREAD = st.floats(-20, 20, width=32)
BUILDERS = ("heap", "levelwise")
# Enumerating every prefix is slow.
FEWER = settings(max_examples=min(settings.default.max_examples, 80))


@st.composite
def logits(draw, values=TIED | SPREAD, batch=(1, 3), depth=(1, 4), vocab=(1, 5)):
    """[B, D, V], every row from one kind of values."""
    shape = [draw(st.integers(*limits)) for limits in (batch, depth, vocab)]
    rows = st.lists(values, min_size=shape[2], max_size=shape[2])
    flat = [draw(rows) for _ in range(shape[0] * shape[1])]
    return torch.tensor(flat).view(shape)


@st.composite
def requests(draw, values=TIED | SPREAD):
    """Logits and, per request, a budget from 0 and a topk from 1 past the vocabulary."""
    drawn = draw(logits(values))
    size, vocab = drawn.shape[0], drawn.shape[2]
    budgets = draw(st.lists(st.integers(0, 24), min_size=size, max_size=size))
    topks = draw(st.lists(st.integers(1, vocab + 2), min_size=size, max_size=size))
    return drawn, budgets, topks


@given(requests())
def test_trees_hold_the_heaviest_prefixes(drawn):
    check_builders(*drawn)


@FEWER
@given(requests(TIED))
def test_trees_hold_the_heaviest_prefixes_where_weights_tie(drawn):
    check_builders(*drawn)


@FEWER
@given(requests(st.sampled_from([-math.inf, 0.0, 1.0])))
def test_impossible_tokens_are_never_chosen(drawn):
    values, budgets, topks = drawn
    check_builders(values, budgets, topks)
    _, trees = build_both(values, budgets, topks)
    for tree in trees.values():
        for b in range(len(budgets)):
            for path in token_paths(tree, b):
                assert all(values[b, d, token] > -math.inf for d, token in enumerate(path))


@FEWER
@given(logits(TIED), st.integers(0, 30), st.integers(1, 6))
def test_equal_weights_come_in_the_documented_order(values, budget, topk):
    check_order(values, budget, topk)


@pytest.mark.parametrize("name", BUILDERS)
def test_equal_tokens_rank_by_lower_id(name):
    _, trees = build_both(torch.zeros(1, 1, 5), [3], [5])
    assert token_paths(trees[name], 0) == [(0,), (1,), (2,)]


@FEWER
@given(logits(vocab=(2, 5)), st.integers(0, 20), st.integers(1, 5))
def test_scores_are_against_the_full_vocabulary(values, budget, topk):
    check_full_vocabulary(values, budget, topk)


@pytest.mark.parametrize("name", BUILDERS)
def test_a_peaked_depth_is_descended_and_a_flat_one_is_branched(name):
    # After the two kept tokens of a flat row share 2 / 6 of the mass, not all of it.
    flat, peaked = [0.0] * 6, [9.0, 0, 0, 0, 0, 0]
    _, trees = build_both(torch.tensor([[peaked, flat], [flat, peaked]]), [3, 3], [2, 2])
    assert rank_tuples(trees[name], 0) == [(0,), (0, 0), (0, 1)]
    assert set(rank_tuples(trees[name], 1)) == {(0,), (0, 0), (1,)}


@FEWER
@given(logits(), st.integers(0, 20), st.integers(1, 6))
def test_one_more_node_of_budget_only_appends(values, budget, topk):
    size = len(values)
    _, fewer = build_both(values, [budget] * size, [topk] * size)
    _, more = build_both(values, [budget + 1] * size, [topk] * size)
    for name in BUILDERS:
        for b in range(size):
            assert rank_tuples(more[name], b)[:budget] == rank_tuples(fewer[name], b)


@FEWER
@given(logits(), st.integers(1, 20))
def test_one_candidate_a_depth_makes_a_chain(values, budget):
    size, depth = values.shape[:2]
    _, trees = build_both(values, [budget] * size, [1] * size)
    best = [tuple(int(row.argmax()) for row in request) for request in values]
    for tree in trees.values():
        for b in range(size):
            expected = [best[b][:d] for d in range(1, min(budget, depth) + 1)]
            assert token_paths(tree, b) == expected


@FEWER
@given(requests())
def test_a_request_gets_the_same_tree_alone_and_in_a_batch(drawn):
    values, budgets, topks = drawn
    _, together = build_both(values, budgets, topks)
    for b in range(len(budgets)):
        _, alone = build_both(values[b : b + 1], budgets[b : b + 1], topks[b : b + 1])
        for name in BUILDERS:
            assert rank_tuples(alone[name], 0) == rank_tuples(together[name], b)
            count = int(together[name].counts[b])
            assert torch.equal(alone[name].scores[0, :count], together[name].scores[b, :count])


@FEWER
@given(logits(batch=(2, 3)), st.sampled_from([math.nan, -math.nan, math.inf]), st.data())
def test_unusable_logits_raise_the_flag_and_draft_nothing(values, bad, data):
    size, depth, vocab = values.shape
    b = data.draw(st.integers(0, size - 1))
    broken = values.clone()
    broken[b, data.draw(st.integers(0, depth - 1)), data.draw(st.integers(0, vocab - 1))] = bad
    budgets, topks = [7] * size, [vocab] * size
    candidates, trees = build_both(broken, budgets, topks)
    _, clean = build_both(values, budgets, topks)
    assert candidates.invalid.tolist() == [other == b for other in range(size)]
    for name, tree in trees.items():
        assert int(tree.counts[b]) == 0
        for other in set(range(size)) - {b}:
            assert torch.equal(tree.tokens[other], clean[name].tokens[other])
            assert torch.equal(tree.parents[other], clean[name].parents[other])
            assert torch.equal(tree.scores[other], clean[name].scores[other])


@pytest.mark.parametrize("name", BUILDERS)
@pytest.mark.parametrize("token", [0, 3])
def test_no_token_id_is_special(name, token):
    # Id 0 pads tensors and some id is the drafter's mask: either may be the text's next token.
    values = torch.zeros(1, 3, 5)
    values[..., token] = 8.0
    _, trees = build_both(values, [3], [2])
    assert token_paths(trees[name], 0) == [(token,), (token, token), (token, token, token)]


@FEWER
@given(st.integers(0, 2**32), st.sampled_from([1, 8, 33, 64]), st.sampled_from([1, 2, 8, 16]))
def test_builders_agree_at_serving_sizes(seed, budget, topk):
    generator = torch.Generator().manual_seed(seed)
    values = 4 * torch.randn(3, 7, 300, generator=generator)
    _, trees = build_both(values, [budget, max(budget // 2, 1), budget], [topk, topk, 2])
    heap, levelwise = trees["heap"], trees["levelwise"]
    torch.testing.assert_close(heap.scores, levelwise.scores, rtol=0, atol=1e-9)
    for b in range(3):
        assert set(rank_tuples(heap, b)) == set(rank_tuples(levelwise, b))


def test_budget_zero_makes_trees_without_nodes():
    _, trees = build_both(torch.zeros(2, 3, 4), [0, 0], [2, 2])
    empty = core.empty_tree(2, CPU)
    for tree in (*trees.values(), empty):
        assert tree.width == 0
        assert tree.max_depth == 0
        assert tree.counts.tolist() == [0, 0]
        for name in ("tokens", "parents", "depths", "ranks", "scores"):
            field = getattr(tree, name)
            assert field.shape == (2, 0)
            assert field.dtype == getattr(trees["heap"], name).dtype


def test_more_budget_than_prefixes_gives_the_real_count():
    _, trees = build_both(torch.zeros(1, 2, 3), [20], [9])
    for tree in trees.values():
        assert tree.width == 20
        assert int(tree.counts[0]) == 3 + 9
