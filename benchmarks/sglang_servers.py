"""Servers side by side on one machine: stock SGLang's own decoding and DDTREE's, and what they say.

All run at once and are asked one at a time, so that every arm meets the same machine in one run.
"""

import os
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from sglang_plugin.sglang_server import (
    CPU_ATTENTION,
    CPU_ENVIRONMENT,
    CPU_FLAGS,
    STUBS,
    Pair,
    Server,
    await_ready,
    start,
    stop,
)

# The same for every arm. triton is what DDTREE needs; stock arms may be faster on another backend.
GPU_FLAGS = [
    *("--dtype", "bfloat16"),
    *("--attention-backend", "triton"),
    *("--page-size", "1"),
    *("--sampling-backend", "pytorch"),
    *("--grammar-backend", "none"),
    *("--cuda-graph-backend-prefill", "disabled"),
    *("--skip-server-warmup", "--skip-tokenizer-init", "--disable-radix-cache"),
    *("--random-seed", "1"),
    # Idle servers must not take the processor from the one that is asked.
    "--sleep-on-idle",
]


@dataclass(frozen=True)
class Arm:
    """A server: its name, and what it has beyond the flags that all share."""

    name: str
    flags: tuple[str, ...] = ()
    environment: tuple[tuple[str, str], ...] = ()


def arms_of(
    pair: Pair, block: int, window: int, trees: Sequence[tuple[int, int]], *, cpu: bool
) -> list[Arm]:
    """SGLang's own decoding, its DFLASH chain of `block` rows, a DDTREE of each (budget, topk).

    On a CPU there is no chain: stock DFLASH finds no kernels for its drafter there.
    """
    draft = ("--speculative-draft-model-path", str(pair.drafter))
    draft += ("--speculative-draft-window-size", str(window))
    found = [Arm("ar")]
    if not cpu:
        rows = ("--speculative-num-draft-tokens", str(block))
        found.append(Arm("chain", ("--speculative-algorithm", "DFLASH", *draft, *rows)))
    for budget, topk in trees:
        rows = ("--speculative-num-draft-tokens", str(budget + 1))
        flags = ("--speculative-algorithm", "DDTREE", *draft, *rows)
        found.append(Arm(f"ddtree-{budget}-{topk}", flags, (("DDTREE_TOPK", str(topk)),)))
    return found


@contextmanager
def running(
    target: Path,
    arms: Sequence[Arm],
    logs: Path,
    flags: Sequence[str],
    environment: Mapping[str, str],
    within_s: float = 400,
) -> Iterator[dict[str, Server]]:
    """All servers, ready; ended afterwards."""
    servers: dict[str, Server] = {}
    try:
        for place, arm in enumerate(arms):
            given = {**environment, **dict(arm.environment)}
            log = logs / f"{arm.name}.log"
            servers[arm.name] = start(target, 31000 + place, log, [*flags, *arm.flags], given)
        begun = time.monotonic()
        for name, server in servers.items():
            await_ready(server, within_s)
            print(f"{time.monotonic() - begun:.0f} s {name} serves", file=sys.stderr, flush=True)
        yield servers
    finally:
        for server in servers.values():
            stop(server)


def machine_flags(*, cpu: bool) -> tuple[list[str], dict[str, str]]:
    """Flags and environment of every server on this kind of machine."""
    if cpu:
        return [*CPU_FLAGS, *CPU_ATTENTION], {**CPU_ENVIRONMENT, "PYTHONPATH": str(STUBS)}
    return GPU_FLAGS, {"PYTHONPATH": os.environ.get("PYTHONPATH", "")}
