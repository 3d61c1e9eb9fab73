import asyncio

import pytest

from ddtree.endpoint.load import closed_loop
from ddtree.records.requests import RequestRecord
from support.streams import record


class Server:
    """Counts what is in flight; a job is (name, turns of the event loop it takes)."""

    def __init__(self) -> None:
        self.in_flight = 0
        self.peaks: list[int] = []
        self.started: list[str] = []
        self.kept: list[str] = []

    async def send(self, job: tuple[str, int]) -> RequestRecord:
        self.in_flight += 1
        self.peaks.append(self.in_flight)
        self.started.append(job[0])
        for _ in range(job[1]):
            await asyncio.sleep(0)
        self.in_flight -= 1
        return record(job[0])

    async def keep(self, finished: RequestRecord) -> None:
        await asyncio.sleep(0)
        self.kept.append(finished.prompt_id)


@pytest.mark.parametrize("concurrency", [1, 3, 8, 50])
def test_concurrency_is_reached_and_never_passed(concurrency: int) -> None:
    server = Server()
    jobs = [(f"p{i}", 5 + i % 7) for i in range(20)]
    records = asyncio.run(closed_loop(jobs, concurrency, server.send, server.keep))
    assert max(server.peaks) == min(concurrency, 20)
    assert [r.prompt_id for r in records] == [name for name, _ in jobs]
    assert sorted(server.kept) == sorted(name for name, _ in jobs)
    assert server.started == [name for name, _ in jobs]


def test_a_free_slot_is_handed_on_at_once() -> None:
    server = Server()
    jobs = [("long", 100), ("a", 3), ("b", 3), ("c", 3), ("d", 3)]
    asyncio.run(closed_loop(jobs, 2, server.send, server.keep))
    assert server.kept == ["a", "b", "c", "d", "long"]
    assert server.peaks[1:] == [2, 2, 2, 2]


def test_a_slow_writer_delays_no_slot() -> None:
    server = Server()
    gate = asyncio.Event()

    async def keep(finished: RequestRecord) -> None:
        await gate.wait()
        await server.keep(finished)

    async def work() -> None:
        loop = asyncio.create_task(
            closed_loop([("a", 1), ("b", 1), ("c", 1)], 1, server.send, keep)
        )
        while len(server.started) < 3:
            await asyncio.sleep(0)
        assert server.kept == []
        gate.set()
        await loop

    asyncio.run(asyncio.wait_for(work(), 5))
    assert server.kept == ["a", "b", "c"]


def test_an_error_ends_the_loop() -> None:
    async def broken(_: str) -> RequestRecord:
        raise RuntimeError("bug")

    async def keep(_: RequestRecord) -> None: ...

    with pytest.raises(RuntimeError, match="bug"):
        asyncio.run(asyncio.wait_for(closed_loop(["a", "b"], 2, broken, keep), 5))


def test_a_full_disk_ends_the_loop() -> None:
    server = Server()

    async def keep(_: RequestRecord) -> None:
        raise OSError("no space left")

    jobs = [("a", 1), ("b", 1), ("c", 5000)]
    with pytest.raises(OSError, match="no space left"):
        asyncio.run(asyncio.wait_for(closed_loop(jobs, 1, server.send, keep), 5))


def test_no_jobs() -> None:
    server = Server()
    assert asyncio.run(closed_loop([], 4, server.send, server.keep)) == ()
