"""The 27 ways in which a benchmark harness was seen to fail, and the tests that ours does not.

`CLASSES` maps each to the tests that prove it. What no other file tests is here.
"""

import ast
import asyncio
import json
import subprocess
import sys
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from mock_backend import MockBackend, bench, cell, ledger_of, run, spec_of
from parts import run_one

from ddtree.bench import run as run_module
from ddtree.bench.summarise import write_summary
from ddtree.bench.warmup import AGREEING
from ddtree.endpoint.calls import CompletionRequest, Deadlines
from ddtree.endpoint.client import ServerClient
from ddtree.endpoint.mock import MockRequest
from ddtree.endpoint.mock_script import MockFaults, MockScript
from ddtree.records.files import read_requests
from ddtree.records.metrics import chunk_gaps_s, end_to_end_s, tpot_s, ttft_s
from ddtree.records.requests import RequestRecord
from ddtree.records.settings import Setting

TESTS = Path(__file__).parents[1]
HERE = "bench/test_failure_classes.py::"
RUN, TROUBLE = "bench/test_run.py::", "bench/test_run_trouble.py::"
GATES, ARRIVALS = "bench/test_gates.py::", "bench/test_arrivals.py::"
CLIENT, LAUNCH = "endpoint/test_client.py::", "endpoint/test_launch.py::"
METRICS, SELFTEST = "records/test_metrics.py::", "bench/test_selftest.py::"
LEDGER, FILES = "records/test_ledger.py::", "records/test_record_files.py::"
VOID = f"{GATES}test_what_biases_numbers_makes_the_part_invalid"

