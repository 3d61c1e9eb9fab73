"""How late the client's event loop runs: what arrives meanwhile is stamped as much too late.

A timer of a fixed tick is set again and again; by how much it is called too late is how long an
event that came at that moment had to wait for the loop.
"""

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Self

TICK_S = 0.01


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
    """Use as an async context manager around the load; `lag` is valid after it.

    `clock` must count as the loop's own does, which uvloop reads once a turn and in whole
    milliseconds: what it says in a callback is when the turn began.
    """

    def __init__(self, tick_s: float = TICK_S, clock: Callable[[], float] = time.monotonic) -> None:
        self.lag: Lag | None = None
        self._tick_s = tick_s
        self._clock = clock
        self._overshoots: list[float] = []
        self._due = 0.0
        self._timer: asyncio.TimerHandle | None = None

    async def __aenter__(self) -> Self:
        self._set()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._timer is not None:
            self._timer.cancel()
        # A loop that was blocked to the very end has not called the timer yet.
        late = self._clock() - self._due
        if late > 0:
            self._overshoots.append(late)
        self.lag = lag_of(self._overshoots)

    def _set(self) -> None:
        loop = asyncio.get_running_loop()
        self._due = loop.time() + self._tick_s
        self._timer = loop.call_at(self._due, self._tick)

    def _tick(self) -> None:
        self._overshoots.append(self._clock() - self._due)
        self._set()
