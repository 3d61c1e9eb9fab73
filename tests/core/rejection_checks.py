"""Laws of acceptance by enumeration: every choice of the walk, every outcome of the coins."""

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from core.core_checks import make_tree
from ddtree import core
from support.law import Law

Nodes = list[tuple[int, int]]
# Sums of a few hundred products of doubles.
EPSILON = 1e-12


@dataclass
class Replay:
    """Chance that repeats decisions already made, then takes the first open one and remembers the
    others; the product of their probabilities is the outcome's."""

    decisions: list[int]
    weight: float = 1.0
    open: list[list[int]] = field(default_factory=list)
    made: list[int] = field(default_factory=list)

    def accepts(self, probability: float) -> bool:
        assert 0 < probability <= 1, f"a coin of {probability}"
        return self._decide([1 - probability, probability]) == 1

    def draws(self, weights: Tensor) -> int:
        return self._decide((weights / weights.sum()).tolist())

    def _decide(self, probabilities: Sequence[float]) -> int:
        possible = [i for i, p in enumerate(probabilities) if p > 0]
        if len(self.made) < len(self.decisions):
            chosen = self.decisions[len(self.made)]
        else:
            chosen = possible[0]
            self.open += [[*self.made, other] for other in possible[1:]]
        self.made.append(chosen)
        self.weight *= probabilities[chosen]
        return chosen


def outcomes(run: Callable[[Replay], object]) -> Iterator[tuple[object, float]]:
    """Every outcome of `run` with its probability."""
    waiting: list[list[int]] = [[]]
    while waiting:
        chance = Replay(waiting.pop())
        yield run(chance), chance.weight
        waiting += chance.open


def shapes(vocab: int, most: int) -> list[Nodes]:
    """Every tree of up to `most` nodes, as (parent row, token) lists; siblings by token."""
    found: dict[frozenset, Nodes] = {frozenset(): []}
    level = dict(found)
    for _ in range(most):
        following = {}
        for words, nodes in level.items():
            rows = {(): 0} | {word: n + 1 for n, word in enumerate(_words(nodes))}
            for (word, row), token in itertools.product(rows.items(), range(vocab)):
                key = words | {(*word, token)}
                if key != words and key not in following:
                    following[key] = [*nodes, (row, token)]
        level = following
        found |= level
    return list(found.values())


def _words(nodes: Nodes) -> list[tuple[int, ...]]:
    """Token paths of nodes."""
    words: list[tuple[int, ...]] = [()]
    for parent, token in nodes:
        words.append((*words[parent], token))
    return words[1:]


def law_of_the_target(nodes: Nodes, rows: Tensor) -> Law:
    """(path, bonus) with its probability: the target's tokens until one is not in the tree."""
    children = {node: n + 1 for n, node in enumerate(nodes)}
    law: Law = {}

    def descend(path: tuple[int, ...], weight: float) -> None:
        for token, p in enumerate(rows[path[-1]].tolist()):
            child = children.get((path[-1], token))
            if p > 0 and child is None:
                law[path, token] = weight * p
            elif p > 0:
                descend((*path, child), weight * p)

    descend((0,), 1.0)
    return law


def law_of_the_walk(nodes: Nodes, rows: Tensor) -> Law:
    """The same by `accept` on every choice of tokens at all rows."""
    size, vocab = rows.shape
    choices = torch.cartesian_prod(*[torch.arange(vocab)] * size).view(-1, size)
    weights = rows.gather(1, choices.T).prod(0)
    zeros = torch.zeros(len(choices), dtype=torch.int64)
    tree = make_tree([nodes], len(nodes)).take(zeros)
    accepted = core.accept(tree, core.layout_tree(tree, zeros, zeros), choices)
    law: Law = {}
    for count, path, bonus, weight in zip(
        accepted.num_accepted.tolist(),
        accepted.rows.tolist(),
        accepted.bonus.tolist(),
        weights.tolist(),
        strict=True,
    ):
        if weight > 0:
            key = (tuple(path[: count + 1]), bonus)
            law[key] = law.get(key, 0.0) + weight
    return law


def law_of_rejection(nodes: Nodes, rows: Tensor) -> Law:
    """The same by `reject_walk` on every outcome of its coins and draws."""
    tree = make_tree([nodes], len(nodes))
    law: Law = {}
    for (path, bonus), weight in outcomes(
        lambda chance: core.reject_walk(tree, 0, lambda row: rows[row], chance)
    ):
        key = (tuple(path), bonus)
        law[key] = law.get(key, 0.0) + weight
    return law


def random_rows(size: int, vocab: int, seed: int, holes: bool) -> Tensor:
    """Distributions [size, V]; with holes as filters leave them, down to a single token."""
    generator = torch.Generator().manual_seed(seed)
    rows = torch.rand(size, vocab, generator=generator, dtype=torch.float64) ** 3 + 1e-3
    if holes:
        kept = torch.randint(1, vocab + 1, (size, 1), generator=generator)
        order = torch.rand(size, vocab, generator=generator).argsort(-1)
        rows = rows.masked_fill(order >= kept, 0.0)
    return rows / rows.sum(-1, keepdim=True)


def assert_same_law(name: str, got: Law, expected: Law) -> None:
    assert abs(math.fsum(got.values()) - 1) < EPSILON, f"{name} sums to {sum(got.values())}"
    for key in set(got) | set(expected):
        one, other = got.get(key, 0.0), expected.get(key, 0.0)
        assert abs(one - other) < EPSILON, f"{name}: {key} has {one}, the target {other}"


def check_walk_law(nodes: Nodes, rows: Tensor) -> None:
    assert_same_law("walk", law_of_the_walk(nodes, rows), law_of_the_target(nodes, rows))


def check_rejection_law(nodes: Nodes, rows: Tensor) -> None:
    assert_same_law("rejection", law_of_rejection(nodes, rows), law_of_the_target(nodes, rows))
