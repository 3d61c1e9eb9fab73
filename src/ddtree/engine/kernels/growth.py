"""Draft trees, best first, one program a request: what `ddtree.core.heap` does with a heap.

The heap is a list of prefixes in registers, of which every step takes the best. A step adds two:
the node's first child and its next sibling.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from ddtree.core import Candidates, DraftTree

_LAST = tl.constexpr(2**63 - 1)


@triton.jit
def _better(weight, order, unit, about, other_weight, other_order, other_unit, other_about):
    """Of two prefixes the heavier, of equal ones the earlier."""
    mine = (weight > other_weight) | ((weight == other_weight) & (order < other_order))
    return (
        tl.where(mine, weight, other_weight),
        tl.where(mine, order, other_order),
        tl.where(mine, unit, other_unit),
        tl.where(mine, about, other_about),
    )


@triton.jit
def _grow(
    tokens, log_probs, budgets, topks, roots, lengths,
    out_tokens, out_parents, out_depths, out_ranks, out_scores, out_counts,
    ids, positions, bits, width, words,
    DEPTH: tl.constexpr, TOPK: tl.constexpr, DIGIT: tl.constexpr, HEAP_P: tl.constexpr,
    ROWS_P: tl.constexpr, WORDS: tl.constexpr,
):  # fmt: skip
    batch = tl.program_id(0).to(tl.int64)
    table = batch * DEPTH * TOPK
    budget, topk = tl.load(budgets + batch), tl.minimum(tl.load(topks + batch), TOPK)
    root, length = tl.load(roots + batch), tl.load(lengths + batch)
    place = tl.arange(0, HEAP_P)
    # A prefix in the heap: weight, ranks as the digits of one number (so that equal weights go by
    # rank after rank, shorter first), and depth, rank and parent's row.
    start = place == HEAP_P - 1
    weights = tl.where(start, tl.load(log_probs + table).to(tl.float64), -float("inf"))
    unit = tl.full([], 1, tl.int64)
    for _ in range(DEPTH - 1):
        unit = unit * DIGIT
    orders = tl.where(start, unit, _LAST)
    units = tl.where(start, unit, 0)
    about = tl.where(start, tl.full([], 1, tl.int64) << 32, 0)
    none = tl.full([], -float("inf"), tl.float64)
    count = tl.full([], 0, tl.int64)
    going = (budget > 0) & (topk > 0)
    for n in range(width):
        weight, order, unit, packed = tl.reduce((weights, orders, units, about), 0, _better)
        going = going & (n < budget) & (weight > -float("inf"))
        chosen = (orders == order) & (weights == weight)
        depth, rank, parent = packed >> 32, (packed >> 16) & 0xFFFF, packed & 0xFFFF
        level = table + tl.where(going, depth - 1, 0) * TOPK
        token = tl.load(tokens + level + tl.where(going, rank, 0))
        at = batch * width + n
        tl.store(out_tokens + at, tl.where(going, token, 0))
        tl.store(out_parents + at, tl.where(going, parent, 0))
        tl.store(out_depths + at, tl.where(going, depth, 0))
        tl.store(out_ranks + at, tl.where(going, rank, 0))
        tl.store(out_scores + at, tl.where(going, weight, none))
        count += tl.where(going, 1, 0)
        has_sibling = going & (rank + 1 < topk)
        elder = tl.load(log_probs + level + rank, mask=going, other=0.0).to(tl.float64)
        younger = tl.load(log_probs + level + rank + 1, mask=has_sibling, other=-float("inf"))
        sibling = (weight - elder) + younger.to(tl.float64)
        has_child = going & (depth < DEPTH)
        first = tl.load(log_probs + level + TOPK, mask=has_child, other=-float("inf"))
        child = weight + first.to(tl.float64)
        # The taken one's place is free: the child's.
        weights = tl.where(chosen, tl.where(has_child, child, none), weights)
        orders = tl.where(chosen, order + unit // DIGIT, orders)
        units = tl.where(chosen, unit // DIGIT, units)
        about = tl.where(chosen, ((depth + 1) << 32) | (n + 1), about)
        new = place == n
        weights = tl.where(new, tl.where(has_sibling, sibling, none), weights)
        orders = tl.where(new, order + unit, orders)
        units = tl.where(new, unit, units)
        about = tl.where(new, (depth << 32) | ((rank + 1) << 16) | parent, about)
    tl.store(out_counts + batch, count)
    tl.debug_barrier()
    row = tl.arange(0, ROWS_P)
    is_row, node = row <= width, batch * width + row - 1
    is_node = (row >= 1) & (row <= count)
    depth = tl.load(out_depths + node, mask=is_node, other=0)
    token = tl.load(out_tokens + node, mask=is_node, other=0)
    tl.store(ids + batch * (width + 1) + row, tl.where(is_node, token, root), mask=is_row)
    tl.store(positions + batch * (width + 1) + row, length + depth, mask=is_row)
    for word in tl.static_range(WORDS):
        marks = tl.where(row // 32 == word, 1 << (row % 32), 0)
        above = tl.where(is_node, row, 0).to(tl.int64)
        for _ in range(DEPTH):
            climbs = above > 0
            above = tl.load(out_parents + batch * width + above - 1, mask=climbs, other=0)
            marks |= tl.where(climbs & (above // 32 == word), 1 << (above % 32).to(tl.int32), 0)
        tl.store(bits + (batch * (width + 1) + row) * words + word, marks, mask=is_row)


def digits_fit(depth: int, topk: int) -> bool:
    """Whether ranks along a path fit one 63-bit number."""
    return bool((topk + 1) ** depth < 2**63)


def grow(
    candidates: Candidates, width: int, limits: tuple[Tensor, Tensor], roots: tuple[Tensor, Tensor]
) -> tuple[DraftTree, Tensor, Tensor, Tensor]:
    """Trees of at most limits[0] <= width nodes and limits[1] candidates a depth [B], below roots
    = (tokens, positions) [B]; ids and positions [B, M] and bits [B, M, words] of their rows.

    Equal to `build_heap`, ties included, order too.
    """
    batch, depth, topk = candidates.tokens.shape
    device = candidates.tokens.device
    tokens, parents, depths, ranks = torch.empty(
        4, batch, width, dtype=torch.int64, device=device
    ).unbind()
    scores = torch.empty(batch, width, dtype=torch.float64, device=device)
    counts = torch.empty(batch, dtype=torch.int64, device=device)
    ids, positions = torch.empty(2, batch, width + 1, dtype=torch.int64, device=device).unbind()
    words = triton.cdiv(width + 1, 32)
    bits = torch.empty(batch, width + 1, words, dtype=torch.int32, device=device)
    _grow[(batch,)](
        candidates.tokens, candidates.log_probs, *limits, *roots,
        tokens, parents, depths, ranks, scores, counts, ids, positions, bits, width, words,
        DEPTH=depth, TOPK=topk, DIGIT=topk + 1,
        HEAP_P=triton.next_power_of_2(width + 1), ROWS_P=triton.next_power_of_2(width + 1),
        WORDS=words, num_warps=1,
    )  # fmt: skip
    tree = DraftTree(tokens, parents, depths, ranks, scores, counts, min(depth, width))
    return tree, ids, positions, bits
