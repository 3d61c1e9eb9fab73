"""Key and value memory: one tensor for all layers, addressed by flat cells."""

import math

import torch
from torch import Tensor

from ddtree.errors import ConfigError


class KVPool:
    """`slots` x `columns` cells per layer, each a token's key or value of G x C numbers.

    A cell's flat number is slot * columns + column. Layers share cell numbers, so moving or
    writing a token touches all layers in one operation. Cells start as zeros: attention may read
    a masked cell, and zero times its weight 0 is harmless where an uninitialised NaN is not.
    """

    def __init__(
        self,
        layers: int,
        slots: int,
        columns: int,
        heads: tuple[int, int],
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        """`heads` = (G, C). ConfigError if there is no memory for it."""
        self.columns = columns
        self.heads = heads
        shape = (layers, 2, slots * columns, heads[0] * heads[1])
        try:
            self._cells = torch.zeros(shape, dtype=dtype, device=device)
        except RuntimeError as error:
            size = math.prod(shape) * dtype.itemsize
            raise ConfigError(
                f"no memory on {device} for {size / 2**30:.1f} GiB of keys and values: {slots} "
                f"slots of {columns} columns; lower slots or max_context"
            ) from error

    @property
    def device(self) -> torch.device:
        """Where the cells are."""
        return self._cells.device

    @property
    def num_bytes(self) -> int:
        """Memory held, whatever is in use."""
        return self._cells.nbytes

    def write(self, layer: int, cells: Tensor, k: Tensor, v: Tensor) -> None:
        """One layer's new rows: k, v [B, G, S, C] into flat cells [B * S]."""
        for half, rows in enumerate((k, v)):
            flat = rows.transpose(1, 2).reshape(-1, self._cells.shape[-1])
            self._cells[layer, half].index_copy_(0, cells, flat)

    def write_all(self, cells: Tensor, rows: Tensor) -> None:
        """All layers at once: rows [layers, 2, n, G, C] into flat cells [n]."""
        self._cells.index_copy_(2, cells, rows.flatten(3))

    def move(self, source: Tensor, target: Tensor) -> None:
        """Copy all layers' cells source [n] to target [n]; the sources are read first, so the two
        may overlap."""
        self._cells.index_copy_(2, target, self._cells.index_select(2, source))

    def view(self, layer: int, first: int, last: int, columns: int) -> tuple[Tensor, Tensor]:
        """Keys and values of slots first..last (exclusive) and their first `columns` columns:
        two views [last - first, G, columns, C]."""
        cells = self._cells[layer].view(2, -1, self.columns, *self.heads)
        k, v = cells[:, first:last, :columns].transpose(2, 3)
        return k, v
