"""The best tokens of rows of logits, with log-probabilities against the whole vocabulary.

A row is cut into chunks; every chunk gives its K best and its share of the sum, and one program a
row merges them. Equal values rank by lower id.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from ddtree.core import Candidates

_CHUNK = 4096
_NO_ID = tl.constexpr(2**31 - 1)


@triton.jit
def _next_best(values, ids):
    """The largest value with the lowest id among equals, and the values without it."""
    best = tl.max(values, 0)
    chosen = tl.min(tl.where(values == best, ids, _NO_ID), 0)
    return best, chosen, tl.where(ids == chosen, -float("inf"), values)


@triton.jit
def _chunks(
    logits, tops, ids, sums, flags, vocab, stride, parts,
    TOPK: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    row, part = tl.program_id(0).to(tl.int64), tl.program_id(1)
    columns = part * CHUNK + tl.arange(0, CHUNK)
    there = columns < vocab
    values = tl.load(logits + row * stride + columns, mask=there, other=-float("inf"))
    values = values.to(tl.float32)
    broken = (values != values) | (values == float("inf"))
    place = row * parts + part
    tl.store(flags + place, tl.max(broken.to(tl.int32), 0))
    values = tl.where(broken, -float("inf"), values)
    peak = tl.max(values, 0)
    safe = tl.where(peak == -float("inf"), 0.0, peak)
    tl.store(sums + place * 2, peak)
    tl.store(sums + place * 2 + 1, tl.sum(tl.exp(values - safe), 0))
    left, numbers = values, columns
    for k in range(TOPK):
        best, chosen, left = _next_best(left, numbers)
        numbers = tl.where(numbers == chosen, _NO_ID, numbers)
        tl.store(tops + place * TOPK + k, best)
        tl.store(ids + place * TOPK + k, chosen)


@triton.jit
def _merge(
    tops, ids, sums, flags, out_ids, out_log_probs, out_broken, parts, vocab,
    TOPK: tl.constexpr, PARTS_P: tl.constexpr, FOUND_P: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    part = tl.arange(0, PARTS_P)
    there = part < parts
    peaks = tl.load(sums + (row * parts + part) * 2, mask=there, other=-float("inf"))
    shares = tl.load(sums + (row * parts + part) * 2 + 1, mask=there, other=0.0)
    peak = tl.max(peaks, 0)
    safe = tl.where(peak == -float("inf"), 0.0, peak)
    total = peak + tl.log(tl.sum(shares * tl.exp(peaks - safe), 0))
    broken = tl.max(tl.load(flags + row * parts + part, mask=there, other=0), 0)
    tl.store(out_broken + row, broken)
    place = tl.arange(0, FOUND_P)
    found = place < parts * TOPK
    left = tl.load(tops + row * parts * TOPK + place, mask=found, other=-float("inf"))
    numbers = tl.load(ids + row * parts * TOPK + place, mask=found, other=_NO_ID)
    for k in range(TOPK):
        best, chosen, left = _next_best(left, numbers)
        numbers = tl.where(numbers == chosen, _NO_ID, numbers)
        # Rounding can lift a log-probability just above 0.
        log_prob = tl.minimum(best - total, 0.0)
        dead = (best == -float("inf")) | (broken != 0)
        # Ids beyond the vocabulary fill the last chunk, behind all tokens.
        tl.store(out_ids + row * TOPK + k, tl.minimum(chosen, vocab - 1).to(tl.int64))
        tl.store(out_log_probs + row * TOPK + k, tl.where(dead, -float("inf"), log_prob))


def _found(logits: Tensor, topk: int) -> tuple[Tensor, Tensor, Tensor]:
    """Of logits [R, V] with rows of stride 1: ids and log-probabilities [R, K], and [R] int32
    where a row holds NaN or +inf."""
    rows, vocab = logits.shape
    parts, device = triton.cdiv(vocab, _CHUNK), logits.device
    tops = torch.empty(rows, parts, topk, device=device)
    numbers = torch.empty(rows, parts, topk, dtype=torch.int32, device=device)
    sums = torch.empty(rows, parts, 2, device=device)
    flags = torch.empty(rows, parts, dtype=torch.int32, device=device)
    _chunks[(rows, parts)](
        logits, tops, numbers, sums, flags, vocab, logits.stride(0), parts,
        TOPK=topk, CHUNK=_CHUNK, num_warps=8,
    )  # fmt: skip
    ids = torch.empty(rows, topk, dtype=torch.int64, device=device)
    log_probs = torch.empty(rows, topk, device=device)
    broken = torch.empty(rows, dtype=torch.int32, device=device)
    _merge[(rows,)](
        tops, numbers, sums, flags, ids, log_probs, broken, parts, vocab,
        TOPK=topk, PARTS_P=triton.next_power_of_2(parts),
        FOUND_P=triton.next_power_of_2(parts * topk), num_warps=1,
    )  # fmt: skip
    return ids, log_probs, broken


def top_candidates(logits: Tensor, topk: int) -> Candidates:
    """`ddtree.core.top_candidates` of logits [B, D, V], log-probabilities up to a rounding."""
    batch, depth, vocab = logits.shape
    topk = min(topk, vocab)
    ids, log_probs, broken = _found(logits.reshape(-1, vocab), topk)
    shape = (batch, depth, topk)
    invalid = broken.view(batch, depth).amax(1) != 0
    dead = invalid[:, None, None]
    return Candidates(ids.view(shape), log_probs.view(shape).masked_fill(dead, -torch.inf), invalid)


def best_tokens(logits: Tensor) -> tuple[Tensor, Tensor]:
    """The argmax of logits [B, M, V], the lowest id among equals, and [B, M] bool where the row
    holds NaN or +inf."""
    ids, _, broken = _found(logits.flatten(0, 1), 1)
    return ids.view(logits.shape[:2]), (broken != 0).view(logits.shape[:2])
