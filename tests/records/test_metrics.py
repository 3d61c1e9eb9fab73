"""Hand-made timelines: every expected number is computed in the test's comments."""

import dataclasses

import pytest

from ddtree.records import metrics
from ddtree.records.requests import RequestRecord


def request(
    times: tuple[float, ...] = (1.0, 2.0, 3.0),
    tokens: tuple[int, ...] = (1, 1, 1),
    sent: float = 0.0,
    end: float | None = None,
    error: str | None = None,
    stats: dict[str, object] | None = None,
) -> RequestRecord:
    count = sum(tokens)
    return RequestRecord(
        cell="c",
        attempt=0,
        block=0,
        prompt_id="p",
        sent_s=sent,
        chunk_times_s=times,
        chunk_tokens=tokens,
        end_s=end if end is not None else (times[-1] if times else sent),
        prompt_tokens=4,
        completion_tokens=count,
        finish_reason="stop",
        token_ids=tuple(range(count)),
        error=error,
        stats=stats,
    )


def test_times_of_a_request_with_chunks_of_several_tokens() -> None:
    # First chunk 3 tokens at 10.5, then 2 at 10.8 and 5 at 11.2: 7 tokens in 0.7 s.
    record = request(times=(10.5, 10.8, 11.2), tokens=(3, 2, 5), sent=10.0, end=11.25)
    assert metrics.ttft_s(record) == pytest.approx(0.5)
    assert metrics.tpot_s(record) == pytest.approx(0.1)
    assert metrics.decode_tokens_per_s(record) == pytest.approx(10.0)
    assert metrics.chunk_gaps_s(record) == pytest.approx((0.3, 0.4))
    assert metrics.end_to_end_s(record) == pytest.approx(1.25)
    assert metrics.end_to_end_tokens_per_s(record) == pytest.approx(8.0)


def test_n_minus_one_would_flatter_a_speculative_arm() -> None:
    # 8 of 64 tokens come first; dividing by 63 instead of 56 would claim 12.5 % more speed.
    record = request(times=(1.0, 1.0 + 56 * 0.02), tokens=(8, 56))
    assert metrics.tpot_s(record) == pytest.approx(0.02)


@pytest.mark.parametrize("tokens", [(5,), (1,)])
def test_one_chunk_has_no_decode_speed(tokens: tuple[int, ...]) -> None:
    record = request(times=(1.0,), tokens=tokens)
    assert metrics.ttft_s(record) == 1.0
    assert metrics.tpot_s(record) is None
    assert metrics.decode_tokens_per_s(record) is None


def test_failed_or_empty_requests_measure_nothing() -> None:
    failed = request(error="stall: 20 s without a token")
    for metric in (
        metrics.ttft_s,
        metrics.tpot_s,
        metrics.decode_tokens_per_s,
        metrics.end_to_end_s,
        metrics.end_to_end_tokens_per_s,
    ):
        assert metric(failed) is None
    assert metrics.chunk_gaps_s(failed) == ()
    assert metrics.ttft_s(request(times=(), tokens=())) is None
    assert metrics.tpot_s(request(times=(), tokens=())) is None


def test_window_leaves_out_prompts_ramp_up_and_drain() -> None:
    # A decodes 1..6, B 3..4 (sent at 2): both in 3..4, in which A gives one token and B four.
    a = request(times=(1, 2, 3, 4, 5, 6), tokens=(1,) * 6, end=6)
    b = request(times=(3, 4), tokens=(1, 4), sent=2, end=4)
    assert metrics.busy_window([a, b], 2) == metrics.BusyWindow(tokens=5.0, seconds=1.0)
    assert metrics.system_tokens_per_s([a, b], 2) == 5.0


def test_prompts_that_go_through_one_by_one_are_no_decoding() -> None:
    # Four prompts of 10 s each, then 10 tokens in a second, all at once: 40 tokens/s, whatever
    # the prompts took.
    wave = [request(times=(40, 41), tokens=(1, 10), sent=0, end=41) for _ in range(3)]
    early = request(times=(10, 40, 41), tokens=(1, 30, 10), sent=0, end=41)
    assert metrics.busy_window([early, *wave], 4) == metrics.BusyWindow(40.0, 1.0)


