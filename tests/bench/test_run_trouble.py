"""Servers that die and runs that are cut off: what is lost, what is kept, what is blamed."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from mock_backend import MockBackend, Notes, bench, cell, ledger_of, measured, run, spec_of

from ddtree.bench import group
from ddtree.bench.grading import Grading
from ddtree.bench.group import CUT_OFF, OVERRUN
from ddtree.bench.part import ServerCrashError, check_server
from ddtree.bench.session import check_fits, identify
from ddtree.endpoint.client import ServerClient
from ddtree.endpoint.mock_script import VOCABULARY, MockFaults, MockScript
from ddtree.errors import ConfigError, EndpointError
from ddtree.records import provenance
from ddtree.records.arms import Arm
from ddtree.records.files import read_requests
from ddtree.records.requests import RequestRecord

AR, CHAIN, TREE, WIDE = Arm("ar"), Arm("chain"), Arm("ddtree", 4, 2), Arm("ddtree", 8, 2)


@pytest.mark.parametrize(
    "changed",
    [{"source_sha256": "other"}, {"cpu": "other"}, {"git": provenance.GitState("f", False)}],
)
def test_code_and_processor_are_part_of_the_identity(changed: dict[str, Any]) -> None:
    here = provenance.collect((), {}, {})
    first = identify(spec_of(), {"model": "m"}, here).settings
    other = identify(spec_of(), {"model": "m"}, replace(here, **changed)).settings
    assert len(set(first) ^ set(other)) == 2


def test_changed_code_is_measured_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = spec_of(prompts=1)
    bench(tmp_path, spec)
    monkeypatch.setattr(provenance, "source_sha256", lambda: "another state of the code")
    backend = MockBackend()
    bench(tmp_path, spec, backend)
    assert len(measured(backend, spec)) == 3


@dataclass
class DyingServer:
    """Counts as alive to the first askers."""

    asked: int = 0
    lives_for: int = 3

    def check_alive(self) -> None:
        self.asked += 1
        if self.asked > self.lives_for:
            raise EndpointError("gone")


def failed(error: str | None) -> RequestRecord:
    return RequestRecord(
        *("c", 0, 0, "p", 0.0, (), (), None, None, None, None, ()), error=error, stats=None
    )


def test_a_broken_stream_is_given_time_to_be_a_crash() -> None:
    broken = (failed(None), failed("broken_stream: reset"))
    with pytest.raises(ServerCrashError, match="gone") as caught:
        run(check_server(DyingServer(), broken))  # type: ignore[arg-type]
    assert caught.value.kind == "server_crash"
    calm = DyingServer()
    run(check_server(calm, (failed(None), failed("http_429: full"))))  # type: ignore[arg-type]
    assert calm.asked == 1


def test_arm_that_kills_the_server_in_warm_up_is_quarantined(tmp_path: Path) -> None:
    notes = Notes()
    backend = MockBackend(dies_at=lambda e: e.method == "ddtree" and e.max_tokens == 2)
    summary = bench(tmp_path, spec_of(), backend, notes)
    assert len(backend.started) == 3
    assert {c.arm: c.state for c in summary.cells} == {AR: "ok", CHAIN: "ok", TREE: "quarantined"}
    blamed = [n for n in notes.notes if "warm-up: the server stopped while running ddtree" in n]
    assert len(blamed) == 2


def test_baseline_that_kills_the_server_in_warm_up_fails_the_group(tmp_path: Path) -> None:
    backend = MockBackend(dies_at=lambda e: e.method == "ar" and e.max_tokens == 2)
    summary = bench(tmp_path, spec_of(), backend)
    assert {c.state for c in summary.cells} == {"failed"}
    assert measured(backend, spec_of()) == []


def test_quarantine_outlives_a_resume_and_voids_nothing(tmp_path: Path) -> None:
    spec = spec_of()
    backend = MockBackend(dies_at=lambda e: e.method == "ddtree" and e.max_tokens == 12)
    bench(tmp_path, spec, backend)
    _, before = ledger_of(tmp_path)
    healthy = MockBackend()
    summary = bench(tmp_path, spec, healthy)
    assert healthy.log == []
    assert {c.arm: c.state for c in summary.cells} == {AR: "ok", CHAIN: "ok", TREE: "quarantined"}
    assert ledger_of(tmp_path)[1] == before


def test_crashing_arms_do_not_use_up_the_attempts_of_others(tmp_path: Path) -> None:
    spec = spec_of(arms=(AR, CHAIN, TREE, WIDE), prompts=3)
    backend = MockBackend(dies_at=lambda e: e.method == "ddtree" and e.max_tokens == 12)
    summary = bench(tmp_path, spec, backend)
    assert {c.arm: c.state for c in summary.cells} == {
        AR: "ok",
        CHAIN: "ok",
        TREE: "quarantined",
        WIDE: "quarantined",
    }
    assert cell(summary, AR).requests == 3


def test_overrun_on_file_is_found_by_a_resume(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = spec_of(max_tokens=40, prompts=12, workload="document")
    script = MockScript(eos_every=12, faults=MockFaults(corrupt={"ddtree": 1, "chain": 1}))
    with monkeypatch.context() as patch:
        # As if killed after the part that ran past the end was kept.
        patch.setattr(group, "overran", lambda records, caps: False)
        bench(tmp_path, spec, MockBackend([script]))
    assert overruns(tmp_path)
    bench(tmp_path, spec, MockBackend([script]))
    assert overruns(tmp_path) == []
    _, blocks = ledger_of(tmp_path)
    reasons = {b.reason for rows in blocks.values() for b in rows if b.state == "invalid"}
    assert reasons == {CUT_OFF, OVERRUN}


def overruns(folder: Path) -> list[tuple[str, str]]:
    """(arm, prompt) of counted outputs that are more than a token longer than the baseline's."""
    cells, blocks = ledger_of(folder)
    names = {row.key: name for name, row in cells.items()}
    counted = {
        (b.cell, b.index, b.attempt) for rows in blocks.values() for b in rows if b.state == "ok"
    }
    kept = [
        r
        for r in read_requests(folder / "requests.jsonl")
        if (r.cell, r.block, r.attempt) in counted
    ]
    natural = {r.prompt_id: len(r.token_ids) for r in kept if names[r.cell] == "ar"}
    return [
        (names[r.cell], r.prompt_id) for r in kept if len(r.token_ids) > natural[r.prompt_id] + 1
    ]


