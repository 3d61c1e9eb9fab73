"""Attention of a tree's rows over committed tokens and each other.

Query heads that share a key head are packed with the rows, so that keys are read once. Where a
batch is too small to fill the device the committed run is split among programs, and the last of
them to arrive adds their parts up, always in the same order.
"""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

LOG2E = tl.constexpr(1.4426950408889634)


@triton.jit
def _load_cells(keys, values, where, there, dims, is_dim):
    """Keys [DIM, N] and values [N, DIM] at element offsets `where` [N]; zeros where not `there`:
    a stranger's cell may hold no numbers."""
    key = tl.load(
        keys + where[None, :] + dims[:, None], mask=there[None, :] & is_dim[:, None], other=0.0
    )
    value = tl.load(
        values + where[:, None] + dims[None, :], mask=there[:, None] & is_dim[None, :], other=0.0
    )
    return key, value


@triton.jit
def _absorb(query, key, value, seen, scale, top, total, sums):
    """One block of columns into the running softmax (Milakov and Gimelshein, 2018), base 2."""
    score = tl.dot(query, key, input_precision="ieee") * (scale * LOG2E)
    score = tl.where(seen, score, -float("inf"))
    higher = tl.maximum(top, tl.max(score, 1))
    # A row that has seen nothing yet: -inf less -inf is no number.
    safe = tl.where(higher == -float("inf"), 0.0, higher)
    weight, fade = tl.exp2(score - safe[:, None]), tl.exp2(top - safe)
    sums = sums * fade[:, None] + tl.dot(weight.to(value.dtype), value, input_precision="ieee")
    return higher, total * fade + tl.sum(weight, 1), sums


@triton.jit
def _combine(parts, tops, where, count, BLOCK_M: tl.constexpr, DIM_P: tl.constexpr):
    """Running softmaxes of `count` parts, from `where` on, as one."""
    dims = tl.arange(0, DIM_P)
    top = tl.full([BLOCK_M], -float("inf"), tl.float32)
    total = tl.zeros([BLOCK_M], tl.float32)
    sums = tl.zeros([BLOCK_M, DIM_P], tl.float32)
    for part in range(count):
        place = where + part * BLOCK_M + tl.arange(0, BLOCK_M)
        theirs = tl.load(tops + place * 2, cache_modifier=".cg")
        counted = tl.load(tops + place * 2 + 1, cache_modifier=".cg")
        added = tl.load(parts + place[:, None] * DIM_P + dims[None, :], cache_modifier=".cg")
        higher = tl.maximum(top, theirs)
        safe = tl.where(higher == -float("inf"), 0.0, higher)
        fade, lift = tl.exp2(top - safe), tl.exp2(theirs - safe)
        total = total * fade + counted * lift
        sums = sums * fade[:, None] + added * lift[:, None]
        top = higher
    return total, sums


@triton.jit
def _over_committed(
    query, keys, values, low, is_row, begin, end, anchor, ring, scale, cell,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, WINDOWED: tl.constexpr, RING: tl.constexpr,
    DIM: tl.constexpr, DIM_P: tl.constexpr,
):  # fmt: skip
    """Columns begin to end of a run whose first cell's key and value are at `keys`, `values`."""
    dims = tl.arange(0, DIM_P)
    top = tl.full([BLOCK_M], -float("inf"), tl.float32)
    total = tl.zeros([BLOCK_M], tl.float32)
    sums = tl.zeros([BLOCK_M, DIM_P], tl.float32)
    for start in range(begin, end, BLOCK_N):
        column = start + tl.arange(0, BLOCK_N)
        there = column < end
        seen = there[None, :] & is_row[:, None]
        if WINDOWED:
            position = column
            if RING:
                # The newest position before the anchor that the ring's cell can hold.
                position = column + (anchor - 1 - column) // ring * ring
            seen = seen & (position[None, :] >= low[:, None])
        key, value = _load_cells(keys, values, column * cell, there, dims, dims < DIM)
        top, total, sums = _absorb(query, key, value, seen, scale, top, total, sums)
    return top, total, sums


