"""Load: closed loops, which keep a number of requests in flight, and open ones, which keep a rate.

A closed loop hands a slot on as soon as it is free. An open loop sends at times drawn beforehand,
whatever became of earlier requests, and each record says when it was meant to be sent. Both run
under a deadline: what it cuts off becomes a failure, and nothing hangs.
"""

import asyncio
import dataclasses
import random
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from typing import Generic, Literal, TypeVar

from ddtree.records.requests import RequestRecord

Job = TypeVar("Job")
Send = Callable[[Job], Awaitable[RequestRecord]]
Finished = Callable[[RequestRecord], Awaitable[None]]
Arrivals = Literal["poisson", "constant"]

TIMEOUT_CELL = "timeout_cell"
"""Error class of a request that the deadline of its part of a cell cut off."""


@dataclass(frozen=True)
class Occupancy:
    """How many requests were in flight: at most, and on average weighted by time.

    `mean` is over the busy window: from the first moment with as many as were asked for to the
    last one, so that filling and draining are outside. None without such a window.
    """

    peak: int
    mean: float | None


class InFlight:
    """Counts requests in flight by the running loop's clock."""

    def __init__(self) -> None:
        self._count = 0
        self._steps: list[tuple[float, int]] = []

    def change(self, by: int) -> None:
        """One more or one less."""
        self._count += by
        self._steps.append((asyncio.get_running_loop().time(), self._count))

    def occupancy(self, concurrency: int | None = None) -> Occupancy:
        """What was reached of `concurrency`; None takes all the time there was as the window."""
        spans = [(b[0] - a[0], a[1]) for a, b in pairwise(self._steps)]
        if concurrency is not None:
            full = [i for i, (_, count) in enumerate(spans) if count >= concurrency]
            spans = spans[full[0] : full[-1] + 1] if full else []
        seconds = sum(length for length, _ in spans)
        area = sum(length * count for length, count in spans)
        peak = max((count for _, count in self._steps), default=0)
        return Occupancy(peak, area / seconds if seconds > 0 else None)


@dataclass(frozen=True)
class Deadline(Generic[Job]):
    """Seconds that a load may take; `cut` makes the failed record of a job that it cuts off.

    `cut` gets the job and when it was sent, or when the deadline fell if it never was.
    """

    seconds: float
    cut: Callable[[Job, float], RequestRecord]


@dataclass(frozen=True)
class LoadOptions(Generic[Job]):
    """`lead` jobs take the slots of a closed loop first and hand them on; their records are
    dropped. Without them all slots start at one moment, and the requests of that burst wait for
    each other's prompts. `in_flight` counts."""

    deadline: Deadline[Job] | None = None
    lead: Sequence[Job] = ()
    in_flight: InFlight = field(default_factory=InFlight)


async def closed_loop(
    jobs: Sequence[Job],
    concurrency: int,
    send: Send[Job],
    finished: Finished,
    options: LoadOptions[Job] | None = None,
) -> tuple[RequestRecord, ...]:
    """Send every job, `concurrency` at a time; records in the order of the jobs.

    `finished` is awaited for each record, one at a time and in order of completion, beside the
    loop: a slow writer delays no slot. Returns when every record has been through it. What `send`
    or `finished` raises ends the loop and goes on as it is.
    """
    options = options or LoadOptions()
    load = _Load(jobs, send, finished, options)
    waiting = iter((*((None, job) for job in options.lead), *enumerate(jobs)))

    async def slot() -> None:
        for number, job in waiting:
            await load.one(number, job)

    return await load.run([slot() for _ in range(concurrency)])


async def open_loop(
    jobs: Sequence[Job],
    arrivals: Sequence[float],
    send: Send[Job],
    finished: Finished,
    options: LoadOptions[Job] | None = None,
) -> tuple[RequestRecord, ...]:
    """Send job i `arrivals[i]` seconds after the start, whatever is still in flight.

    Each record's `planned_s` is that time, on the loop's clock: latencies count from it, so a
    client that falls behind hides no wait. The rest is as in `closed_loop`.
    """
    load = _Load(jobs, send, finished, options or LoadOptions())

    async def arrive() -> None:
        clock = asyncio.get_running_loop().time
        start = clock()
        load.planned = [start + offset for offset in arrivals]
        async with asyncio.TaskGroup() as requests:
            for number, (job, planned) in enumerate(zip(jobs, load.planned, strict=True)):
                await asyncio.sleep(max(0.0, planned - clock()))
                requests.create_task(load.one(number, job))

    return await load.run([arrive()])


def arrival_times(count: int, rate: float, seed: int, process: Arrivals) -> tuple[float, ...]:
    """Seconds from the start at which `count` requests come, `rate` a second on average.

    `constant` spaces them evenly from 0; `poisson` draws the gaps from the seed.
    """
    if process == "constant":
        return tuple(number / rate for number in range(count))
    draw = random.Random(seed)
    return tuple(accumulate(draw.expovariate(rate) for _ in range(count)))


class _Load(Generic[Job]):
    """Requests under way, their records by number, and the writer behind them."""

    def __init__(
        self,
        jobs: Sequence[Job],
        send: Send[Job],
        finished: Finished,
        options: LoadOptions[Job],
    ) -> None:
        self.planned: Sequence[float] = ()
        self._jobs = jobs
        self._send = send
        self._finished = finished
        self._options = options
        self._sent: dict[int, float] = {}
        self._records: dict[int, RequestRecord] = {}
        self._done: asyncio.Queue[RequestRecord | None] = asyncio.Queue()

    async def one(self, number: int | None, job: Job) -> None:
        """Send one job and keep its record; a lead job has no number."""
        if number is not None:
            self._sent[number] = asyncio.get_running_loop().time()
        self._options.in_flight.change(1)
        try:
            record = await self._send(job)
        finally:
            self._options.in_flight.change(-1)
        if number is not None:
            self._keep(number, record)

    async def run(
        self, workers: Sequence[Coroutine[object, object, None]]
    ) -> tuple[RequestRecord, ...]:
        """Run the workers and the writer to the end, or to the deadline."""
        try:
            async with asyncio.TaskGroup() as tasks:
                writer = tasks.create_task(self._drain())
                await self._work({tasks.create_task(worker) for worker in workers})
                self._done.put_nowait(None)
                await writer
        except ExceptionGroup as errors:
            # One failing task cancels the others: the first is the cause.
            first: Exception = errors
            while isinstance(first, ExceptionGroup):
                first = first.exceptions[0]
            raise first from None
        return tuple(self._records[number] for number in range(len(self._jobs)))

    async def _work(self, workers: set[asyncio.Task[None]]) -> None:
        deadline = self._options.deadline
        limit = None if deadline is None else deadline.seconds
        _, late = await asyncio.wait(workers, timeout=limit)
        if not late or deadline is None:
            return
        for worker in late:
            worker.cancel()
        await asyncio.wait(late)
        now = asyncio.get_running_loop().time()
        for number, job in enumerate(self._jobs):
            if number not in self._records:
                self._keep(number, deadline.cut(job, self._sent.get(number, now)))

    async def _drain(self) -> None:
        while (record := await self._done.get()) is not None:
            await self._finished(record)

    def _keep(self, number: int, record: RequestRecord) -> None:
        if self.planned:
            record = dataclasses.replace(record, planned_s=self.planned[number])
        self._records[number] = record
        self._done.put_nowait(record)
