"""Work that reads known tokens in a slot of its own, a pass at a time, and generates none."""

from abc import ABC, abstractmethod

from ddtree.engine.loop import RoundLoop


class Job(ABC):
    """Waits and runs beside requests: the engine lends it a slot and `room` cells from `base` on,
    and takes them back once it is `finished`; `error` says why it came to nothing.

    slot -1: it holds neither.
    """

    slot: int
    base: int
    room: int
    finished: bool
    error: str | None

    @property
    @abstractmethod
    def most_tokens(self) -> int:
        """Tokens it will hold; the widest round's rows fit behind them."""

    @abstractmethod
    def advance(self, loop: RoundLoop, allowance: int) -> None:
        """One pass, over `allowance` tokens at most; EngineError if nothing can come of it."""
