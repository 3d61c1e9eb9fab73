"""The one place that knows how transformers releases differ (5.12 to 5.24).

Everything here reads local files only; no call may reach a network.
"""

import contextlib
import io
import warnings
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

import torch
import transformers
from gguf import GGUFReader, ReaderField
from safetensors import SafetensorError
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel
from transformers import PreTrainedTokenizerBase as Tokenizer
from transformers.utils import logging as transformers_logging

from ddtree.errors import ModelError

# Rotary embeddings of these types look at the largest position of a batch.
LENGTH_DEPENDENT_ROPE = ("dynamic", "longrope")

_SPECIAL_TOKENS: Mapping[str, str] = MappingProxyType(
    {
        "bos_token": "bos_token_id",
        "eos_token": "eos_token_id",
        "unk_token": "unknown_token_id",
        "pad_token": "padding_token_id",
    }
)

# What transformers and its readers raise on a folder or file they can't use.
_LOADING_ERRORS = (
    *(OSError, ValueError, KeyError, RuntimeError, ImportError),
    SafetensorError,
)


class GgufModel(NamedTuple):
    """A model with its tokenizer, both read from one GGUF file."""

    model: PreTrainedModel
    tokenizer: Tokenizer


@contextlib.contextmanager
def quiet_transformers() -> Iterator[None]:
    """Hush transformers' progress bars, log lines and warnings, and restore them on leaving."""
    verbosity = transformers_logging.get_verbosity()
    had_bars = transformers_logging.is_progress_bar_enabled()
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", module=r"transformers(\.|$)")
            yield
    finally:
        transformers_logging.set_verbosity(verbosity)
        if had_bars:
            transformers_logging.enable_progress_bar()


def load_causal_lm(path: Path, dtype: torch.dtype, device: str) -> PreTrainedModel:
    """A causal language model from a local folder of config.json and safetensors.

    In evaluation mode, without gradients, all weights of `dtype` on `device`. ModelError if the
    folder can't be loaded.
    """
    if not (path / "config.json").is_file():
        raise ModelError(
            f"{path}: no config.json there; expected a folder with config.json, safetensors and "
            "a tokenizer"
        )
    try:
        with quiet_transformers():
            model, info = AutoModelForCausalLM.from_pretrained(
                str(path),
                dtype=dtype,
                local_files_only=True,
                use_safetensors=True,
                output_loading_info=True,
            )
    except _LOADING_ERRORS as error:
        raise ModelError(f"{path}: transformers can't load this model: {error}") from error
    _refuse_missing_weights(path, info)
    return _ready(model, device)


def load_tokenizer(path: Path) -> Tokenizer:
    """The tokenizer in a local folder; ModelError if there is none or it can't be read."""
    try:
        with quiet_transformers():
            return AutoTokenizer.from_pretrained(str(path), local_files_only=True)
    except _LOADING_ERRORS as error:
        raise ModelError(
            f"{path}: no usable tokenizer: {error}; put tokenizer.json and "
            "tokenizer_config.json beside the model"
        ) from error


def load_gguf(file: Path, dtype: torch.dtype) -> GgufModel:
    """Model and tokenizer of one GGUF file, dequantised to `dtype` on the CPU.

    Takes 10 to 15 seconds for 135 M parameters. ModelError if the file can't be converted.
    """
    if not file.is_file():
        raise ModelError(f"{file}: no such file; expected a GGUF model")
    folder, name = str(file.parent), file.name
    try:
        # The GGUF reader's progress bar ignores transformers' own switch.
        with quiet_transformers(), contextlib.redirect_stderr(io.StringIO()):
            model, info = AutoModelForCausalLM.from_pretrained(
                folder,
                gguf_file=name,
                dtype=dtype,
                local_files_only=True,
                output_loading_info=True,
                **_dequantize(name),
            )
            tokenizer = AutoTokenizer.from_pretrained(folder, gguf_file=name, local_files_only=True)
            _follow_metadata(tokenizer, GGUFReader(str(file)).fields)
    except _LOADING_ERRORS as error:
        raise ModelError(f"{file}: transformers can't read this GGUF file: {error}") from error
    _refuse_missing_weights(file, info)
    return GgufModel(_ready(model, "cpu"), tokenizer)


def save_pretrained(loaded: GgufModel, folder: Path) -> None:
    """Write config.json, safetensors and tokenizer files into `folder`."""
    with quiet_transformers():
        loaded.model.save_pretrained(str(folder))
        loaded.tokenizer.save_pretrained(str(folder))


def rope_types(config: object) -> tuple[str, ...]:
    """The rotary types a model's configuration uses, sorted, each once.

    Reads transformers-4 `rope_scaling` (with `rope_type` or `type`) and transformers-5
    `rope_parameters`, flat or nested per layer type.
    """
    block = getattr(config, "rope_parameters", None) or getattr(config, "rope_scaling", None)
    if not isinstance(block, Mapping):
        return ("default",)
    inner = [value for value in block.values() if isinstance(value, Mapping)]
    blocks = inner or [block]
    return tuple(sorted({_type_of(entry) for entry in blocks}))


def _type_of(block: Mapping[str, object]) -> str:
    return str(block.get("rope_type") or block.get("type") or "default")


def _dequantize(name: str) -> dict[str, object]:
    """Newer releases keep GGUF weights quantised unless told otherwise; older ones can't."""
    gguf_config = getattr(transformers, "GgufConfig", None)
    if gguf_config is None:
        return {}
    return {"quantization_config": gguf_config(gguf_file=name, dequantize=True)}


def _follow_metadata(tokenizer: Tokenizer, fields: Mapping[str, ReaderField]) -> None:
    """Take the special tokens from the file, and decode to what was encoded.

    transformers 5.12 gives the end of a sequence the token of its beginning, and its clean-up
    drops spaces before punctuation.
    """
    for name, key in _SPECIAL_TOKENS.items():
        field = fields.get(f"tokenizer.ggml.{key}")
        if field is not None:
            token = tokenizer.convert_ids_to_tokens(int(field.contents()))
            setattr(tokenizer, name, token)
            tokenizer.init_kwargs.pop(f"{name}_id", None)
    tokenizer.clean_up_tokenization_spaces = False
    tokenizer.init_kwargs["clean_up_tokenization_spaces"] = False


def _refuse_missing_weights(path: Path, info: Mapping[str, Collection[str]]) -> None:
    """transformers fills weights that a checkpoint lacks with random numbers."""
    missing = sorted(info["missing_keys"])
    if missing:
        raise ModelError(
            f"{path}: {len(missing)} weights are missing, first {missing[0]}; the checkpoint "
            "and its config.json don't belong together"
        )


def _ready(model: PreTrainedModel, device: str) -> PreTrainedModel:
    return model.to(device).eval().requires_grad_(False)
