"""A tree as the rows of one verifying forward pass."""

from dataclasses import dataclass

import torch
from torch import Tensor

from ddtree.core.tree import DraftTree


@dataclass(frozen=True)
class VerifyRows:
    """M = N + 1 rows per request: the root, then its tree's nodes, then padding.

    ids:       [B, M] int64; padding repeats the root's token.
    positions: [B, M] int64 absolute: root position + depth; siblings share a position.
    visible:   [B, M, M] bool, [b, i, j]: row i attends to row j, which is i itself or an ancestor
               of i (the root is every node's). Padding sees itself alone and is seen by none.
    live:      [B, M] bool: root and real nodes.
    """

    ids: Tensor
    positions: Tensor
    visible: Tensor
    live: Tensor


def layout_tree(tree: DraftTree, roots: Tensor, positions: Tensor) -> VerifyRows:
    """Rows for verifying `tree` below root tokens [B] at absolute positions [B]."""
    batch, width = tree.tokens.shape
    live = torch.cat([torch.ones_like(roots, dtype=torch.bool)[:, None], tree.live()], 1)
    parents = torch.cat([torch.zeros_like(roots)[:, None], tree.parents], 1)  # [B, M]
    depths = torch.cat([torch.zeros_like(roots)[:, None], tree.depths], 1)
    nodes = torch.where(live[:, 1:], tree.tokens, roots[:, None])
    visible = torch.eye(width + 1, dtype=torch.bool, device=roots.device)
    visible = visible.expand(batch, -1, -1).clone()
    ancestor = parents
    for _ in range(tree.max_depth):
        # Padding climbs to the root too; its marks are taken off below.
        visible.scatter_(2, ancestor[:, :, None], True)
        ancestor = parents.gather(1, ancestor)
    visible[:, :, 0] &= live
    return VerifyRows(
        torch.cat([roots[:, None], nodes], 1), positions[:, None] + depths, visible, live
    )


def causal_rows(ids: Tensor, positions: Tensor) -> VerifyRows:
    """Rows of plain text (a prompt's chunk): ids [B, S] at positions [B, S], each seeing those
    before it."""
    size = ids.shape[1]
    visible = torch.ones(size, size, dtype=torch.bool, device=ids.device).tril()
    live = torch.ones_like(ids, dtype=torch.bool)
    return VerifyRows(ids, positions, visible.expand(ids.shape[0], -1, -1), live)
