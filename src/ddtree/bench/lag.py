"""How late the client's event loop runs: what arrives meanwhile is stamped as much too late.

A task sleeps a fixed tick again and again; by how much it wakes too late is how long an event that
came at that moment had to wait for the loop.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Self

TICK_S = 0.005


@dataclass(frozen=True)
class Lag:
    """Lag over `count` ticks: its 99th percentile, and by how much stamps are late on average.

    `p99_s` is the nearest rank, so the largest of fewer than 100. `mean_s` counts from the
    smallest lag seen: that much is the timer's own, which wakes no sooner.
    """

    count: int
    p99_s: float
    mean_s: float


def lag_of(overshoots: Sequence[float]) -> Lag | None:
    """Summarise what each tick was late by, in seconds; None without a tick."""
    if not overshoots:
        return None
    ordered = sorted(overshoots)
    rank = -(-99 * len(ordered) // 100)
    mean = sum(ordered) / len(ordered) - ordered[0]
    return Lag(len(ordered), ordered[rank - 1], max(0.0, mean))


class LagProbe:
    """Use as an async context manager around the load; `lag` is valid after it."""

    def __init__(self, tick_s: float = TICK_S) -> None:
        self.lag: Lag | None = None
        self._tick_s = tick_s
        self._overshoots: list[float] = []
        self._due: float | None = None
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self._task = asyncio.create_task(self._watch())
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})
        # A loop that was blocked to the very end has not woken the task yet.
        now = asyncio.get_running_loop().time()
        if self._due is not None and now > self._due:
            self._overshoots.append(now - self._due)
        self.lag = lag_of(self._overshoots)

    async def _watch(self) -> None:
        clock = asyncio.get_running_loop().time
        while True:
            self._due = clock() + self._tick_s
            await asyncio.sleep(self._tick_s)
            self._overshoots.append(clock() - self._due)
