"""The drafter written out a second time: one row and one head at a time over the whole history, no
cache, no ring, no packing, visibility decided key by key. Independent of the engine's code."""

import math

import torch


def rms(x, weight, eps):
    return x / torch.sqrt((x * x).mean(-1, keepdim=True) + eps) * weight


def rotate(x, positions, theta):
    half = x.shape[-1] // 2
    frequencies = theta ** (-torch.arange(half, dtype=torch.float64) / half)
    angles = positions[:, None] * frequencies
    cos, sin = torch.cos(angles), torch.sin(angles)
    first, second = x[..., :half], x[..., half:]
    return torch.cat([first * cos - second * sin, second * cos + first * sin], -1)


def sees(config, limits, anchor, row, position):
    """Whether the block row at anchor + row sees the token at `position`: in front of the anchor
    are committed tokens, of which each window in `limits` hides those that are too old."""
    if position >= anchor:
        return position <= anchor + row or not config.causal
    newest = anchor if config.window_kind == "anchored" else anchor + row + 1
    return all(position >= newest - window for window in limits if window is not None)


def limits_of(config, layer, window):
    """The request's window, and the layer's own where the drafter has layers of both types."""
    mixed = len(set(config.layer_windows)) > 1
    return [window, config.layer_windows[layer] if mixed else None]


def dense_logits(drafter, target, history, window, config=None):
    """Logits [D, V] after history = (features [n, F] of all committed tokens, root). `config`
    takes the place of the drafter's own."""
    features, root = history
    config, anchor = config or drafter.config, len(features)
    context = rms(features @ drafter.fc.weight.T, drafter.hidden_norm.weight, config.rms_norm_eps)
    ids = torch.tensor([root] + [config.mask_token_id] * (config.block_size - 1))
    hidden = target.embed(ids)
    for number, layer in enumerate(drafter.layers):
        seen = [
            [
                sees(config, limits_of(config, number, window), anchor, row, position)
                for position in range(anchor + config.block_size)
            ]
            for row in range(config.block_size)
        ]
        normed = rms(hidden, layer.input_layernorm.weight, config.rms_norm_eps)
        hidden = hidden + attend(config, layer.self_attn, context, normed, torch.tensor(seen))
        normed = rms(hidden, layer.post_attention_layernorm.weight, config.rms_norm_eps)
        gate = torch.nn.functional.silu(normed @ layer.mlp.gate_proj.weight.T)
        hidden = hidden + (gate * (normed @ layer.mlp.up_proj.weight.T)) @ (
            layer.mlp.down_proj.weight.T
        )
    return target.head(rms(hidden, drafter.norm.weight, config.rms_norm_eps)[1:])


def attend(config, attention, context, block, seen):
    """seen [block_size, n + block_size]: which keys each row of the block takes part in."""
    sources = torch.cat([context, block])
    everywhere = torch.arange(len(sources))
    group = config.num_heads // config.num_kv_heads
    heads = []
    for head in range(config.num_heads):
        queries = project(config, attention, "q", block, head, everywhere[len(context) :])
        keys = project(config, attention, "k", sources, head // group, everywhere)
        values = project(config, attention, "v", sources, head // group, everywhere)
        rows = []
        for query, mine in zip(queries, seen, strict=True):
            scores = keys[mine] @ query / math.sqrt(config.head_dim)
            rows.append(torch.softmax(scores, 0) @ values[mine])
        heads.append(torch.stack(rows))
    return torch.cat(heads, -1) @ attention.o_proj.weight.T


def project(config, attention, kind, sources, head, positions):
    weight = getattr(attention, f"{kind}_proj").weight
    part = sources @ weight[head * config.head_dim : (head + 1) * config.head_dim].T
    if kind == "v":
        return part
    norm = getattr(attention, f"{kind}_norm").weight
    return rotate(rms(part, norm, config.rms_norm_eps), positions, config.rope_theta)
