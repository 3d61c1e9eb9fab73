"""Acceptance: walk down the tree along the tokens the target chose.

The target's choice at a row is its own next token given that row's path (its argmax, or one draw
from its distribution), so the walk emits what decoding one token at a time would have.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from ddtree.core.layout import VerifyRows
from ddtree.core.tree import DraftTree


@dataclass(frozen=True)
class Acceptance:
    """The accepted path of each request; A = max_depth + 1 columns.

    num_accepted: [B] int64 accepted draft nodes (0 or more).
    rows:   [B, A] int64: the root, then the accepted nodes' rows in order of depth; column j
            beyond num_accepted holds j, so that moving rows to columns leaves it in place.
    tokens: [B, A] int64: accepted tokens, then the bonus at column num_accepted, then 0.
    bonus:  [B] int64 the target's token after the path: the next root.
    """

    num_accepted: Tensor
    rows: Tensor
    tokens: Tensor
    bonus: Tensor


def accept(tree: DraftTree, rows: VerifyRows, choices: Tensor) -> Acceptance:
    """Accept along `choices` [B, M] int64, the target's token at each row of `rows`."""
    batch, width = tree.tokens.shape
    matched = tree.live() & (tree.tokens == choices.gather(1, tree.parents))
    # A node is accepted if it and all its ancestors match; siblings differ, so the accepted nodes
    # form one path, at most one a depth.
    unmatched = ~matched[:, None, :] & rows.visible[:, 1:, 1:]
    accepted = tree.live() & ~unmatched.any(-1)
    num_accepted = accepted.sum(-1)
    columns = torch.arange(tree.max_depth + 1, device=choices.device).expand(batch, -1)
    numbers = torch.arange(1, width + 1, device=choices.device).expand(batch, -1)
    # What isn't accepted is written to a spare column and cut off.
    target = torch.where(accepted, tree.depths, tree.max_depth + 1)
    path = torch.nn.functional.pad(columns, (0, 1)).scatter(1, target, numbers)[:, :-1]
    last = path.gather(1, num_accepted[:, None])
    bonus = choices.gather(1, last)[:, 0]
    following = torch.nn.functional.pad(path, (0, 1))[:, 1:]
    ids = torch.cat([torch.zeros_like(bonus)[:, None], tree.tokens], 1)  # by row
    drafted = ids.gather(1, following.clamp(max=width))
    tokens = torch.where(columns < num_accepted[:, None], drafted, 0)
    tokens = torch.where(columns == num_accepted[:, None], bonus[:, None], tokens)
    return Acceptance(num_accepted, path, tokens, bonus)


def accept_walk(tree: DraftTree, choices: Tensor) -> list[tuple[list[int], int]]:
    """The slow twin of `accept`: per request the accepted rows (root first) and the bonus token,
    found by walking a map of children."""
    walks = []
    for b, count in enumerate(tree.counts.tolist()):
        children = {(int(tree.parents[b, n]), int(tree.tokens[b, n])): n + 1 for n in range(count)}
        path, token = [0], int(choices[b, 0])
        while (path[-1], token) in children:
            path.append(children[path[-1], token])
            token = int(choices[b, path[-1]])
        walks.append((path, token))
    return walks