def test_chunk_across_the_edge_counts_by_its_share() -> None:
    # A's 4 tokens come in the gap 1..5, of which 2..4 is inside the window: 2 tokens. B's first
    # chunk is at the edge, its other at 4.
    a = request(times=(1, 5), tokens=(1, 4), end=5)
    b = request(times=(2, 4), tokens=(7, 3), sent=1, end=4)
    assert metrics.busy_window([a, b], 2) == metrics.BusyWindow(tokens=5.0, seconds=2.0)


def test_hand_over_leaves_out_the_next_ones_prompt() -> None:
    long = request(times=(1, 10), tokens=(1, 9), end=10)
    first = request(times=(1, 4), tokens=(1, 3), end=4)
    second = request(times=(6, 10), tokens=(1, 4), sent=4, end=10)
    # Both decode in 1..4 and 6..10: 3 + 3 tokens, then 4 + 4.
    assert metrics.busy_window([long, first, second], 2) == metrics.BusyWindow(14.0, 7.0)


def test_an_answer_in_one_chunk_neither_opens_nor_closes_the_window() -> None:
    pair = [request(times=(1, 5), tokens=(1, 4), end=5) for _ in range(2)]
    short = request(times=(3,), tokens=(1,), sent=2, end=4)
    assert metrics.busy_window(pair, 2) == metrics.BusyWindow(8.0, 4.0)
    # Its one token came in the time that all slots were busy.
    assert metrics.busy_window([*pair, short], 2) == metrics.BusyWindow(9.0, 4.0)


def test_no_window_without_enough_requests_at_once() -> None:
    apart = [request(end=3), request(times=(5, 6), tokens=(1, 1), sent=4, end=6)]
    assert metrics.busy_window(apart, 2) is None
    assert metrics.system_tokens_per_s([], 1) is None


def test_failed_request_holds_its_slot_until_it_fails_and_gives_nothing() -> None:
    # Good: 30 tokens over 0..3. The other one had its first token at 1 and failed at 2.
    good = request(times=(0, 3), tokens=(1, 30), end=3)
    stalled = request(times=(1.0,), tokens=(9,), end=2, error="stall: silent")
    assert metrics.busy_window([good, stalled], 2) == metrics.BusyWindow(10.0, 1.0)
    refused = request(times=(), tokens=(), end=2, error="http_429: busy")
    assert metrics.busy_window([good, refused], 2) is None


def speculative(histogram: list[int], cut: int = 0, **extra: object) -> dict[str, object]:
    rounds = sum(histogram)
    accepted = sum(a * n for a, n in enumerate(histogram))
    return {
        "rounds": rounds,
        "accepted_histogram": histogram,
        "cut_tokens": cut,
        "completion_tokens": 1 + accepted + rounds - cut,
        **extra,
    }


def test_acceptance_is_weighted_by_rounds_not_by_requests() -> None:
    # 1 round with 4 accepted, 9 rounds with 0: 1 + 4/10, where the mean of means is 3.
    records = [
        request(stats=speculative([0, 0, 0, 0, 1])),
        request(stats=speculative([9])),
    ]
    assert metrics.acceptance_length(records) == pytest.approx(1.4)
    assert metrics.accepted_by_depth(records) == pytest.approx((0.1, 0.1, 0.1, 0.1))


def test_survival_by_depth() -> None:
    # 2 rounds accept 0, 1 accepts 1, 1 accepts 3; a trailing zero adds no depth.
    records = [request(stats=speculative([2, 1, 0, 1, 0]))]
    assert metrics.accepted_by_depth(records) == (0.5, 0.25, 0.25)
    survival = metrics.accepted_by_depth(records)
    assert metrics.acceptance_length(records) == pytest.approx(1 + sum(survival))


def test_baseline_and_silent_servers_have_no_survival() -> None:
    assert metrics.accepted_by_depth([request(stats=speculative([5]))]) == ()
    assert metrics.acceptance_length([request(stats=speculative([5]))]) == 1.0
    assert metrics.acceptance_length([request()]) is None
    assert metrics.accepted_by_depth([request()]) == ()
    assert metrics.stage_seconds_per_round([request()]) is None


def test_stage_seconds_are_per_round_over_all_requests() -> None:
    records = [
        request(stats=speculative([1], stage_seconds={"draft": 0.3, "verify": 1.0})),
        request(stats=speculative([3], stage_seconds={"draft": 0.1})),
        request(stats=speculative([7])),
        request(error="cut: no end", stats=speculative([1], stage_seconds={"draft": 99.0})),
    ]
    assert metrics.stage_seconds_per_round(records) == pytest.approx({"draft": 0.1, "verify": 0.25})


