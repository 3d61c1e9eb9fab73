"""Times of device work, and what the device can do at most."""

import statistics
import time
from collections.abc import Callable
from itertools import pairwise

import torch


def seconds_of(run: Callable[[], object], repeats: int, *, recorded: bool = False) -> float:
    """Median seconds of `run`; on a GPU replayed from a graph (`recorded`: it replays one)."""
    if not torch.cuda.is_available():
        return statistics.median(_clocked(run) for _ in range(repeats))
    if not recorded:
        run = _graph_of(run)
    run()
    marks = [torch.cuda.Event(enable_timing=True) for _ in range(repeats + 1)]
    marks[0].record()
    for mark in marks[1:]:
        run()
        mark.record()
    torch.cuda.synchronize()
    return statistics.median(a.elapsed_time(b) for a, b in pairwise(marks)) / 1e3


def ceilings(device: torch.device, dtype: torch.dtype) -> dict[str, float]:
    """Bytes a second of a large copy, read and written, and operations a second of a large
    product of random matrices."""
    small = device.type != "cuda"
    source = torch.randn(2**22 if small else 2**30, device=device)
    target = torch.empty_like(source)
    copied = 2 * source.numel() * 4 / seconds_of(lambda: target.copy_(source), 5)
    size = 512 if small else 8192
    a, b = torch.randn(2, size, size, device=device).to(dtype).unbind()
    rate = 2 * size**3 / seconds_of(lambda: a @ b, 10)
    return {"bytes_per_s": copied, "operations_per_s": rate}


def split_of(run: Callable[[], object]) -> dict[str, dict[str, float]]:
    """Kernels of one run by name: how many, and their microseconds together."""
    run()
    torch.cuda.synchronize()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        run()
        torch.cuda.synchronize()
    found = [
        (event.key[:90], {"count": event.count, "us": event.self_device_time_total})
        for event in profile.key_averages()
    ]
    return dict(sorted(found, key=lambda pair: -pair[1]["us"]))


def _graph_of(run: Callable[[], object]) -> Callable[[], object]:
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(2):
            run()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    return graph.replay


def _clocked(run: Callable[[], object]) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start