CLASSES: dict[int, tuple[str, tuple[str, ...]]] = {
    1: (
        "an error inside the stream counts as a success",
        (
            f"{CLIENT}test_fault_becomes_a_failed_record",
            f"{HERE}test_streams_that_hold_an_error_alone_make_a_cell_invalid",
            f"{SELFTEST}test_failures_called_successes_are_caught",
        ),
    ),
    2: (
        "failures flatter the result",
        (
            f"{RUN}test_thirty_percent_refused_is_invalid_not_faster",
            "bench/test_summarise.py::test_the_limit_is_five_percent",
            f"{SELFTEST}test_dropped_failures_are_caught",
        ),
    ),
    3: (
        "a chunk is counted as a token",
        (
            f"{CLIENT}test_chunks_are_not_tokens",
            f"{METRICS}test_times_of_a_request_with_chunks_of_several_tokens",
            f"{SELFTEST}test_a_chunk_counted_as_a_token_is_caught",
        ),
    ),
    4: (
        "tpot divides by n - 1 although the first chunk held more",
        (
            f"{METRICS}test_n_minus_one_would_flatter_a_speculative_arm",
            f"{SELFTEST}test_tpot_by_n_minus_one_is_caught",
        ),
    ),
    5: (
        "an event split between reads is lost or breaks the parser",
        (
            "endpoint/test_sse.py::test_split_at_every_byte",
            "endpoint/test_sse.py::test_split_anywhere",
            "endpoint/test_sse.py::test_byte_by_byte_with_empty_reads",
            "endpoint/test_sse.py::test_each_line_end_dispatches_at_once",
        ),
    ),
    6: (
        "times to first token of zero, percentiles that fall",
        (
            f"{HERE}test_times_of_every_request_fit_together",
            "records/test_quantiles.py::test_a_quantile_is_an_order_statistic",
            VOID,
        ),
    ),
    7: (
        "long lines and long prompts throttle the client",
        (
            "endpoint/test_sse.py::test_mebibyte_line_in_small_reads",
            f"{HERE}test_mebibyte_lines_and_long_prompts_at_concurrency_64",
        ),
    ),
    8: (
        "a silent stream hangs everything",
        (
            f"{CLIENT}test_deadlines",
            f"{CLIENT}test_keep_alive_comments_do_not_hide_a_stall",
            f"{ARRIVALS}test_the_deadline_cuts_and_nothing_hangs",
            "bench/test_part.py::test_a_part_that_takes_too_long_is_cut",
        ),
    ),
    9: (
        "a dead worker leaves the parent waiting",
        (
            f"{LAUNCH}test_server_ends_when_its_client_is_killed",
            "bench/test_kill.py::test_a_killed_run_ends_as_an_undisturbed_one",
            "endpoint/test_load.py::test_an_error_ends_the_loop",
        ),
    ),
    10: (
        "the real concurrency is not the one asked for",
        (
            "bench/test_part.py::test_the_server_sees_the_concurrency_that_was_asked_for",
            f"{ARRIVALS}test_occupancy_sees_a_slot_that_comes_back_late",
            f"{CLIENT}test_no_connection_limit",
            VOID,
        ),
    ),
    11: (
        "the client's own load delays its stamps",
        (
            "bench/test_lag.py::test_a_blocked_loop_is_seen",
            f"{GATES}test_what_a_reader_should_know_is_a_flag",
            f"{ARRIVALS}test_a_client_that_falls_behind_hides_no_wait",
        ),
    ),
    12: (
        "prompts come out of a prefix cache",
        (
            VOID,
            f"{RUN}test_measured_prompts_are_used_for_nothing_else",
            "endpoint/test_kinds.py::test_cached_prompts_are_told_and_gone_after_a_reset",
        ),
    ),
    13: (
        "prompts of another length than planned",
        (
            f"{CLIENT}test_fault_becomes_a_failed_record",
            "bench/test_workload.py::test_exact_lengths_distinct_and_reproducible",
            VOID,
        ),
    ),
    14: (
        "warm-up leaks into the metrics",
        (
            f"{RUN}test_measured_prompts_are_used_for_nothing_else",
            "bench/test_part.py::test_lead_in_is_sent_and_not_kept",
        ),
    ),
    15: (
        "the burst at the start makes the tail",
        (f"{ARRIVALS}test_lead_in_takes_the_start_burst_out_of_the_tail",),
    ),
    16: (
        "short runs show a lower throughput",
        (
            f"{ARRIVALS}test_short_and_long_runs_agree_on_throughput",
            f"{METRICS}test_window_leaves_out_prompts_ramp_up_and_drain",
        ),
    ),
    17: (
        "results are lost because they are written at the end",
        (
            f"{FILES}test_kill_9_in_mid_write_loses_no_finished_request",
            f"{HERE}test_a_writer_that_fails_leaves_the_data",
            f"{HERE}test_a_run_in_which_everything_fails_has_a_summary",
            "bench/test_kill.py::test_a_killed_run_ends_as_an_undisturbed_one",
        ),
    ),
    18: (
        "a sweep dies at a bad cell, or tries it for ever",
        (
            f"{RUN}test_arm_that_kills_the_server_twice_is_quarantined",
            f"{RUN}test_always_noisy_ends_invalid_and_a_quiet_resume_heals",
            f"{TROUBLE}test_quarantine_outlives_a_resume_and_voids_nothing",
            f"{LEDGER}test_block_life",
        ),
    ),
    19: (
        "a resume skips what changed, or overwrites",
        (
            f"{LEDGER}test_every_field_changes_the_key",
            f"{TROUBLE}test_changed_code_is_measured_anew",
            f"{RUN}test_folder_of_another_spec_is_refused",
            f"{RUN}test_finished_run_is_not_run_again",
            f"{FILES}test_torn_at_any_byte_loses_only_the_unfinished_line",
        ),
    ),
    20: (
        "health lies",
        (
            f"{LAUNCH}test_a_server_that_only_listens_is_not_ready",
            f"{RUN}test_stall_is_a_timeout_and_the_server_is_restarted",
        ),
    ),
    21: (
        "the server dies and the client waits",
        (
            f"{TROUBLE}test_a_broken_stream_is_given_time_to_be_a_crash",
            f"{LAUNCH}test_crash_in_a_request",
            f"{LAUNCH}test_start_generate_stop_leaves_nothing",
            "bench/test_kill.py::test_a_killed_run_ends_as_an_undisturbed_one",
        ),
    ),
    22: (
        "the temperature axis is not real",
        (
            "bench/test_temperature.py::test_a_prompt_has_one_seed_and_every_prompt_another",
            "endpoint/test_kinds.py::test_sampling_fields_are_all_stated",
            "endpoint/test_kinds.py::test_sampled_outputs_depend_on_the_seed_alone",
        ),
    ),
    23: (
        "acceptance is overcounted at the end of a sequence",
        (
            f"{METRICS}test_stats_that_do_not_reconcile",
            "bench/test_summarise.py::test_counts_that_contradict_each_other_are_a_bug",
            VOID,
        ),
    ),
    24: (
        "outputs differ, and nobody knows whether it matters",
        (
            f"{TROUBLE}test_control_says_its_ratio_and_compares_outputs",
            f"{RUN}test_wrong_outputs_are_not_lossless_and_never_recommended",
            "verify/test_grade.py::test_more_near_ties_than_the_control_explains_are_suspects",
        ),
    ),
    25: (
        "runs can't be compared",
        (
            "bench/test_compare.py::test_a_run_against_itself_is_one_everywhere",
            "bench/test_results_command.py::test_compare",
        ),
    ),
    26: ("it needs a network", (f"{HERE}test_a_run_and_its_report_need_no_network",)),
    27: (
        "a cold engine is inside the sample",
        (
            "bench/test_warmup.py::test_a_cold_engine_is_warmed_until_three_batches_agree",
            "bench/test_warmup.py::test_what_never_settles_is_bounded_and_said",
            f"{HERE}test_every_shape_of_every_arm_is_warmed_before_it_is_measured",
        ),
    ),
}


