"""Open loops, deadlines, lead-in and what they do to the numbers, on a virtual clock."""

import asyncio
import random
from itertools import pairwise
from statistics import mean

import pytest

from ddtree.endpoint.load import (
    TIMEOUT_CELL,
    Deadline,
    InFlight,
    LoadOptions,
    arrival_times,
    closed_loop,
    open_loop,
)
from ddtree.endpoint.stream import error_class
from ddtree.records.metrics import system_tokens_per_s, ttft_s
from ddtree.records.requests import RequestRecord
from support.streams import PromptQueue, drop, record
from support.virtual_time import run_virtual

JOBS = [(f"p{i}", 3 + i % 5) for i in range(20)]


def cut(job: tuple[str, int], sent_s: float) -> RequestRecord:
    return record(job[0], sent_s=sent_s, error=f"{TIMEOUT_CELL}: too late")


def test_constant_arrivals_do_not_drift() -> None:
    times = arrival_times(10_000, 7.0, seed=1, process="constant")
    assert times[0] == 0.0
    assert times[-1] == 9_999 / 7.0


def test_poisson_arrivals_have_their_rate_and_follow_from_the_seed() -> None:
    times = arrival_times(20_000, 50.0, seed=3, process="poisson")
    gaps = [b - a for a, b in pairwise((0.0, *times))]
    assert mean(gaps) == pytest.approx(1 / 50, rel=0.03)
    # Exponential gaps: the standard deviation is the mean.
    assert mean(g * g for g in gaps) == pytest.approx(2 / 50**2, rel=0.06)
    assert times == arrival_times(20_000, 50.0, seed=3, process="poisson")
    assert times != arrival_times(20_000, 50.0, seed=4, process="poisson")


def test_earlier_requests_delay_no_arrival() -> None:
    """A server that never answers in time is sent to at the planned times all the same."""
    server = PromptQueue(prefill_s=10.0, step_s=0.0)
    times = arrival_times(20, 2.0, seed=0, process="poisson")
    records = run_virtual(open_loop(JOBS, times, server.send, drop))
    start = records[0].planned_s - times[0]  # type: ignore[operator]
    for found, offset in zip(records, times, strict=True):
        assert found.planned_s == pytest.approx(start + offset)
        assert found.sent_s == pytest.approx(found.planned_s, abs=1e-9)
    assert [r.prompt_id for r in records] == [name for name, _ in JOBS]
    assert server.peak >= 15


def test_a_client_that_falls_behind_hides_no_wait() -> None:
    """A send that blocks the loop moves what is sent, not what was planned."""

    async def work() -> tuple[RequestRecord, ...]:
        loop = asyncio.get_running_loop()

        async def blocking(job: tuple[str, int]) -> RequestRecord:
            sent = loop.time()
            loop._jumps.waited += 0.5  # type: ignore[attr-defined]
            return record(job[0], sent_s=sent)

        times = arrival_times(5, 10.0, seed=0, process="constant")
        return await open_loop(JOBS[:5], times, blocking, drop)

    records = run_virtual(work())
    planned = [found.planned_s for found in records]
    assert [b - a for a, b in pairwise(planned)] == pytest.approx([0.1] * 4)  # type: ignore[operator]
    assert records[-1].sent_s - planned[-1] > 1.0  # type: ignore[operator]


def test_closed_loop_plans_nothing() -> None:
    records = run_virtual(closed_loop(JOBS, 4, PromptQueue(0.01, 0.01).send, drop))
    assert {found.planned_s for found in records} == {None}


@pytest.mark.parametrize("arrivals", ["closed", "open"])
def test_the_deadline_cuts_and_nothing_hangs(arrivals: str) -> None:
    kept: list[str] = []

    async def stall_at_three(job: tuple[str, int]) -> RequestRecord:
        if job[0] == "p3":
            await asyncio.sleep(3600)
        await asyncio.sleep(1.0)
        return record(job[0], sent_s=1.0)

    async def keep(found: RequestRecord) -> None:
        kept.append(found.prompt_id)

    async def work() -> tuple[tuple[RequestRecord, ...], float]:
        options = LoadOptions(Deadline(6.5, cut))
        if arrivals == "closed":
            records = await closed_loop(JOBS[:12], 2, stall_at_three, keep, options)
        else:
            times = [float(i) for i in range(12)]
            records = await open_loop(JOBS[:12], times, stall_at_three, keep, options)
        return records, asyncio.get_running_loop().time()

    records, ended = run_virtual(work())
    assert ended == pytest.approx(6.5)
    assert [found.prompt_id for found in records] == [name for name, _ in JOBS[:12]]
    assert sorted(kept) == sorted(name for name, _ in JOBS[:12])
    failed = {r.prompt_id: error_class(r.error) for r in records if r.error is not None}
    assert set(failed.values()) == {TIMEOUT_CELL}
    # Two slots do p0, p1, p2, and then one of them alone p4 to p7; or one second a job, from 0 on.
    done = {"p0", "p1", "p2", "p4", "p5", "p6", "p7"} if arrivals == "closed" else None
    assert set(failed) == {name for name, _ in JOBS[:12]} - (done or {"p0", "p1", "p2", "p4", "p5"})
    if arrivals == "open":
        assert [r.planned_s for r in records] == pytest.approx([float(i) for i in range(12)])


