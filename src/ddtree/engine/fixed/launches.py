"""What starts rounds, by kind and size of batch: made on first use, or before anyone waits."""

import time
from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

import torch

from ddtree.engine.fixed.recording import Batch, Launch, Recording, Step
from ddtree.engine.fixed.round import FixedRound, Kind

RoundOf = Callable[[Kind], FixedRound]
# Recordings are small beside what they share, yet requests may ask for thousands of kinds.
MAX_LAUNCHES = 512


@dataclass(frozen=True)
class Prepared:
    """How many recordings there are, seconds to make those asked for, and bytes that all take on
    the device beyond weights and caches."""

    count: int
    seconds: float
    num_bytes: int


class Launches:
    """Rounds of all kinds and sizes; `widest` nodes and `slots` requests are the largest.

    graphs: replay CUDA graphs, which share one memory; else launch kernel by kernel. The longest
    unused of more than MAX_LAUNCHES is dropped.
    """

    def __init__(self, round_of: RoundOf, widest: int, slots: int, *, graphs: bool) -> None:
        self.round_of, self._widest, self._slots = round_of, widest, slots
        self._memory = torch.cuda.graph_pool_handle() if graphs else None
        self._made: OrderedDict[tuple[Kind, int], Launch] = OrderedDict()
        self._num_bytes = 0

    def of(self, kind: Kind, count: int) -> Launch:
        """For so many requests that ask for `kind` together."""
        key = (self.fitting(kind), bucket_of(count, self._slots))
        if key not in self._made:
            if len(self._made) == MAX_LAUNCHES:
                self._made.popitem(last=False)
            self._made[key] = self._make(*key)
        self._made.move_to_end(key)
        return self._made[key]

    def fitting(self, kind: Kind) -> Kind:
        """The kind of the recording that serves it: one for several budgets and topks, of which
        each request takes its own."""
        topk = 1 << (kind.topk - 1).bit_length()
        return replace(kind, budget=width_of(kind.budget, self._widest), topk=topk)

    def prepare(self, kinds: Iterable[Kind]) -> Prepared:
        """Make them for every size of batch, largest first: it needs the most memory."""
        start = time.perf_counter()
        sizes = {bucket_of(count, self._slots) for count in range(1, self._slots + 1)}
        for size in sorted(sizes, reverse=True):
            for kind in kinds:
                self.of(kind, size)
        return Prepared(len(self._made), time.perf_counter() - start, self._num_bytes)

    def _make(self, kind: Kind, bucket: int) -> Launch:
        made, batch = self.round_of(kind), Batch(bucket, self._slots)
        if self._memory is None:
            return Step(made, batch)
        device = made.models.pool.device
        torch.cuda.synchronize(device)
        free = torch.cuda.mem_get_info(device)[0]
        recording = Recording(made, batch, self._memory)
        torch.cuda.synchronize(device)
        self._num_bytes += max(0, free - torch.cuda.mem_get_info(device)[0])
        return recording


def bucket_of(count: int, most: int) -> int:
    """The size of batch that a round for `count` requests is padded to: a power of two or one and
    a half times one, `most` at the largest."""
    power = 1 << (count - 1).bit_length()
    between = 3 * power // 4
    fitting = between if between >= count and power >= 4 else power
    return min(fitting, most)


def width_of(budget: int, most: int) -> int:
    """The nodes of the round that serves a budget: its own up to 16, then multiples of 8, of 16
    from 64 on; `most` at the largest."""
    step = 1 if budget <= 16 else 8 if budget <= 64 else 16
    return min(-(-budget // step) * step, most)
