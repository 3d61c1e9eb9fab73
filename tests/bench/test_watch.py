import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from ddtree.bench import watch
from ddtree.bench.watch import (
    CpuReading,
    cpu_reader,
    median_step_s,
    others_reason,
    ours,
    share_between,
    step_reason,
    step_s,
)
from ddtree.records.requests import RequestRecord

START = CpuReading(at_s=100.0, busy_s=500.0, own_s=200.0, cores=2)


def after(seconds: float, own: float, others: float) -> CpuReading:
    return CpuReading(100.0 + seconds, 500.0 + own + others, 200.0 + own, 2)


@pytest.mark.parametrize(
    ("seconds", "own", "others", "expected"),
    [
        (10.0, 18.0, 0.0, 0.0),
        (10.0, 0.0, 0.0, 0.0),
        # Two ticks for each of two cores are the counters' noise.
        (10.0, 18.0, 0.04, 0.0),
        (10.0, 10.0, 5.04, 0.25),
        (10.0, 0.0, 20.04, 1.0),
        # An own process that ended takes its seconds with it: never a negative share.
        (10.0, 5.0, -3.0, 0.0),
    ],
)
def test_share(seconds: float, own: float, others: float, expected: float) -> None:
    share = share_between(START, after(seconds, own, others))
    assert share.seconds == pytest.approx(seconds)
    assert share.others == pytest.approx(expected)


def test_no_time_gives_no_share() -> None:
    assert share_between(START, START).others == 0.0


@pytest.mark.parametrize(
    ("threads", "expected"), [(None, 0.1), (16, 0.1), (8, 0.1), (4, 0.2), (1, 0.8)]
)
def test_share_is_of_the_servers_threads_where_they_are_fewer(
    threads: int | None, expected: float
) -> None:
    before, later = replace(START, cores=8), replace(after(10.0, 20.0, 8.16), cores=8)
    assert share_between(before, later, threads).others == pytest.approx(expected)


def test_counters_are_matched_by_cpu_id() -> None:
    # CPU 1 is offline: what is second in the list has id 2.
    by_id = {0: "a", 2: "c", 3: "d"}
    assert ours(by_id, [2, 3]) == ("c", "d")
    # A container that numbers its own CPUs anew.
    assert ours({0: "a", 1: "b"}, [5, 9]) == ("a", "b")


def test_reader_of_a_machine_with_an_offline_cpu(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    stat = tmp_path / "stat"
    stat.write_text("cpu  9 9\ncpu0 1 1\ncpu7 2 2\nintr 5\n")
    listed = [SimpleNamespace(user=1.0), SimpleNamespace(user=20.0)]
    monkeypatch.setattr(watch, "_STAT", stat)
    monkeypatch.setattr(watch.psutil, "cpu_times", lambda percpu: listed)
    monkeypatch.setattr(watch, "_cores", lambda: [7])
    reading = cpu_reader(lambda: [])()
    assert (reading.busy_s, reading.cores) == (20.0, 1)


def test_planted_hog_makes_a_block_invalid() -> None:
    quiet = share_between(START, after(2.0, 3.8, 0.2))
    hog = share_between(START, after(2.0, 2.9, 1.0))
    assert others_reason(quiet) is None
    assert others_reason(hog) == (
        "other processes took 24.0% CPU (limit 5%); stop them, or use a quieter machine"
    )


@pytest.mark.parametrize(("share", "valid"), [(0.05, True), (0.0501, False)])
def test_the_limit_itself_is_allowed(share: float, valid: bool) -> None:
    reading = share_between(START, after(10.0, 0.0, 0.0))
    assert (others_reason(replace(reading, others=share)) is None) is valid


def burn(seconds: float) -> subprocess.Popen[bytes]:
    code = f"import time\nwhile time.process_time() < {seconds}: pass"
    return subprocess.Popen([sys.executable, "-c", code])


def test_real_reader_counts_our_children_as_own() -> None:
    read = cpu_reader(lambda: [])
    before = read()
    with burn(0.3) as child:
        child.wait()
    now = read()
    assert now.own_s - before.own_s >= 0.28
    assert now.busy_s - before.busy_s >= 0.2
    assert now.at_s > before.at_s
    assert now.cores >= 1


def test_real_reader_outlives_a_dead_server() -> None:
    with burn(0.0) as child:
        child.wait()
    assert cpu_reader(lambda: [child.pid])().own_s > 0


def timeline(*times: float) -> RequestRecord:
    return RequestRecord(
        cell="c",
        attempt=0,
        block=0,
        prompt_id="p",
        sent_s=0.0,
        chunk_times_s=times,
        chunk_tokens=(1,) * len(times),
        end_s=times[-1],
        prompt_tokens=1,
        completion_tokens=len(times),
        finish_reason="length",
        token_ids=(1,) * len(times),
        error=None,
        stats=None,
    )


def test_median_step_over_requests() -> None:
    assert median_step_s([timeline(1.0, 1.04, 1.08, 2.0), timeline(3.0, 3.05)]) == pytest.approx(
        0.045
    )
    assert median_step_s([timeline(1.0)]) is None
    assert median_step_s([replace(timeline(1.0, 2.0), error="broken_stream: x")]) is None


def test_step_is_the_servers_own_where_it_tells() -> None:
    # Gaps of a second hold another request's prefill; the rounds themselves took 40 ms.
    told = {"rounds": 3, "stage_seconds": {"verify": 0.09, "host": 0.03}}
    slow = timeline(1.0, 2.0, 3.0, 4.0)
    assert step_s([replace(slow, stats=told), slow]) == pytest.approx(0.04)
    assert step_s([slow]) == pytest.approx(1.0)
    assert step_s([timeline(1.0)]) is None


@pytest.mark.parametrize(
    ("step", "calibration", "valid"),
    [
        (0.059, 0.04, True),
        (0.061, 0.04, False),
        (None, 0.04, True),
        (0.06, None, True),
        (0.06, 0.0, True),
    ],
)
def test_step_limit(step: float | None, calibration: float | None, valid: bool) -> None:
    reason = step_reason(step, calibration)
    assert (reason is None) is valid
    if reason is not None:
        assert reason.startswith("the ar step took 61.0 ms, 1.5 times its calibration of 40.0 ms")
