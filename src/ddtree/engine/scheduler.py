"""Who waits, who runs, and where: slots, runs of cells, arrival order."""

import bisect
from collections import deque
from dataclasses import dataclass

from ddtree.engine.job import Job
from ddtree.engine.regions import Regions
from ddtree.engine.request import Request

Work = Request | Job


@dataclass(frozen=True)
class CacheUse:
    """What is taken: slots are requests at once, cells tokens of the target's cache."""

    slots: int
    free_slots: int
    cells: int
    free_cells: int


class Scheduler:
    """Admits work first come, first served, once a slot and a run of cells are free for it.

    `spare`: cells that a round writes beyond a request's last token. `even`: every run is as long
    as the longest, so that requests of any length attend together.
    """

    def __init__(self, slots: int, regions: Regions, spare: int, *, even: bool) -> None:
        self._slots, self._regions, self._spare, self._even = slots, regions, spare, even
        self._free = list(range(slots))
        self.waiting: deque[Work] = deque()
        self.running: list[Work] = []  # in order of admission

    @property
    def use(self) -> CacheUse:
        """What is taken now."""
        regions = self._regions
        return CacheUse(self._slots, len(self._free), regions.size, regions.num_free)

    def enqueue(self, work: Work) -> None:
        """Let work wait."""
        self.waiting.append(work)

    def admit(self) -> None:
        """Start what can start. The first in line is never overtaken: it would starve."""
        while self.waiting and self._free:
            work = self.waiting[0]
            cells = self._regions.longest if self._even else work.most_tokens + self._spare
            base = self._regions.take(cells)
            if base is None:
                return
            self.waiting.popleft()
            work.slot, work.base = self._free.pop(0), base
            work.room = self._regions.taken(base)
            self.running.append(work)

    def remove(self, work: Work) -> None:
        """Take work out, wherever it is; what it held is free again."""
        if work.slot < 0:
            self.waiting.remove(work)
            return
        self.running.remove(work)
        bisect.insort(self._free, work.slot)
        self._regions.give(work.base)
        work.slot, work.base, work.room = -1, -1, 0

    def rotate(self, job: Job) -> None:
        """Let a job stand behind the others that run."""
        self.running.remove(job)
        self.running.append(job)

    def holds(self, work: Work) -> bool:
        """Whether it waits or runs."""
        return work in self.waiting or work in self.running

    def prefilling(self) -> list[Request]:
        """Requests whose prompt is not all in the cache, oldest first."""
        return [r for r in self.running if isinstance(r, Request) and r.remaining]

    def decoding(self) -> list[Request]:
        """Requests past their prompt, in order of base, in which they attend together."""
        past = [r for r in self.running if isinstance(r, Request) and not r.remaining]
        return sorted(past, key=lambda request: request.base)

    def jobs(self) -> list[Job]:
        """Jobs, the one that waits longest for its turn first."""
        return [job for job in self.running if isinstance(job, Job)]
