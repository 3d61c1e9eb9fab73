"""Tiny random models: every path of the engine in milliseconds."""

import torch
from transformers import AutoModelForCausalLM, LlamaConfig

from ddtree.models.drafter import Drafter, cast_drafter
from ddtree.models.drafter_config import DrafterConfig
from ddtree.models.target import Target

FEATURE_LAYERS = (0, 2)
# Of any architecture's configuration.
SHAPE = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 61,
    "max_position_embeddings": 256,
    "bos_token_id": None,
    "eos_token_id": None,
}


def tiny_config(**changes):
    """A three-layer Llama."""
    return LlamaConfig(**{**SHAPE, "pad_token_id": None, **changes})


def tiny_model(config, seed=0, dtype=torch.float64):
    """Random weights, large enough that distributions are peaked."""
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager")
    for parameter in model.parameters():
        if parameter.dim() > 1:
            torch.nn.init.normal_(parameter, std=0.35)
    return model.to(dtype).eval().requires_grad_(False)


def tiny_target(seed=0, dtype=torch.float64, **changes) -> Target:
    """A target that captures the features the tiny drafter reads."""
    return Target(tiny_model(tiny_config(**changes), seed, dtype), FEATURE_LAYERS)


def tiny_drafter(target: Target, seed=0, **changes) -> Drafter:
    """A two-layer drafter with random weights: it proposes noise, which must never matter."""
    fields = {
        "hidden_size": target.model.config.hidden_size,
        "intermediate_size": 48,
        "num_layers": 2,
        "num_heads": 4,
        "num_kv_heads": 2,
        "head_dim": 8,
        "vocab_size": target.shape.vocab_size,
        "rms_norm_eps": 1e-6,
        "attention_bias": False,
        "rope_theta": 10000.0,
        "rope_scaling": None,
        "max_positions": 256,
        "block_size": 5,
        "mask_token_id": 3,
        "target_layer_ids": FEATURE_LAYERS,
        "num_target_layers": target.shape.num_layers,
        "causal": False,
        "window": None,
        "window_kind": "anchored",
        "layer_windows": (None, None),
    }
    torch.manual_seed(seed)
    drafter = Drafter(DrafterConfig(**{**fields, **changes}))
    for parameter in drafter.parameters():
        if parameter.dim() > 1:
            torch.nn.init.normal_(parameter, std=0.3)
    return cast_drafter(drafter, target.dtype).eval()
