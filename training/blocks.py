"""The drafter's pass over many blocks of a sequence at once.

In use a block is drafted below one anchor. Here a sequence has many anchors, each with a block of
its own, and no block sees another: `seen` says who sees whom, and is what the drafter sees in use
(the last `window` committed tokens in front of the anchor, and its own block in both directions).
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, create_block_mask, flex_attention
from torch.nn.functional import scaled_dot_product_attention
from transformers.models.qwen3.modeling_qwen3 import apply_rotary_pos_emb

from ddtree.models.attention import AttentionLayer
from ddtree.models.drafter import Drafter

Pairs = list[tuple[Tensor, Tensor]]


@dataclass(frozen=True)
class Places:
    """Where blocks stand: anchors [B, A] int64, positions of their first rows in sequences of
    `length` tokens; `size` rows a block; `window` committed tokens that each sees."""

    anchors: Tensor
    length: int
    size: int
    window: int

    @property
    def positions(self) -> Tensor:
        """[B, A * size] of all rows."""
        offsets = torch.arange(self.size, device=self.anchors.device)
        return (self.anchors[:, :, None] + offsets).flatten(1)

    def sees(self, batch: Tensor, row: Tensor, key: Tensor) -> Tensor:
        """Whether a row of the blocks sees a key: the sequence's tokens, then the blocks' rows.

        Broadcasts, and holds for one entry at a time, as flex_attention asks for it.
        """
        anchor = self.anchors[batch, row // self.size]
        committed = (key < anchor) & (key >= anchor - self.window)
        own = (key >= self.length) & ((key - self.length) // self.size == row // self.size)
        return committed | own


class Attention(Protocol):
    """Blocks' queries [B, H, A * size, C] over keys and values [B, G, length + A * size, C]."""

    def __call__(self, q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
        """[B, H, A * size, C]."""
        ...


def dense_attention(places: Places) -> Attention:
    """By a mask of everything: the slow twin, and the way on a CPU."""
    batch, count = places.anchors.shape
    device = places.anchors.device
    seen = places.sees(
        torch.arange(batch, device=device)[:, None, None],
        torch.arange(count * places.size, device=device)[:, None],
        torch.arange(places.length + count * places.size, device=device),
    )

    def attend(q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
        return scaled_dot_product_attention(
            q, k, v, attn_mask=seen[:, None], scale=scale, enable_gqa=True
        )

    return attend


def block_mask(places: Places, masking: Callable[..., BlockMask] = create_block_mask) -> BlockMask:
    """The same for flex_attention, which skips what nobody sees."""
    batch, count = places.anchors.shape
    rows = count * places.size
    return masking(
        lambda b, h, row, key: places.sees(b, row, key),
        batch,
        None,
        rows,
        places.length + rows,
        device=str(places.anchors.device),
    )


def flexible_attention(
    places: Places,
    compiled: Callable[..., Tensor] = flex_attention,
    masking: Callable[..., BlockMask] = create_block_mask,
) -> Attention:
    """By flex_attention; `compiled` and `masking` are that function and create_block_mask as
    torch.compile gives them."""
    mask = block_mask(places, masking)

    def attend(q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
        return compiled(q, k, v, block_mask=mask, scale=scale, enable_gqa=True)

    return attend


class BlocksPlan:
    """The drafter's layers over the sequence's tokens and over all blocks."""

    def __init__(self, context: Pairs, attention: Attention) -> None:
        self._context, self._attention = context, attention

    def attend(self, layer: AttentionLayer, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """q [B, H, A * size, C], k and v [B, G, A * size, C] -> [B, A * size, H, C]."""
        keys, values = self._context[layer.index]
        out = self._attention(q, torch.cat([keys, k], 2), torch.cat([values, v], 2), layer.scale)
        return out.transpose(1, 2)


def context_of(drafter: Drafter, features: Tensor) -> Pairs:
    """Each layer's keys and values [B, G, S, C] of features [B, S, F]: `Drafter.context` for a
    batch, through which gradients flow."""
    hidden = drafter.hidden_norm(drafter.fc(features))
    positions = torch.arange(features.shape[1], device=features.device)[None]
    cos, sin = drafter.rotary(hidden, positions)
    pairs = []
    for layer in drafter.layers:
        attention = layer.self_attn
        k = attention.k_norm(attention.heads(attention.k_proj(hidden))).transpose(1, 2)  # type: ignore[operator, union-attr]
        v = attention.heads(attention.v_proj(hidden)).transpose(1, 2)  # type: ignore[operator, union-attr]
        pairs.append((apply_rotary_pos_emb(k, k, cos, sin)[1], v))
    return pairs


def draft(
    drafter: Drafter,
    embed: Callable[[Tensor], Tensor],
    ids: Tensor,
    features: Tensor,
    places: Places,
    attention: Attention,
) -> Tensor:
    """Hidden states [B, A, size - 1, E] of the rows that predict, for the target's head.

    ids [B, S]; features [B, S, F] of the same tokens.
    """
    batch, count = places.anchors.shape
    rows = torch.full((batch, count, places.size), drafter.config.mask_token_id, device=ids.device)
    rows[:, :, 0] = ids.gather(1, places.anchors)
    hidden = embed(rows.flatten(1))
    rotary = drafter.rotary(hidden, places.positions)
    plan = BlocksPlan(context_of(drafter, features), attention)
    for layer in drafter.layers:
        hidden = layer(hidden, rotary, plan)
    blocks = hidden.view(batch, count, places.size, -1)[:, :, 1:]
    normed: Tensor = drafter.norm(blocks)
    return normed
