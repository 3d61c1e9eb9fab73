"""The drafter written out a second time: one row, one head, one key at a time over the whole
history, no cache, no ring, no packing. Slow, and independent of the engine's code."""

import math

import torch


def rms(x, weight, eps):
    return x / torch.sqrt((x * x).mean(-1, keepdim=True) + eps) * weight


def rotate(x, position, theta):
    half = x.shape[-1] // 2
    frequencies = theta ** (-torch.arange(half, dtype=torch.float64) / half)
    cos, sin = torch.cos(position * frequencies), torch.sin(position * frequencies)
    first, second = x[..., :half], x[..., half:]
    return torch.cat([first * cos - second * sin, second * cos + first * sin], -1)


def sees(config, window, anchor, row, key_position):
    """Whether the block row at anchor + row sees the committed token at key_position."""
    if window is None:
        return True
    newest = anchor if config.window_kind == "anchored" else anchor + row + 1
    return key_position >= newest - window


def dense_logits(drafter, target, features, root, window):
    """Logits [D, V] after `root`, given features [n, F] of all committed tokens."""
    config, anchor = drafter.config, len(features)
    context = rms(features @ drafter.fc.weight.T, drafter.hidden_norm.weight, config.rms_norm_eps)
    ids = torch.tensor([root] + [config.mask_token_id] * (config.block_size - 1))
    hidden = target.embed(ids)
    for number, layer in enumerate(drafter.layers):
        own = config.layer_windows[number] if config.window_kind == "per-query" else None
        limit = min((w for w in (window, own) if w is not None), default=None)
        normed = rms(hidden, layer.input_layernorm.weight, config.rms_norm_eps)
        hidden = hidden + attend(config, layer.self_attn, context, normed, anchor, limit)
        normed = rms(hidden, layer.post_attention_layernorm.weight, config.rms_norm_eps)
        gate = torch.nn.functional.silu(normed @ layer.mlp.gate_proj.weight.T)
        hidden = hidden + (gate * (normed @ layer.mlp.up_proj.weight.T)) @ (
            layer.mlp.down_proj.weight.T
        )
    return target.head(rms(hidden, drafter.norm.weight, config.rms_norm_eps)[1:])


def attend(config, attention, context, block, anchor, window):
    rows = []
    group = config.num_heads // config.num_kv_heads
    for row, query_input in enumerate(block):
        heads = []
        for head in range(config.num_heads):
            query = project(config, attention, "q", query_input, head, anchor + row)
            scores, values = [], []
            for position, source in enumerate([*context, *block]):
                in_block = position >= anchor
                if in_block and config.causal and position - anchor > row:
                    continue
                if not in_block and not sees(config, window, anchor, row, position):
                    continue
                key = project(config, attention, "k", source, head // group, position)
                scores.append((query @ key) / math.sqrt(config.head_dim))
                values.append(project(config, attention, "v", source, head // group, position))
            heads.append(torch.softmax(torch.stack(scores), 0) @ torch.stack(values))
        rows.append(torch.cat(heads))
    return torch.stack(rows) @ attention.o_proj.weight.T


def project(config, attention, kind, source, head, position):
    weight = getattr(attention, f"{kind}_proj").weight
    part = source @ weight[head * config.head_dim : (head + 1) * config.head_dim].T
    if kind == "v":
        return part
    norm = getattr(attention, f"{kind}_norm").weight
    return rotate(rms(part, norm, config.rms_norm_eps), position, config.rope_theta)
