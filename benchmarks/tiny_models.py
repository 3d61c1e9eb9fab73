"""A target and a drafter of random weights as files, for servers that must answer in milliseconds.

Their text is noise and the drafts are mostly wrong, which no output may show.
"""

import json
from pathlib import Path

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import AutoModelForCausalLM, LlamaConfig, PreTrainedTokenizerFast

from ddtree.models.drafter import Drafter
from ddtree.models.drafter_config import parse_drafter_config
from ddtree.models.zoo import ModelPaths

WINDOW = 64
VOCABULARY, CONTEXT, LAYERS = 264, 256, 3


def write_tiny(folder: Path) -> ModelPaths:
    """Both into `folder`; always the same weights."""
    target, drafter = folder / "target", folder / "drafter"
    drafter.mkdir(parents=True)
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(
        LlamaConfig(
            hidden_size=32,
            intermediate_size=48,
            num_hidden_layers=LAYERS,
            num_attention_heads=4,
            num_key_value_heads=2,
            vocab_size=VOCABULARY,
            max_position_embeddings=CONTEXT,
            eos_token_id=256,
            bos_token_id=None,
            pad_token_id=None,
        )
    )
    _spread(model, 0.35)
    model.save_pretrained(target)
    _byte_tokenizer().save_pretrained(target)
    fields = _drafter_fields()
    (drafter / "config.json").write_text(json.dumps(fields))
    network = Drafter(parse_drafter_config(fields))
    _spread(network, 0.3)
    save_file(network.state_dict(), drafter / "model.safetensors")
    return ModelPaths(target, drafter, "tiny")


def _drafter_fields() -> dict[str, object]:
    """A checkpoint whose layers all slide, and which says what that means."""
    return {
        "architectures": ["DFlashDraftModel"],
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "vocab_size": VOCABULARY,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "max_position_embeddings": CONTEXT,
        "block_size": 5,
        "num_target_layers": LAYERS,
        "layer_types": ["sliding_attention"] * 2,
        "sliding_window": WINDOW,
        "is_causal": False,
        "dflash_config": {
            "mask_token_id": 3,
            "target_layer_ids": [0, 2],
            "window": "anchored",
        },
    }


def _spread(network: torch.nn.Module, std: float) -> None:
    """Weights large enough that distributions are peaked."""
    for parameter in network.parameters():
        if parameter.dim() > 1:
            torch.nn.init.normal_(parameter, std=std)


def _byte_tokenizer() -> PreTrainedTokenizerFast:
    """Id b is byte b, so that most ids are only parts of characters."""
    alphabet = _byte_characters()
    vocabulary = {character: byte for byte, character in enumerate(alphabet)} | {"<eos>": 256}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<eos>"])
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<eos>")


def _byte_characters() -> list[str]:
    """The byte-level alphabet in order of bytes: printable ones stand for themselves."""
    printable = {*range(33, 127), *range(161, 173), *range(174, 256)}
    spare = iter(range(256, 512))
    return [chr(byte if byte in printable else next(spare)) for byte in range(256)]