def test_every_class_has_tests() -> None:
    assert sorted(CLASSES) == list(range(1, 28))
    assert all(tests for _, tests in CLASSES.values())


def test_every_test_named_here_exists() -> None:
    """As a function that pytest collects, and that nothing skips."""
    for name in sorted({name for _, tests in CLASSES.values() for name in tests}):
        file, _, function = name.partition("::")
        assert is_run(TESTS / file, function), name
    assert not is_run(Path(__file__), "test_that_nobody_wrote")


def is_run(path: Path, name: str) -> bool:
    """Whether a file has a test of that name, not marked to be skipped or to fail."""
    body = ast.parse(path.read_text()).body
    found = [node for node in body if isinstance(node, ast.FunctionDef) and node.name == name]
    marks = " ".join(ast.unparse(mark) for node in found for mark in node.decorator_list)
    named = path.name.startswith("test_") and name.startswith("test_")
    return bool(found) and named and "skip" not in marks and "xfail" not in marks


def test_streams_that_hold_an_error_alone_make_a_cell_invalid(tmp_path: Path) -> None:
    """Warm-up, calibration and the very first measured request go well, then none does."""
    spec = spec_of(prompts=3)
    spoiled = MockScript(faults=MockFaults(error_share=1.0))

    def spoil(entry: MockRequest) -> bool:
        if entry.max_tokens == spec.max_tokens:
            backend.started[0][1].server.script = spoiled
        return False

    backend = MockBackend(dies_at=spoil)
    summary = bench(tmp_path, spec, backend)
    for found in summary.cells:
        assert (found.state, found.requests) == ("invalid", 3)
        assert found.failed_requests >= 2
        assert found.speedup is None
    failed = [r for r in read_requests(tmp_path / "requests.jsonl") if r.error is not None]
    assert len(failed) == 8
    assert {r.error for r in failed} == {"in_band: scripted error"}
    assert not any(r.chunk_tokens or r.completion_tokens for r in failed)


@pytest.mark.parametrize("concurrency", [1, 8])
def test_times_of_every_request_fit_together(tmp_path: Path, concurrency: int) -> None:
    script = MockScript(prefill_s=0.02, round_s={"ddtree": 0.004}, first_chunk_rounds=1)
    ran = run_one(tmp_path, script, 16, Setting(60, concurrency))
    assert len(ran.logged) == 16
    for record in ran.logged:
        first, whole, gaps = ttft_s(record), end_to_end_s(record), chunk_gaps_s(record)
        assert first is not None
        assert whole is not None
        assert 0.02 <= first <= whole
        assert all(gap >= 0 for gap in gaps)
        last = record.chunk_times_s[-1] - record.sent_s
        assert sum(gaps) == pytest.approx(last - first)
        assert (tpot_s(record) or 0) * sum(record.chunk_tokens[1:]) == pytest.approx(sum(gaps))
        assert all(a <= b for a, b in pairwise(record.chunk_times_s))


MEBIBYTE = "x" * (1 << 20)


async def long_lines(http: web.Request) -> web.StreamResponse:
    """Two tokens: one in a line of a mebibyte, one in a short line."""
    body = await http.json()
    response = web.StreamResponse()
    await response.prepare(http)
    end = {"completion_tokens": 2, "prompt_tokens": len(body["prompt"]), "token_ids": [1, 2]}
    events: list[dict[str, Any]] = [
        {"choices": [{"text": MEBIBYTE, "token_ids": [1], "finish_reason": None}]},
        {"choices": [{"text": "b", "token_ids": [2], "finish_reason": "length"}], "ddtree": end},
        {"choices": [], "usage": end},
    ]
    for event in events:
        await response.write(b"data: " + json.dumps(event).encode() + b"\n\n")
    await response.write(b"data: [DONE]\n\n")
    return response


