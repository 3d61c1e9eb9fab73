"""How many prompt tokens a step may take, and whose."""

from collections.abc import Sequence
from typing import Protocol

_FIRST = 64  # tokens of a first pass, before its speed is known
_LEAST = 16  # fewer would cost a whole pass for next to nothing


class HasPrompt(Protocol):
    """Something with prompt tokens to go."""

    @property
    def remaining(self) -> int:
        """Prompt tokens not yet in the cache."""
        ...


class ChunkPacer:
    """Prompt tokens per step: `chunk` at most, and while others would have to wait no more than
    `max_stall_s` is expected to take, at the speed of the pass before."""

    def __init__(self, chunk: int, max_stall_s: float | None) -> None:
        self._chunk, self._max_stall_s = chunk, max_stall_s
        self._token_s: float | None = None

    def allowance(self, *, stalls: bool) -> int:
        """Tokens that the next pass may hold; `stalls`: whether requests are decoding."""
        if not stalls or self._max_stall_s is None:
            return self._chunk
        if self._token_s is None:
            return min(_FIRST, self._chunk)
        affordable = int(self._max_stall_s / self._token_s)
        return min(max(affordable, _LEAST), self._chunk)

    def record(self, tokens: int, seconds: float) -> None:
        """What a pass took; short ones say little, since they cost a whole pass."""
        if tokens >= _LEAST:
            self._token_s = seconds / tokens


def share_out(prompts: Sequence[HasPrompt], allowance: int) -> list[int]:
    """Tokens for each of the prompts, given in order of arrival, in the next pass.

    Half goes to the oldest, so that none starves; the rest to whoever needs least, so that a
    short prompt does not wait for a long one.
    """
    shares = [0] * len(prompts)
    if not prompts:
        return shares
    shares[0] = min(prompts[0].remaining, (allowance + 1) // 2)
    left = allowance - shares[0]
    for index in sorted(range(len(prompts)), key=lambda i: prompts[i].remaining):
        more = min(prompts[index].remaining - shares[index], left)
        shares[index] += more
        left -= more
    return shares
