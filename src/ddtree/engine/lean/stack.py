"""Layers one after the other, on rows of a fixed plan."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import linear

from ddtree.engine.kernels.layers import Rotary, add_norm, gate, rotate
from ddtree.engine.lean.layers import LeanLayer
from ddtree.engine.plan import CellPlan


@dataclass(frozen=True)
class Shape:
    """Query heads, and what RMSNorm adds to a mean of squares."""

    heads: int
    eps: float


class LeanStack:
    """Decoder layers and the norm behind them. cos, sin: [positions, C / 2] float32."""

    def __init__(
        self, layers: Sequence[LeanLayer], norm: Tensor, shape: Shape, turns: tuple[Tensor, Tensor]
    ) -> None:
        self._layers, self._norm, self._shape, self._turns = tuple(layers), norm, shape, turns

    def run(
        self, hidden: Tensor, positions: Tensor, plan: CellPlan, taps: Sequence[int] = ()
    ) -> tuple[Tensor, Tensor | None]:
        """hidden [B, S, E] at positions [B, S] -> normed [B, S, E], and the outputs of the layers
        `taps` side by side, [B, S, len(taps) * E]."""
        batch, rows, size = hidden.shape
        features = hidden.new_empty(batch, rows, len(taps) * size) if taps else None
        where = {} if features is None else _tapped(features, taps)
        eps, residual = self._shape.eps, hidden.reshape(-1, size)
        flat = positions.flatten()
        norms = [layer.norms[0] for layer in self._layers[1:]] + [self._norm]
        x, residual = add_norm(None, residual, self._layers[0].norms[0], eps, None)
        for number, (layer, following) in enumerate(zip(self._layers, norms, strict=True)):
            attended = self._attend(layer, x, (batch, flat), plan)
            mixed = linear(attended, layer.out, layer.out_bias)
            x, residual = add_norm(mixed, residual, layer.norms[1], eps, None)
            mixed = linear(gate(linear(x, layer.opened)), layer.down)
            x, residual = add_norm(mixed, residual, following, eps, where.get(number))
        return x.view(batch, rows, size), features

    def _attend(
        self, layer: LeanLayer, x: Tensor, rows: tuple[int, Tensor], plan: CellPlan
    ) -> Tensor:
        """x [B * S, E] of rows = (B, positions [B * S]) -> [B * S, H * C]."""
        batch, positions = rows
        joined = linear(x, layer.joined, layer.joined_bias)
        rotary = Rotary(*self._turns, layer.q_norm, layer.k_norm, self._shape.eps)
        keys = plan.pool.layer(layer.attention.index)
        q = rotate(joined, keys, plan.cells, positions, rotary, self._shape.heads)
        by_head = q.view(batch, -1, *q.shape[1:]).transpose(1, 2)
        return plan.look(layer.attention, by_head).reshape(len(x), -1)


def _tapped(features: Tensor, taps: Sequence[int]) -> dict[int, Tensor]:
    """By layer the part of `features` that takes its output, as rows."""
    parts = features.flatten(0, 1).chunk(len(taps), -1)
    return dict(zip(taps, parts, strict=True))


def turns_of(rotary: object, positions: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Cosines and sines [positions, C / 2] float32 by a rotary embedding of transformers."""
    like = torch.empty(0, device=device)
    cos, sin = rotary(like, torch.arange(positions, device=device)[None])  # type: ignore[operator]
    half = cos.shape[-1] // 2
    return cos[0, :, :half].contiguous(), sin[0, :, :half].contiguous()
