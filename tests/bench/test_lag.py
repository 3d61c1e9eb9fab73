import asyncio
import time
from collections.abc import Callable

import pytest
import uvloop

from ddtree.bench.lag import LagProbe, lag_of
from support.virtual_time import run_virtual


def test_percentile_is_the_nearest_rank() -> None:
    lag = lag_of([0.001 * i for i in range(1, 201)])
    assert lag is not None
    assert (lag.count, lag.p99_s) == (200, pytest.approx(0.198))
    assert lag.mean_s == pytest.approx(0.0995)
    few = lag_of([0.003, 0.001])
    assert few is not None
    assert (few.p99_s, few.mean_s) == (0.003, pytest.approx(0.001))
    assert lag_of([]) is None


def test_an_idle_loop_is_not_late() -> None:
    async def work() -> LagProbe:
        async with LagProbe(0.005, asyncio.get_running_loop().time) as probe:
            await asyncio.sleep(1.0)
        return probe

    lag = run_virtual(work()).lag
    assert lag is not None
    assert 190 <= lag.count <= 201
    assert (lag.p99_s, lag.mean_s) == (pytest.approx(0.0, abs=1e-9), pytest.approx(0.0, abs=1e-9))


@pytest.mark.parametrize("at_the_end", [False, True])
def test_a_blocked_loop_is_seen(at_the_end: bool) -> None:
    async def work() -> LagProbe:
        loop = asyncio.get_running_loop()
        async with LagProbe(0.005, loop.time) as probe:
            await asyncio.sleep(0.1)
            loop._jumps.waited += 0.25  # type: ignore[attr-defined]
            await asyncio.sleep(0.0 if at_the_end else 0.1)
        return probe

    lag = run_virtual(work()).lag
    assert lag is not None
    assert 0.24 < lag.p99_s <= 0.25


@pytest.mark.parametrize("at_the_end", [False, True])
@pytest.mark.parametrize("factory", [None, uvloop.new_event_loop])
def test_a_callback_that_blocks_a_real_loop_is_seen(
    factory: Callable[[], asyncio.AbstractEventLoop] | None, at_the_end: bool
) -> None:
    async def work() -> LagProbe:
        async with LagProbe() as probe:
            await asyncio.sleep(0.03)
            time.sleep(0.25)
            if not at_the_end:
                await asyncio.sleep(0.03)
        return probe

    with asyncio.Runner(loop_factory=factory) as runner:
        lag = runner.run(work()).lag
    assert lag is not None
    assert lag.p99_s > 0.2


def test_the_probe_ends_with_its_block() -> None:
    ticks = []

    def clock() -> float:
        ticks.append(None)
        return time.monotonic()

    async def work() -> int:
        async with LagProbe(clock=clock):
            await asyncio.sleep(0.05)
        ended = len(ticks)
        await asyncio.sleep(0.05)
        return len(ticks) - ended

    assert asyncio.run(work()) == 0
    assert len(ticks) > 1
