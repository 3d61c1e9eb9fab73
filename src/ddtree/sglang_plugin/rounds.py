"""One round of DDTREE on SGLang's tensors: pure functions, no SGLang in sight.

A round opens (the drafter's block and the KV slots of everything the round writes), plants a tree
from the drafter's output, has the target verify it, and settles (accepted tokens, what moves where
in the KV cache). Shapes depend on the batch size alone and nothing is read back, so that each part
can be captured as a CUDA graph.

SGLang's terms: a request's row of `req_to_token` holds the KV slot of each of its positions; row 0
belongs to nobody and pads a batch up to a graph's size.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ddtree.core.accept import accept
from ddtree.core.candidates import Candidates
from ddtree.core.layout import VerifyRows, layout_tree
from ddtree.core.levelwise import LevelwiseBuilder
from ddtree.core.tree import DraftTree


@dataclass(frozen=True)
class TreeShape:
    """The sizes of every round.

    block: rows of the drafter's block, anchor included. budget: draft nodes. topk: candidates a
    depth. window: committed tokens the drafter sees, None for all.
    """

    block: int
    budget: int
    topk: int
    window: int | None

    @property
    def rows(self) -> int:
        """N: rows of a verifying pass, the root's included."""
        return self.budget + 1

    @property
    def steps(self) -> int:
        """A: most tokens a round can give, the bonus included."""
        return min(self.block - 1, self.budget) + 1

    @property
    def span(self) -> int:
        """KV slots that a round may write to, from the root's position on."""
        return max(self.block, self.rows)


@dataclass(frozen=True)
class Start:
    """Where each request stands. rows: [B] int64 of `req_to_token`, 0 on padding. lengths: [B]
    int64 tokens in the KV cache, which is the root's position. roots: [B] int64 token ids."""

    rows: Tensor
    lengths: Tensor
    roots: Tensor

    def first(self, count: int) -> "Start":
        """The first `count` requests."""
        return Start(self.rows[:count], self.lengths[:count], self.roots[:count])


@dataclass(frozen=True)
class Block:
    """The drafter's block: ids and absolute positions [B, block], and slots [B, span] int64 for
    whatever the round writes (0, nobody's, on padding)."""

    ids: Tensor
    positions: Tensor
    slots: Tensor


@dataclass(frozen=True)
class Planted:
    """A batch of trees and their rows for the target."""

    tree: DraftTree
    rows: VerifyRows

    def first(self, count: int) -> "Planted":
        """The first `count` requests."""
        tree, rows = self.tree, self.rows
        return Planted(
            DraftTree(
                tree.tokens[:count],
                tree.parents[:count],
                tree.depths[:count],
                tree.ranks[:count],
                tree.scores[:count],
                tree.counts[:count],
                tree.max_depth,
            ),
            VerifyRows(
                rows.ids[:count], rows.positions[:count], rows.visible[:count], rows.live[:count]
            ),
        )


@dataclass(frozen=True)
class Verified:
    """The target's answer: logits [B * N, V], hidden states [B * N, F], SGLang's own record, and
    whether a CUDA graph gave them."""

    logits: Tensor
    hidden: Tensor
    output: Any
    in_graph: bool


@dataclass(frozen=True)
class Settled:
    """What a round gave.

    tokens: [B, A] int64, accepted tokens and the bonus, then 0. counts: [B] int32 of them.
    roots: [B] int64 the bonus. lengths: [B] int64 after the round. path: [B, A] int64 rows whose
    KV and hidden states stay; column j beyond the accepted holds j.
    """

    tokens: Tensor
    counts: Tensor
    roots: Tensor
    lengths: Tensor
    path: Tensor


def open_block(start: Start, table: Tensor, shape: TreeShape, mask_token: int) -> Block:
    """The block below each root. table: `req_to_token` [R, columns]."""
    offsets = torch.arange(shape.span, device=start.rows.device)
    columns = (start.lengths[:, None] + offsets).clamp(max=table.shape[1] - 1)
    slots = table[start.rows[:, None], columns].long() * (start.rows > 0)[:, None]
    ids = torch.full_like(columns[:, : shape.block], mask_token)
    ids[:, 0] = start.roots
    return Block(ids, start.lengths[:, None] + offsets[: shape.block], slots)