def test_cap_is_never_above_the_limit(tmp_path: Path) -> None:
    script = MockScript(eos_every=12)
    spec = spec_of(max_tokens=40, prompts=6, workload="document")
    bench(tmp_path / "first", spec, MockBackend([script]))
    records = read_requests(tmp_path / "first" / "requests.jsonl")
    length = min(len(r.token_ids) for r in records if r.finish_reason == "stop")
    backend = MockBackend([script])
    short = replace(spec, max_tokens=length, warmup_tokens=90, calibration_tokens=91)
    bench(tmp_path / "second", short, backend)
    stops = [
        r
        for r in read_requests(tmp_path / "second" / "requests.jsonl")
        if r.finish_reason == "stop"
    ]
    assert {len(r.token_ids) for r in stops} == {length}
    assert max(entry.max_tokens for entry in measured(backend, short)) == length


def test_without_a_calibration_nothing_is_valid(tmp_path: Path) -> None:
    # Outputs of one token have no step.
    spec, notes = spec_of(calibration_tokens=1), Notes()
    backend = MockBackend()
    summary = bench(tmp_path, spec, backend, notes)
    assert {c.state for c in summary.cells} == {"invalid"}
    assert all("no calibration of the ar step" in (c.reason or "") for c in summary.cells)
    assert measured(backend, spec) == []
    assert notes.done == pytest.approx(notes.work)


CORRUPT = MockScript(faults=MockFaults(corrupt={"chain": 1, "ddtree": 5}))


def test_failed_scoring_costs_one_cell_and_is_made_up_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls, score = [0], ServerClient.score

    async def fourth_fails(self: ServerClient, *arguments: Any) -> Any:
        # Before it come the probe and the two passes of the control.
        calls[0] += 1
        if calls[0] == 4:
            raise EndpointError("scoring broke")
        return await score(self, *arguments)

    spec, notes = spec_of(prompts=1), Notes()
    with monkeypatch.context() as patch:
        patch.setattr(ServerClient, "score", fourth_fails)
        summary = bench(tmp_path, spec, MockBackend([CORRUPT]), notes)
    assert cell(summary, CHAIN).losslessness.grade == "unclassified"
    assert cell(summary, TREE).losslessness.grade == "not-lossless"
    assert any("chain at context 60" in n and "scoring broke" in n for n in notes.notes)
    backend = MockBackend([CORRUPT])
    again = bench(tmp_path, spec, backend)
    assert backend.log == []
    assert cell(again, CHAIN).losslessness.grade == "not-lossless"


