"""The plan of one forward pass: where its rows' keys go, what each row sees, how it attends.

Batches are ragged and their runs of cells may have gaps, so rows are cut into spans: requests of
similar length whose bases lie equally far apart, each span attended in one call over a view of the
pool, without copying keys. No request reads a cell outside its own run: what is masked there
would still spoil its sums if it were no number.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from ddtree.core import DraftVisibility, VerifyRows, draft_visible
from ddtree.engine.pool import KVPool, Runs
from ddtree.models.attention import AttentionLayer


class CellPlan(Protocol):
    """A plan whose rows' keys may be written by whoever makes them."""

    @property
    def pool(self) -> KVPool:
        """Where they go."""
        ...

    @property
    def cells(self) -> Tensor:
        """[B * S]: into these cells."""
        ...

    def attend(self, layer: AttentionLayer, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """See `AttendPlan`."""
        ...

    def look(self, layer: AttentionLayer, q: Tensor) -> Tensor:
        """`attend` where the rows' keys are in their cells already."""
        ...


class Decoder(Protocol):
    """What of a target runs; `ddtree.models.target.Target` has it."""

    def forward(
        self, ids: Tensor, positions: Tensor, plan: CellPlan, *, features: bool = False
    ) -> tuple[Tensor, Tensor | None]:
        """ids, positions [B, S] -> hidden [B, S, E], and features [B, S, F] if asked for."""
        ...

    def head(self, hidden: Tensor) -> Tensor:
        """Logits [..., V]."""
        ...


# A request joins its neighbours' span only if that reads at most this many columns for nothing.
MAX_WASTED_COLUMNS = 512

# (first row, last row exclusive, columns, window) -> [rows, S, columns] bool, or None where every
# row sees every column.
VisibleFn = Callable[[int, int, int, int | None], Tensor | None]


@dataclass(frozen=True)
class Place:
    """A request's run in the pool: its first cell, and how many there are."""

    base: int
    room: int


@dataclass
class _Span:
    """Batch rows first..last (exclusive), bases `stride` apart, reading `columns` columns."""

    first: int
    last: int
    base: int
    stride: int
    columns: int
    masks: dict[int | None, Tensor | None] = field(default_factory=dict)

    @property
    def runs(self) -> Runs:
        """Where its keys are."""
        return Runs(self.base, self.stride, self.last - self.first)


class AttentionPlan:
    """Attends B requests with S rows each.

    places: distinct; ascending ones share spans. reads: columns each request may see, its new rows
    included. writes: [B, S] column of every row. visible: see `VisibleFn`.
    """

    def __init__(
        self,
        pool: KVPool,
        places: Sequence[Place],
        reads: Sequence[int],
        writes: Tensor,
        visible: VisibleFn,
    ) -> None:
        self.pool = pool
        self._visible = visible
        bases = torch.tensor([place.base for place in places], device=writes.device)
        self.cells = (bases[:, None] + writes).flatten()
        self._spans = _cut_spans(places, reads)

    def attend(self, layer: AttentionLayer, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """q [B, H, S, C], k and v [B, G, S, C] -> [B, S, H, C].

        The H / G query heads that share a key head are packed with the rows, so that keys are
        read once per key head.
        """
        self.pool.write(layer.index, self.cells, k, v)
        return self.look(layer, q)

    def look(self, layer: AttentionLayer, q: Tensor) -> Tensor:
        """`attend` where the rows' keys are in their cells already."""
        batch, heads, rows, dim = q.shape
        groups = self.pool.heads[0]
        packed = q.reshape(batch, groups, -1, dim)  # [B, G, H / G * S, C]
        outputs = []
        for span in self._spans:
            keys, values = self.pool.view(layer.index, span.runs, span.columns)
            outputs.append(
                scaled_dot_product_attention(
                    packed[span.first : span.last],
                    keys,
                    values,
                    attn_mask=self._mask(span, layer.window, heads // groups, q.dtype),
                    scale=layer.scale,
                )
            )
        output = outputs[0] if len(outputs) == 1 else torch.cat(outputs)
        return output.reshape(batch, heads, rows, dim).transpose(1, 2)

    def _mask(
        self, span: _Span, window: int | None, group: int, dtype: torch.dtype
    ) -> Tensor | None:
        """Additive mask [rows, 1, group * S, columns], made once per window and span."""
        if window not in span.masks:
            visible = self._visible(span.first, span.last, span.columns, window)
            if visible is not None:
                visible = additive_mask(visible[:, None], group, dtype)
            span.masks[window] = visible
        return span.masks[window]


def additive_mask(visible: Tensor, group: int, dtype: torch.dtype) -> Tensor:
    """visible [..., S, columns] bool -> [..., group * S, columns]: 0 where a row sees, -inf where
    not, once for each of the query heads that are packed with the rows."""
    mask = torch.zeros_like(visible, dtype=dtype).masked_fill(~visible, -torch.inf)
    return mask.repeat(*(1,) * (visible.dim() - 2), group, 1)


def _cut_spans(places: Sequence[Place], reads: Sequence[int]) -> list[_Span]:
    spans: list[_Span] = []
    for row, (place, columns) in enumerate(zip(places, reads, strict=True)):
        if spans:
            span = spans[-1]
            step = place.base - places[row - 1].base
            apart = step if span.last - span.first == 1 else span.stride
            widest = max(span.columns, columns)
            wasted = widest - min(reads[span.first : row + 1])
            fits = widest <= min(p.room for p in places[span.first : row + 1])
            if 0 < step == apart and wasted <= MAX_WASTED_COLUMNS and fits:
                span.last, span.stride, span.columns = row + 1, step, widest
                continue
        spans.append(_Span(row, row + 1, place.base, 0, columns))
    return spans


def verify_plan(
    pool: KVPool, places: Sequence[Place], lengths: Sequence[int], rows: VerifyRows
) -> AttentionPlan:
    """Plan for target rows: row i of request b goes to column lengths[b] + i and sees the
    committed columns and the rows that `rows.visible` names.

    A committed column's position is the column itself, since commits keep accepted rows in order.
    """
    size = rows.ids.shape[1]
    length = torch.tensor(lengths, device=rows.ids.device)
    writes = length[:, None] + torch.arange(size, device=rows.ids.device)  # [B, S]

    def visible(first: int, last: int, columns: int, window: int | None) -> Tensor | None:
        if size == 1 and window is None and min(lengths[first:last]) + 1 == columns:
            return None
        count = last - first
        column = torch.arange(columns, device=writes.device)
        committed = column < length[first:last, None]
        seen = committed[:, None].expand(count, size, columns).clone()
        new = writes[first:last, None].expand(count, size, size)
        seen.scatter_(2, new, rows.visible[first:last])
        if window is None:
            return seen
        positions = column.expand(count, -1).scatter(
            1, writes[first:last], rows.positions[first:last]
        )
        return seen & (positions[:, None] > rows.positions[first:last, :, None] - window)

    return AttentionPlan(pool, places, [n + size for n in lengths], writes, visible)


@dataclass(frozen=True)
class DraftContext:
    """What each request's block may see: its ring's slot, committed tokens, the window on them."""

    slots: Sequence[int]
    lengths: Sequence[int]
    windows: Sequence[int]


@dataclass(frozen=True)
class DraftCells:
    """How a slot's cells of the drafter's pool are used: first the block's, then the ring's."""

    block: int
    ring: int

    @property
    def size(self) -> int:
        """Cells of a slot."""
        return self.block + self.ring


def draft_plan(
    pool: KVPool, cells: DraftCells, context: DraftContext, how: DraftVisibility
) -> AttentionPlan:
    """Plan for a drafter block, which sees itself and its ring of committed tokens.

    A layer that passes its own window (per-query checkpoints) narrows the request's.
    """
    block, ring = cells.block, cells.ring
    held = [min(n, ring) for n in context.lengths]
    length = torch.tensor(context.lengths, device=pool.device)
    windows = torch.tensor(context.windows, device=pool.device)

    def visible(first: int, last: int, columns: int, window: int | None) -> Tensor | None:
        whole = not how.causal and how.kind == "anchored" and window is None
        if whole and all(
            block + held[b] == columns and context.windows[b] >= held[b] for b in range(first, last)
        ):
            return None
        limits = windows[first:last] if window is None else windows[first:last].clamp(max=window)
        return draft_visible(length[first:last], limits, ring, block, how)[:, :, :columns]

    writes = torch.arange(block, device=pool.device).expand(len(context.slots), -1)
    places = [Place(slot * cells.size, cells.size) for slot in context.slots]
    return AttentionPlan(pool, places, [block + n for n in held], writes, visible)
