"""GGUF files to folders of bf16 safetensors in the cache, each with a manifest of its making."""

import dataclasses
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
import transformers

from ddtree.errors import ModelError
from ddtree.models import compat
from ddtree.models.download import publish_folder, scratch_folder, sha256_of

# Raised whenever the same source would be written differently: older folders are made anew.
FORMAT = 1
MANIFEST_NAME = "manifest.json"
WEIGHTS_NAME = "model.safetensors"
INDEX_NAME = "model.safetensors.index.json"


@dataclass(frozen=True)
class Manifest:
    """How a converted folder came about.

    `model_sha256` is of model.safetensors, None if the weights are in shards.
    """

    format: int
    source: str
    source_sha256: str
    model_sha256: str | None
    dtype: str
    transformers: str
    torch: str


def folder_name(name: str, source_sha256: str) -> str:
    """Name of the cache folder for a source: readable, and distinct for distinct bytes."""
    return f"{name}-{source_sha256[:12]}"


def convert_gguf(file: Path, folder: Path) -> None:
    """Write `file`'s model, dequantised to bf16, and its tokenizer into `folder`."""
    compat.save_pretrained(compat.load_gguf(file, torch.bfloat16), folder)


def convert_into(
    gguf: Path, source_sha256: str, folder: Path, convert: Callable[[Path, Path], None]
) -> Manifest:
    """Convert `gguf` so that `folder` appears whole or not at all.

    The caller holds the lock for `folder`. An unfinished folder of that name is replaced.
    """
    with scratch_folder(folder.parent, folder.name) as scratch:
        made = scratch / "model"
        made.mkdir()
        convert(gguf, made)
        check_model_folder(made, f"conversion of {gguf.name}")
        weights = made / WEIGHTS_NAME
        manifest = Manifest(
            format=FORMAT,
            source=gguf.name,
            source_sha256=source_sha256,
            model_sha256=sha256_of(weights) if weights.is_file() else None,
            dtype="bfloat16",
            transformers=transformers.__version__,
            torch=torch.__version__,
        )
        text = json.dumps(dataclasses.asdict(manifest), indent=1)
        (made / MANIFEST_NAME).write_text(text + "\n", encoding="utf-8")
        publish_folder(made, folder)
    return manifest


def read_manifest(folder: Path, source_sha256: str) -> Manifest | None:
    """The manifest of a complete conversion of that source, None if there is none.

    The manifest is written last and the folder appears by a rename, so its presence means that
    the conversion finished; a folder whose weights were removed since doesn't count.
    """
    try:
        fields = json.loads((folder / MANIFEST_NAME).read_text(encoding="utf-8"))
        manifest = Manifest(**fields)
        check_model_folder(folder, str(folder))
    except (OSError, ValueError, TypeError, ModelError):
        return None
    is_current = (manifest.format, manifest.source_sha256) == (FORMAT, source_sha256)
    return manifest if is_current else None


def check_model_folder(folder: Path, what: str) -> None:
    """ModelError that opens with `what` unless config and every safetensors file are there."""
    names = ["config.json", WEIGHTS_NAME]
    index = folder / INDEX_NAME
    if index.is_file():
        names[1:] = _shards(index, what)
    missing = [name for name in names if not (folder / name).is_file()]
    if missing:
        raise ModelError(
            f"{what}: {folder} lacks {', '.join(missing[:3])}; expected a folder with "
            f"config.json and {WEIGHTS_NAME} (or {INDEX_NAME} and its shards)"
        )


def _shards(index: Path, what: str) -> list[str]:
    try:
        shards = json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()
        return sorted(set(shards))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ModelError(f"{what}: {index} has no usable weight_map ({error!r})") from error
