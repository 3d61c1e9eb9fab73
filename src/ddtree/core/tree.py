"""The draft tree: a batch of node lists in best-first order."""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class DraftTree:
    """B trees of up to N draft nodes each; the root (the last committed token) is not a node.

    Nodes are in best-first order, parents before children, siblings distinct. Rows number the
    root 0 and node n as n + 1; `parents` holds rows.

    tokens:  [B, N] int64, 0 on padding.
    parents: [B, N] int64 row of the parent, 0 on padding.
    depths:  [B, N] int64, 1 for the root's children, 0 on padding.
    ranks:   [B, N] int64 rank of the token among its depth's candidates, 0 on padding.
    scores:  [B, N] float64 log-probability of the path under the drafter, -inf on padding.
    counts:  [B] int64 real nodes; nodes at counts[b] and beyond are padding.
    max_depth: no node is deeper (a host number, so that walks have a fixed length).
    """

    tokens: Tensor
    parents: Tensor
    depths: Tensor
    ranks: Tensor
    scores: Tensor
    counts: Tensor
    max_depth: int

    @property
    def batch_size(self) -> int:
        """B."""
        return self.tokens.shape[0]

    @property
    def width(self) -> int:
        """N, padding included; verifying takes N + 1 rows."""
        return self.tokens.shape[1]

    def live(self) -> Tensor:
        """[B, N] bool: real nodes."""
        index = torch.arange(self.width, device=self.tokens.device)
        return index < self.counts[:, None]

    def take(self, rows: Tensor) -> "DraftTree":
        """The trees of requests `rows` [n]."""
        return DraftTree(
            self.tokens[rows],
            self.parents[rows],
            self.depths[rows],
            self.ranks[rows],
            self.scores[rows],
            self.counts[rows],
            self.max_depth,
        )

    def place(self, rows: Tensor, batch_size: int) -> "DraftTree":
        """The same trees at batch rows `rows` [B] of a larger batch; other rows draft nothing."""

        def spread(values: Tensor, fill: float) -> Tensor:
            out = values.new_full((batch_size, *values.shape[1:]), fill)
            return out.index_copy(0, rows, values)

        return DraftTree(
            spread(self.tokens, 0),
            spread(self.parents, 0),
            spread(self.depths, 0),
            spread(self.ranks, 0),
            spread(self.scores, -torch.inf),
            spread(self.counts, 0),
            self.max_depth,
        )


def empty_tree(batch_size: int, device: torch.device, width: int = 0) -> DraftTree:
    """Trees without nodes, `width` columns of padding: a round that only decodes the root's
    successor."""
    none = torch.zeros(batch_size, width, dtype=torch.int64, device=device)
    scores = torch.full_like(none, -torch.inf, dtype=torch.float64)
    counts = torch.zeros(batch_size, dtype=torch.int64, device=device)
    return DraftTree(none, none, none, none, scores, counts, 0)
