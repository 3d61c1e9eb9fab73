"""A round for one size of batch, launched kernel by kernel or replayed from a CUDA graph."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from ddtree.engine.fixed.round import FixedRound

# Rounds before the capture: what compiles, tunes or allocates on first use must do so outside it.
_WARM_UPS = 2


@dataclass(frozen=True)
class Batch:
    """`size` rows, of which those that are left over are slot `nobody`'s."""

    size: int
    nobody: int

    def filled(self, slots: Sequence[int]) -> Tensor:
        """[size]: the slots, then nobody's."""
        return torch.tensor([*slots, *[self.nobody] * (self.size - len(slots))])


class Launch(Protocol):
    """Runs a round for as many slots as a batch holds, or fewer; gives its report, see `Settled`.
    Neither waits for the other."""

    def __call__(self, slots: Sequence[int]) -> Tensor:
        """`FixedRound.__call__`."""
        ...


@dataclass(frozen=True)
class Step:
    """Kernel by kernel: the slow twin of `Recording`, and all there is on a CPU."""

    round: FixedRound
    batch: Batch

    def __call__(self, slots: Sequence[int]) -> Tensor:
        """Run it."""
        device = self.round.models.pool.device
        return self.round(self.batch.filled(slots).to(device, non_blocking=True))


class Recording:
    """A round captured as one CUDA graph; `memory` is what all graphs of an engine share, since no
    two of them run at once."""

    def __init__(self, round: FixedRound, batch: Batch, memory: Any) -> None:
        # The graph reads what the round owns, and does not keep it.
        self._round, self._batch, device = round, batch, round.models.pool.device
        self._slots = batch.filled([]).to(device)
        stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream(device))
        with torch.cuda.stream(stream):
            for _ in range(_WARM_UPS):
                round(self._slots)
        torch.cuda.current_stream(device).wait_stream(stream)
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph, pool=memory):
            self._report = round(self._slots)

    def __call__(self, slots: Sequence[int]) -> Tensor:
        """Replay it; the report is good until the next replay of any."""
        self._slots.copy_(self._batch.filled(slots), non_blocking=True)
        self._graph.replay()
        return self._report
