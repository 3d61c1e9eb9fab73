"""Write a trained drafter as others read it: `python -m training.export --run RUN --start DRAFTER
--out FOLDER`, config.json and model.safetensors (bfloat16) in the z-lab format, with provenance."""

import argparse
import json
import shutil
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from ddtree.errors import ConfigError

PROVENANCE = "training.json"


def export(run: Path, start: Path, out: Path) -> Path:
    """The drafter of `run`, whose shape and config.json are those of `start`."""
    path = run / "state.pt"
    if not path.is_file():
        raise ConfigError(f"{path}: no such file, expected what `training.train` saves")
    if out.exists():
        raise ConfigError(f"{out}: is there already, expected a new folder")
    state: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
    out.mkdir(parents=True)
    weights = {name: value.bfloat16().contiguous() for name, value in state["network"].items()}
    save_file(weights, out / "model.safetensors")
    config = json.loads((start / "config.json").read_text(encoding="utf-8"))
    shutil.copyfile(start / "config.json", out / "config.json")
    window = config.get("sliding_window")
    trained = state["recipe"]["window"]
    if window != trained:
        changed = config | {"sliding_window": trained}
        (out / "config.json").write_text(json.dumps(changed, indent=1) + "\n", encoding="utf-8")
    told = {"recipe": state["recipe"], "steps": state["step"], "torch": torch.__version__}
    (out / PROVENANCE).write_text(json.dumps(told, indent=1) + "\n", encoding="utf-8")
    return out


def main() -> None:
    """From the command line."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--run", type=Path, required=True)
    options.add_argument("--start", type=Path, required=True, help="the drafter trained on")
    options.add_argument("--out", type=Path, required=True)
    args = options.parse_args()
    print(export(args.run, args.start, args.out))


if __name__ == "__main__":
    main()
