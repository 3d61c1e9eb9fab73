"""Attention of the target over whole sequences, and over a grid of sequences of equal length."""

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from ddtree.errors import ConfigError
from ddtree.models.attention import AttentionLayer
from ddtree.models.target import TargetShape


class CausalPlan:
    """Sequences from their first token on: each row sees itself and those before it."""

    def attend(self, layer: AttentionLayer, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """q [B, H, S, C], k and v [B, G, S, C] -> [B, S, H, C]."""
        _require_full(layer)
        out = scaled_dot_product_attention(
            q, k, v, is_causal=True, scale=layer.scale, enable_gqa=True
        )
        return out.transpose(1, 2)


class GridPlan:
    """One token more of B sequences that all have the same length.

    Nothing is masked and nothing is expanded: the cache up to the new token is what each row sees,
    and the queries that share keys stand as rows over them, so that keys are read once.
    """

    def __init__(self, shape: TargetShape, batch: int, length: int, like: Tensor) -> None:
        size = (shape.num_layers, batch, shape.num_kv_heads, length, shape.head_dim)
        self._keys = torch.empty(size, dtype=like.dtype, device=like.device)
        self._values = torch.empty_like(self._keys)
        self.place = 0

    def attend(self, layer: AttentionLayer, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """q [B, H, 1, C], k and v [B, G, 1, C] of the token at `place` -> [B, 1, H, C]."""
        _require_full(layer)
        keys, values = self._keys[layer.index], self._values[layer.index]
        keys[:, :, self.place] = k[:, :, 0]
        values[:, :, self.place] = v[:, :, 0]
        end = self.place + 1
        batch, heads, _, size = q.shape
        grouped = q.view(batch, k.shape[1], -1, size)
        out = scaled_dot_product_attention(
            grouped, keys[:, :, :end], values[:, :, :end], scale=layer.scale
        )
        return out.reshape(batch, 1, heads, size)


def _require_full(layer: AttentionLayer) -> None:
    if layer.window is not None:
        raise ConfigError(
            f"layer {layer.index} of the target attends over a window of {layer.window}: training"
            " knows full attention alone"
        )
