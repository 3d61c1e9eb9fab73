"""A target's model and tokenizer from a local folder."""

from dataclasses import dataclass
from pathlib import Path

import torch
from transformers import PreTrainedModel
from transformers import PreTrainedTokenizerBase as Tokenizer

from ddtree.errors import ModelError
from ddtree.models import compat
from ddtree.models.zoo import ModelPaths


@dataclass(frozen=True)
class LoadedTarget:
    """A causal language model in evaluation mode, its tokenizer, and the folder of both."""

    model: PreTrainedModel
    tokenizer: Tokenizer
    path: Path


def load_target(paths: ModelPaths, dtype: torch.dtype, device: str) -> LoadedTarget:
    """Load `paths.target` with weights of `dtype` on `device` (a torch device string).

    Reads local files only. ModelError if the device isn't there or the folder can't be loaded.
    """
    _check_device(device)
    tokenizer = compat.load_tokenizer(paths.target)
    model = compat.load_causal_lm(paths.target, dtype, device)
    return LoadedTarget(model, tokenizer, paths.target)


def _check_device(device: str) -> None:
    try:
        kind = torch.device(device).type
    except RuntimeError as error:
        raise ModelError(f"device {device!r}: expected cpu, cuda or cuda:N ({error})") from error
    if kind == "cuda" and not torch.cuda.is_available():
        raise ModelError(f"device {device!r}: this torch sees no CUDA device; use cpu")
