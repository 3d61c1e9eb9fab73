"""An event loop whose clock jumps: a minute of sleeping takes no time and is exact."""

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class _Selector(selectors.SelectSelector):
    """Never waits; says how long it would have."""

    waited = 0.0

    def select(self, timeout: float | None = None) -> Any:
        assert timeout is not None, "nothing left to wait for: the work hangs"
        self.waited += max(0.0, timeout)
        return super().select(0)


class VirtualLoop(asyncio.SelectorEventLoop):
    """`time()` is the sum of all waits."""

    def __init__(self) -> None:
        self._jumps = _Selector()
        super().__init__(self._jumps)

    def time(self) -> float:
        return self._jumps.waited


def run_virtual(work: Coroutine[Any, Any, T]) -> T:
    """The work's result; it may sleep and stamp by the loop's clock, but not touch a socket."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(work)
