import random
import re
from dataclasses import replace
from typing import Any

import pytest

from ddtree.bench.gates import (
    GATES,
    Findings,
    Observed,
    is_looped,
    judge,
    looped_reason,
    peak_decoding,
    repeated_share,
)
from ddtree.bench.lag import Lag
from ddtree.endpoint.load import Occupancy
from ddtree.records.arms import Arm
from ddtree.records.requests import RequestRecord
from support.streams import record

TREE, CHAIN, AR = Arm("ddtree", 4, 2), Arm("chain"), Arm("ar")
IDS = tuple(random.Random(1).choices(range(1000), k=64))


def good(name: str = "p0", **changes: Any) -> RequestRecord:
    """64 tokens in 32 chunks over 3.1 s; every round accepted one draft token."""
    stats = {
        "completion_tokens": 64,
        "rounds": 32,
        "accepted_histogram": [1, 31],
        "cut_tokens": 0,
    }
    fields: dict[str, Any] = {
        "sent_s": 0.0,
        "chunk_times_s": tuple(0.2 + 0.1 * i for i in range(32)),
        "chunk_tokens": (2,) * 32,
        "end_s": 3.4,
        "prompt_tokens": 60,
        "completion_tokens": 64,
        "finish_reason": "length",
        "token_ids": IDS,
        "stats": stats,
        "cached_tokens": 0,
    }
    return record(name, **{**fields, **changes})


def seen(*records: RequestRecord, **changes: Any) -> Observed:
    fields: dict[str, Any] = {
        "arm": TREE,
        "records": records,
        "planned": {r.prompt_id: 60 for r in records},
        "concurrency": 1,
        "occupancy": Occupancy(1, 1.0),
        "lag": Lag(600, 0.0004, 0.0001),
        "block_size": 8,
    }
    return Observed(**{**fields, **changes})


def histogram(*counts: int, **more: Any) -> RequestRecord:
    found = good()
    return replace(found, stats={**(found.stats or {}), "accepted_histogram": [*counts], **more})


def test_a_good_part_has_no_findings() -> None:
    assert judge(seen(good(), good("p1"))) == Findings(None, ())


VOID: list[tuple[str, Observed, str]] = [
    ("prompt_length", seen(good(prompt_tokens=61)), "has 60 tokens, the server counted 61"),
    ("cached_tokens", seen(good(cached_tokens=48)), "48 prompt tokens came out of a prefix cache"),
    ("finish_reasons", seen(good(finish_reason="abort")), "finish reason 'abort'"),
    ("finish_reasons", seen(good(finish_reason=None)), "finish reason 'None'"),
    ("stamps", seen(good(end_s=1.0)), "go back"),
    ("stamps", seen(good(sent_s=0.3)), "go back"),
    # One round deeper than the budget, than the block, than a baseline can go.
    ("acceptance", seen(histogram(0, 20, 0, 0, 0, 1)), "acceptance length 6 .* outside 1 to 5"),
    (
        "acceptance",
        seen(histogram(0, 20, *[0] * 6, 1), arm=CHAIN),
        "acceptance length 9 .* outside 1 to 8",
    ),
    ("acceptance", seen(histogram(5, 1), arm=AR), "acceptance length 2 .* outside 1 to 1"),
    (
        "acceptance",
        seen(good(stats={"acceptance_length": 0.7})),
        "acceptance length 0.7 .* outside 1 to 5",
    ),
    (
        "loop_lag",
        seen(good(), lag=Lag(600, 0.2, 0.05)),
        r"ran 200.0 ms late \(p99\), 1.6% of an answer's decode time",
    ),
    (
        "concurrency",
        seen(*(good(f"p{i}") for i in range(8)), concurrency=8, occupancy=Occupancy(8, 7.5)),
        "7.5 requests in flight on average, asked for 8",
    ),
]


@pytest.mark.parametrize(("gate", "observed", "words"), VOID, ids=[v[0] for v in VOID])
def test_what_biases_numbers_makes_the_part_invalid(
    gate: str, observed: Observed, words: str
) -> None:
    found = judge(observed)
    assert found.invalid is not None
    assert re.search(words, found.invalid)
    # And it is that gate alone which says so.
    guilty = [g.__name__ for g in GATES if any(f.invalid for f in g(observed))]
    assert guilty == [gate]


