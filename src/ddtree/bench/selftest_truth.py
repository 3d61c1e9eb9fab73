"""What the self-test's server sent, and the metrics that follow from it.

The formulas are written down here anew, on a grid of time instead of over edges: a bug in
`ddtree.records.metrics` must not hide by being on both sides.
"""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

_GRID_S = 1e-3


@dataclass(frozen=True)
class Sent:
    """A request as the server saw it; `number` is which prompt it was. Times by its own clock.

    `ended` is whether its stream was sent to the end.
    """

    number: int
    started_s: float
    chunk_times_s: tuple[float, ...]
    chunk_tokens: tuple[int, ...]
    ended: bool


@dataclass(frozen=True)
class Truth:
    """All that the server accepted, and how many of them it had at once."""

    sent: tuple[Sent, ...]
    peak_in_flight: int

    def write(self, path: Path) -> None:
        """Keep as JSON."""
        path.write_text(json.dumps(asdict(self)))

    @classmethod
    def read(cls, path: Path) -> Self:
        """Inverse of `write`."""
        data = json.loads(path.read_text())
        return cls(tuple(_sent(item) for item in data["sent"]), data["peak_in_flight"])

    @property
    def ended(self) -> tuple[Sent, ...]:
        """Requests whose stream was sent to the end."""
        return tuple(sent for sent in self.sent if sent.ended)

    def ttft_s(self) -> float:
        """Median time from accepting a request to its first chunk."""
        return float(np.median([s.chunk_times_s[0] - s.started_s for s in self.ended]))

    def tpot_s(self) -> float:
        """Median time per token behind the first chunk."""
        spans = [(s.chunk_times_s[-1] - s.chunk_times_s[0], s.chunk_tokens) for s in self.ended]
        return float(np.median([span / sum(tokens[1:]) for span, tokens in spans]))

    def tokens_per_s(self, concurrency: int) -> float:
        """Tokens in the time in which all slots were between first and last token, over that time.

        A first chunk is no decoding: its tokens come with the slot's entry into the window.
        """
        ended = self.ended
        start = min(s.chunk_times_s[0] for s in ended)
        end = max(s.chunk_times_s[-1] for s in ended)
        edges = np.arange(start, end, _GRID_S)
        busy = np.zeros(len(edges) - 1, dtype=np.int64)
        tokens = np.zeros(len(edges) - 1)
        for sent in ended:
            first, last = sent.chunk_times_s[0], sent.chunk_times_s[-1]
            busy += (edges[:-1] >= first) & (edges[1:] <= last)
            tokens += np.diff(_progress(sent, edges))
        full = busy >= concurrency
        return float(tokens[full].sum() / (full.sum() * _GRID_S))


def _progress(sent: Sent, at: NDArray[np.float64]) -> NDArray[np.float64]:
    """Tokens behind the first chunk by time, spread evenly over the gap before their chunk."""
    done = np.cumsum(sent.chunk_tokens) - sent.chunk_tokens[0]
    return np.asarray(np.interp(at, sent.chunk_times_s, done), dtype=np.float64)


def _sent(data: dict[str, Any]) -> Sent:
    lists: Sequence[str] = ("chunk_times_s", "chunk_tokens")
    return Sent(**{**data, **{name: tuple(data[name]) for name in lists}})