def test_mebibyte_lines_and_long_prompts_at_concurrency_64() -> None:
    """Every token of 64 streams arrives, each behind a prompt of 8,192 and in a huge line."""

    async def work() -> list[RequestRecord]:
        app = web.Application(client_max_size=64 << 20)
        app.add_routes([web.post("/v1/completions", long_lines)])
        runner = web.AppRunner(app, shutdown_timeout=0.1)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0, backlog=256).start()
        url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        try:
            async with ServerClient(url, deadlines=Deadlines(60, 60, 90)) as client:
                request = CompletionRequest(tuple(range(8192)), 2)
                return await asyncio.gather(*(client.stream_completion(request) for _ in range(64)))
        finally:
            await runner.cleanup()

    records = run(work(), 120)
    assert {r.error for r in records} == {None}
    assert {(r.prompt_tokens, r.completion_tokens, r.token_ids) for r in records} == {
        (8192, 2, (1, 2))
    }
    assert {r.chunk_tokens for r in records} == {(1, 1)}


def test_a_writer_that_fails_leaves_the_data(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_: Path) -> Any:
        raise OSError("no space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(run_module, "write_summary", full)
        with pytest.raises(OSError, match="no space left"):
            bench(tmp_path, spec_of(prompts=2))
    assert not (tmp_path / "summary.json").exists()
    assert len(read_requests(tmp_path / "requests.jsonl")) == 6
    summary = write_summary(tmp_path)
    assert {c.state for c in summary.cells} == {"ok"}
    assert {c.requests for c in summary.cells} == {2}


def test_a_run_in_which_everything_fails_has_a_summary(tmp_path: Path) -> None:
    backend = MockBackend([MockScript(faults=MockFaults(refuse_share=1.0))])
    summary = bench(tmp_path, spec_of(prompts=2), backend)
    assert (tmp_path / "summary.json").exists()
    assert all(c.state in ("invalid", "failed") and c.reason for c in summary.cells)
    assert cell(summary, spec_of().arms[0]).speedup is None
    assert set(ledger_of(tmp_path)[0]) == {"ar", "chain", "ddtree(4,2)"}


def test_every_shape_of_every_arm_is_warmed_before_it_is_measured(tmp_path: Path) -> None:
    spec = spec_of(contexts=(60, 70), concurrencies=(1, 2), prompts=2, warmup_context=None)
    backend = MockBackend()
    bench(tmp_path, spec, backend)
    warm: Counter[tuple[str, int]] = Counter()
    checked = set()
    for entry in backend.log:
        shape = (entry.method, len(entry.prompt))
        if entry.max_tokens == spec.warmup_tokens:
            warm[shape] += 1
        elif entry.max_tokens == spec.max_tokens and shape not in checked:
            # Three batches at concurrency 1, which comes first.
            assert warm[shape] >= AGREEING, shape
            checked.add(shape)
    assert len(checked) == 6
    assert all(count >= 3 * AGREEING for count in warm.values())


OFFLINE = """
import sys
from pathlib import Path

def block(event, arguments):
    here = ("127.0.0.1", "::1", "localhost")
    if event in ("socket.connect", "socket.sendto") and isinstance(arguments[1], tuple):
        host = arguments[1][0]
    elif event in ("socket.getaddrinfo", "socket.gethostbyname"):
        host = arguments[0]
    else:
        return
    if host not in (*here, None) and str(host).strip("b'") not in here:
        raise PermissionError(f"network: {{host}}")

sys.addaudithook(block)
import socket
try:
    # An address of documentation, where nobody is.
    socket.create_connection(("192.0.2.1", 80), timeout=1)
except PermissionError:
    print("blocked")

sys.path[:0] = {path!r}
from mock_backend import MockBackend, bench, spec_of
from ddtree.report.page import write_report
summary = bench(Path({folder!r}), spec_of(prompts=2, control=True, workload="mixed"))
write_report(summary, Path({folder!r}) / "report.html")
print(len(summary.cells), {{cell.state for cell in summary.cells}})
"""


def test_a_run_and_its_report_need_no_network(tmp_path: Path) -> None:
    """In a process whose sockets reach this machine alone."""
    source = OFFLINE.format(path=sys.path, folder=str(tmp_path))
    done = subprocess.run(
        [sys.executable, "-c", source], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.split("\n")[:2] == ["blocked", "3 {'ok'}"]
    assert (tmp_path / "report.html").stat().st_size > 10_000
