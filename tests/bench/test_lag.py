import asyncio

import pytest

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
        async with LagProbe(0.005) as probe:
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
        async with LagProbe(0.005) as probe:
            await asyncio.sleep(0.1)
            loop._jumps.waited += 0.25  # type: ignore[attr-defined]
            await asyncio.sleep(0.0 if at_the_end else 0.1)
        return probe

    lag = run_virtual(work()).lag
    assert lag is not None
    assert 0.24 < lag.p99_s <= 0.25


def test_the_probe_ends_with_its_block() -> None:
    async def work() -> int:
        async with LagProbe():
            await asyncio.sleep(0.02)
        return len(asyncio.all_tasks())

    assert asyncio.run(work()) == 1
