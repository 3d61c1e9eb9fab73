"""The parts of a round that a GPU runs in kernels of its own.

Everything takes and gives tensors of fixed shapes and reads nothing back. `TorchParts` are the slow
twins in plain torch, `TritonParts` one launch each.
"""

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from ddtree.core import Candidates, DraftTree
from ddtree.engine.fixed.reach import Reach
from ddtree.engine.fixed.state import Rows
from ddtree.engine.plan import DraftCells
from ddtree.engine.pool import KVPool
from ddtree.models.attention import AttentionLayer

# Columns of a report, before tokens, ranks and places.
STALLED, ACTIVE, NUM_ACCEPTED, NUM_NODES, BAD_DRAFT, BAD_TARGET = range(6)
HEAD = 6


@dataclass(frozen=True)
class Grown:
    """Trees with the rows that verify them: ids, positions [B, M] int64, bits as in `Reach`."""

    tree: DraftTree
    ids: Tensor
    positions: Tensor
    bits: Tensor


@dataclass(frozen=True)
class Choices:
    """The target's token at each row [B, M] int64, UNVISITED where it is not known, and [B, M]
    bool where its logits are no numbers."""

    tokens: Tensor
    invalid: Tensor


@dataclass(frozen=True)
class Settled:
    """What a round keeps: rows [B, A], the root's 0, then accepted nodes'; column j beyond `count`
    [B] of them means nothing. report: [B, HEAD + A + 2 (A - 1)] int64: the columns named above,
    tokens (accepted, then the bonus), ranks and places of accepted nodes."""

    rows: Tensor
    count: Tensor
    report: Tensor


class Parts(Protocol):
    """What differs between the twins."""

    def open(self, ints: Tensor, slots: Tensor) -> Tensor:
        """The table of a batch of slots [B], see `Rows`."""
        ...

    def attend(
        self, pool: KVPool, layer: AttentionLayer, q: Tensor, sight: tuple[Reach, Tensor | None]
    ) -> Tensor:
        """q [B, H, S, C] over committed keys and the rows' own, which are there already ->
        [B, S, H, C]; `sight` = what they see, and `Reach.lowest` of this layer's window."""
        ...

    def candidates(self, logits: Tensor, topk: int) -> Candidates:
        """The K best of drafter logits [B, D, V]."""
        ...

    def grow(self, candidates: Candidates, rows: Rows) -> Grown:
        """Trees below the rows' roots."""
        ...

    def best(self, logits: Tensor) -> Choices:
        """Of logits [B, M, V] the argmax, lowest id among equals."""
        ...

    def settle(
        self, ints: Tensor, rows: Rows, grown: Grown, choices: Choices, bad_draft: Tensor
    ) -> Settled:
        """Walk down the trees along the choices and move `ints` on.

        Where the last row's token is not known the walk stops one node earlier: that node's own
        token is the bonus, and the next round chooses behind it again. STALLED where that is the
        root's row: nothing moves. bad_draft: [B] bool, told in the report.
        """
        ...

    def move(self, pool: KVPool, first: Tensor, rows: Tensor) -> None:
        """All layers' cells first [B] + rows [B, A] to first + 0 .. A - 1."""
        ...

    def taken(
        self, features: Tensor, settled: Settled, rows: Rows, sizes: tuple[int, DraftCells]
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Features [B, M, F] of what was kept, [B * A, F], with positions and the drafter's cells
        for them [B * A]; those of nobody, whose slot is sizes[0], take what was not."""
        ...


class FixedPlan:
    """The attention hook's plan for rows of a fixed shape."""

    def __init__(self, pool: KVPool, reach: Reach, parts: Parts) -> None:
        self.pool, self.reach, self.parts = pool, reach, parts
        self._lowest: dict[int | None, Tensor | None] = {}

    @property
    def cells(self) -> Tensor:
        """[B * S]: where the rows' keys go."""
        return self.reach.cells

    def attend(self, layer: AttentionLayer, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """q [B, H, S, C], k and v [B, G, S, C] -> [B, S, H, C]."""
        self.pool.write(layer.index, self.reach.cells, k, v)
        return self.look(layer, q)

    def look(self, layer: AttentionLayer, q: Tensor) -> Tensor:
        """`attend` where the rows' keys are in their cells already."""
        if layer.window not in self._lowest:
            self._lowest[layer.window] = self.reach.lowest(layer.window)
        return self.parts.attend(self.pool, layer, q, (self.reach, self._lowest[layer.window]))
