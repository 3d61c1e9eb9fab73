"""A part as a whole: how its requests arrive, what is kept of it, when it is void."""

from dataclasses import replace
from pathlib import Path

import pytest
from mock_backend import spec_of
from parts import run_one

from ddtree.bench import part as part_module
from ddtree.bench.gates import Findings
from ddtree.bench.part import ServerCrashError
from ddtree.endpoint.load import TIMEOUT_CELL, arrival_times
from ddtree.endpoint.mock_script import MockFaults, MockScript
from ddtree.endpoint.stream import error_class
from ddtree.records.settings import Setting

SLOW = MockScript(prefill_s=0.05, round_s={"ddtree": 0.005}, slots=64)


@pytest.mark.parametrize("concurrency", [1, 8, 32, 64])
def test_the_server_sees_the_concurrency_that_was_asked_for(
    tmp_path: Path, concurrency: int
) -> None:
    script = replace(SLOW, prefill_s=0.5 if concurrency > 8 else 0.05)
    ran = run_one(tmp_path, script, 2 * concurrency, Setting(60, concurrency))
    assert ran.server.peak_in_flight == concurrency
    assert ran.block.extra["peak_in_flight"] == concurrency
    assert ran.block.extra["achieved_concurrency"] == pytest.approx(concurrency, rel=0.05)
    assert [r.prompt_id for r in ran.result.records] == [f"p{i}" for i in range(2 * concurrency)]
    assert sorted(r.prompt_id for r in ran.logged) == sorted(
        r.prompt_id for r in ran.result.records
    )


def test_a_block_keeps_what_was_observed(tmp_path: Path) -> None:
    ran = run_one(tmp_path, SLOW, 4)
    assert (ran.block.state, ran.result.invalid) == ("ok", None)
    extra = ran.block.extra
    assert extra["max_tokens"] == dict.fromkeys(["p0", "p1", "p2", "p3"], 12)
    assert extra["others_cpu_share"] == 0.0
    assert extra["loop_lag_p99_s"] >= 0.0
    assert isinstance(extra["flags"], list)


def test_what_a_gate_voids_is_void_and_says_why(tmp_path: Path) -> None:
    # Four tokens accepted in a round, by a drafter whose block has room for two.
    script = replace(SLOW, accepted={"ddtree": (4,)})
    ran = run_one(tmp_path, script, 2, block_size=3)
    assert ran.block.state == "invalid"
    assert ran.block.reason == ran.result.invalid
    assert "acceptance length 5 of p0 is outside 1 to 3" in (ran.block.reason or "")
    other = tmp_path / "other"
    other.mkdir()
    assert run_one(other, script, 2).block.state == "ok"


def test_flags_go_to_the_block(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(part_module, "judge", lambda _: Findings(None, ("a flag", "another")))
    ran = run_one(tmp_path, SLOW, 2)
    assert ran.block.state == "ok"
    assert ran.block.extra["flags"] == ["a flag", "another"]


@pytest.mark.parametrize("process", ["poisson", "constant"])
def test_open_loop_keeps_its_times(tmp_path: Path, process: str) -> None:
    spec = spec_of(arrivals=process, rates=(40.0,), seed=3)
    ran = run_one(tmp_path, SLOW, 12, Setting(60, 2, rate=40.0), spec)
    planned = [record.planned_s for record in ran.result.records]
    times = arrival_times(12, 40.0, 3 * 10_007, process)  # type: ignore[arg-type]
    gaps = [p - planned[0] for p in planned]  # type: ignore[operator]
    assert gaps == pytest.approx([t - times[0] for t in times])
    assert all(r.error is None for r in ran.result.records)
    assert all(r.sent_s >= r.planned_s for r in ran.result.records)  # type: ignore[operator]
    assert [r.planned_s for r in sorted(ran.logged, key=lambda r: int(r.prompt_id[1:]))] == planned


def test_a_part_that_takes_too_long_is_cut(tmp_path: Path) -> None:
    spec = spec_of()
    spec = replace(spec, deadlines=replace(spec.deadlines, part_s=0.6))
    stalling = MockScript(
        round_s={"ddtree": 0.002}, slots=64, faults=MockFaults(stall_after_chunks=3)
    )
    with pytest.raises(ServerCrashError, match="no request made progress: timeout_cell") as caught:
        run_one(tmp_path, stalling, 5, Setting(60, 2), spec)
    assert caught.value.kind == "no_progress"


def test_requests_that_were_cut_off_are_failures(tmp_path: Path) -> None:
    spec = spec_of()
    spec = replace(spec, deadlines=replace(spec.deadlines, part_s=0.8))
    # One request takes a third of a second: two are through, and the third is not.
    script = MockScript(prefill_s=0.33)
    ran = run_one(tmp_path, script, 6, spec=spec)
    errors = [r.error and error_class(r.error) for r in ran.result.records]
    assert errors[0] is None
    assert errors[-3:] == [TIMEOUT_CELL] * 3
    assert len(ran.logged) == 6
    assert ran.block.state == "ok"


def test_lead_in_is_sent_and_not_kept(tmp_path: Path) -> None:
    ran = run_one(tmp_path, SLOW, 8, Setting(60, 4), spec_of(lead_in=True))
    assert len(ran.server.log) == 12
    assert [entry.max_tokens for entry in ran.server.log[:4]] == [3, 6, 9, 12]
    assert {entry.prompt[0] for entry in ran.server.log[:4]} == {901, 902, 903, 904}
    assert len(ran.logged) == 8
    assert ran.server.peak_in_flight == 4
