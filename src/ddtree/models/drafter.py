"""The DFlash drafter: one bidirectional pass proposes a token distribution for every position of
a block (arXiv 2602.06036).

It has no embedding and no head of its own (the target's are used). The target's features of a
committed token are projected once; each layer turns that projection into the token's key and
value, which never change afterwards and live in the engine's cache. A block is the anchor (the
last committed token) followed by masks; row i of the block predicts its own position.
"""

from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn
from transformers import Qwen3Config
from transformers.models.qwen3.modeling_qwen3 import (
    Qwen3MLP,
    Qwen3RMSNorm,
    Qwen3RotaryEmbedding,
    apply_rotary_pos_emb,
)

from ddtree.errors import ModelError
from ddtree.models.attention import AttendPlan, AttentionLayer
from ddtree.models.coupling_file import Calibration, load_calibration
from ddtree.models.drafter_config import DrafterConfig, load_drafter_config
from ddtree.models.drafter_window import DrafterOverrides


class _Attention(nn.Module):
    """Projections and per-head norms of one layer."""

    def __init__(self, config: DrafterConfig, index: int) -> None:
        super().__init__()
        size, bias, dim = config.hidden_size, config.attention_bias, config.head_dim
        self.head_dim = dim
        self.layer = AttentionLayer(index, dim**-0.5, config.own_window(index))
        self.q_proj = nn.Linear(size, config.num_heads * dim, bias=bias)
        self.k_proj = nn.Linear(size, config.num_kv_heads * dim, bias=bias)
        self.v_proj = nn.Linear(size, config.num_kv_heads * dim, bias=bias)
        self.o_proj = nn.Linear(config.num_heads * dim, size, bias=bias)
        self.q_norm = Qwen3RMSNorm(dim, eps=config.rms_norm_eps)
        self.k_norm = Qwen3RMSNorm(dim, eps=config.rms_norm_eps)

    def heads(self, projected: Tensor) -> Tensor:
        return projected.view(*projected.shape[:-1], -1, self.head_dim)  # [B, S, heads, C]

    def forward(self, hidden: Tensor, rotary: tuple[Tensor, Tensor], plan: AttendPlan) -> Tensor:
        q = self.q_norm(self.heads(self.q_proj(hidden))).transpose(1, 2)
        k = self.k_norm(self.heads(self.k_proj(hidden))).transpose(1, 2)
        v = self.heads(self.v_proj(hidden)).transpose(1, 2)
        q, k = apply_rotary_pos_emb(q, k, *rotary)
        attended: Tensor = self.o_proj(plan.attend(self.layer, q, k, v).flatten(2))
        return attended


class _Layer(nn.Module):
    """Pre-norm attention and gated MLP, each added to the residual stream."""

    def __init__(self, config: DrafterConfig, qwen: Qwen3Config, index: int) -> None:
        super().__init__()
        self.self_attn = _Attention(config, index)
        self.mlp = Qwen3MLP(qwen)
        self.input_layernorm = Qwen3RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.post_attention_layernorm = Qwen3RMSNorm(config.hidden_size, eps=config.rms_norm_eps)

    def forward(self, hidden: Tensor, rotary: tuple[Tensor, Tensor], plan: AttendPlan) -> Tensor:
        hidden = hidden + self.self_attn(self.input_layernorm(hidden), rotary, plan)
        mixed: Tensor = hidden + self.mlp(self.post_attention_layernorm(hidden))
        return mixed


