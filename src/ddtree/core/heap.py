"""Best-first tree building with a heap: the oracle that every other builder must equal.

Source: DDTree (arXiv 2604.12989). Only per-depth marginals exist, so a path's weight is the
product of its tokens' probabilities; a child never outweighs its parent, hence the `budget`
heaviest prefixes form a tree, and popping a max-heap lists them in order.
"""

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from ddtree.core.candidates import Candidates
from ddtree.core.tree import DraftTree


@dataclass(order=True)
class _Prefix:
    """A prefix waiting in the heap: heaviest first, equal weights by smaller rank tuple."""

    negative: float
    ranks: tuple[int, ...]
    parent: int = field(compare=False)

    @property
    def depth(self) -> int:
        return len(self.ranks)


def build_heap(candidates: Candidates, budgets: Sequence[int], topks: Sequence[int]) -> DraftTree:
    """Best-first trees, request by request, on the host.

    `budgets[b]` nodes at most for request b, `topks[b]` candidates kept per depth. Weights are
    accumulated in double precision; a sibling's is its elder's, minus the elder's token, plus its
    own, in this order.
    """
    width = max(budgets, default=0)
    depth = candidates.tokens.shape[1]
    shape = (len(budgets), width)
    tokens = torch.zeros(shape, dtype=torch.int64)
    parents, depths, ranks = tokens.clone(), tokens.clone(), tokens.clone()
    scores = torch.full(shape, -torch.inf, dtype=torch.float64)
    counts = torch.zeros(len(budgets), dtype=torch.int64)
    table = candidates.tokens.tolist()
    for b, log_probs in enumerate(candidates.log_probs.double().tolist()):
        nodes = _pop_best(log_probs, budgets[b], topks[b])
        counts[b] = len(nodes)
        for n, node in enumerate(nodes):
            tokens[b, n] = table[b][node.depth - 1][node.ranks[-1]]
            parents[b, n], depths[b, n] = node.parent, node.depth
            ranks[b, n], scores[b, n] = node.ranks[-1], -node.negative
    device = candidates.tokens.device
    return DraftTree(
        tokens.to(device),
        parents.to(device),
        depths.to(device),
        ranks.to(device),
        scores.to(device),
        counts.to(device),
        min(depth, width),
    )


def _pop_best(log_probs: list[list[float]], budget: int, topk: int) -> list[_Prefix]:
    """The `budget` heaviest prefixes of one request, heaviest first."""
    nodes: list[_Prefix] = []
    heap: list[_Prefix] = []

    def push(weight: float, ranks: tuple[int, ...], parent: int) -> None:
        if weight > -torch.inf:
            heapq.heappush(heap, _Prefix(-weight, ranks, parent))

    if budget > 0 and log_probs and topk > 0:
        push(log_probs[0][0], (0,), 0)
    while heap and len(nodes) < budget:
        node = heapq.heappop(heap)
        nodes.append(node)
        weight, level, rank = -node.negative, log_probs[node.depth - 1], node.ranks[-1]
        if rank + 1 < min(topk, len(level)):
            elder_out = weight - level[rank]
            push(elder_out + level[rank + 1], (*node.ranks[:-1], rank + 1), node.parent)
        if node.depth < len(log_probs):
            push(weight + log_probs[node.depth][0], (*node.ranks, 0), len(nodes))
    return nodes
