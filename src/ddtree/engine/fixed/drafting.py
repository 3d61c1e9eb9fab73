"""The drafter in rounds of a fixed shape: a block behind each root, and its context fed by the same
round that accepts."""

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from ddtree.engine.drafting import Drafting
from ddtree.engine.fixed.parts import FixedPlan, Parts, Settled
from ddtree.engine.fixed.reach import Reach, pack_bits
from ddtree.engine.fixed.state import Rows
from ddtree.engine.pool import KVPool
from ddtree.models.drafter import Drafter


class Network(Protocol):
    """A drafter's network over a pool of its keys."""

    def __call__(self, embedded: Tensor, positions: Tensor, plan: FixedPlan) -> Tensor:
        """Hidden states [B, D, E] of a block's embeddings [B, block, E]."""
        ...

    def feed(self, pool: KVPool, cells: Tensor, features: Tensor, positions: Tensor) -> None:
        """Keys and values of features [n, F] at positions [n] into cells [n] of all layers."""
        ...


@dataclass(frozen=True)
class PlainNetwork:
    """The module as it is."""

    drafter: Drafter

    def __call__(self, embedded: Tensor, positions: Tensor, plan: FixedPlan) -> Tensor:
        """See `Network`."""
        hidden: Tensor = self.drafter(embedded, positions, plan)
        return hidden

    def feed(self, pool: KVPool, cells: Tensor, features: Tensor, positions: Tensor) -> None:
        """See `Network`."""
        pool.write_all(cells, self.drafter.context(features[None], positions[None]))


@dataclass(frozen=True)
class Kept:
    """Features [n, F] for the drafter's context, their positions and cells [n]."""

    features: Tensor
    positions: Tensor
    cells: Tensor


class FixedDrafting:
    """Drafts in the caches of `drafting`, whose last slot must be nobody's."""

    def __init__(self, drafting: Drafting, network: Network, parts: Parts) -> None:
        self._of, self._network, self._parts = drafting, network, parts
        self.block = drafting.block
        inside = torch.ones(self.block, self.block, dtype=torch.bool, device=drafting.pool.device)
        self._bits = pack_bits(inside.tril() if drafting.how.causal else inside)
        self._offsets = torch.arange(self.block, device=inside.device)

    def logits(self, rows: Rows) -> Tensor:
        """Drafter logits [B, D, V] behind the rows' roots."""
        drafting, cells = self._of, self._of.cells
        first = rows["slot"] * cells.size
        positions = rows["length"][:, None] + self._offsets
        reach = Reach(
            first=first + cells.block,
            held=rows["length"].clamp(max=cells.ring),
            own=first,
            positions=positions,
            bits=self._bits.expand(len(first), -1, -1).contiguous(),
            windows=rows["window"],
            anchored=drafting.how.kind == "anchored",
            ring=cells.ring,
            columns=cells.ring,
        )
        ids = torch.cat([rows["root"][:, None], drafting.masks.expand(len(first), -1)], 1)
        plan = FixedPlan(drafting.pool, reach, self._parts)
        embedded = drafting.target.embed(ids)
        # The head's weights are read once for all rows only if these lie one behind the other.
        return drafting.target.head(self._network(embedded, positions, plan).contiguous())

    def kept(self, rows: Rows, settled: Settled, features: Tensor) -> Kept:
        """Of features [B, M, F] those of accepted rows, the root's included."""
        nobody = self._of.pool.size // self._of.cells.size - 1
        sizes = nobody, self._of.cells
        return Kept(*self._parts.taken(features, settled, rows, sizes))

    def feed(self, kept: Kept) -> None:
        """Take them in."""
        self._network.feed(self._of.pool, kept.cells, kept.features, kept.positions)