class Drafter(nn.Module):
    """The network; which context a block sees is the plan's business.

    `calibration` weighs its logits against the noise of sampling; None ranks by probability.
    """

    def __init__(self, config: DrafterConfig, calibration: Calibration | None = None) -> None:
        super().__init__()
        self.config, self.calibration = config, calibration
        qwen = _rotary_config(config)
        width = len(config.target_layer_ids) * config.hidden_size
        self.fc = nn.Linear(width, config.hidden_size, bias=False)
        self.hidden_norm = Qwen3RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.layers = nn.ModuleList(_Layer(config, qwen, i) for i in range(config.num_layers))
        self.norm = Qwen3RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.rotary = Qwen3RotaryEmbedding(qwen)

    def context(self, features: Tensor, positions: Tensor) -> Tensor:
        """Keys and values of committed tokens: features [1, n, F] at positions [1, n] ->
        [layers, 2, n, G, C], keys rotated to their absolute positions."""
        hidden = self.hidden_norm(self.fc(features))
        cos, sin = self.rotary(hidden, positions)
        pairs = []
        for layer in self.layers:
            attention: _Attention = layer.self_attn  # type: ignore[assignment]
            k = attention.k_norm(attention.heads(attention.k_proj(hidden))).transpose(1, 2)
            k = apply_rotary_pos_emb(k, k, cos, sin)[1].transpose(1, 2)
            v = attention.heads(attention.v_proj(hidden))
            pairs.append(torch.stack([k[0], v[0]]))
        return torch.stack(pairs)

    def forward(self, embedded: Tensor, positions: Tensor, plan: AttendPlan) -> Tensor:
        """A block's embeddings [B, block_size, E] (anchor, then masks) at positions
        [B, block_size] -> hidden states [B, D, E] of the rows that predict, for the target's
        head."""
        rotary = self.rotary(embedded, positions)
        hidden = embedded
        for layer in self.layers:
            hidden = layer(hidden, rotary, plan)
        normed: Tensor = self.norm(hidden[:, 1:])
        return normed


def load_drafter(
    folder: Path, dtype: torch.dtype, device: str, overrides: DrafterOverrides | None = None
) -> Drafter:
    """Read a z-lab checkpoint (config.json and model.safetensors, and coupling.json if it is
    there); ModelError names a key that is missing, left over or of the wrong shape."""
    config = load_drafter_config(folder, overrides)
    path = folder / "model.safetensors"
    if not path.is_file():
        sharded = (folder / "model.safetensors.index.json").is_file()
        kind = "a checkpoint in several files; join them into one" if sharded else "no such file"
        raise ModelError(f"{path}: {kind}; a drafter is config.json and model.safetensors")
    try:
        weights = load_file(path)
    except (OSError, SafetensorError) as error:
        raise ModelError(f"{path}: can't be read ({error}); fetch the checkpoint again") from error
    drafter = Drafter(config, load_calibration(folder, config.block_size - 1))
    own = drafter.state_dict()
    for kind, names in (("missing", own.keys() - weights), ("unknown", weights.keys() - own)):
        if names:
            raise ModelError(f"{path}: {kind} weight {sorted(names)[0]!r} ({len(names)} in all)")
    for name, value in weights.items():
        if value.shape != own[name].shape:
            raise ModelError(
                f"{path}: {name} has shape {tuple(value.shape)}, config.json asks for "
                f"{tuple(own[name].shape)}"
            )
    drafter.load_state_dict(weights)
    return cast_drafter(drafter, dtype).to(device).eval()


def cast_drafter(drafter: Drafter, dtype: torch.dtype) -> Drafter:
    """Weights in `dtype`; rotary frequencies stay float32, since rounding them to bfloat16 turns
    distant positions by whole radians."""
    for parameter in drafter.parameters():
        parameter.requires_grad_(False)
        parameter.data = parameter.data.to(dtype)
    return drafter


def _rotary_config(config: DrafterConfig) -> Qwen3Config:
    """What transformers' Qwen3 parts read of a configuration."""
    rope: dict[str, object] = {"rope_type": "default", "rope_theta": config.rope_theta}
    return Qwen3Config(
        hidden_size=config.hidden_size,
        intermediate_size=config.intermediate_size,
        num_attention_heads=config.num_heads,
        num_key_value_heads=config.num_kv_heads,
        head_dim=config.head_dim,
        max_position_embeddings=config.max_positions,
        rope_parameters=rope | (config.rope_scaling or {}),
    )
