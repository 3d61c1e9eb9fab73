"""The parts of a round that are ours, run as they are or as one CUDA graph a batch size.

Launching the dozens of small kernels of a tree one by one takes longer than a small target's own
pass. A stage reads tensors that never move and gives tensors that a replay fills anew.
"""

from collections.abc import Callable
from typing import Any, Generic, TypeVar

import torch

T = TypeVar("T")


class Stage(Generic[T]):
    """`work(size)` for a batch of `size` requests, replayed where it was captured."""

    def __init__(self, work: Callable[[int], T]) -> None:
        self._work = work
        self._graphs: dict[int, tuple[torch.cuda.CUDAGraph, T]] = {}

    def capture(self, sizes: tuple[int, ...], pool: Any) -> None:
        """Capture `work` at each of `sizes`, the largest first, so that memory is reused."""
        stream: Any = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        for size in sorted(sizes, reverse=True):
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                for _ in range(2):
                    self._work(size)
            torch.cuda.current_stream().wait_stream(stream)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, pool=pool, stream=stream):
                out = self._work(size)
            self._graphs[size] = graph, out

    def captured(self, size: int) -> T:
        """The tensors that the graph for `size` requests fills, for graphs that read them."""
        return self._graphs[size][1]

    def run(self, size: int) -> T:
        """The work's outputs for `size` requests."""
        if size not in self._graphs:
            return self._work(size)
        graph, out = self._graphs[size]
        graph.replay()
        return out