@triton.jit
def _over_own(
    query, keys, values, low, is_row, marks, places, rows, scale, cell, top, total, sums,
    BLOCK_N: tl.constexpr, LIMITED: tl.constexpr, DIM: tl.constexpr, DIM_P: tl.constexpr,
):  # fmt: skip
    """The rows themselves, as far as their marks and, where LIMITED, positions at `places` say."""
    dims = tl.arange(0, DIM_P)
    for start in range(0, rows, BLOCK_N):
        column = start + tl.arange(0, BLOCK_N)
        there = column < rows
        both = is_row[:, None] & there[None, :]
        word = tl.load(marks[:, None] + column[None, :] // 32, mask=both, other=0)
        seen = ((word >> (column[None, :] % 32)) & 1) != 0
        if LIMITED:
            position = tl.load(places + column, mask=there, other=0).to(tl.int32)
            seen = seen & (position[None, :] >= low[:, None])
        key, value = _load_cells(keys, values, column * cell, there, dims, dims < DIM)
        top, total, sums = _absorb(query, key, value, seen, scale, top, total, sums)
    return top, total, sums


@triton.jit
def _attend(
    q, keys, values, out, parts, tops, arrived,
    first, held, own, positions, lowest, bits,
    scale, ring, rows, words, cell, q_batch, q_head, q_row, splits, least,
    GROUPS: tl.constexpr, GROUP: tl.constexpr, DIM: tl.constexpr, DIM_P: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, WINDOWED: tl.constexpr, RING: tl.constexpr,
):  # fmt: skip
    batch, group = (tl.program_id(0) // GROUPS).to(tl.int64), tl.program_id(0) % GROUPS
    # No more parts than have something to do, the rows' own keys with the last of them.
    blocks = tl.cdiv(tl.load(held + batch).to(tl.int32), BLOCK_N)
    share = tl.maximum(tl.cdiv(blocks, splits), least)
    active, part = tl.maximum(tl.cdiv(blocks, share), 1), tl.program_id(2)
    if part >= active:
        return
    packed = tl.program_id(1) * BLOCK_M + tl.arange(0, BLOCK_M)
    row, head = packed // GROUP, group * GROUP + packed % GROUP
    is_row, dims = row < rows, tl.arange(0, DIM_P)
    in_out = is_row[:, None] & (dims < DIM)[None, :]
    at = batch * q_batch + head[:, None] * q_head + row[:, None] * q_row + dims[None, :]
    query = tl.load(q + at, mask=in_out, other=0.0)
    low = row
    if WINDOWED:
        low = tl.load(lowest + batch * rows + row, mask=is_row, other=0).to(tl.int32)
    begin, places = part * share * BLOCK_N, positions + batch * rows
    end = tl.minimum(begin + share * BLOCK_N, tl.load(held + batch).to(tl.int32))
    run = tl.load(first + batch) * cell + group * DIM
    top, total, sums = _over_committed(
        query, keys + run, values + run, low, is_row, begin, end,
        tl.load(places).to(tl.int32), ring, scale, cell,
        BLOCK_M, BLOCK_N, WINDOWED, RING, DIM, DIM_P,
    )  # fmt: skip
    if part == active - 1:
        run = tl.load(own + batch) * cell + group * DIM
        top, total, sums = _over_own(
            query, keys + run, values + run, low, is_row, bits + (batch * rows + row) * words,
            places, rows, scale, cell, top, total, sums,
            BLOCK_N, WINDOWED and not RING, DIM, DIM_P,
        )  # fmt: skip
    is_last = active == 1
    if active > 1:
        tile = tl.program_id(0) * tl.num_programs(1) + tl.program_id(1)
        place = (tile * splits + part) * BLOCK_M + tl.arange(0, BLOCK_M)
        tl.store(parts + place[:, None] * DIM_P + dims[None, :], sums)
        tl.store(tops + place * 2, top)
        tl.store(tops + place * 2 + 1, total)
        # All of a program's stores come before its sign, and its reads after the last one's.
        tl.debug_barrier()
        is_last = tl.atomic_add(arrived + tile, 1, sem="acq_rel") == active - 1
        tl.debug_barrier()
        if is_last:
            total, sums = _combine(parts, tops, tile * splits * BLOCK_M, active, BLOCK_M, DIM_P)
            tl.store(arrived + tile, 0)
    if is_last:
        mean = sums / tl.where(total == 0.0, 1.0, total)[:, None]
        at = ((batch * rows + row[:, None]) * GROUPS * GROUP + head[:, None]) * DIM + dims[None, :]
        tl.store(out + at, mean.to(out.dtype.element_ty), mask=in_out)


@dataclass(frozen=True)
class Sight:
    """What rows see, as `ddtree.engine.fixed.reach.Reach` has it: [B] int64 first, held, own;
    [B, S] int64 positions and lowest (None: all); [B, S, words] int32 bits; the ring's size."""

    first: Tensor
    held: Tensor
    own: Tensor
    positions: Tensor
    lowest: Tensor | None
    bits: Tensor
    ring: int


@dataclass(frozen=True)
class Tiling:
    """How the work is cut: packed rows and columns of a block; parts of the committed run at most,
    and blocks of columns that each has at least; warps of a program, and loads ahead."""

    block_m: int
    block_n: int
    splits: int
    least: int = 1
    warps: int = 4
    stages: int = 3


class TreeAttention:
    """Holds the counters by which the parts of a split find out who is last: all zero between
    calls. One call at a time."""

    def __init__(self, device: torch.device) -> None:
        self._arrived = torch.zeros(4096, dtype=torch.int32, device=device)

    def __call__(
        self, cells: Tensor, q: Tensor, groups: int, scale: float, sight: Sight, tiling: Tiling
    ) -> Tensor:
        """q [B, H, S, C] of any strides whose last is 1, cells [2, size, groups * C] ->
        [B, S, H, C]. float32 sums whatever the type."""
        batch, heads, rows, dim = q.shape
        out = q.new_empty(batch, rows, heads, dim)
        tiles = triton.cdiv(rows * heads // groups, tiling.block_m)
        splits, dim_p = tiling.splits, max(16, triton.next_power_of_2(dim))
        if batch * groups * tiles > len(self._arrived):
            splits = 1
        places = batch * groups * tiles * splits * tiling.block_m if splits > 1 else 0
        parts = torch.empty(places, dim_p, dtype=torch.float32, device=q.device)
        tops = torch.empty(places, 2, dtype=torch.float32, device=q.device)
        lowest = sight.positions if sight.lowest is None else sight.lowest
        _attend[(batch * groups, tiles, splits)](
            q, cells[0], cells[1], out, parts, tops, self._arrived,
            sight.first, sight.held, sight.own, sight.positions, lowest, sight.bits,
            scale, sight.ring, rows, sight.bits.shape[-1], cells.stride(1),
            q.stride(0), q.stride(1), q.stride(2), splits, tiling.least,
            GROUPS=groups, GROUP=heads // groups, DIM=dim, DIM_P=dim_p,
            BLOCK_M=tiling.block_m, BLOCK_N=tiling.block_n,
            WINDOWED=sight.lowest is not None, RING=sight.ring > 0,
            num_warps=tiling.warps, num_stages=tiling.stages,
        )  # fmt: skip
        return out


def tiling_of(batch: int, groups: int, packed: int, dim: int, programs: int) -> Tiling:
    """A cut for B requests with `packed` rows of `dim` numbers per key head that gives a device
    about `programs` programs. Sizes and limits as they were fastest on an H200."""
    runs = batch * groups
    if packed <= 16 or (packed <= 64 and runs * triton.cdiv(packed, 16) <= 48):
        block_m, block_n, warps = 16, 64, 4
    elif dim > 64 and 64 < packed <= 128 and runs >= 64:
        block_m, block_n, warps = 128, 32, 8
    else:
        block_m, block_n, warps = 32 if packed <= 32 else 64, 32, 4
    tiles, splits = runs * triton.cdiv(packed, block_m), 1
    # The last part adds all of them up, so that many cost more than they gain.
    while splits < 16 and tiles * splits * 2 * max(dim, 64) <= programs * 64:
        splits *= 2
    return Tiling(block_m, block_n, splits, 128 // block_n, warps, 4)
