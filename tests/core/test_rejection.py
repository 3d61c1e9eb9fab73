"""Drawing and walking has the law of recursive rejection over siblings, and both the target's."""

import itertools
import math

import pytest
import torch

from core.core_checks import make_tree
from core.rejection_checks import (
    check_rejection_law,
    check_walk_law,
    law_of_the_target,
    outcomes,
    random_rows,
    shapes,
)
from core.sampling_checks import rules_of
from ddtree import core
from ddtree.core.rejection import RandomChance
from ddtree.engine import SamplingParams
from support.law import assert_drawn_from, joint_law

TREES = {vocab: shapes(vocab, 4) for vocab in (3, 4, 5)}
PARTS = 4  # of the trees over a vocabulary, so that processes share them
ODDS = 1e-6  # of a false alarm, had the fixed seeds been drawn at random


def test_enumeration_is_complete():
    """Closed sets of n words over V letters are V-ary trees of n + 1 nodes (Fuss, Catalan)."""
    for vocab, trees in TREES.items():
        counts = [math.comb(vocab * (n + 1), n) // (n + 1) for n in range(5)]
        assert len(trees) == sum(counts)
    assert len(TREES[5]) == 1 + 5 + 35 + 285 + 2530
    coins = dict.fromkeys(itertools.product((False, True), repeat=3), 0.0)
    for made, weight in outcomes(lambda chance: tuple(chance.accepts(0.25) for _ in range(3))):
        coins[made] += weight
    assert coins == {made: 0.25 ** sum(made) * 0.75 ** (3 - sum(made)) for made in coins}


@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize("holes", [False, True])
@pytest.mark.parametrize("vocab", TREES)
def test_all_trees(vocab, holes, part):
    """Every tree of up to four nodes over three, four and five tokens."""
    for seed in range(part, len(TREES[vocab]), PARTS):
        nodes = TREES[vocab][seed]
        rows = random_rows(len(nodes) + 1, vocab, seed, holes)
        check_walk_law(nodes, rows)
        check_rejection_law(nodes, rows)


def test_the_order_of_siblings_does_not_change_the_law():
    rows = random_rows(4, 4, 0, holes=False)
    for order in itertools.permutations(range(3)):
        nodes = [(0, token) for token in order]
        check_rejection_law(nodes, rows[[0, *(1 + token for token in order)]])


def test_children_of_all_the_mass_leave_no_bonus_at_their_parent():
    rows = torch.tensor([[0.25, 0.75, 0.0], [0.0, 0.0, 1.0], [1.0, 0.0, 0.0]]).double()
    nodes = [(0, 0), (0, 1)]
    assert all(path[-1] != 0 for path, _ in law_of_the_target(nodes, rows))
    check_rejection_law(nodes, rows)
    check_walk_law(nodes, rows)


class Zero:
    """A coin that always shows exactly 0: below every probability, and not below 0 itself."""

    def accepts(self, probability):
        assert probability > 0, "a child without a chance was put to the coin"
        return True

    def draws(self, weights):
        return int(weights.argmax())


def test_a_child_without_a_chance_is_never_accepted():
    tree = make_tree([[(0, 0), (0, 1), (2, 2)]], 3)
    rows = torch.tensor([[0.0, 0.5, 0.5], [1.0, 0, 0], [0.5, 0.5, 0.0], [1.0, 0, 0]]).double()
    assert core.reject_walk(tree, 0, lambda row: rows[row], Zero()) == ([0, 2], 0)


def test_the_distribution_is_left_as_it_was():
    rows = random_rows(3, 3, 1, holes=False)
    before = rows.clone()
    tree = make_tree([[(0, 0), (0, 1)]], 2)
    list(outcomes(lambda chance: core.reject_walk(tree, 0, lambda row: rows[row], chance)))
    assert torch.equal(rows, before)


def test_random_chance():
    """The generator's coins and draws, through a tree, by goodness of fit."""
    nodes = [(0, 0), (0, 2), (1, 1), (2, 2)]
    rows, tree = random_rows(5, 3, 3, holes=False), make_tree([nodes], 4)
    chance = RandomChance(0)
    drawn = []
    for _ in range(3000):
        path, bonus = core.reject_walk(tree, 0, lambda row: rows[row], chance)
        drawn.append(((tuple(path), bonus),))
    law = {(key,): weight for key, weight in law_of_the_target(nodes, rows).items()}
    assert_drawn_from(drawn, law, ODDS)


def test_trees_built_from_the_noise_change_no_token():
    """Coupled drafting: the tree holds what the noise will draw, or all but that, seed by seed.

    The walk's tokens are those of decoding one at a time, so their law over seeds is the target's.
    """
    vocab, size, depth = 4, 4000, 2
    generator = torch.Generator().manual_seed(1)
    paths = [(), *itertools.product(range(vocab)), *itertools.product(range(vocab), repeat=2)]
    table = torch.randn(len(paths), vocab, generator=generator, dtype=torch.float64)
    seeds = [SamplingParams(temperature=1.0, seed=seed) for seed in range(size)]
    none, zeros = core.empty_tree(size, torch.device("cpu")), torch.zeros(size, dtype=torch.int64)
    plain: list[tuple[int, ...]] = [()] * size
    for step in range(depth):
        logits = table[[paths.index(path) for path in plain]][:, None]
        choices = core.walk_choices(none, logits, rules_of(seeds, vocab), None, zeros + step)
        plain = [(*p, t) for p, t in zip(plain, choices.tokens[:, 0].tolist(), strict=True)]
    nodes = [
        [(0, token) for token in range(vocab) if (token == path[0]) == (seed % 2 == 0)]
        for seed, path in enumerate(plain)
    ]
    logits = torch.zeros(size, vocab, vocab, dtype=torch.float64)
    logits[:, 0] = table[0]
    for seed, children in enumerate(nodes):
        for row, (_, token) in enumerate(children, start=1):
            logits[seed, row] = table[paths.index((token,))]
    tree = make_tree(nodes, vocab - 1)
    choices = core.walk_choices(tree, logits, rules_of(seeds, vocab), None, zeros)
    accepted = core.accept(tree, core.layout_tree(tree, zeros, zeros), choices.tokens)
    assert accepted.num_accepted.tolist() == [1, 0] * (size // 2)
    for path, tokens in zip(plain, accepted.tokens.tolist(), strict=True):
        assert tokens in ([*path], [path[0], 0])
    law = joint_law(lambda path: table[paths.index(path)].softmax(-1).numpy(), depth)
    assert_drawn_from(plain, law, ODDS)
