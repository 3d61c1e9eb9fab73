"""Which committed tokens the drafter sees, when they live in a ring of bounded size.

The token at absolute position p sits in ring column p % size, so a ring of W columns always holds
the last W committed tokens, at whatever order; visibility compares positions, never columns.
"""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

WindowKind = Literal["anchored", "per-query"]


@dataclass(frozen=True)
class DraftVisibility:
    """How a block of draft rows sees its context and itself.

    anchored: every row of the block sees the same last W committed tokens. per-query: the row at
    offset t from the anchor sees positions above (anchor + t) - W, as layer-wise sliding windows
    do. causal: a row sees no later row of the block.
    """

    kind: WindowKind
    causal: bool


def ring_positions(lengths: Tensor, size: int) -> Tensor:
    """[B, size]: the newest position below lengths [B] that each ring column holds, -1 if none."""
    columns = torch.arange(size, device=lengths.device)
    turns = torch.div(lengths[:, None] - 1 - columns, size, rounding_mode="floor")
    return torch.where(columns < lengths[:, None], columns + turns * size, -1)


def draft_visible(
    lengths: Tensor, windows: Tensor, ring: int, block: int, how: DraftVisibility
) -> Tensor:
    """[B, block, block + ring] bool: what each block row sees; the block's own columns first.

    lengths: [B] committed tokens, which is also the anchor's position. windows: [B] W >= 1.
    """
    held = ring_positions(lengths, ring)[:, None, :]  # [B, 1, ring]
    offsets = torch.arange(block, device=lengths.device)
    anchor = lengths[:, None, None]
    if how.kind == "anchored":
        lowest = (anchor - windows[:, None, None]).expand(-1, block, -1)
    else:
        lowest = anchor + offsets[:, None] - windows[:, None, None] + 1
    context = (held >= 0) & (held >= lowest)
    inside = torch.ones(block, block, dtype=torch.bool, device=lengths.device)
    if how.causal:
        inside = inside.tril()
    return torch.cat([inside.expand(len(lengths), -1, -1), context], 2)
