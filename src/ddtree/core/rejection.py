"""Recursive rejection over siblings: how trees are usually verified at a temperature above 0.

The slow twin of the walk. A drafted child is a proposal with all its mass on one token, so it is
accepted with the probability the target has left for it, and a rejected one leaves the target's
distribution without it (SpecInfer, Miao et al., 2023; Chen et al., 2023, with a point mass for q).
In law it equals drawing the token first and looking for it among the children; it can't give the
tokens of `ar` for a seed, since it draws in another order.
"""

from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor

from ddtree.core.tree import DraftTree


class Chance(Protocol):
    """Where randomness comes from, so that a test can go through all outcomes."""

    def accepts(self, probability: float) -> bool:
        """True with this probability."""
        ...

    def draws(self, weights: Tensor) -> int:
        """An index, with probability proportional to weights [V]."""
        ...


def reject_walk(
    tree: DraftTree, request: int, distribution: Callable[[int], Tensor], chance: Chance
) -> tuple[list[int], int]:
    """Accepted rows (root first) and the bonus token of one request of a batch of trees.

    `distribution(row)` is the target's processed distribution [V] after the row's path. Siblings
    are tried best first; the order doesn't change the law. A tree that depends on the noise of
    the chance breaks the proof: this twin is for trees that don't.
    """
    path = [0]
    while True:
        left = distribution(path[-1]).clone()
        child = _accepted_child(tree, request, path[-1], left, chance)
        if child is None:
            return path, chance.draws(left)
        path.append(child)


def _accepted_child(
    tree: DraftTree, request: int, parent: int, left: Tensor, chance: Chance
) -> int | None:
    """The first accepted child's row; the mass of rejected ones is taken out of `left` [V]."""
    for node in range(int(tree.counts[request])):
        if int(tree.parents[request, node]) != parent:
            continue
        token = int(tree.tokens[request, node])
        total = float(left.sum())
        # A token with no mass left is never accepted, whatever a coin of exactly 0 would say.
        if total > 0 and left[token] > 0 and chance.accepts(float(left[token]) / total):
            return node + 1
        left[token] = 0.0
    return None


class RandomChance:
    """Chance from torch's generator."""

    def __init__(self, seed: int) -> None:
        self._generator = torch.Generator().manual_seed(seed)

    def accepts(self, probability: float) -> bool:
        """True with this probability."""
        return float(torch.rand((), generator=self._generator, dtype=torch.float64)) < probability

    def draws(self, weights: Tensor) -> int:
        """An index, with probability proportional to weights [V]."""
        return int(torch.multinomial(weights.double(), 1, generator=self._generator))
