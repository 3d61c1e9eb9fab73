"""Several requests' plain text in one row of a forward pass: prompts side by side, unpadded."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from ddtree.engine.plan import additive_mask
from ddtree.engine.pool import KVPool, Runs
from ddtree.models.attention import AttentionLayer


@dataclass
class Segment:
    """`count` tokens appended to a context of `length` tokens whose run begins at `base`."""

    base: int
    length: int
    count: int
    masks: dict[int | None, Tensor] = field(default_factory=dict)

    def columns(self, device: torch.device) -> Tensor:
        """[count]: columns, which are the positions as well."""
        return self.length + torch.arange(self.count, device=device)

    def mask(self, window: int | None, group: int, like: Tensor) -> Tensor:
        """Additive mask [group * count, length + count], causal and within `window`."""
        if window not in self.masks:
            rows = self.columns(like.device)[:, None]
            keys = torch.arange(self.length + self.count, device=like.device)
            hidden = keys > rows
            if window is not None:
                hidden |= keys <= rows - window
            self.masks[window] = additive_mask(~hidden, group, like.dtype)
        return self.masks[window]


class PackedPlan:
    """Attends one row that holds the segments one after another; each sees its own context."""

    def __init__(self, pool: KVPool, segments: Sequence[Segment]) -> None:
        self.pool, self._segments = pool, segments
        columns = [segment.columns(pool.device) for segment in segments]
        self.positions = torch.cat(columns)[None]
        bases = [column + segment.base for segment, column in zip(segments, columns, strict=True)]
        self.cells = torch.cat(bases)

    def attend(self, layer: AttentionLayer, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """q [1, H, S, C], k and v [1, G, S, C] -> [1, S, H, C]; S over all segments."""
        self.pool.write(layer.index, self.cells, k, v)
        return self.look(layer, q)

    def look(self, layer: AttentionLayer, q: Tensor) -> Tensor:
        """`attend` where the rows' keys are in their cells already."""
        heads, groups, dim = q.shape[1], self.pool.heads[0], q.shape[3]
        outputs, start = [], 0
        for segment in self._segments:
            rows = q[:, :, start : start + segment.count]
            start += segment.count
            keys, values = self.pool.view(
                layer.index, Runs(segment.base, 0, 1), segment.length + segment.count
            )
            attended = scaled_dot_product_attention(
                rows.reshape(1, groups, -1, dim),
                keys,
                values,
                attn_mask=segment.mask(layer.window, heads // groups, q),
                scale=layer.scale,
            )
            outputs.append(attended.reshape(1, heads, segment.count, dim))
        return torch.cat(outputs, 2).transpose(1, 2)
