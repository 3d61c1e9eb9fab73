"""A tree's rows for verifying, and the walk that accepts a path of them."""

import itertools

import torch
from hypothesis import given
from hypothesis import strategies as st

from core.core_checks import ancestry, check_accept, check_layout, check_place, make_tree
from ddtree import core

# Few tokens, 0 among them, so that choices often agree with nodes and with padding.
TOKENS = st.integers(0, 2)


@st.composite
def trees(draw, max_batch=3):
    """Trees of any shape: siblings distinct, parents first, padded to one width."""
    requests = []
    for _ in range(draw(st.integers(1, max_batch))):
        nodes: list[tuple[int, int]] = []
        for n in range(draw(st.integers(0, 8))):
            node = (draw(st.integers(0, n)), draw(TOKENS))
            # A second child of the same token would be the same node.
            if node not in nodes:
                nodes.append(node)
            else:
                break
        requests.append(nodes)
    padding = draw(st.integers(0, 2))
    return make_tree(requests, max(map(len, requests)) + padding)


@st.composite
def verified(draw):
    """A tree and a choice of the target at each of its rows."""
    tree = draw(trees())
    size = tree.batch_size * (tree.width + 1)
    flat = draw(st.lists(TOKENS, min_size=size, max_size=size))
    return tree, torch.tensor(flat).view(tree.batch_size, -1)


@given(trees(), st.integers(0, 1000))
def test_layout(tree, start):
    roots = 5 + torch.arange(tree.batch_size)
    check_layout(tree, roots, start + 7 * torch.arange(tree.batch_size))


@given(trees())
def test_siblings_share_a_position_and_do_not_see_each_other(tree):
    zeros = torch.zeros(tree.batch_size, dtype=torch.int64)
    rows = core.layout_tree(tree, zeros, zeros)
    for b in range(tree.batch_size):
        count = int(tree.counts[b])
        for n in range(count):
            for m in range(n):
                if tree.parents[b, n] == tree.parents[b, m]:
                    assert rows.positions[b, n + 1] == rows.positions[b, m + 1]
                    assert not rows.visible[b, n + 1, m + 1]
                    assert not rows.visible[b, m + 1, n + 1]


@given(trees())
def test_padding_is_seen_by_no_other_row(tree):
    zeros = torch.zeros(tree.batch_size, dtype=torch.int64)
    rows = core.layout_tree(tree, zeros, zeros)
    for b in range(tree.batch_size):
        padding = slice(int(tree.counts[b]) + 1, None)
        assert not rows.visible[b, : padding.start, padding].any()
        own = rows.visible[b, padding, padding]
        assert torch.equal(own, torch.eye(len(own), dtype=torch.bool))
        assert (rows.visible[b].sum(-1) >= 1).all()


@given(st.integers(1, 3), st.integers(1, 6), st.integers(0, 50))
def test_causal_rows(batch, size, start):
    ids = torch.arange(batch * size).view(batch, size)
    positions = start + torch.arange(size).expand(batch, -1)
    rows = core.causal_rows(ids, positions)
    assert torch.equal(rows.ids, ids)
    assert torch.equal(rows.positions, positions)
    assert rows.live.all()
    for i in range(size):
        for j in range(size):
            assert (rows.visible[:, i, j] == (j <= i)).all()


@given(verified())
def test_accept_finds_the_longest_agreeing_path(drawn):
    check_accept(*drawn)


@given(trees(), st.data())
def test_accept_reaches_any_node_whose_path_the_target_chose(tree, data):
    """Long paths are rare among free choices, so each is chosen on purpose."""
    choices = torch.full((tree.batch_size, tree.width + 1), 9)
    picked = []
    for b in range(tree.batch_size):
        picked.append(data.draw(st.integers(0, int(tree.counts[b]))))
        path = ancestry(tree, b, picked[-1])
        for above, below in itertools.pairwise(path):
            choices[b, above] = tree.tokens[b, below - 1]
    check_accept(tree, choices)
    zeros = torch.zeros(tree.batch_size, dtype=torch.int64)
    accepted = core.accept(tree, core.layout_tree(tree, zeros, zeros), choices)
    for b, row in enumerate(picked):
        assert int(accepted.rows[b, int(accepted.num_accepted[b])]) == row
        assert int(accepted.bonus[b]) == 9


def test_padding_is_not_accepted_though_its_token_matches():
    tree = make_tree([[], [(0, 0), (1, 0)]], width=3)
    zeros = torch.zeros(2, dtype=torch.int64)
    choices = torch.zeros(2, 4, dtype=torch.int64)
    accepted = core.accept(tree, core.layout_tree(tree, zeros, zeros), choices)
    assert accepted.num_accepted.tolist() == [0, 2]
    assert accepted.rows.tolist() == [[0, 1, 2], [0, 1, 2]]
    assert accepted.tokens.tolist() == [[0, 0, 0], [0, 0, 0]]
    assert core.accept_walk(tree, choices) == [([0], 0), ([0, 1, 2], 0)]


def test_a_tree_without_nodes_yields_the_bonus_alone():
    tree = core.empty_tree(2, torch.device("cpu"))
    check_layout(tree, torch.tensor([4, 5]), torch.tensor([10, 0]))
    check_accept(tree, torch.tensor([[6], [7]]))


@given(trees(), st.data())
def test_place(tree, data):
    size = tree.batch_size + data.draw(st.integers(0, 3))
    rows = data.draw(st.permutations(range(size)))[: tree.batch_size]
    check_place(tree, list(rows), size)


@given(verified(), st.data())
def test_placed_trees_accept_as_they_did(drawn, data):
    tree, choices = drawn
    size = tree.batch_size + data.draw(st.integers(1, 2))
    rows = sorted(data.draw(st.permutations(range(size)))[: tree.batch_size])
    spread = torch.zeros(size, choices.shape[1], dtype=torch.int64)
    spread[rows] = choices
    placed = tree.place(torch.tensor(rows), size)
    walks = core.accept_walk(placed, spread)
    assert [walks[row] for row in rows] == core.accept_walk(tree, choices)
    check_accept(placed, spread)
