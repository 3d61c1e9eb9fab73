"""Closed-loop load on a server's native route, and where a round's time goes on the GPU."""

import gzip
import json
import statistics
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from sglang_servers import Server

Prompts = Sequence[Sequence[int]]
_ON_GPU = ("kernel", "gpu_memcpy", "gpu_memset")


def loaded(
    server: Server, prompts: Prompts, at_once: int, tokens: int, **sampling: Any
) -> dict[str, Any]:
    """`at_once` requests at a time until each prompt has its `tokens`; then the prompts alone.

    decode_s: wall time less that of the same prompts with one token each. round_ms: decode_s times
    requests at once, by the rounds of all; exact for one request, and for more an average over
    a batch that is full but for its end.
    """
    whole_s, answers = _timed(server, prompts, at_once, tokens, sampling)
    prompts_s, _ = _timed(server, prompts, at_once, 1, sampling)
    histogram: Counter[int] = Counter()
    for answer in answers:
        told = answer.meta.get("spec_correct_drafts_histogram") or []
        histogram.update(dict(enumerate(told)))
    decoded = sum(len(answer.ids) - 1 for answer in answers)
    rounds = sum(answer.meta.get("spec_verify_ct") or 0 for answer in answers) or decoded
    decode_s = whole_s - prompts_s
    return {
        "wall_s": whole_s,
        "prompts_s": prompts_s,
        "tokens": decoded + len(answers),
        "rounds": rounds,
        "histogram": [histogram[place] for place in range(max(histogram, default=-1) + 1)],
        "tokens_per_s": (decoded + len(answers)) / whole_s,
        "decode_tokens_per_s": decoded / decode_s,
        "round_ms": 1e3 * decode_s * at_once / rounds,
    }


def _timed(
    server: Server, prompts: Prompts, at_once: int, tokens: int, sampling: dict[str, Any]
) -> tuple[float, list[Any]]:
    begun = time.monotonic()
    answers = server.ask_all(prompts, at_once, max_new_tokens=tokens, **sampling)
    took = time.monotonic() - begun
    for answer in answers:
        assert answer.status == 200, answer.text
        assert len(answer.ids) == tokens, answer.meta
    return took, answers


def profiled(server: Server, prompt: Sequence[int], folder: Path, rounds: int = 24) -> Path:
    """The trace of `rounds` rounds of one request, as SGLang's profiler writes it."""
    folder.mkdir(parents=True)
    asked = threading.Thread(target=server.ask, args=(prompt,), kwargs={"max_new_tokens": 2000})
    asked.start()
    time.sleep(0.15)
    body = {"output_dir": str(folder), "num_steps": rounds, "activities": ["CPU", "GPU"]}
    status, text = server.post(
        "/start_profile", {**body, "with_stack": False, "record_shapes": False}
    )
    assert status == 200, text
    end = time.monotonic() + 60
    while time.monotonic() < end:
        found = list(folder.rglob("*.trace.json.gz"))
        if found and not _is_growing(found[0]):
            asked.join()
            return found[0]
        time.sleep(0.5)
    raise RuntimeError(f"no trace in {folder}: {list(folder.rglob('*'))}")


def _is_growing(path: Path) -> bool:
    before = path.stat().st_size
    time.sleep(0.5)
    return path.stat().st_size != before


def split_of(trace: Path) -> dict[str, Any]:
    """Median microseconds on the GPU of each CUDA graph of a round, in their order, and of the
    kernels outside graphs.

    A graph is told from others by how many kernels it launches. The one with the most is the
    target's, and a round lasts from its start to its next start. span: first kernel's start to last
    one's end; kernels: the sum of their durations.
    """
    with gzip.open(trace, "rt") as file:
        events = json.load(file)["traceEvents"]
    graphs = {
        event["args"]["correlation"]
        for event in events
        if event.get("cat") == "cuda_runtime" and "GraphLaunch" in event["name"]
    }
    launches: dict[int, list[tuple[float, float]]] = defaultdict(list)
    outside: list[tuple[float, float]] = []
    for event in events:
        if event.get("cat") in _ON_GPU:
            interval = (event["ts"], event["ts"] + event["dur"])
            correlation = event["args"].get("correlation")
            (launches[correlation] if correlation in graphs else outside).append(interval)
    return _by_round(sorted(sorted(kernels) for kernels in launches.values()), outside)


def _by_round(
    graphs: list[list[tuple[float, float]]], outside: list[tuple[float, float]]
) -> dict[str, Any]:
    most = max(len(kernels) for kernels in graphs)
    starts = [kernels[0][0] for kernels in graphs if len(kernels) == most]
    rounds: list[dict[str, float]] = []
    # The profiler's own start and end disturb the first and the last.
    for begin, end in pairwise(starts[1:-1]):
        row: dict[str, float] = {"round": end - begin}
        for place, kernels in enumerate(k for k in graphs if begin <= k[0][0] < end):
            name = f"{place} {len(kernels)} kernels"
            row[f"{name}, span"] = max(stop for _, stop in kernels) - kernels[0][0]
            row[f"{name}, kernels"] = sum(stop - start for start, stop in kernels)
        eager = [(start, stop) for start, stop in outside if begin <= start < end]
        row["outside graphs, kernels"] = sum(stop - start for start, stop in eager)
        row["outside graphs, count"] = len(eager)
        rounds.append(row)
    common = Counter(tuple(row) for row in rounds).most_common(1)[0][0]
    alike = [row for row in rounds if tuple(row) == common]
    medians = {name: statistics.median(row[name] for row in alike) for name in common}
    return {"rounds": len(alike), "of": len(rounds), "us": medians}
