"""The engine's thread: requests always hear how they end."""

import asyncio
import time

import pytest

from ddtree.engine import Engine, EngineConfig, SamplingParams, Speculation
from ddtree.errors import EngineError
from ddtree.serve.worker import EngineWorker
from support.tiny import tiny_drafter, tiny_target

PROMPT = list(range(6))


@pytest.fixture
def worker():
    target = tiny_target()
    engine = Engine(target, tiny_drafter(target), EngineConfig(slots=2, max_context=64))
    worker = EngineWorker(engine)
    worker.start()
    yield worker
    if worker._thread.is_alive():
        worker.stop()


def request(worker, count=20):
    return worker.engine.make_request(PROMPT, SamplingParams(count), Speculation("ddtree", 8, 4))


async def collect(ticket):
    return [token async for event in ticket.stream() for token in event.ids]


def test_streams_arrive_whole(worker):
    async def run():
        tickets = [worker.submit(request(worker)) for _ in range(5)]
        return await asyncio.gather(*map(collect, tickets)), tickets

    outputs, tickets = asyncio.run(run())
    assert all(ids == ticket.work.output for ids, ticket in zip(outputs, tickets, strict=True))
    assert len({tuple(ids) for ids in outputs}) == 1


def test_first_token_and_first_round_come_in_different_steps(worker):
    """Sent together, the round's tokens would seem to have taken no time."""
    step, seen = worker.engine.step, []

    def watch():
        progress = step()
        seen.append([p.work for p in progress])
        return progress

    worker.engine.step = watch

    async def run():
        await asyncio.gather(*(collect(worker.submit(request(worker))) for _ in range(3)))

    asyncio.run(run())
    assert all(len(set(map(id, works))) == len(works) for works in seen)


def test_a_fault_reaches_running_queued_and_later_requests(worker):
    step = worker.engine.step

    def fail():
        if any(r.state == "decoding" for r in worker.engine._running):
            time.sleep(0.2)  # the second request is submitted during the step that fails
            raise RuntimeError("out of memory")
        return step()

    worker.engine.step = fail

    async def run():
        running = worker.submit(request(worker))
        await running.events.get()
        queued = worker.submit(request(worker))
        for ticket in (running, queued):
            with pytest.raises(EngineError, match="out of memory"):
                await asyncio.wait_for(collect(ticket), 10)
        later = worker.submit(request(worker))
        with pytest.raises(EngineError, match="out of memory"):
            await asyncio.wait_for(collect(later), 10)

    asyncio.run(run())
    assert "out of memory" in worker.problem()
    worker.stop()


def test_stopping_tells_those_in_flight(worker):
    async def run():
        ticket = worker.submit(request(worker, 50))
        await ticket.events.get()
        await asyncio.to_thread(worker.stop)
        with pytest.raises(EngineError, match="shutting down"):
            await asyncio.wait_for(collect(ticket), 10)

    asyncio.run(run())


def test_a_hang_shows_in_health(worker):
    worker.STALL_S = 0.05
    step = worker.engine.step

    def slow():
        time.sleep(0.4)
        return step()

    worker.engine.step = slow

    async def run():
        ticket = worker.submit(request(worker, 1))
        await asyncio.sleep(0.2)
        problem = worker.problem()
        await collect(ticket)
        return problem

    assert "in one step" in asyncio.run(run())
    worker.engine.step = step
    deadline = time.monotonic() + 5
    while worker.problem() is not None:  # the last tokens are sent before their step has ended
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_abort_frees_the_slot(worker):
    async def run():
        ticket = worker.submit(request(worker, 50))
        await ticket.events.get()
        worker.abort(ticket)
        worker.abort(ticket)
        return await collect(worker.submit(request(worker, 3)))

    assert len(asyncio.run(run())) == 3
    assert worker.engine.num_running == 0
