"""A round for one size of batch, launched kernel by kernel or replayed from a CUDA graph."""

from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from ddtree.engine.fixed.round import FixedRound

# Rounds before the capture: what compiles, tunes or allocates on first use must do so outside it.
_WARM_UPS = 2


class Launch(Protocol):
    """Runs a round for slots [bucket] and gives its report; neither waits for the other."""

    def __call__(self, slots: Tensor) -> Tensor:
        """`FixedRound.__call__`."""
        ...


@dataclass(frozen=True)
class Step:
    """Kernel by kernel: the slow twin of `Recording`, and all there is on a CPU."""

    round: FixedRound

    def __call__(self, slots: Tensor) -> Tensor:
        """Run it."""
        return self.round(slots.to(self.round.models.pool.device, non_blocking=True))


class Recording:
    """A round captured as one CUDA graph; `pool` is the memory that all graphs of an engine share,
    since no two of them run at once."""

    def __init__(self, round: FixedRound, bucket: int, nobody: int, pool: Any) -> None:
        device = round.models.pool.device
        self._slots = torch.full((bucket,), nobody, device=device)
        stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream(device))
        with torch.cuda.stream(stream):
            for _ in range(_WARM_UPS):
                round(self._slots)
        torch.cuda.current_stream(device).wait_stream(stream)
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph, pool=pool):
            self._report = round(self._slots)

    def __call__(self, slots: Tensor) -> Tensor:
        """Replay it; the report is good until the next replay."""
        self._slots.copy_(slots, non_blocking=True)
        self._graph.replay()
        return self._report
