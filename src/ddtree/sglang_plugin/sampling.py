"""The target's tokens at the rows of a tree, by each request's own sampling parameters.

Sampled requests draw with noise keyed by (seed, absolute position, token id), as the embedded
engine does, so a seed gives the same tokens whatever the tree holds. Filters keep what SGLang's
own sampler keeps: top_p counts mass over the whole vocabulary, not over what top_k left.
"""

import zlib
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ddtree.core.sampling import SamplingRules
from ddtree.core.walk import walk_choices
from ddtree.sglang_plugin.rounds import Planted, Start


@dataclass(frozen=True)
class Drawing:
    """How the requests of a batch draw, [B] tensors as SGLang keeps them.

    greedy: all take the best token. bias: [B, V] added to the logits of each row, or None.
    """

    greedy: bool
    temperatures: Tensor
    top_k: Tensor
    top_p: Tensor
    min_p: Tensor
    seeds: Sequence[int]
    bias: Tensor | None

    @property
    def plain(self) -> bool:
        """Whether choices are the argmax of the logits as they are."""
        return self.greedy and self.bias is None


def request_seed(given: int | None, name: str) -> int:
    """The seed of a request: its own, or one made of its name, which is unique."""
    if given is not None:
        return int(given)
    data = name.encode()
    return zlib.crc32(data) << 31 | zlib.crc32(data[::-1]) >> 1


def choose(planted: Planted, logits: Tensor, start: Start, drawing: Drawing | None) -> Tensor:
    """The target's token [B, N] at each row of logits [B * N, V] that acceptance may look at.

    Greedy requests take what SGLang's sampler takes without speculation, torch's argmax. Sampled
    ones read back once a level of the walk.
    """
    batch, rows = planted.rows.ids.shape
    if drawing is None or drawing.plain:
        return logits.argmax(-1).view(batch, rows)
    grid = logits.view(batch, rows, -1)
    if drawing.bias is not None:
        grid = grid + drawing.bias[:, None]
    if drawing.greedy:
        return grid.argmax(-1)
    device = logits.device
    rules = SamplingRules(
        torch.tensor(drawing.seeds, dtype=torch.int64, device=device),
        drawing.temperatures.flatten().double(),
        drawing.top_k.long(),
        drawing.top_p.double(),
        drawing.min_p.double(),
        joint=True,
    )
    return walk_choices(planted.tree, grid, rules, None, start.lengths).tokens
