"""Acceptance of drafters on held-out prompts, all in one run:
`python -m training.evaluate --target T --drafters OLD NEW --out FILE`.

Prompts are HumanEval's (code) and chat_prompts.txt (chat), greedy and at temperature 1, decoded by
the engine itself; code also behind other code, up to --contexts tokens. Of two drafters the first
is the base: the ratio of what each accepts beyond one token a round has an interval that takes
prompts as clusters, the same ones for both.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ddtree.cli.paths import cache_dir
from ddtree.engine import EngineConfig, LoadedEngine, SamplingParams, Speculation, load_engine
from ddtree.models.datasets import humaneval_prompts
from ddtree.models.zoo import ModelPaths
from training.calibration import curve_of
from training.corpus import load_shards
from training.kernels import fitting
from training.train import load_pair

ARMS = {
    "chain": Speculation("chain"),
    "8,4": Speculation("ddtree", 8, 4),
    "16,4": Speculation("ddtree", 16, 4),
    "32,8": Speculation("ddtree", 32, 8),
    "64,8": Speculation("ddtree", 64, 8),
}
CHAT = Path(__file__).with_name("chat_prompts.txt")


@dataclass(frozen=True)
class Accepted:
    """By prompt: rounds, and drafted tokens that they accepted; by depth, the share of all rounds
    that accepted at least so many."""

    rounds: list[int]
    tokens: list[int]
    by_depth: list[float]

    @property
    def length(self) -> float:
        """Acceptance length over all prompts."""
        return 1 + sum(self.tokens) / sum(self.rounds)


def accepted_by(
    engine: LoadedEngine, prompts: Sequence[Sequence[int]], arm: Speculation, sampling: Any
) -> Accepted:
    """What an arm accepts while the prompts are decoded."""
    requests = engine.engine.generate([list(prompt) for prompt in prompts], sampling, arm)
    histograms = [request.stats.accepted_histogram for request in requests]
    total = np.zeros(max(map(len, histograms)), dtype=np.int64)
    for histogram in histograms:
        total[: len(histogram)] += histogram
    reached = total[::-1].cumsum()[::-1]
    return Accepted(
        [request.stats.rounds for request in requests],
        [sum(n * count for n, count in enumerate(histogram)) for histogram in histograms],
        [float(share) for share in reached[1:] / total.sum()],
    )


def excess_ratio(base: Accepted, other: Accepted, draws: int = 2000) -> dict[str, Any]:
    """(other's acceptance length - 1) / (base's - 1), and its 95 % interval."""
    table = np.array([base.tokens, base.rounds, other.tokens, other.rounds], dtype=np.float64)
    chosen = np.random.default_rng(0).integers(table.shape[1], size=(draws, table.shape[1]))
    sums = table[:, chosen].sum(-1)
    ratios = sums[2] / sums[3] / (sums[0] / sums[1])
    whole = table.sum(-1)
    low, high = np.quantile(ratios, (0.025, 0.975))
    ratio = whole[2] / whole[3] / (whole[0] / whole[1])
    return {"ratio": float(ratio), "interval": [float(low), float(high)]}


def suites_of(args: argparse.Namespace, tokenizer: Any) -> dict[str, list[list[int]]]:
    """Prompts by name: code, chat, and code at the end of so many tokens of other code."""
    texts = list(humaneval_prompts(cache_dir(), args.humaneval))
    code = [list(tokenizer.encode(text)) for text in texts[: args.prompts]]
    suites = {"code": code}
    if getattr(tokenizer, "chat_template", None):
        talks = CHAT.read_text(encoding="utf-8").splitlines()[: args.prompts]
        suites["chat"] = [
            tokenizer.apply_chat_template(
                [{"role": "user", "content": text}], add_generation_prompt=True, return_dict=False
            )
            for text in talks
        ]
    filler = list(tokenizer.encode("\n\n".join(texts[args.prompts :] + texts)))
    for context in args.contexts:
        suites[f"code at {context}"] = [
            (filler[place * 37 :] + filler)[: context - len(ids)] + ids
            for place, ids in enumerate(code[: args.long])
            if len(ids) < context
        ]
    return suites


def measured(args: argparse.Namespace, folder: Path, arm: str) -> dict[str, Accepted]:
    """One drafter by one arm: every suite at every temperature."""
    paths = ModelPaths(args.target, folder, folder.name)
    longest = max([1024, *(context + args.tokens + 64 for context in args.contexts)])
    config = EngineConfig(slots=args.slots, max_context=longest)
    dtype = "float32" if args.device == "cpu" else "bfloat16"
    engine = load_engine(paths, dtype=dtype, device=args.device, config=config)
    found = {}
    for suite, prompts in suites_of(args, engine.tokenizer).items():
        for temperature in args.temperatures:
            sampling = SamplingParams(args.tokens, temperature=temperature, seed=0)
            key = f"{suite}, T = {temperature:g}, {arm}"
            found[key] = accepted_by(engine, prompts, ARMS[arm], sampling)
            print(f"{folder} {key}: {found[key].length:.3f}", file=sys.stderr, flush=True)
    return found


def main() -> None:
    """Every drafter on every suite, into one file."""
    args = _arguments()
    jobs = [(folder, arm) for folder in args.drafters for arm in args.arms]
    found: dict[str, dict[str, Accepted]] = {str(folder): {} for folder in args.drafters}
    with ProcessPoolExecutor(args.workers, mp_context=get_context("spawn")) as pool:
        done = pool.map(measured, [args] * len(jobs), *zip(*jobs, strict=True))
        for (folder, _), cells in zip(jobs, done, strict=True):
            found[str(folder)] |= cells
    result = report(found, vars(args)) | {"calibration": calibrations(args)}
    args.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


def calibrations(args: argparse.Namespace) -> dict[str, Any]:
    """Of every drafter on the shards of --data, if there are any: curves and errors by depth."""
    if args.data is None:
        return {}
    corpus, found = load_shards(args.data), {}
    for folder in args.drafters:
        target, network = load_pair(args.target, folder, args.device)
        size = (args.calibrated, 8, 64)
        window = min(network.config.window or corpus.ids.shape[1], corpus.ids.shape[1])
        network.to(target.dtype)
        attention_of = fitting(args.device, target, network).attention_of
        curve = curve_of(target, network, corpus, size, attention_of, window)
        found[str(folder)] = {"error": curve.error(), "by_depth": curve.rows()}
    return found


def report(found: dict[str, dict[str, Accepted]], asked: dict[str, Any]) -> dict[str, Any]:
    """Lengths, and every drafter's ratio to the first."""
    base, *others = found
    cells = {
        drafter: {
            key: {"length": one.length, "by_depth": one.by_depth, "prompts": len(one.rounds)}
            for key, one in results.items()
        }
        for drafter, results in found.items()
    }
    ratios = {
        other: {key: excess_ratio(found[base][key], found[other][key]) for key in found[base]}
        for other in others
    }
    told = {name: str(value) for name, value in asked.items()} | {"torch": torch.__version__}
    return {"asked": told, "cells": cells, "excess_ratio": ratios}


