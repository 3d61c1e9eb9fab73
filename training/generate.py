"""Write training text with the target itself:
`python -m training.generate --target T --out SHARDS`.

Stopped at any time it goes on with the shards that are missing. Prompts that share a run of words
with an evaluation prompt are left out, and counted.
"""

import argparse
import json
import random
import sys
import sysconfig
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from ddtree.cli.paths import cache_dir
from ddtree.errors import ConfigError
from ddtree.models.compat import load_causal_lm, load_tokenizer
from ddtree.models.datasets import humaneval_prompts
from ddtree.models.target import Target
from training.corpus import save_shard
from training.prompts import (
    ChatHeaders,
    apart_from,
    chat_headers,
    functions_of,
    invented_function,
    openings,
    scripts_for,
)
from training.writing import Scripts, write

_INVENTED = 128  # tokens within which a made-up function has its docstring


def code_prompts(
    roots: Sequence[Path], evaluation: Sequence[str], most: int, seed: int
) -> list[str]:
    """At most `most` functions, drawn among those that share nothing with evaluation prompts."""
    every = list(functions_of(roots))
    kept = apart_from(every, evaluation)
    print(f"{len(every)} functions, {len(kept)} apart from evaluation prompts", file=sys.stderr)
    random.Random(seed).shuffle(kept)
    return kept[:most]


def invented(
    target: Target, tokenizer: Any, evaluation: Sequence[str], size: tuple[int, int], seed: int
) -> list[str]:
    """Functions that the target makes up: size = (B, N), out of N batches of B beginnings."""
    batch, count = size
    ends, texts = sorted(target.eos_ids), []
    scripts = openings(tokenizer)
    length = scripts.tokens.shape[1] + _INVENTED
    for number in range(count):
        written = write(target, scripts, ends, (batch, length), seed * 100_000 + 50_000 + number)
        texts += [tokenizer.decode(ids) for ids in written.ids.tolist()]
    found = [text for text in map(invented_function, texts) if text]
    kept = apart_from(found, evaluation)
    print(f"{len(found)} invented, {len(kept)} of them new and apart", file=sys.stderr)
    return kept


def prepared(args: argparse.Namespace, target: Target, tokenizer: Any) -> Scripts:
    """Scripts of the asked mixture; ConfigError where there is nothing to write from."""
    texts: list[str] = []
    ends = sorted(target.eos_ids)
    if args.chat_share < 1:
        evaluation = list(humaneval_prompts(cache_dir(), args.humaneval))
        texts = code_prompts(args.roots, evaluation, args.functions, args.seed)
        size = args.batch, args.invented
        texts += invented(target, tokenizer, evaluation, size, args.seed)
        if not texts:
            raise ConfigError(f"no documented functions below {', '.join(map(str, args.roots))}")
    code = [tokenizer.encode(text, add_special_tokens=False) for text in texts]
    headers = ChatHeaders([], [], [])
    if args.chat_share > 0:
        headers = chat_headers(tokenizer, ends)
    return scripts_for(headers, code, args.chat_share)


def main() -> None:
    """All shards that are missing."""
    args = _arguments()
    dtype = torch.float32 if args.device == "cpu" else torch.bfloat16
    target = Target(load_causal_lm(args.target, dtype, args.device))
    with torch.no_grad():
        scripts = prepared(args, target, load_tokenizer(args.target))
    ends = sorted(target.eos_ids)
    told = {name: str(value) for name, value in vars(args).items()} | {"torch": torch.__version__}
    begun, made = time.monotonic(), 0
    for number in range(args.shards):
        if (args.out / f"{number:05d}.npz").is_file():
            continue
        with torch.no_grad():
            written = write(
                target, scripts, ends, (args.batch, args.length), args.seed * 100_000 + number
            )
        save_shard(args.out, number, written, told)
        made += 1
        each = (time.monotonic() - begun) / made
        line = {
            "shard": number,
            "tokens_per_s": round(args.batch * args.length / each),
            "drawn": round(float(written.drawn.float().mean()), 3),
            "eta_s": round(each * (args.shards - number - 1)),
        }
        print(json.dumps(line), file=sys.stderr, flush=True)


def _arguments() -> argparse.Namespace:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--target", type=Path, required=True)
    options.add_argument("--out", type=Path, required=True)
    options.add_argument("--device", default="cuda")
    options.add_argument("--shards", type=int, default=8)
    options.add_argument("--batch", type=int, default=1024, help="sequences of a shard")
    options.add_argument("--length", type=int, default=2048)
    options.add_argument("--chat-share", type=float, default=0.5)
    options.add_argument("--functions", type=int, default=20_000, help="most code prompts")
    options.add_argument(
        "--invented", type=int, default=4, help="batches of code prompts by the target itself"
    )
    options.add_argument("--seed", type=int, default=0)
    options.add_argument("--humaneval", type=Path, help="HumanEval.jsonl.gz; fetched if not given")
    roots = [Path(sysconfig.get_path(name)) for name in ("stdlib", "purelib")]
    options.add_argument("--roots", type=Path, nargs="+", default=roots, help="Python code")
    args = options.parse_args()
    if not 0 <= args.chat_share <= 1:
        options.error(f"--chat-share: got {args.chat_share}, expected 0 to 1")
    return args


if __name__ == "__main__":
    main()