@pytest.mark.parametrize("restarts", [True, False])
def test_a_server_that_died_is_started_again_for_grading(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, restarts: bool
) -> None:
    backend, grade, start = MockBackend([CORRUPT]), Grading.run, MockBackend.start

    async def dead_before(self: Grading, *arguments: Any) -> None:
        backend.started[0][1].dead = "killed by the test"
        await grade(self, *arguments)

    async def once(self: MockBackend, *, drafter: bool) -> Any:
        if self.started and not restarts:
            raise EndpointError("no memory left")
        return await start(self, drafter=drafter)

    monkeypatch.setattr(Grading, "run", dead_before)
    monkeypatch.setattr(MockBackend, "start", once)
    notes = Notes()
    summary = bench(tmp_path, spec_of(prompts=1), backend, notes)
    assert (tmp_path / "summary.json").exists()
    assert len(backend.started) == 1 + restarts
    expected = "not-lossless" if restarts else "unclassified"
    assert cell(summary, TREE).losslessness.grade == expected
    assert any("no memory left" in note for note in notes.notes) is not restarts


@pytest.mark.parametrize(("corrupt", "identical"), [({}, 3), ({"ar": 4}, 0)])
def test_control_says_its_ratio_and_compares_outputs(
    tmp_path: Path, corrupt: dict[str, int], identical: int
) -> None:
    notes = Notes()
    script = MockScript(round_s={"ar": 0.002})
    other = replace(script, faults=MockFaults(corrupt=corrupt))
    spec = spec_of(control=True, prompts=1)
    summary = bench(tmp_path, spec, MockBackend([script, other]), notes)
    (control,) = summary.controls
    assert (control.outputs, control.identical) == (3, identical)
    (note,) = [
        n for n in notes.notes if n.startswith("control: ar at context 60, concurrency 1 runs")
    ]
    assert f"{control.ratio:.3f} (" in note
    assert note.endswith(f"; {identical} of 3 outputs identical")
    # What the mock corrupts is no near-tie.
    assert control.near_ties == 0


def test_control_counts_near_ties(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = MockScript(round_s={"ar": 0.002})
    other = replace(script, faults=MockFaults(corrupt={"ar": 4}))
    score = ServerClient.score

    async def level_scores(self: ServerClient, *arguments: Any) -> Any:
        scores = await score(self, *arguments)
        # The token that the other server gives instead is as good as the first.
        return [
            replace(
                p,
                top_ids=(p.top_ids[0], 1 + (p.top_ids[0] + 7) % (VOCABULARY - 1), *p.top_ids[2:]),
                top_logits=(p.top_logits[0], p.top_logits[0], *p.top_logits[2:]),
            )
            for p in scores
        ]

    monkeypatch.setattr(ServerClient, "score", level_scores)
    summary = bench(tmp_path, spec_of(control=True, prompts=1), MockBackend([script, other]))
    (control,) = summary.controls
    assert (control.outputs, control.identical, control.near_ties) == (3, 0, 3)


@pytest.mark.parametrize(
    ("window", "served", "fits"),
    [
        (64, 64, True),
        (65, 64, False),
        ("full", 64, False),
        ("full", 8192, True),
        (9000, 8192, True),
    ],
)
def test_windows_are_held_against_the_server(window: Any, served: int, fits: bool) -> None:
    spec = spec_of(arms=(AR, CHAIN, Arm("ddtree", 4, 2, window)))
    info = {"dtype": "float32", "max_context": 8192, "draft_window": served}
    if fits:
        check_fits(spec, info)
    else:
        with pytest.raises(
            ConfigError, match=f"draft_window: .* the server's draft_window is {served}"
        ):
            check_fits(spec, info)


def test_windowless_arms_are_told_which_window_they_get(tmp_path: Path) -> None:
    notes = Notes()
    bench(tmp_path, spec_of(arms=(AR, CHAIN, Arm("ddtree", 4, 2, 64)), prompts=1), progress=notes)
    assert any("arms that name no draft window get the server's" in note for note in notes.notes)


def test_a_fault_that_all_arms_share_is_seen(tmp_path: Path) -> None:
    """Every arm gives the same wrong token: only the baseline's own scores tell."""
    script = MockScript(faults=MockFaults(corrupt={"ar": 3, "chain": 3, "ddtree": 3}))
    notes = Notes()
    summary = bench(tmp_path, spec_of(prompts=1), MockBackend([script]), notes)
    baseline = cell(summary, Arm("ar"))
    assert baseline.losslessness.bugs
    assert cell(summary, TREE).losslessness.identical == cell(summary, TREE).losslessness.outputs
    assert summary.verdict.arm is None
    assert summary.verdict.choices == ()
    assert any("against the baseline's own scores" in w for w in summary.verdict.warnings)