def test_counts_that_reconcile() -> None:
    # 1 + (2 + 1) + (0 + 1) - 2 cut = 3 tokens.
    stats = speculative([1, 0, 1], cut=2)
    assert metrics.reconciliation_error(request(stats=stats)) is None
    assert metrics.reconciliation_error(request()) is None


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"cut_tokens": 1}, "does not reconcile"),
        ({"accepted_histogram": [0, 1, 1]}, "does not reconcile"),
        ({"rounds": 3}, "does not reconcile"),
        ({"rounds": None}, "lack 'rounds'"),
    ],
)
def test_stats_that_do_not_reconcile(change: dict[str, object], words: str) -> None:
    stats = {**speculative([1, 0, 1], cut=2), **change}
    stats = {name: value for name, value in stats.items() if value is not None}
    error = metrics.reconciliation_error(request(stats=stats))
    assert error is not None
    assert words in error


def test_ids_chunks_and_usage_must_agree() -> None:
    record = request(stats=speculative([1, 0, 1], cut=2))
    short = dataclasses.replace(record, token_ids=record.token_ids[:-1])
    assert "2 token ids" in str(metrics.reconciliation_error(short))
    usage = dataclasses.replace(request(), completion_tokens=4)
    assert "4 completion_tokens" in str(metrics.reconciliation_error(usage))
    other = {**speculative([1, 0, 2], cut=2)}
    assert "in usage" in str(metrics.reconciliation_error(request(stats=other)))


def test_an_open_loop_counts_from_when_a_request_was_to_be_sent() -> None:
    # Meant for 9.0, sent at 10.0 because the client was behind: the wait is the user's.
    record = dataclasses.replace(
        request(times=(10.5, 11.0), tokens=(1, 1), sent=10.0), planned_s=9.0
    )
    assert metrics.ttft_s(record) == pytest.approx(1.5)
    assert metrics.end_to_end_s(record) == pytest.approx(2.0)
    assert metrics.tpot_s(record) == pytest.approx(0.5)


def test_round_seconds_are_decode_time_over_rounds() -> None:
    # 1 + 8 tokens, 4 rounds in 2 s; the baseline needs 8 steps in 2.4 s.
    arm = request(times=(1.0, 2.0, 3.0), tokens=(1, 4, 4), stats={"rounds": 4})
    base = request(times=(1.0, 3.4), tokens=(1, 8))
    assert metrics.round_seconds([arm]) == pytest.approx(0.5)
    assert metrics.step_seconds([base]) == pytest.approx(0.3)
    # The speed-up is the gain over the cost: (9 - 1) / 4 tokens a round over 0.5 / 0.3.
    gain = (8 / 4) / (0.5 / 0.3)
    assert gain == pytest.approx(2.4 / 2.0)
    # A first chunk of 3 leaves 6 of 8 tokens, and so 3 of the 4 rounds, for the time measured.
    early = request(times=(1.0, 2.5), tokens=(3, 6), stats={"rounds": 4})
    assert metrics.round_seconds([early]) == pytest.approx(0.5)
    assert metrics.round_seconds([request(stats=None)]) is None
    assert metrics.step_seconds([request(times=(1.0,), tokens=(9,))]) is None
    # Known of both together alone: 0.5 s a round, and 2 s for 4 rounds more.
    told = [request(times=(1.0, 3.0), tokens=(1, 8), stats=None), arm]
    assert metrics.round_seconds(told, rounds=8) == pytest.approx(4 / 8)


def test_what_is_counted_without_ids_owes_no_ids() -> None:
    record = dataclasses.replace(request(), token_ids=(), text="three words here")
    assert metrics.reconciliation_error(record) is not None
    for counted in ("usage", "estimate"):
        told = dataclasses.replace(record, counted=counted)
        assert metrics.reconciliation_error(told) is None
        short = dataclasses.replace(told, completion_tokens=5)
        assert "3 tokens in chunks" in (metrics.reconciliation_error(short) or "")


@pytest.mark.parametrize("source", ["counters", "estimate"])
def test_guesses_and_shares_of_counters_owe_no_identity(source: str) -> None:
    stats = {"rounds": 1, "accepted_histogram": [0, 0, 0, 1], "cut_tokens": 0, "source": source}
    assert metrics.reconciliation_error(request(stats=stats)) is None
    stats |= {"completion_tokens": 3, "source": "server"}
    assert metrics.reconciliation_error(request(stats=stats)) is not None
