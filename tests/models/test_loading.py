"""Loading targets from local folders, and what absorbs transformers' differences."""

import contextlib
import logging
import warnings
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, models
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from transformers.utils import logging as transformers_logging

from ddtree.errors import ModelError
from ddtree.models import compat
from ddtree.models.loading import load_target
from ddtree.models.zoo import ModelPaths, resolve


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A tiny Llama with a tokenizer, as safetensors."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=11,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
    )
    LlamaForCausalLM(config).save_pretrained(tmp_path)
    words = {word: index for index, word in enumerate("abcdefghijk")}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="a"))
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="a").save_pretrained(tmp_path)
    return tmp_path


def paths(folder: Path) -> ModelPaths:
    return ModelPaths(folder, None, "tiny")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_loads_ready_for_inference(folder: Path, dtype: torch.dtype) -> None:
    loaded = load_target(paths(folder), dtype, "cpu")
    parameters = list(loaded.model.parameters())
    assert {parameter.dtype for parameter in parameters} == {dtype}
    assert not any(parameter.requires_grad for parameter in parameters)
    assert not loaded.model.training
    assert loaded.tokenizer.convert_tokens_to_ids("c") == 2
    assert loaded.path == folder


def test_loads_without_network(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_sockets(*_: object, **__: object) -> None:
        raise AssertionError("a local folder must load without a network")

    monkeypatch.setattr("socket.create_connection", no_sockets)
    monkeypatch.setattr("socket.getaddrinfo", no_sockets)
    load_target(paths(folder), torch.float32, "cpu")


def test_loading_prints_nothing(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    load_target(paths(folder), torch.float32, "cpu")
    captured = capfd.readouterr()
    assert (captured.out, captured.err) == ("", "")


def test_cut_weights_are_an_error(folder: Path) -> None:
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    with pytest.raises(ModelError, match=f"{folder}: transformers can't load this model"):
        load_target(paths(folder), torch.float32, "cpu")


def test_missing_weights_are_an_error(folder: Path) -> None:
    weights = load_file(folder / "model.safetensors")
    del weights["model.layers.1.mlp.up_proj.weight"]
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ModelError, match=r"1 weights are missing, first .*up_proj"):
        load_target(paths(folder), torch.float32, "cpu")


def test_missing_config_is_an_error(folder: Path) -> None:
    (folder / "config.json").unlink()
    with pytest.raises(ModelError, match=r"no config\.json there"):
        compat.load_causal_lm(folder, torch.float32, "cpu")


def test_missing_tokenizer_is_an_error(folder: Path) -> None:
    for path in folder.glob("tokenizer*"):
        path.unlink()
    with pytest.raises(ModelError, match="no usable tokenizer"):
        load_target(paths(folder), torch.float32, "cpu")


def test_unknown_device_is_an_error(folder: Path) -> None:
    with pytest.raises(ModelError, match="device 'gpu': expected cpu, cuda"):
        load_target(paths(folder), torch.float32, "gpu")


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without CUDA")
def test_absent_cuda_is_an_error(folder: Path) -> None:
    with pytest.raises(ModelError, match="sees no CUDA device"):
        load_target(paths(folder), torch.float32, "cuda")


def test_bad_gguf_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="no such file"):
        compat.load_gguf(tmp_path / "absent.gguf", torch.bfloat16)
    (tmp_path / "bad.gguf").write_bytes(b"not a model" * 10)
    with pytest.raises(ModelError, match="can't read this GGUF file"):
        compat.load_gguf(tmp_path / "bad.gguf", torch.bfloat16)


def test_quiet_hushes_and_restores() -> None:
    logger = logging.getLogger("transformers.models.llama")
    before = transformers_logging.get_verbosity()
    with_bars = transformers_logging.is_progress_bar_enabled()
    with contextlib.suppress(ModelError), compat.quiet_transformers():
        assert not logger.isEnabledFor(logging.WARNING)
        assert not transformers_logging.is_progress_bar_enabled()
        warnings.warn_explicit("hushed", UserWarning, "x.py", 1, module="transformers.utils")
        raise ModelError("an error inside is no reason to stay quiet")
    assert logger.isEnabledFor(logging.WARNING)
    assert transformers_logging.get_verbosity() == before
    assert transformers_logging.is_progress_bar_enabled() == with_bars
    with pytest.raises(UserWarning, match="heard"):
        warnings.warn_explicit("heard", UserWarning, "x.py", 1, module="transformers.utils")


@pytest.mark.parametrize(
    ("fields", "types"),
    [
        ({}, ("default",)),
        ({"rope_scaling": None}, ("default",)),
        ({"rope_scaling": {"type": "linear", "factor": 2.0}}, ("linear",)),
        ({"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}}, ("dynamic",)),
        ({"rope_parameters": {"rope_theta": 1e4}}, ("default",)),
        ({"rope_parameters": {"rope_type": "yarn", "factor": 2.0}}, ("yarn",)),
        (
            {
                "rope_parameters": {
                    "full_attention": {"rope_type": "linear"},
                    "sliding_attention": {"rope_type": "default"},
                }
            },
            ("default", "linear"),
        ),
        (
            {
                "rope_parameters": {
                    "full_attention": {"rope_type": "longrope"},
                    "sliding_attention": {"rope_type": "linear"},
                }
            },
            ("linear", "longrope"),
        ),
    ],
)
def test_rope_types_of_both_generations(fields: dict[str, object], types: tuple[str, ...]) -> None:
    config = SimpleNamespace(**fields)
    assert compat.rope_types(config) == types


def test_rope_types_of_a_real_configuration() -> None:
    config = LlamaConfig(rope_scaling={"rope_type": "linear", "factor": 2.0})
    assert compat.rope_types(config) == ("linear",)
    assert compat.rope_types(LlamaConfig()) == ("default",)


@pytest.mark.model
def test_loads_the_real_target(model_cache: Path) -> None:
    loaded = load_target(resolve("smollm2-135m", model_cache, None), torch.bfloat16, "cpu")
    assert loaded.model.config.num_hidden_layers == 30
    assert loaded.tokenizer.chat_template is not None
    text = "Hello , world .\n\tn't a\u2581b <|im_end|>"
    assert loaded.tokenizer.decode(loaded.tokenizer(text)["input_ids"]) == text
    assert loaded.tokenizer.special_tokens_map == {
        "bos_token": "<|im_start|>",
        "eos_token": "<|im_end|>",
        "unk_token": "<|endoftext|>",
        "pad_token": "<|im_end|>",
    }
    assert loaded.tokenizer.eos_token_id == loaded.model.config.eos_token_id == 2