def _arguments() -> argparse.Namespace:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--target", type=Path, required=True)
    options.add_argument(
        "--drafters", type=Path, nargs="+", required=True, help="the first is base"
    )
    options.add_argument("--out", type=Path, required=True)
    options.add_argument("--device", default="cuda")
    options.add_argument("--arms", nargs="+", choices=ARMS, default=list(ARMS))
    options.add_argument("--temperatures", type=float, nargs="+", default=[0.0, 1.0])
    options.add_argument("--contexts", type=int, nargs="*", default=[1024, 2048, 4096])
    options.add_argument("--prompts", type=int, default=164, help="of each suite at most")
    options.add_argument("--long", type=int, default=32, help="prompts of each context")
    options.add_argument("--tokens", type=int, default=128)
    options.add_argument("--slots", type=int, default=32)
    options.add_argument("--workers", type=int, default=1, help="processes side by side")
    options.add_argument("--data", type=Path, help="held-out shards, for calibration")
    options.add_argument("--calibrated", type=int, default=16, help="batches of 8 sequences")
    options.add_argument("--humaneval", type=Path, help="HumanEval.jsonl.gz; fetched if not given")
    args = options.parse_args()
    if len(set(args.drafters)) < len(args.drafters):
        options.error("--drafters: one is named twice")
    return args


if __name__ == "__main__":
    main()
