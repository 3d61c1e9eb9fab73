"""Batched tree building on tensors: the heap's set, without loops over requests or nodes.

Depth by depth the `width` best prefixes are kept, then the best over all depths are chosen. A
node among the `width` best overall has fewer than `width` prefixes ahead of it at its own depth,
and so has its parent, so the cut per depth loses nothing. Shapes depend on (width, topk, depth)
alone and nothing is read back by the host.
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad

from ddtree.core.candidates import Candidates
from ddtree.core.tree import DraftTree, empty_tree


@dataclass(frozen=True)
class _Level:
    """The (parent, rank) pairs that can be among the best at one depth.

    With parents and ranks both sorted, pair (i, r) has (i + 1)(r + 1) - 1 pairs at or above it,
    so pairs with a product beyond `width` are left out.
    """

    parents: Tensor  # [pairs] index into the previous depth's kept prefixes
    ranks: Tensor  # [pairs]
    keep: int  # prefixes kept at this depth


class LevelwiseBuilder:
    """Builds trees of `width` nodes from candidates [B, depth, topk].

    The set of nodes equals `build_heap`'s whenever weights differ; among equal weights a
    shallower node comes first, then the smaller parent, then the smaller rank.
    """

    def __init__(self, width: int, topk: int, depth: int, device: torch.device) -> None:
        self.width, self.topk, self.depth = width, topk, depth
        self._levels: list[_Level] = []
        tables: list[Tensor] = []  # per level [pairs, 3]: parent among all kept, rank, depth
        firsts: list[int] = []  # per kept prefix: number of its level's first pair
        previous, offset, pairs_before = 1, 0, 0
        for level in range(depth if width else 0):
            pairs = torch.tensor(
                [(i, r) for i in range(previous) for r in range(topk) if (i + 1) * (r + 1) <= width]
            )
            keep = min(width, len(pairs))
            parents, ranks = pairs.T
            self._levels.append(_Level(parents.to(device), ranks.to(device), keep))
            depths = torch.full_like(ranks, level + 1)
            # 0 stands for the root, so kept prefixes count from 1.
            tables.append(torch.stack([parents + offset, ranks, depths], 1))
            firsts += [pairs_before] * keep
            offset = 1 if level == 0 else offset + previous
            pairs_before += len(pairs)
            previous = keep
        empty = torch.zeros(0, 3, dtype=torch.int64)
        self._pairs = torch.cat([empty, *tables]).to(device)
        self._first_pairs = torch.tensor(firsts, dtype=torch.int64, device=device)
        self._ranks = torch.arange(topk, device=device)
        self._nodes = torch.arange(width, device=device)

    def __call__(self, candidates: Candidates, budgets: Tensor, topks: Tensor) -> DraftTree:
        """Trees of at most budgets[b] <= width nodes and topks[b] <= topk candidates a depth.

        budgets, topks: [B] int64 on the candidates' device.
        """
        if not self._levels:
            return empty_tree(len(budgets), budgets.device, self.width)
        allowed = self._ranks < topks[:, None, None]
        log_probs = candidates.log_probs.double().masked_fill(~allowed, -torch.inf)  # [B, D, K]
        weight = log_probs.new_zeros(len(budgets), 1)  # the root's
        weights, chosen = [], []
        for number, level in enumerate(self._levels):
            own = log_probs[:, number].index_select(1, level.ranks)
            best = torch.sort(
                weight.index_select(1, level.parents) + own, dim=-1, descending=True, stable=True
            )
            weight = best.values[:, : level.keep]
            weights.append(weight)
            chosen.append(best.indices[:, : level.keep])
        pairs = torch.cat(chosen, 1) + self._first_pairs
        return self._select(candidates, budgets, torch.cat(weights, 1), pairs)

    def _select(
        self, candidates: Candidates, budgets: Tensor, weights: Tensor, pairs: Tensor
    ) -> DraftTree:
        """The best `width` of the prefixes kept at all depths, shallow first, as a tree.

        weights, pairs: [B, kept], a prefix's weight and its number in the table of pairs.
        """
        best = torch.sort(weights, dim=-1, descending=True, stable=True)
        order = best.indices[:, : self.width]  # [B, n], n < width if so few prefixes exist
        scores = best.values[:, : self.width]
        nodes = self._nodes[: order.shape[1]]
        live = (scores > -torch.inf) & (nodes < budgets[:, None])
        origins, ranks, depths = self._pairs[pairs.gather(1, order)].unbind(-1)
        # Row of each kept prefix in the tree, the root's 0 first; what wasn't chosen is never a
        # parent of what was.
        rows = pairs.new_zeros(len(budgets), weights.shape[1] + 1)
        rows.scatter_(1, order + 1, (nodes + 1).expand_as(order))
        table = candidates.tokens.flatten(1)
        tokens = table.gather(1, (depths - 1) * candidates.tokens.shape[2] + ranks)
        counts = live.sum(-1)
        columns = torch.stack([tokens, rows.gather(1, origins), depths, ranks]) * live
        scores = scores.masked_fill(~live, -torch.inf)
        short = self.width - order.shape[1]
        if short:
            columns, scores = pad(columns, (0, short)), pad(scores, (0, short), value=-torch.inf)
        tokens, parents, depths, ranks = columns.unbind()
        deepest = min(self.depth, self.width)
        return DraftTree(tokens, parents, depths, ranks, scores, counts, deepest)
