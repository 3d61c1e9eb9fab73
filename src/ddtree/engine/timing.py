"""Wall time by stage of a round, kept out of the loop's way."""

import contextlib
import time
from collections.abc import Callable, Iterator


class Pulse:
    """When work last went on, by the monotonic clock: tells a long pass from one that hangs."""

    def __init__(self) -> None:
        self.at = time.monotonic()

    def beat(self) -> None:
        """Work goes on."""
        self.at = time.monotonic()


class StageClock:
    """Accumulates seconds by stage; `synchronize` is called before each reading, so that work
    queued on a device counts where it was issued (a no-op on the CPU)."""

    def __init__(self, synchronize: Callable[[], None]) -> None:
        self._synchronize = synchronize
        self._seconds: dict[str, float] = {}
        self._start = time.perf_counter()

    def start_round(self) -> None:
        """Forget the last round."""
        self._synchronize()
        self._seconds = {}
        self._start = time.perf_counter()

    @contextlib.contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Count the block's time under `name`."""
        self._synchronize()
        start = time.perf_counter()
        yield
        self._synchronize()
        self._seconds[name] = self._seconds.get(name, 0.0) + time.perf_counter() - start

    def finish_round(self) -> dict[str, float]:
        """Seconds by stage, `host` being what no stage claimed."""
        total = time.perf_counter() - self._start
        return {**self._seconds, "host": total - sum(self._seconds.values())}
