"""The small steps of a round: whose rows they are, the walk down the trees, what is kept of it."""

from collections.abc import Mapping

import torch
import triton
import triton.language as tl
from torch import Tensor

from ddtree.core import DraftTree


@triton.jit
def _open(
    ints, slots, out, batch, nobody,
    COLUMNS: tl.constexpr, LENGTH: tl.constexpr, END: tl.constexpr, LAST_ROOT: tl.constexpr,
    BUDGET: tl.constexpr, BATCH_P: tl.constexpr,
):  # fmt: skip
    row = tl.arange(0, BATCH_P)
    there = row < batch
    slot = tl.load(slots + row, mask=there, other=0)
    length = tl.load(ints + slot * COLUMNS + LENGTH, mask=there, other=0)
    active = length < tl.load(ints + slot * COLUMNS + END, mask=there, other=0)
    slot = tl.where(active, slot, nobody)
    tl.store(out + COLUMNS * batch + row, slot, mask=there)
    tl.store(out + (COLUMNS + 1) * batch + row, active.to(tl.int64), mask=there)
    for column in tl.static_range(COLUMNS):
        value = tl.load(ints + slot * COLUMNS + column, mask=there, other=0)
        if column == BUDGET:
            last = tl.load(ints + slot * COLUMNS + LAST_ROOT, mask=there, other=0)
            length = tl.load(ints + slot * COLUMNS + LENGTH, mask=there, other=0)
            value = tl.where(length <= last, value, 0)
        tl.store(out + column * batch + row, value, mask=there)


def open_rows(ints: Tensor, slots: Tensor, columns: Mapping[str, int]) -> Tensor:
    """`SlotState.table` of ints [slots + 1, columns] for slots [B]: [columns + 2, B] int64."""
    batch, count = len(slots), ints.shape[1]
    out = torch.empty(count + 2, batch, dtype=torch.int64, device=ints.device)
    _open[(1,)](
        ints, slots, out, batch, len(ints) - 1,
        COLUMNS=count, LENGTH=columns["length"], END=columns["end"],
        LAST_ROOT=columns["last_root"], BUDGET=columns["budget"],
        BATCH_P=triton.next_power_of_2(batch), num_warps=1,
    )  # fmt: skip
    return out


@triton.jit
def _settle(
    choices, invalid, bad_draft, tokens, parents, ranks, counts, slots, actives, ints,
    out_rows, out_count, report, width,
    COLUMNS: tl.constexpr, LENGTH: tl.constexpr, ROOT: tl.constexpr,
    DEPTH: tl.constexpr, PATH_P: tl.constexpr, NODES_P: tl.constexpr,
):  # fmt: skip
    batch = tl.program_id(0).to(tl.int64)
    node, step = tl.arange(0, NODES_P), tl.arange(0, PATH_P)
    count = tl.load(counts + batch)
    there = node < count
    held = tl.load(tokens + batch * width + node, mask=there, other=-2)
    above = tl.load(parents + batch * width + node, mask=there, other=-2)
    mine = choices + batch * (width + 1)
    token = tl.load(mine)
    broken = tl.load(invalid + batch * (width + 1)).to(tl.int32)
    before, at, taken = broken * 0, token * 0, 0
    path, kept = step.to(tl.int64), tl.where(step == 0, token, 0)
    going = True
    for depth in range(DEPTH):
        fits = there & (above == at) & (held == token)
        child = tl.max(tl.where(fits, node + 1, 0), 0).to(tl.int64)
        going = going & (child > 0)
        at = tl.where(going, child, at)
        taken += tl.where(going, 1, 0)
        path = tl.where(going & (step == depth + 1), child, path)
        before = tl.where(going, broken, before)
        more = tl.load(invalid + batch * (width + 1) + at).to(tl.int32)
        broken = tl.where(going, broken | more, broken)
        token = tl.where(going, tl.load(mine + at), token)
        kept = tl.where(going & (step == depth + 1), token, kept)
    # The last row's token is unknown: the node's own is the bonus, see `settled`.
    unknown = token == -1
    stalled = unknown & (taken == 0)
    broken = tl.where(unknown & (taken > 0), before, broken)
    taken = tl.where(unknown & (taken > 0), taken - 1, taken)
    kept = tl.where(step <= taken, kept, 0)
    kept = tl.where(stalled, 0, kept)
    bonus = tl.max(tl.where(step == taken, kept, -1), 0)
    active = tl.load(actives + batch) != 0
    on_path = step <= DEPTH
    tl.store(out_rows + batch * (DEPTH + 1) + step, path, mask=on_path)
    tl.store(out_count + batch, taken.to(tl.int64))
    line = report + batch * (6 + 3 * DEPTH + 1)
    tl.store(line, (stalled & active).to(tl.int64))
    tl.store(line + 1, active.to(tl.int64))
    tl.store(line + 2, taken.to(tl.int64))
    tl.store(line + 3, count)
    tl.store(line + 4, tl.load(bad_draft + batch).to(tl.int64))
    tl.store(line + 5, broken.to(tl.int64))
    tl.store(line + 6 + step, kept, mask=on_path)
    accepted = (step >= 1) & on_path
    place = tl.minimum(tl.maximum(path - 1, 0), width - 1)
    rank = tl.load(ranks + batch * width + place, mask=accepted, other=0)
    tl.store(line + 6 + DEPTH + step, rank, mask=accepted)
    tl.store(line + 6 + 2 * DEPTH + step, place, mask=accepted)
    if active & (stalled == 0):
        row = ints + tl.load(slots + batch) * COLUMNS
        tl.store(row + LENGTH, tl.load(row + LENGTH) + taken + 1)
        tl.store(row + ROOT, bonus)


