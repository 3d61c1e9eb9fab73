"""What stands between a decoder layer's matrix products, each in one launch."""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def _add_norm(
    delta, residual, weight, normed, summed, tap, eps, size, tap_stride,
    ADDS: tl.constexpr, TAPS: tl.constexpr, SIZE_P: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    part = tl.arange(0, SIZE_P)
    there = part < size
    kind = normed.dtype.element_ty
    wide = tl.load(residual + row * size + part, mask=there, other=0.0).to(tl.float32)
    if ADDS:
        more = tl.load(delta + row * size + part, mask=there, other=0.0)
        wide = (wide + more.to(tl.float32)).to(kind).to(tl.float32)
        tl.store(summed + row * size + part, wide.to(kind), mask=there)
    if TAPS:
        tl.store(tap + row * tap_stride + part, wide.to(kind), mask=there)
    scaled = wide * tl.rsqrt(tl.sum(wide * wide, 0) / size + eps)
    # The models round before they multiply by the weight.
    factor = tl.load(weight + part, mask=there, other=0.0).to(tl.float32)
    found = (scaled.to(kind).to(tl.float32) * factor).to(kind)
    tl.store(normed + row * size + part, found, mask=there)


def add_norm(
    delta: Tensor | None, residual: Tensor, weight: Tensor, eps: float, tap: Tensor | None
) -> tuple[Tensor, Tensor]:
    """RMSNorm of residual + delta [R, E], and that sum, which goes to `tap` [R, E] too (rows of
    any stride)."""
    rows, size = residual.shape
    normed = torch.empty_like(residual)
    summed = residual if delta is None else torch.empty_like(residual)
    _add_norm[(rows,)](
        residual if delta is None else delta, residual, weight, normed, summed,
        residual if tap is None else tap, eps, size, 0 if tap is None else tap.stride(0),
        ADDS=delta is not None, TAPS=tap is not None, SIZE_P=triton.next_power_of_2(size),
    )  # fmt: skip
    return normed, summed


@triton.jit
def _gate(joined, out, size, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    part = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    there = part < size
    gate = tl.load(joined + row * 2 * size + part, mask=there, other=0.0)
    up = tl.load(joined + row * 2 * size + size + part, mask=there, other=0.0)
    kind = out.dtype.element_ty
    wide = gate.to(tl.float32)
    opened = (wide / (1.0 + tl.exp(-wide))).to(kind).to(tl.float32)
    tl.store(out + row * size + part, (opened * up.to(tl.float32)).to(kind), mask=there)


def gate(joined: Tensor) -> Tensor:
    """silu(a) * b of joined = [a, b] [R, 2 I] -> [R, I]."""
    rows, size = joined.shape[0], joined.shape[1] // 2
    out = joined.new_empty(rows, size)
    _gate[(rows, triton.cdiv(size, 1024))](joined, out, size, BLOCK=1024)
    return out


@triton.jit
def _rotate(
    joined, q, keys, values, cells, positions, cos, sin, q_norm, k_norm, eps,
    joined_row, cell, last,
    HEADS: tl.constexpr, GROUPS: tl.constexpr, DIM: tl.constexpr, HALF_P: tl.constexpr,
    BLOCK: tl.constexpr, NORMS: tl.constexpr,
):  # fmt: skip
    HALF: tl.constexpr = DIM // 2
    row, head = tl.program_id(0).to(tl.int64), tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    half = tl.arange(0, HALF_P)
    there = (head < HEADS + 2 * GROUPS)[:, None] & (half < HALF)[None, :]
    at = head[:, None] * DIM + half[None, :]
    source = joined + row * joined_row + at
    first, second = tl.load(source, mask=there), tl.load(source + HALF, mask=there)
    kind = first.dtype
    low, high = first.to(tl.float32), second.to(tl.float32)
    if NORMS:
        is_q = (head < HEADS)[:, None] & there
        is_k = (head >= HEADS)[:, None] & there
        squares = tl.where(there, low * low + high * high, 0.0)
        scale = tl.rsqrt(tl.sum(squares, 1) / DIM + eps)[:, None]
        wide = half[None, :] + 0 * head[:, None]
        low_factor = tl.load(q_norm + wide, mask=is_q, other=0.0).to(tl.float32)
        low_factor += tl.load(k_norm + wide, mask=is_k, other=0.0).to(tl.float32)
        high_factor = tl.load(q_norm + HALF + wide, mask=is_q, other=0.0).to(tl.float32)
        high_factor += tl.load(k_norm + HALF + wide, mask=is_k, other=0.0).to(tl.float32)
        low = ((low * scale).to(kind).to(tl.float32) * low_factor).to(kind).to(tl.float32)
        high = ((high * scale).to(kind).to(tl.float32) * high_factor).to(kind).to(tl.float32)
    turn = tl.minimum(tl.load(positions + row), last) * HALF + half
    c = tl.load(cos + turn, mask=half < HALF, other=0.0)[None, :]
    s = tl.load(sin + turn, mask=half < HALF, other=0.0)[None, :]
    low, high = (low * c - high * s).to(kind), (high * c + low * s).to(kind)
    place = tl.load(cells + row) * cell
    mine = there & (head < HEADS)[:, None]
    tl.store(q + row * HEADS * DIM + at, low, mask=mine)
    tl.store(q + row * HEADS * DIM + HALF + at, high, mask=mine)
    mine = there & ((head >= HEADS) & (head < HEADS + GROUPS))[:, None]
    tl.store(keys + place + at - HEADS * DIM, low, mask=mine)
    tl.store(keys + place + at - HEADS * DIM + HALF, high, mask=mine)
    mine = there & (head >= HEADS + GROUPS)[:, None]
    tl.store(values + place + at - (HEADS + GROUPS) * DIM, first, mask=mine)
    tl.store(values + place + at - (HEADS + GROUPS) * DIM + HALF, second, mask=mine)


@dataclass(frozen=True)
class Rotary:
    """Cosines and sines [positions, C / 2] float32, and RMSNorm weights [C] of query and key
    heads, None where the model has none."""

    cos: Tensor
    sin: Tensor
    q_norm: Tensor | None
    k_norm: Tensor | None
    eps: float


def rotate(
    joined: Tensor, pool: Tensor, cells: Tensor, positions: Tensor, rotary: Rotary, heads: int
) -> Tensor:
    """joined [R, (H + 2 G) C] = queries, keys and values of rows at positions [R]: rotated queries
    [R, H, C]; keys and values go to cells [R] of a layer's pool [2, size, G * C]."""
    rows, dim = joined.shape[0], 2 * rotary.cos.shape[1]
    groups = pool.shape[2] // dim
    q = joined.new_empty(rows, heads, dim)
    norms = rotary.q_norm is not None
    block = min(triton.next_power_of_2(heads + 2 * groups), 16)
    _rotate[(rows, triton.cdiv(heads + 2 * groups, block))](
        joined, q, pool[0], pool[1], cells, positions, rotary.cos, rotary.sin,
        rotary.q_norm if norms else joined, rotary.k_norm if norms else joined, rotary.eps,
        joined.stride(0), pool.stride(1), rotary.cos.shape[0] - 1,
        HEADS=heads, GROUPS=groups, DIM=dim, HALF_P=triton.next_power_of_2(dim // 2),
        BLOCK=block, NORMS=norms, num_warps=2,
    )  # fmt: skip
    return q