def fill_window(shared: Tensor, own: Tensor, start: Start, block: Block, window: int) -> Tensor:
    """Write the last `window` committed slots and the block's into the drafter's own table.

    shared, own: [R, columns] int32. Returns [B] int32 committed tokens that the drafter sees.
    Columns between those and the block's are written as well: the block covers or hides them.
    """
    size = block.ids.shape[1]
    visible = start.lengths.clamp(max=window)
    columns = torch.arange(min(window, own.shape[1] - size), device=own.device)
    source = ((start.lengths - visible)[:, None] + columns).clamp(max=shared.shape[1] - 1)
    rows = start.rows[:, None]
    own[rows, columns] = shared[rows, source]
    ends = visible[:, None] + torch.arange(size, device=own.device)
    own[rows, ends] = block.slots[:, :size].to(own.dtype)
    return visible.int()


def plant(
    candidates: Candidates, builder: LevelwiseBuilder, shape: TreeShape, start: Start
) -> Planted:
    """The best trees of `shape` below the roots of `start`."""
    size = torch.full_like(start.rows, shape.budget)
    tree = builder(candidates, size, torch.full_like(size, shape.topk))
    return Planted(tree, layout_tree(tree, start.roots, start.lengths))


def mask_places(lengths: Tensor, rows: int) -> Tensor:
    """[B, N, N] int64 places of the tree's part in SGLang's flat mask.

    The flat mask holds, request after request, N rows of L + N entries; the first L of a row are
    the committed tokens', which kernels take as visible without looking.
    """
    width = lengths + rows
    ends = (width * rows).cumsum(0)
    first = (ends - width * rows)[:, None, None] + lengths[:, None, None]
    index = torch.arange(rows, device=lengths.device)
    return first + index[:, None] * width[:, None, None] + index


def write_mask(flat: Tensor, planted: Planted, lengths: Tensor) -> None:
    """Write who sees whom among the rows into SGLang's flat mask (bool or uint8)."""
    visible = planted.rows.visible
    places = mask_places(lengths, visible.shape[1]).flatten()
    # Padding at a full cache may point beyond the mask; nobody reads it.
    flat[places.clamp(max=flat.numel() - 1)] = visible.flatten().to(flat.dtype)


def full_mask(planted: Planted, lengths: Tensor) -> Tensor:
    """The whole flat mask, for a pass outside a graph: [sum of N * (L + N)] bool."""
    rows = planted.rows.visible.shape[1]
    flat = torch.ones(int(((lengths + rows) * rows).sum()), dtype=torch.bool, device=lengths.device)
    write_mask(flat, planted, lengths)
    return flat


def settle(planted: Planted, choices: Tensor, start: Start) -> Settled:
    """Accept along `choices` [B, N], the target's token at each row."""
    taken = accept(planted.tree, planted.rows, choices)
    counts = taken.num_accepted + 1
    return Settled(taken.tokens, counts.int(), taken.bonus, start.lengths + counts, taken.rows)


def moves(block: Block, path: Tensor) -> tuple[Tensor, Tensor]:
    """(from, to) KV slots [B * A] that bring accepted rows to the front.

    A target is never behind its source, and rows that stay are their own source, so moving all
    of them in order, or each after reading it, gives the same.
    """
    sources = block.slots.gather(1, path)
    return sources.flatten(), block.slots[:, : path.shape[1]].flatten()


def kept_hidden(hidden: Tensor, path: Tensor, rows: int) -> Tensor:
    """Hidden states [B * A, F] of the accepted rows, out of [B * N, F]."""
    batch = hidden.view(-1, rows, hidden.shape[-1])
    index = path[:, :, None].expand(-1, -1, hidden.shape[-1])
    return batch.gather(1, index).flatten(0, 1)
