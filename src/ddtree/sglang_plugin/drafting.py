"""From the drafter's hidden states to trees: the target's head, candidates, the builder.

The drafter has no head of its own and borrows the target's. Under tensor parallelism a rank holds
a slice of the vocabulary: each ranks its own best tokens, the ranks gather (logit, global id) and
rank again, so all build the same tree.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad

from ddtree.core.candidates import Candidates, ordered_places, top_candidates
from ddtree.core.levelwise import LevelwiseBuilder
from ddtree.sglang_plugin.rounds import Planted, Start, TreeShape, plant, write_mask

Gather = Callable[[Tensor], Tensor]
"""[...] of this rank to [ranks, ...] of all."""


@dataclass(frozen=True)
class HeadShard:
    """The target's head, or one rank's part of it.

    weight: [V', E], without padding. first: the token id of its first row. gather: None where
    weight holds the whole vocabulary.
    """

    weight: Tensor
    first: int
    gather: Gather | None

    def candidates(self, hidden: Tensor, topk: int) -> Candidates:
        """The best `topk` tokens below hidden states [B, D, E], over the whole vocabulary."""
        logits = hidden.to(self.weight.dtype) @ self.weight.T
        if self.gather is None:
            return top_candidates(logits, topk)
        return merged_candidates(logits, self.first, topk, self.gather)


def merged_candidates(logits: Tensor, first: int, topk: int, gather: Gather) -> Candidates:
    """`top_candidates` of a vocabulary cut into ranks' slices; logits [B, D, V'] of this rank."""
    own = top_candidates(logits, topk)
    # A slice may hold fewer than topk tokens, and all ranks have to send as much.
    short = (0, topk - own.tokens.shape[-1])
    values = pad(logits.gather(-1, own.tokens).double(), short, value=-torch.inf)
    ids = pad(own.tokens + first, short).double()
    total = logits.float().logsumexp(-1, keepdim=True).double()
    flag = own.invalid.double()[:, None, None].expand_as(total)
    # One gather for everything: float64 holds token ids exactly.
    sent = torch.cat([values, ids, total, flag], -1)
    parts = torch.split(gather(sent.contiguous()), [topk, topk, 1, 1], -1)
    values, tokens, total, flag = parts
    invalid = (flag != 0).any(0)[..., 0].any(-1)
    values, ids = (part.permute(1, 2, 0, 3).flatten(2) for part in (values, tokens))
    ids = ids.long()
    places = ordered_places(values.float(), ids, topk)
    best = values.gather(-1, places)
    log_probs = (best - total.logsumexp(0)).float().clamp(max=0.0)
    dead = (best == -torch.inf) | invalid[:, None, None]
    return Candidates(ids.gather(-1, places), log_probs.masked_fill(dead, -torch.inf), invalid)


class TreeHead:
    """Called with the drafter's hidden states, also inside its CUDA graph: plants the trees and
    writes the mask that the target's own graph reads.

    `planted` holds the trees of the last call for each batch size: tensors of a captured call keep
    their address, and a replay fills them anew.
    """

    def __init__(
        self, head: HeadShard, shape: TreeShape, start: Start, mask: Tensor | None
    ) -> None:
        self._head, self._shape, self._start, self._mask = head, shape, start, mask
        self._builder = LevelwiseBuilder(
            shape.budget, shape.topk, shape.block - 1, head.weight.device
        )
        self.planted: dict[int, Planted] = {}

    def __call__(self, hidden: Tensor) -> None:
        """hidden: [B * block, E]; B requests stand first in the static `start`."""
        blocks = hidden.view(-1, self._shape.block, hidden.shape[-1])[:, 1:]
        start = self._start.first(len(blocks))
        candidates = self._head.candidates(blocks, self._shape.topk)
        planted = plant(candidates, self._builder, self._shape, start)
        if self._mask is not None:
            write_mask(self._mask, planted, start.lengths)
        self.planted[len(blocks)] = planted
