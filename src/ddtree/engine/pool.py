"""Key and value memory: one tensor for all layers, addressed by flat cells."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from ddtree.errors import ConfigError


@dataclass(frozen=True)
class Runs:
    """`count` runs of cells whose bases lie `stride` cells apart, the first at `base`."""

    base: int
    stride: int
    count: int


class KVPool:
    """`size` cells per layer, each a token's key or value of G x C numbers.

    A request holds a run of cells; its column c is the run's first cell (its base) plus c. Layers
    share cell numbers, so moving or writing a token touches all layers in one operation. Cells
    start as zeros: attention may read a masked cell, and zero times its weight 0 is harmless
    where an uninitialised NaN is not.
    """

    def __init__(
        self,
        layers: int,
        size: int,
        heads: tuple[int, int],
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        """`heads` = (G, C). ConfigError if there is no memory for it."""
        self.heads = heads
        shape = (layers, 2, size, heads[0] * heads[1])
        try:
            self._cells = torch.zeros(shape, dtype=dtype, device=device)
        except RuntimeError as error:
            needed = math.prod(shape) * dtype.itemsize
            raise ConfigError(
                f"no memory on {device} for {needed / 2**30:.1f} GiB of keys and values of {size} "
                "tokens; lower slots, max_context or cache_tokens"
            ) from error

    @property
    def device(self) -> torch.device:
        """Where the cells are."""
        return self._cells.device

    @property
    def size(self) -> int:
        """Cells of a layer."""
        return self._cells.shape[2]

    @property
    def cells(self) -> Tensor:
        """[layers, 2, size, G * C]."""
        return self._cells

    def layer(self, index: int) -> Tensor:
        """[2, size, G * C]: a layer's keys, then its values."""
        return self._cells[index]

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

    def clear(self, base: int, size: int) -> None:
        """Zero a run: what broken numbers were written to must not reach a neighbour's sums."""
        self._cells[:, :, base : base + size] = 0

    def view(self, layer: int, runs: Runs, columns: int) -> tuple[Tensor, Tensor]:
        """Keys and values of the first `columns` cells of each run: two views
        [runs.count, G, columns, C]."""
        cells = self._cells[layer]
        half, token, _ = cells.stride()
        groups, dim = self.heads
        k, v = cells.as_strided(
            (2, runs.count, groups, columns, dim),
            (half, runs.stride * token, dim, token, 1),
            cells.storage_offset() + runs.base * token,
        )
        return k, v
