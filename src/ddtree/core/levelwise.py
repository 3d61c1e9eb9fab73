"""Batched tree building on tensors: the heap's set, without loops over requests or nodes.

Depth by depth the `width` best prefixes are kept, then the best over all depths are chosen. A
node among the `width` best overall has fewer than `width` prefixes ahead of it at its own depth,
and so has its parent, so the cut per depth loses nothing. Shapes depend on (width, topk, depth)
alone and nothing is read back by the host.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from ddtree.core.candidates import Candidates
from ddtree.core.tree import DraftTree


@dataclass(frozen=True)
class _Level:
    """The (parent, rank) pairs that can be among the best at one depth.

    With parents and ranks both sorted, pair (i, r) has (i + 1)(r + 1) - 1 pairs at or above it,
    so pairs with a product beyond `width` are left out.
    """

    parents: Tensor  # [pairs] index into the previous depth's kept prefixes
    ranks: Tensor  # [pairs]
    keep: int  # prefixes kept at this depth
    offset: int  # where the previous depth's prefixes start among all, 1-based; 0 = the root


class LevelwiseBuilder:
    """Builds trees of `width` nodes from candidates [B, depth, topk].

    The set of nodes equals `build_heap`'s whenever weights differ; among equal weights a
    shallower node comes first, then the smaller parent, then the smaller rank.
    """

    def __init__(self, width: int, topk: int, depth: int, device: torch.device) -> None:
        self.width, self.topk, self.depth = width, topk, depth
        self._levels: list[_Level] = []
        previous, offset = 1, 0
        for level in range(depth if width else 0):
            pairs = [
                (i, r) for i in range(previous) for r in range(topk) if (i + 1) * (r + 1) <= width
            ]
            parents, ranks = torch.tensor(pairs, device=device).T
            keep = min(width, len(pairs))
            self._levels.append(_Level(parents, ranks, keep, offset))
            offset = 1 if level == 0 else offset + previous
            previous = keep
        self._ranks = torch.arange(topk, device=device)
        self._nodes = torch.arange(width, device=device)

    def __call__(self, candidates: Candidates, budgets: Tensor, topks: Tensor) -> DraftTree:
        """Trees of at most budgets[b] <= width nodes and topks[b] <= topk candidates a depth.

        budgets, topks: [B] int64 on the candidates' device.
        """
        allowed = self._ranks < topks[:, None, None]
        log_probs = candidates.log_probs.double().masked_fill(~allowed, -torch.inf)  # [B, D, K]
        weight = log_probs.new_zeros(len(budgets), 1)  # the root's
        weights, parents, ranks, depths = [], [], [], []
        for number, level in enumerate(self._levels):
            pairs = weight[:, level.parents] + log_probs[:, number, level.ranks]
            best = torch.sort(pairs, dim=-1, descending=True, stable=True)
            weight, chosen = best.values[:, : level.keep], best.indices[:, : level.keep]
            weights.append(weight)
            parents.append(level.parents[chosen] + level.offset)
            ranks.append(level.ranks[chosen])
            depths.append(torch.full_like(chosen, number + 1))
        if not weights:
            return self._no_nodes(candidates, budgets)
        prefixes = _Prefixes(*(torch.cat(part, 1) for part in (weights, parents, ranks, depths)))
        return self._select(candidates, budgets, prefixes)

    def _select(self, candidates: Candidates, budgets: Tensor, prefixes: "_Prefixes") -> DraftTree:
        """The best `width` prefixes over all depths as a tree."""
        best = torch.sort(prefixes.weights, dim=-1, descending=True, stable=True)
        order = best.indices[:, : self.width]  # [B, n], n < width if so few prefixes exist
        short = self.width - order.shape[1]
        live = (best.values[:, : self.width] > -torch.inf) & (
            self._nodes[: order.shape[1]] < budgets[:, None]
        )
        # Row of each prefix in the tree: 0 is the root; what wasn't chosen is never a parent of
        # what was.
        rows = prefixes.parents.new_zeros(order.shape[0], prefixes.weights.shape[1] + 1)
        numbers = (self._nodes[: order.shape[1]] + 1).expand_as(order)
        rows = rows.scatter(1, order + 1, numbers)
        ranks = prefixes.ranks.gather(1, order)
        depths = prefixes.depths.gather(1, order)
        table = candidates.tokens[:, :, : self.topk].flatten(1)
        tokens = table.gather(1, (depths - 1) * candidates.tokens.shape[2] + ranks)
        parents = rows.gather(1, prefixes.parents.gather(1, order))

        def pad(values: Tensor, fill: float) -> Tensor:
            values = values.masked_fill(~live, fill)
            return torch.nn.functional.pad(values, (0, short), value=fill)

        return DraftTree(
            pad(tokens, 0),
            pad(parents, 0),
            pad(depths, 0),
            pad(ranks, 0),
            pad(best.values[:, : self.width], -torch.inf),
            live.sum(-1),
            min(self.depth, self.width),
        )

    def _no_nodes(self, candidates: Candidates, budgets: Tensor) -> DraftTree:
        none = candidates.tokens.new_zeros(len(budgets), self.width)
        scores = candidates.log_probs.new_full(none.shape, -torch.inf).double()
        return DraftTree(none, none, none, none, scores, none.new_zeros(len(budgets)), 0)


@dataclass(frozen=True)
class _Prefixes:
    """Kept prefixes of all depths, shallow first: each [B, total]."""

    weights: Tensor
    parents: Tensor  # 1-based position among these prefixes, 0 = the root
    ranks: Tensor
    depths: Tensor
