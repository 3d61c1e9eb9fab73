"""Several windows on one ring: the plan of a drafter pass over as many blocks behind one root."""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from ddtree.core import DraftVisibility, draft_visible
from ddtree.engine.plan import DraftCells, additive_mask
from ddtree.engine.pool import KVPool, Runs
from ddtree.models.attention import AttentionLayer


class WindowsPlan:
    """Attends n blocks of S rows; block i sees itself and `windows[i]` tokens of the ring in
    `slot`, which holds the newest of `length` committed ones.

    A block sees what `draft_plan` would show it. Nothing is written: the blocks have the same
    cells. They are rows of one call, so that the ring is read once.
    """

    def __init__(
        self,
        pool: KVPool,
        cells: DraftCells,
        how: DraftVisibility,
        context: tuple[int, int],
        windows: Sequence[int],
    ) -> None:
        """`context` = (slot, length)."""
        slot, length = context
        self._pool, self._cells, self._how = pool, cells, how
        self._ring = Runs(slot * cells.size + cells.block, 0, 1)
        self._held = min(length, cells.ring)
        self._lengths = torch.tensor([length] * len(windows), device=pool.device)
        self._windows = torch.tensor(windows, device=pool.device)
        self._masks: dict[int | None, Tensor] = {}

    def attend(self, layer: AttentionLayer, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """q [n, H, S, C], k and v [n, G, S, C] -> [n, S, H, C]."""
        blocks, heads, rows, dim = q.shape
        groups = k.shape[1]
        packed = q.reshape(blocks, groups, -1, dim).transpose(0, 1).reshape(1, groups, -1, dim)
        held = self._pool.view(layer.index, self._ring, self._held)
        keys, values = (
            torch.cat([own.transpose(0, 1).reshape(1, groups, -1, dim), ring], 2)
            for own, ring in zip((k, v), held, strict=True)
        )
        mask = self._mask(layer.window, heads // groups, q.dtype)
        attended = scaled_dot_product_attention(
            packed, keys, values, attn_mask=mask, scale=layer.scale
        )
        by_block = attended.reshape(groups, blocks, -1, rows, dim).transpose(0, 1)
        return by_block.reshape(blocks, heads, rows, dim).transpose(1, 2)

    def _mask(self, window: int | None, group: int, dtype: torch.dtype) -> Tensor:
        """[n * group * S, n * S + held], made once for each of the layers' own windows."""
        if window not in self._masks:
            limits = self._windows if window is None else self._windows.clamp(max=window)
            block, ring = self._cells.block, self._cells.ring
            seen = draft_visible(self._lengths, limits, ring, block, self._how)
            number = torch.eye(len(limits), dtype=torch.bool, device=seen.device)
            # [n, S, n, S]: the rows of other blocks are hidden.
            inside = seen[:, :, None, :block] & number[:, None, :, None]
            visible = torch.cat([inside.flatten(2), seen[:, :, block : block + self._held]], 2)
            self._masks[window] = additive_mask(visible, group, dtype).flatten(0, 1)
        return self._masks[window]
