"""What the scripts here share: prompts, engines, and results with their provenance."""

import argparse
import importlib.metadata
import json
import os
import platform
import re
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import torch

from ddtree.engine import EngineConfig, LoadedEngine, load_engine
from ddtree.models.datasets import humaneval_prompts as load_humaneval
from ddtree.models.zoo import ModelPaths, resolve
from ddtree.records.provenance import source_sha256
from ddtree.records.statistics import Estimate


def parser(description: str) -> argparse.ArgumentParser:
    """Arguments every script takes."""
    options = argparse.ArgumentParser(description=description)
    options.add_argument("--out", type=Path, required=True, help="result file (JSON)")
    options.add_argument("--model", default="smollm2-135m")
    options.add_argument("--device", default="cpu")
    options.add_argument("--humaneval", type=Path, help="HumanEval.jsonl.gz")
    return options


def humaneval_prompts(path: Path | None) -> list[str]:
    """The 164 prompts as they are, fetched once into the cache unless a path is given."""
    from ddtree.cli.paths import cache_dir  # the command line's packages

    return list(load_humaneval(cache_dir(), path))


def paths_of(model: str) -> ModelPaths:
    """A zoo name, or TARGET,DRAFTER folders."""
    if "," in model:
        target, drafter = model.split(",")
        return ModelPaths(Path(target), Path(drafter), Path(target).name)
    from ddtree.cli.paths import cache_dir  # the command line's packages, not needed for folders

    return resolve(model, cache_dir())


def load(args: argparse.Namespace, dtype: str, config: EngineConfig) -> LoadedEngine:
    """The engine under test."""
    return load_engine(paths_of(args.model), dtype=dtype, device=args.device, config=config)


def provenance(args: argparse.Namespace) -> dict[str, object]:
    """Where and with what a result was measured."""
    names = ("ddtree", "torch", "transformers", "numpy")
    versions = {}
    for name in names:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            versions[name] = None
    gpu = torch.cuda.get_device_name() if args.device.startswith("cuda") else None
    return {
        "command": " ".join(["python", *sys.argv]),
        "date": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "git": _git("rev-parse", "HEAD"),
        "dirty": bool(_git("status", "--porcelain", "--", "../src")),
        "source_sha256": source_sha256(),
        "python": platform.python_version(),
        **versions,
        "cpu": _cpu_model(),
        "cores": len(os.sched_getaffinity(0)),
        "threads": torch.get_num_threads(),
        "gpu": gpu,
        "load": os.getloadavg(),
        "environment": {k: v for k, v in os.environ.items() if k.startswith(("OMP_", "GOMP_"))},
    }


def ratio_of(estimate: Estimate) -> dict[str, object]:
    """A ratio with its interval; None where there are too few pairs for one."""
    interval = estimate.interval
    return {
        "ratio": estimate.value,
        "interval": None if interval is None else [interval.low, interval.high],
    }


def median_interval(values: list[float], seed: int = 0, draws: int = 2000) -> dict[str, object]:
    """The median with its 95 % bootstrap interval."""
    table = np.asarray(values)
    taken = np.random.default_rng(seed).integers(len(table), size=(draws, len(table)))
    low, high = np.quantile(np.median(table[taken], 1), (0.025, 0.975))
    return {"median": float(np.median(table)), "interval": [float(low), float(high)]}


def previous(path: Path, key: str) -> dict[str, object]:
    """Parts of a result that earlier calls have measured, by their names."""
    return json.loads(path.read_text())[key] if path.is_file() else {}


def write(args: argparse.Namespace, result: dict[str, object]) -> None:
    """The result beside its provenance, as JSON."""
    args.out.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps({"provenance": provenance(args), **result}, indent=1)
    args.out.write_text(one_line_lists(text) + "\n")
    print(f"wrote {args.out}")


def one_line_lists(text: str) -> str:
    """Indented JSON with its lists of numbers on one line each."""
    return re.sub(r"\[[-\d.,e+\s]+\]", lambda found: re.sub(r"\s+", "", found[0]), text)


def progress(*parts: object) -> None:
    """A line for whoever watches."""
    print(*parts, file=sys.stderr, flush=True)


def _git(*arguments: str) -> str | None:
    try:
        run = subprocess.run(
            ["git", *arguments],
            capture_output=True,
            text=True,
            check=True,
            cwd=Path(__file__).parent,
        )
    except (OSError, subprocess.CalledProcessError):
        return None
    return run.stdout.strip()


def _cpu_model() -> str | None:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return None