def settle(
    tree: DraftTree,
    choices: tuple[Tensor, Tensor],
    bad_draft: Tensor,
    rows: tuple[Tensor, Tensor],
    state: tuple[Tensor, Mapping[str, int]],
) -> tuple[Tensor, Tensor, Tensor]:
    """Walk along choices = (tokens, invalid) [B, M] and move state = (ints, columns) on for rows =
    (slots, active) [B]: accepted rows [B, A], how many but for the root [B], and the report."""
    ints, columns = state
    batch, width = tree.tokens.shape
    depth, device = tree.max_depth, ints.device
    path = torch.empty(batch, depth + 1, dtype=torch.int64, device=device)
    count = torch.empty(batch, dtype=torch.int64, device=device)
    report = torch.empty(batch, 7 + 3 * depth, dtype=torch.int64, device=device)
    _settle[(batch,)](
        *choices, bad_draft, tree.tokens, tree.parents, tree.ranks, tree.counts, *rows, ints,
        path, count, report, width,
        COLUMNS=ints.shape[1], LENGTH=columns["length"], ROOT=columns["root"], DEPTH=depth,
        PATH_P=triton.next_power_of_2(depth + 1),
        NODES_P=triton.next_power_of_2(max(width, 1)), num_warps=1,
    )  # fmt: skip
    return path, count, report


@triton.jit
def _move(
    cells, first, rows, width, stride, half,
    SIZE: tl.constexpr, SIZE_P: tl.constexpr, STEPS_P: tl.constexpr,
):  # fmt: skip
    batch, layer = tl.program_id(0), tl.program_id(1)
    step, part = tl.arange(0, STEPS_P), tl.arange(0, SIZE_P)
    there = step < width
    row = tl.load(rows + batch * width + step, mask=there, other=0)
    moves = there & (row != step)
    if tl.max(moves.to(tl.int32), 0) != 0:
        base = cells + layer.to(tl.int64) * half + tl.load(first + batch) * stride
        mask = moves[:, None] & (part < SIZE)[None, :]
        value = tl.load(base + row[:, None] * stride + part[None, :], mask=mask)
        # Rows overlap with where they go: all are read before any is written.
        tl.debug_barrier()
        tl.store(base + step[:, None] * stride + part[None, :], value, mask=mask)


def move(cells: Tensor, first: Tensor, rows: Tensor) -> None:
    """All layers' cells [layers, 2, size, G * C]: first [B] + rows [B, A] to first + 0 .. A - 1."""
    layers, _, _, size = cells.shape
    _move[(len(first), layers * 2)](
        cells, first, rows.contiguous(), rows.shape[1], cells.stride(2), cells.stride(1),
        SIZE=size, SIZE_P=triton.next_power_of_2(size),
        STEPS_P=triton.next_power_of_2(rows.shape[1]), num_warps=4,
    )  # fmt: skip


@triton.jit
def _taken(
    features, rows, counts, slots, actives, lengths, out, positions, cells,
    count_rows, width, size, nobody, block, ring, slot_size, BLOCK: tl.constexpr,
):  # fmt: skip
    batch, step = tl.program_id(0).to(tl.int64), tl.program_id(1)
    row = tl.load(rows + batch * width + step)
    last = tl.load(counts + batch)
    position = tl.load(lengths + batch) + step
    kept = (step <= last) & (step > last - ring) & (tl.load(actives + batch) != 0)
    slot = tl.where(kept, tl.load(slots + batch), nobody)
    place = batch * width + step
    tl.store(positions + place, position)
    tl.store(cells + place, slot * slot_size + block + position % ring)
    source = features + (batch * count_rows + row) * size
    for start in range(0, size, BLOCK):
        part = start + tl.arange(0, BLOCK)
        value = tl.load(source + part, mask=part < size)
        tl.store(out + place * size + part, value, mask=part < size)


def taken(
    features: Tensor,
    accepted: tuple[Tensor, Tensor],
    rows: tuple[Tensor, Tensor, Tensor],
    sizes: tuple[int, int, int],
) -> tuple[Tensor, Tensor, Tensor]:
    """Features [B, M, F] of accepted = (rows [B, A], counts [B]) with where the drafter keeps
    them: [B * A, F], positions and cells [B * A].

    rows = (slots, active, lengths) [B]; sizes = (nobody's slot, block, ring).
    """
    batch, count_rows, size = features.shape
    width = accepted[0].shape[1]
    nobody, block, ring = sizes
    out = features.new_empty(batch * width, size)
    positions = torch.empty(batch * width, dtype=torch.int64, device=features.device)
    cells = torch.empty_like(positions)
    _taken[(batch, width)](
        features, accepted[0].contiguous(), accepted[1], *rows, out, positions, cells,
        count_rows, width, size, nobody, block, ring, block + ring, BLOCK=1024,
    )  # fmt: skip
    return out, positions, cells
