"""The engine's thread: requests always hear how they end."""

import asyncio
import threading
import time

import pytest

from ddtree.engine import Engine, EngineConfig, SamplingParams, Speculation
from ddtree.errors import EngineError, OverloadedError, RequestError
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
        if worker.engine.scheduler.decoding():
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
        with pytest.raises(EngineError, match="out of memory"):
            worker.submit(request(worker))

    asyncio.run(run())
    assert "out of memory" in worker.problem()
    assert worker.in_flight == 0
    use = worker.engine.cache_use()
    assert (use.free_slots, use.free_cells) == (use.slots, use.cells)
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
    """A step in which nothing moves; then one that moves, and takes as long."""
    worker.stall_s = 0.1
    step = worker.engine.step

    def slow(beat):
        for _ in range(10):
            time.sleep(0.04)
            beat()
        return step()

    async def run(beat):
        worker.engine.step = lambda: slow(beat)
        ticket = worker.submit(request(worker, 1))
        await asyncio.sleep(0.25)
        problem = worker.problem()
        await collect(ticket)
        return problem

    assert "no sign of life" in asyncio.run(run(lambda: None))
    wait_until(lambda: worker.problem() is None)  # tokens are sent before their step has ended
    assert asyncio.run(run(worker.engine.pulse.beat)) is None


def test_steps_that_do_nothing_are_a_hang(worker):
    """Nothing can start, as if a slot had been lost: the thread is busy and gets nowhere."""
    worker.stall_s = 0.1
    worker.engine.scheduler._free.clear()

    async def run():
        worker.submit(request(worker))
        await asyncio.to_thread(wait_until, lambda: worker.problem() is not None)

    asyncio.run(run())
    assert "no sign of life" in worker.problem()


def test_every_layer_is_a_sign_of_life(worker):
    """A pass over a long prompt is no hang, however long it takes."""
    pulse, beats = worker.engine.pulse, []
    beat = pulse.beat
    pulse.beat = lambda: (beats.append(worker.engine.num_running), beat())
    asyncio.run(answer(worker, request(worker, 1)))
    assert beats == [1] * worker.engine.target.shape.num_layers


async def answer(worker, work):
    return await collect(worker.submit(work))


def wait_until(condition, seconds=20):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.005)


class Held:
    """A worker whose first step goes on until it is released."""

    def __init__(self, worker):
        self.worker, self._step = worker, worker.engine.step
        self._entered, self._released = threading.Event(), threading.Event()
        worker.engine.step = self._wait

    def _wait(self):
        self._entered.set()
        self._released.wait(20)
        return self._step()

    async def submit(self, count):
        """Tickets of requests that the engine has, the step going on."""
        tickets = self.worker.submit_all([request(self.worker) for _ in range(count)])
        await asyncio.to_thread(self._entered.wait, 20)
        return tickets

    def release(self):
        self._released.set()


@pytest.fixture
def held(worker):
    worker.max_queue = 3
    held = Held(worker)
    yield held
    held.release()


def test_the_queue_is_bounded(held):
    """Slots and queue hold five; a sixth must wait outside until one of them is over."""
    worker = held.worker

    async def run():
        tickets = await held.submit(4)
        for count in (2, 5):
            with pytest.raises(OverloadedError, match="4 requests are in flight"):
                worker.submit_all([request(worker) for _ in range(count)])
        assert worker.in_flight == 4, "none of two is taken where one has room"
        tickets.append(worker.submit(request(worker)))
        with pytest.raises(OverloadedError, match="queue is full"):
            worker.submit(request(worker))
        with pytest.raises(RequestError, match="6 answers at once, this server takes 5"):
            worker.submit_all([request(worker) for _ in range(6)])
        worker.abort(tickets[0])
        held.release()
        await asyncio.to_thread(wait_until, lambda: worker.in_flight < 5)
        tickets.append(worker.submit(request(worker)))
        await asyncio.gather(*map(collect, tickets[1:]))

    asyncio.run(run())
    assert worker.in_flight == 0


def test_draining_refuses_and_goes_on(held):
    worker = held.worker

    async def run():
        (ticket,) = await held.submit(1)
        worker.drain()
        assert worker.problem() == "the server is shutting down"
        with pytest.raises(EngineError, match="shutting down"):
            worker.submit(request(worker))
        held.release()
        return await collect(ticket)

    assert len(asyncio.run(run())) == 20


def test_cancelling_needs_no_engine(held):
    """Requests hear of it during a step that hangs, and stopping leaves such a step behind."""
    worker = held.worker

    async def run():
        tickets = await held.submit(4)
        worker.cancel_all()
        for ticket in tickets:
            with pytest.raises(EngineError, match="shutting down"):
                await asyncio.wait_for(collect(ticket), 10)
        start = time.monotonic()
        worker.stop(0.05)
        return time.monotonic() - start

    assert asyncio.run(run()) < 10
    assert worker._thread.is_alive()
    held.release()
    worker._thread.join(20)
    assert (worker.in_flight, worker.engine.is_idle) == (0, True)


def test_abort_frees_the_slot(worker):
    async def run():
        ticket = worker.submit(request(worker, 50))
        await ticket.events.get()
        worker.abort(ticket)
        worker.abort(ticket)
        return await collect(worker.submit(request(worker, 3)))

    assert len(asyncio.run(run())) == 3
    assert worker.engine.num_running == 0