FLAGS: list[tuple[str, Observed, str]] = [
    ("prompt_length", seen(good(prompt_tokens=None)), "prompt length: not stated"),
    ("cached_tokens", seen(good(cached_tokens=None)), "cached tokens: not stated"),
    ("counts", seen(good(completion_tokens=63)), "1 answers contradict themselves"),
    ("loops", seen(good(token_ids=(7, 8) * 32)), "1 of 1 outputs repeat themselves"),
    ("loop_lag", seen(good(), lag=Lag(600, 0.004, 0.0001)), "ran 4.0 ms late"),
    # Little in itself, though more than a hundredth of an answer of some milliseconds.
    (
        "loop_lag",
        seen(
            good(chunk_times_s=(0.2, 0.205), chunk_tokens=(2, 62), end_s=0.3),
            lag=Lag(600, 0.004, 0.0009),
        ),
        "ran 4.0 ms late",
    ),
    # Too few ticks to void a part by.
    ("loop_lag", seen(good(), lag=Lag(50, 0.2, 0.05)), "ran 200.0 ms late"),
    (
        "loop_lag",
        seen(
            good(chunk_times_s=(0.01, 90.0), chunk_tokens=(2, 62), end_s=90.0),
            lag=Lag(600, 1.0, 0.5),
        ),
        "time to first token is late by 5000.0%",
    ),
    (
        "concurrency",
        seen(good(), good("p1"), concurrency=2, occupancy=Occupancy(2, 2.0)),
        "",
    ),
    (
        "concurrency",
        seen(
            good(),
            good("p1", sent_s=3.5, chunk_times_s=(4.0,), chunk_tokens=(64,), end_s=4.1),
            concurrency=2,
            occupancy=Occupancy(2, 2.0),
        ),
        "at most 1 requests decoded at once, asked for 2",
    ),
    ("lateness", seen(good(planned_s=-0.01)), "requests left up to 10.0 ms after their time"),
    (
        "acceptance",
        seen(histogram(5, 1, source="estimate"), arm=AR),
        "acceptance length 2 .*an estimate",
    ),
]


@pytest.mark.parametrize(("gate", "observed", "words"), FLAGS, ids=[f[0] for f in FLAGS])
def test_what_a_reader_should_know_is_a_flag(gate: str, observed: Observed, words: str) -> None:
    found = judge(observed)
    assert found.invalid is None
    assert any(re.search(words, flag) for flag in found.flags) is bool(words)
    guilty = {g.__name__ for g in GATES if list(g(observed))}
    assert guilty == ({gate} if words else set())


def test_every_gate_is_shown_to_fail() -> None:
    assert {g.__name__ for g in GATES} == {case[0] for case in (*VOID, *FLAGS)}


def test_failed_requests_are_judged_by_nothing() -> None:
    failed = good(error="http_429: full", prompt_tokens=None, finish_reason=None, cached_tokens=9)
    assert judge(seen(failed)) == Findings(None, ())


def test_an_open_loop_has_no_concurrency_to_reach() -> None:
    observed = seen(good(), concurrency=None, occupancy=Occupancy(9, 0.2))
    assert judge(observed) == Findings(None, ())


def test_unknown_limits_excuse_nothing_below_one() -> None:
    deep = histogram(*[0] * 40, 1)
    assert judge(seen(deep, arm=CHAIN, block_size=None)).invalid is None
    assert judge(seen(good(stats={"acceptance_length": 0.5}), arm=CHAIN, block_size=None)).invalid


CODE = """
    assert add(1, 2) == 3
    assert add(4, 9) == 13
    assert add(0, 0) == 0
    assert mul(2, 5) == 10
for name in names:
    if name.startswith("_"):
        continue
    print(name, getattr(module, name))
return sorted(found, key=lambda item: item[1])
"""


@pytest.mark.parametrize(
    ("ids", "text", "looped"),
    [
        (IDS, None, False),
        ((5,) * 64, None, True),
        (tuple(range(20)) * 4, None, True),
        # It goes wrong late: the last 48 of 160 tokens repeat six.
        ((*range(112), *(200, 201, 202, 203, 204, 205) * 8), None, True),
        # A counter in an otherwise equal line.
        (tuple(t for i in range(12) for t in (*range(11), 100 + i)), None, True),
        # Too short to say.
        ((5,) * 20, None, False),
        ((), "and so on and so on " * 12, True),
        ((), CODE, False),
        ((), None, False),
    ],
)
def test_loops(ids: tuple[int, ...], text: str | None, looped: bool) -> None:
    assert is_looped(record("p", token_ids=ids, text=text)) is looped


def test_a_cell_of_loops_is_no_measurement_of_text() -> None:
    loop, text = good(token_ids=(5,) * 64), good()
    assert looped_reason([loop, text]) is None
    assert "2 of 3 outputs repeat themselves" in (looped_reason([loop, loop, text]) or "")
    failed = good(token_ids=(5,) * 64, error="broken_stream: gone")
    assert looped_reason([failed, failed, text]) is None
    assert looped_reason([]) is None


def test_repeated_share() -> None:
    assert repeated_share([1, 2, 3]) == 0.0
    assert repeated_share([1, 2, 3, 4, 1, 2, 3, 4]) == pytest.approx(1 / 5)


def test_peak_decoding_is_between_first_and_last_token() -> None:
    one = record("a", chunk_times_s=(1.0, 2.0))
    two = record("b", chunk_times_s=(2.0, 3.0))
    three = record("c", chunk_times_s=(2.5,))
    assert peak_decoding([one, two, three, record("d")]) == 2
    assert peak_decoding([]) == 0
