"""Tiny targets and drafters of random weights, for what SmolLM2 can't show.

The drafts are noise, but the vocabulary is so small that wide trees often hold the target's token.
Each layer's output comes from one half of its heads and of its MLP, by turns, and the other half's
part is zero: a sum over two ranks then rounds like the sum over one, and two servers can be
compared token by token. (Halves of products have to be multiples of 32 long: a CPU's matrix units
sum that many terms at a time.)
"""

import json
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, DeepseekV3Config, LlamaConfig

from ddtree.models.drafter import Drafter
from ddtree.models.drafter_config import parse_drafter_config
from sglang_plugin.sglang_judging import judged, verdict
from sglang_plugin.sglang_server import Answer, Pair, Server, Shape

# SGLang pads it to 64: of two ranks the second has 32 rows in its part of the head, 18 of them
# tokens.
VOCABULARY = 50
HIDDEN, LAYERS = 64, 4
_SHARED: dict[str, Any] = {
    "hidden_size": HIDDEN,
    "intermediate_size": 128,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "vocab_size": VOCABULARY,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
    "max_position_embeddings": 512,
    "tie_word_embeddings": False,
}
_ENDS = {"bos_token_id": None, "eos_token_id": None, "pad_token_id": None}

TOKENS = 40
# So wide that noise is accepted often, and that every tree has tokens of both halves of the
# vocabulary.
WIDE = Shape("wide", rows=25, block=5, topk=16)
_RANDOM = Random(3)
PROMPTS = [
    [_RANDOM.randrange(VOCABULARY - 1) for _ in range(length)]
    for length in (3, 5, 9, 14, 17, 23, 30, 41)
]


def problem_of(alone: Server, answers: Sequence[Answer]) -> str | None:
    """Why these can't be the target's answers to PROMPTS, or None. alone: the target's server.

    The logits' scale is such that near ties of bfloat16 are at most those of SmolLM2.
    """
    own = judged(alone, PROMPTS, alone.ask_all(PROMPTS, 1, max_new_tokens=TOKENS))
    return verdict(own, judged(alone, PROMPTS, answers))


def write_tiny(folder: Path) -> Pair:
    """A Llama and its drafter; always the same weights."""
    torch.manual_seed(0)
    target = AutoModelForCausalLM.from_config(
        LlamaConfig(num_hidden_layers=LAYERS, **_SHARED, **_ENDS)
    )
    return Pair(_written(target, folder / "target"), write_tiny_drafter(folder / "drafter"))


def write_latent(folder: Path) -> Pair:
    """A target of latent attention, DeepSeek-V3's and Kimi's, whose MLPs are plain; its drafter."""
    torch.manual_seed(0)
    latent = {
        "num_key_value_heads": 4,
        "q_lora_rank": 32,
        "kv_lora_rank": 32,
        "qk_rope_head_dim": 16,
        "qk_nope_head_dim": 16,
        "v_head_dim": 16,
        "first_k_dense_replace": LAYERS,
        "moe_layer_freq": 1,
        "num_hidden_layers": LAYERS,
        # The one rotary embedding that SGLang has for it on a CPU.
        "rope_scaling": {
            "rope_type": "yarn",
            "factor": 2.0,
            "original_max_position_embeddings": 256,
            "beta_fast": 32,
            "beta_slow": 1,
            "mscale": 1.0,
            "mscale_all_dim": 1.0,
        },
    }
    target = AutoModelForCausalLM.from_config(DeepseekV3Config(**{**_SHARED, **_ENDS, **latent}))
    return Pair(_written(target, folder / "target"), write_tiny_drafter(folder / "drafter"))


def write_tiny_drafter(folder: Path) -> Path:
    """A drafter for targets of LAYERS layers of HIDDEN."""
    fields = _SHARED | {
        "architectures": ["DFlashDraftModel"],
        "model_type": "qwen3",
        "num_hidden_layers": 2,
        "attention_bias": False,
        "hidden_act": "silu",
        "use_sliding_window": False,
        "is_causal": False,
        "block_size": 5,
        "num_target_layers": LAYERS,
        "torch_dtype": "bfloat16",
        "dflash_config": {
            "mask_token_id": VOCABULARY - 1,
            "target_layer_ids": [0, 2],
            "causal": False,
        },
    }
    torch.manual_seed(1)
    network = Drafter(parse_drafter_config(fields))
    # Nearly uniform drafts make wide trees.
    network.norm.weight.data.fill_(0.1)
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(fields))
    save_file(_spread(network), folder / "model.safetensors")
    return folder


def _written(target: Any, folder: Path) -> Path:
    """The last token, the drafter's mask, is never the best: SGLang scores it as token 0."""
    _spread(target)
    target.get_parameter("lm_head.weight").data[-1].zero_()
    target.bfloat16().save_pretrained(folder)
    return folder


def _spread(network: nn.Module) -> dict[str, Tensor]:
    """Weights large enough that distributions are peaked; of what leaves a layer, one half."""
    for name, parameter in network.named_parameters():
        if parameter.dim() > 1:
            nn.init.normal_(parameter, std=0.35 if "lm_head" in name else 0.25)
        if name.endswith(("o_proj.weight", "down_proj.weight")):
            layer = int(name.split("layers.")[1].split(".")[0])
            parameter.data.chunk(2, dim=1)[layer % 2].zero_()
    return {name: value.detach().bfloat16() for name, value in network.state_dict().items()}
