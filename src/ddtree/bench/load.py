"""Closed loop: a fixed number of requests in flight, a slot handed on as soon as it is free."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from ddtree.records.requests import RequestRecord

Job = TypeVar("Job")
Send = Callable[[Job], Awaitable[RequestRecord]]
Finished = Callable[[RequestRecord], Awaitable[None]]


async def closed_loop(
    jobs: Sequence[Job], concurrency: int, send: Send[Job], finished: Finished
) -> tuple[RequestRecord, ...]:
    """Send every job, `concurrency` at a time; records in the order of the jobs.

    `finished` is awaited for each record, one at a time and in order of completion, beside the
    loop: a slow writer delays no slot. Returns when every record has been through it. What `send`
    or `finished` raises ends the loop and goes on as it is.
    """
    waiting = iter(enumerate(jobs))
    records: dict[int, RequestRecord] = {}
    done: asyncio.Queue[RequestRecord | None] = asyncio.Queue()

    async def slot() -> None:
        for number, job in waiting:
            records[number] = await send(job)
            done.put_nowait(records[number])

    async def drain() -> None:
        while (record := await done.get()) is not None:
            await finished(record)

    try:
        async with asyncio.TaskGroup() as tasks:
            writer = tasks.create_task(drain())
            await asyncio.gather(*(tasks.create_task(slot()) for _ in range(concurrency)))
            done.put_nowait(None)
            await writer
    except ExceptionGroup as errors:
        # One failing task cancels the others: the first is the cause.
        raise errors.exceptions[0] from None
    return tuple(records[number] for number in range(len(jobs)))