def test_a_load_within_its_deadline_is_whole() -> None:
    options = LoadOptions(Deadline(1e6, cut))
    records = run_virtual(closed_loop(JOBS, 4, PromptQueue(0.01, 0.01).send, drop, options))
    assert all(found.error is None for found in records)


def test_an_error_in_an_open_loop_ends_it() -> None:
    async def broken(job: tuple[str, int]) -> RequestRecord:
        raise RuntimeError("bug")

    with pytest.raises(RuntimeError, match="bug"):
        run_virtual(open_loop(JOBS, [0.0] * 20, broken, drop))


@pytest.mark.parametrize("concurrency", [1, 4, 8])
def test_occupancy_of_a_closed_loop_is_what_was_asked_for(concurrency: int) -> None:
    meter, server = InFlight(), PromptQueue(0.05, 0.02)
    options = LoadOptions(in_flight=meter)
    run_virtual(closed_loop(JOBS, concurrency, server.send, drop, options))
    found = meter.occupancy(concurrency)
    assert (found.peak, found.mean) == (concurrency, pytest.approx(concurrency))
    assert server.peak == concurrency


def test_occupancy_sees_a_slot_that_comes_back_late() -> None:
    async def work() -> float | None:
        meter = InFlight()
        # Two slots; one of them is empty for 3 of 10 seconds.
        for wait, change in ((0, 1), (0, 1), (5, -1), (3, 1), (2, -1), (4, -1)):
            await asyncio.sleep(wait)
            meter.change(change)
        found = meter.occupancy(2)
        assert found.peak == 2
        assert meter.occupancy(3).mean is None
        assert meter.occupancy().mean == pytest.approx((7 * 2 + 3 + 4) / 14)
        return found.mean

    assert run_virtual(work()) == pytest.approx(1.7)


def tail(records: tuple[RequestRecord, ...], share: float = 0.99) -> float:
    times = sorted(t for found in records if (t := ttft_s(found)) is not None)
    return times[int(share * (len(times) - 1))]


def lengths(count: int) -> list[tuple[str, int]]:
    draw = random.Random(5)
    return [(f"p{i}", draw.randint(8, 40)) for i in range(count)]


def test_lead_in_takes_the_start_burst_out_of_the_tail() -> None:
    """A burst of 16 prompts waits for 16 prompts; in the steady state one waits for few."""
    slots = 16
    stagger = [(f"l{i}", 2 * (i + 1)) for i in range(slots)]

    def p99(count: int, lead: list[tuple[str, int]]) -> float:
        server = PromptQueue(prefill_s=0.0213, step_s=0.05)
        options = LoadOptions(lead=lead)
        return tail(run_virtual(closed_loop(lengths(count), slots, server.send, drop, options)))

    stationary = p99(3000, stagger)
    assert p99(1000, stagger) == pytest.approx(stationary, rel=0.10)
    assert p99(1000, []) > 2 * stationary


def test_short_and_long_runs_agree_on_throughput() -> None:
    """Ramp and drain are outside the busy window: 20 s and 120 s differ by under 3 %."""

    def speed(seconds: float) -> float:
        # A request takes 2.5 s, and four of them run at a time.
        jobs = lengths(int(4 * seconds / 2.5))
        server = PromptQueue(prefill_s=0.1, step_s=0.1)
        records = run_virtual(closed_loop(jobs, 4, server.send, drop))
        whole = max(r.end_s or 0.0 for r in records)
        assert 0.8 * seconds < whole < 1.3 * seconds
        found = system_tokens_per_s(records, 4)
        assert found is not None
        return found

    assert speed(20.0) == pytest.approx(speed(120.0), rel=0.03)
