"""Loading drafter checkpoints: right, or an error that names the key."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file

from ddtree.errors import ModelError
from ddtree.models.drafter import load_drafter
from ddtree.models.drafter_config import check_against_target
from support.tiny import tiny_drafter, tiny_target

CONFIG = {
    "architectures": ["DFlashDraftModel"],
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "vocab_size": 61,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
    "max_position_embeddings": 256,
    "block_size": 5,
    "num_target_layers": 3,
    "is_causal": False,
    "dflash_config": {"mask_token_id": 3, "target_layer_ids": [0, 2]},
}


@pytest.fixture
def checkpoint(tmp_path):
    """A folder with a tiny drafter, and the drafter it holds."""
    drafter = tiny_drafter(tiny_target())
    weights = {name: value.float() for name, value in drafter.state_dict().items()}
    save_file(weights, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    return tmp_path, drafter


def change(folder, edit):
    path = folder / "model.safetensors"
    weights = load_file(path)
    edit(weights)
    save_file(weights, path)


def test_round_trip(checkpoint):
    folder, drafter = checkpoint
    loaded = load_drafter(folder, torch.float64, "cpu")
    for (name, ours), theirs in zip(
        loaded.state_dict().items(), drafter.state_dict().values(), strict=True
    ):
        torch.testing.assert_close(ours, theirs.float().double(), msg=name)
    assert not loaded.training


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (lambda w: w.pop("fc.weight"), "missing weight 'fc.weight'"),
        (lambda w: w.update({"extra.weight": torch.zeros(1)}), "unknown weight 'extra.weight'"),
        (lambda w: w.update({"fc.weight": torch.zeros(32, 96)}), "fc.weight has shape"),
    ],
)
def test_weights_that_do_not_fit(checkpoint, edit, message):
    change(checkpoint[0], edit)
    with pytest.raises(ModelError, match=message):
        load_drafter(checkpoint[0], torch.float32, "cpu")


def test_no_weights(checkpoint):
    (checkpoint[0] / "model.safetensors").unlink()
    with pytest.raises(ModelError, match="no such file"):
        load_drafter(checkpoint[0], torch.float32, "cpu")


def test_a_drafter_of_another_target(checkpoint):
    drafter = load_drafter(checkpoint[0], torch.float32, "cpu")
    other = tiny_target(vocab_size=67)
    with pytest.raises(ModelError, match="vocab_size"):
        check_against_target(drafter.config, other.model.config, drafter.fc.in_features)


def test_the_shipped_drafter_loads(smollm2):
    drafter = load_drafter(smollm2.drafter, torch.bfloat16, "cpu")
    assert sum(p.numel() for p in drafter.parameters()) == 15_820_928
    assert drafter.config.window == 1024
    assert drafter.fc.weight.dtype is torch.bfloat16
    assert drafter.rotary.inv_freq.dtype is torch.float32


def test_a_torn_file(checkpoint):
    path = checkpoint[0] / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(ModelError, match="can't be read"):
        load_drafter(checkpoint[0], torch.float32, "cpu")
