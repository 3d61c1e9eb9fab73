"""A round's parts as kernels of their own."""

from collections.abc import Callable

from torch import Tensor

from ddtree.core import Candidates
from ddtree.engine.fixed.parts import Choices, Grown, Settled
from ddtree.engine.fixed.reach import Reach
from ddtree.engine.fixed.state import COLUMNS, Rows
from ddtree.engine.kernels.attention import Sight, TreeAttention, tiling_of
from ddtree.engine.kernels.growth import grow
from ddtree.engine.kernels.settle import move, open_rows, settle, taken
from ddtree.engine.kernels.topk import best_tokens, top_candidates
from ddtree.engine.plan import DraftCells
from ddtree.engine.pool import KVPool
from ddtree.models.attention import AttentionLayer


class TritonParts:
    """Trees have `width` nodes. `programs`: how many a device runs at once. `slow_grow` builds
    trees where paths are too long for the kernel."""

    def __init__(
        self,
        width: int,
        attention: TreeAttention,
        programs: int,
        slow_grow: Callable[[Candidates, Rows], Grown] | None = None,
    ) -> None:
        self._width, self._attention, self._programs = width, attention, programs
        self._slow_grow = slow_grow

    def open(self, ints: Tensor, slots: Tensor) -> Tensor:
        """See `Parts`."""
        return open_rows(ints, slots, COLUMNS)

    def attend(
        self, pool: KVPool, layer: AttentionLayer, q: Tensor, sight: tuple[Reach, Tensor | None]
    ) -> Tensor:
        """See `Parts`."""
        reach, lowest = sight
        batch, heads, rows, dim = q.shape
        groups = pool.heads[0]
        tiling = tiling_of(batch, groups, heads // groups * rows, dim, self._programs)
        seen = Sight(
            reach.first, reach.held, reach.own, reach.positions, lowest, reach.bits, reach.ring
        )
        return self._attention(pool.layer(layer.index), q, groups, layer.scale, seen, tiling)

    def candidates(self, logits: Tensor, topk: int) -> Candidates:
        """See `Parts`."""
        return top_candidates(logits, topk)

    def grow(self, candidates: Candidates, rows: Rows) -> Grown:
        """See `Parts`."""
        if self._slow_grow is not None:
            return self._slow_grow(candidates, rows)
        limits, roots = (rows["budget"], rows["topk"]), (rows["root"], rows["length"])
        return Grown(*grow(candidates, self._width, limits, roots))

    def best(self, logits: Tensor) -> Choices:
        """See `Parts`."""
        return Choices(*best_tokens(logits))

    def settle(
        self, ints: Tensor, rows: Rows, grown: Grown, choices: Choices, bad_draft: Tensor
    ) -> Settled:
        """See `Parts`."""
        chosen, who = (choices.tokens, choices.invalid), (rows["slot"], rows["active"])
        return Settled(*settle(grown.tree, chosen, bad_draft, who, (ints, COLUMNS)))

    def move(self, pool: KVPool, first: Tensor, rows: Tensor) -> None:
        """See `Parts`."""
        move(pool.cells, first, rows)

    def taken(
        self, features: Tensor, settled: Settled, rows: Rows, sizes: tuple[int, DraftCells]
    ) -> tuple[Tensor, Tensor, Tensor]:
        """See `Parts`."""
        nobody, cells = sizes
        accepted = settled.rows, settled.count
        who = rows["slot"], rows["active"], rows["length"]
        return taken(features, accepted, who, (nobody, cells.block, cells.ring))
