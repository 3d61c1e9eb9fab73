import asyncio
from collections.abc import Sequence

import pytest

from ddtree.bench.warmup import MAX_BATCHES, WarmUp, batch_s, warm_up
from ddtree.records.requests import RequestRecord
from support.streams import record


def warmed(times: Sequence[float | None], max_batches: int = MAX_BATCHES) -> WarmUp:
    """Batches of two requests that take these times, None for one that fails; the last for ever."""
    ran = []

    async def batch() -> tuple[RequestRecord, ...]:
        took = times[min(len(ran), len(times) - 1)]
        ran.append(took)
        if took is None:
            return (record("a", end_s=1.0), record("b", error="http_500: cold"))
        return record("a", sent_s=5.0, end_s=5.0 + took), record("b", sent_s=5.0, end_s=5.0)

    return asyncio.run(warm_up(batch, max_batches))


def test_a_cold_engine_is_warmed_until_three_batches_agree() -> None:
    found = warmed([9.0, 2.0, 1.3, 1.04, 1.0, 1.02, 5.0])
    assert found.seconds == pytest.approx((9.0, 2.0, 1.3, 1.04, 1.0, 1.02))
    assert (found.stable, found.error, found.note) == (True, None, None)


def test_five_percent_is_the_limit() -> None:
    assert len(warmed([1.0, 1.0499, 1.02]).seconds) == 3
    assert len(warmed([1.0, 1.06, 1.02, 1.02, 1.03]).seconds) == 4


def test_what_never_settles_is_bounded_and_said() -> None:
    found = warmed([2.0**-i for i in range(50)])
    assert len(found.seconds) == MAX_BATCHES
    assert found.stable is False
    assert "not stable after 10 batches" in (found.note or "")


def test_one_batch_asks_nothing() -> None:
    found = warmed([3.0], max_batches=1)
    assert (len(found.seconds), found.stable, found.note) == (1, None, None)


def test_a_failed_batch_agrees_with_none_and_is_told() -> None:
    found = warmed([1.0, 1.0, None, 1.0, 1.0, 1.0])
    assert len(found.seconds) == 6
    assert (found.stable, found.note) == (True, "http_500: cold")
    assert len(warmed([None]).seconds) == MAX_BATCHES


def test_a_batch_lasts_from_the_first_request_to_the_last_end() -> None:
    assert batch_s([record("a", sent_s=1.0, end_s=2.0), record("b", sent_s=1.5, end_s=4.0)]) == 3.0
    assert batch_s([record("a")]) is None


def test_a_crash_goes_on() -> None:
    async def batch() -> tuple[RequestRecord, ...]:
        raise RuntimeError("the server died")

    with pytest.raises(RuntimeError, match="died"):
        asyncio.run(warm_up(batch))
