"""A drafter's folder as SGLang reads it."""

import json
import shutil
from pathlib import Path
from typing import Any

from ddtree.errors import ConfigError

# SGLang takes a layer of type sliding_attention as causal inside the block.
_OF_LAYERS = ("layer_types", "sliding_window", "max_window_layers")


def for_sglang(config: dict[str, Any]) -> dict[str, Any]:
    """A drafter's config.json for SGLang.

    A drafter that says of itself that its whole block sees the same last W tokens and all of
    itself has plain layers there, and its window is the server's flag. Any other keeps its layers.
    """
    flash = config["dflash_config"]
    if flash.get("causal") is not False or flash.get("window") != "anchored":
        return dict(config)
    plain = {name: value for name, value in config.items() if name not in _OF_LAYERS}
    return {**plain, "use_sliding_window": False}


def write_drafter(source: Path, out: Path) -> Path:
    """Write `source`'s weights and its config.json for SGLang into the new folder `out`.

    ConfigError if `source` is no drafter, or `out` is there already.
    """
    path = source / "config.json"
    if not path.is_file():
        raise ConfigError(f"{source}: no config.json there, expected a DFlash drafter's folder")
    config = json.loads(path.read_text(encoding="utf-8"))
    if "dflash_config" not in config:
        raise ConfigError(f"{path}: names no dflash_config, expected a DFlash drafter")
    if out.exists():
        raise ConfigError(f"{out}: is there already, expected a new folder")
    out.mkdir(parents=True)
    for weights in sorted(source.glob("*.safetensors*")):
        shutil.copyfile(weights, out / weights.name)
    text = json.dumps(for_sglang(config), indent=1) + "\n"
    (out / "config.json").write_text(text, encoding="utf-8")
    return out
