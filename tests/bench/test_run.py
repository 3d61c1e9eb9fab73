import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from mock_backend import (
    MockBackend,
    Notes,
    bench,
    cell,
    hog_in,
    ledger_of,
    measured,
    spec_of,
)

from ddtree.bench.group import OVERRUN
from ddtree.bench.plan import arm_order
from ddtree.endpoint.mock import MockRequest
from ddtree.endpoint.mock_script import MockFaults, MockScript, continuation
from ddtree.errors import ConfigError
from ddtree.records.arms import Arm
from ddtree.records.files import read_requests
from ddtree.records.summary import RunSummary

AR, CHAIN, TREE = Arm("ar"), Arm("chain"), Arm("ddtree", 4, 2)


def test_counts_files_and_grades(tmp_path: Path) -> None:
    backend, spec, notes = MockBackend(), spec_of(), Notes()
    summary = bench(tmp_path, spec, backend, notes)
    assert {c.arm: (c.state, c.requests, c.failed_requests) for c in summary.cells} == {
        arm: ("ok", 4, 0) for arm in (AR, CHAIN, TREE)
    }
    assert {c.arm: c.losslessness.grade for c in summary.cells} == {
        AR: "baseline",
        CHAIN: "exact",
        TREE: "exact",
    }
    records = read_requests(tmp_path / "requests.jsonl")
    assert len(records) == 12
    assert all(
        r.error is None and r.prompt_tokens == 60 and r.completion_tokens == 12 for r in records
    )
    assert len({r.prompt_id for r in records}) == 4
    assert len(measured(backend, spec)) == 12
    assert {len(entry.prompt) for entry in measured(backend, spec)} == {60}
    assert notes.done == pytest.approx(notes.work)
    names = {path.name for path in tmp_path.iterdir()}
    assert {
        "spec.yaml",
        "ledger.sqlite",
        "requests.jsonl",
        "provenance.json",
        "summary.json",
    } <= names
    assert json.loads((tmp_path / "provenance.json").read_text())["server"]["version"] == "mock"


def test_measured_prompts_are_used_for_nothing_else(tmp_path: Path) -> None:
    backend, spec = MockBackend(), spec_of()
    bench(tmp_path, spec, backend)
    blocks = measured(backend, spec)
    timed = Counter(entry.prompt for entry in blocks)
    others = {entry.prompt for entry in backend.log if entry not in blocks}
    assert set(timed.values()) == {3}
    assert others
    assert not others & set(timed)


def test_same_prompts_and_abba_order(tmp_path: Path) -> None:
    backend, spec = MockBackend(), spec_of()
    bench(tmp_path, spec, backend)
    entries = measured(backend, spec)
    blocks = [entries[i : i + 3] for i in range(0, 12, 3)]
    assert all(len({entry.prompt for entry in block}) == 1 for block in blocks)
    assert [[entry.method for entry in block] for block in blocks] == [
        ["ar", "chain", "ddtree"],
        ["ddtree", "chain", "ar"],
        ["chain", "ddtree", "ar"],
        ["ar", "ddtree", "chain"],
    ]


def test_arm_order_over_many_blocks_gives_every_arm_every_place() -> None:
    arms = tuple(Arm("ddtree", n, 1) for n in range(1, 8))
    orders = [arm_order(arms, block) for block in range(14)]
    assert all(sorted(a.budget or 0 for a in order) == list(range(1, 8)) for order in orders)
    assert all(
        first == second[::-1] for first, second in zip(orders[::2], orders[1::2], strict=True)
    )
    for arm in arms:
        assert {order.index(arm) for order in orders} == set(range(7))


def test_closed_loop_and_arms_never_in_one_batch(tmp_path: Path) -> None:
    spec = spec_of(concurrencies=(3,), waves=2, prompts=12, calibration_tokens=20)
    script = MockScript(round_s={"ar": 0.002, "chain": 0.002, "ddtree": 0.002})
    backend = MockBackend([script])
    summary = bench(tmp_path, spec, backend)
    (handle,) = [handle for _, handle in backend.started]
    assert handle.server.peak_in_flight == 3
    assert cell(summary, TREE, 3).requests == 12
    entries = measured(backend, spec)
    assert len(entries) == 36
    parts = [entries[i : i + 6] for i in range(0, 36, 6)]
    for these, later in pairwise(parts):
        assert len({entry.method for entry in these}) == 1
        assert max(entry.ended_s or 0.0 for entry in these) <= min(e.started_s for e in later)
    assert cell(summary, TREE, 3).system_tokens_per_s is not None


def test_speedup_comes_out(tmp_path: Path) -> None:
    script = MockScript(round_s={"ar": 0.01, "chain": 0.01, "ddtree": 0.01})
    summary = bench(tmp_path, spec_of(max_tokens=16, prompts=3), MockBackend([script]))
    # A round of ddtree gives 2.5 tokens on average, one of ar gives 1. Sleeps only run long, so
    # the bounds are wide: they tell tokens from chunks, no more.
    assert 1.3 < (cell(summary, TREE).speedup or 0) < 3.0
    assert cell(summary, TREE).acceptance_length == pytest.approx(2.5, abs=0.2)
    assert cell(summary, AR).acceptance_length == 1.0


def test_wrong_outputs_are_not_lossless_and_never_recommended(tmp_path: Path) -> None:
    script = MockScript(
        round_s={"ar": 0.005, "chain": 0.005, "ddtree": 0.001},
        faults=MockFaults(corrupt={"ddtree": 5}),
    )
    summary = bench(tmp_path, spec_of(prompts=3), MockBackend([script]))
    found = cell(summary, TREE).losslessness
    assert (found.grade, found.bugs, found.identical) == ("not-lossless", 3, 0)
    assert cell(summary, CHAIN).losslessness.grade == "exact"
    assert summary.verdict.arm != TREE
    assert TREE not in {choice.arm for choice in summary.verdict.choices}


def test_thirty_percent_refused_is_invalid_not_faster(tmp_path: Path) -> None:
    backend = MockBackend([MockScript(faults=MockFaults(refuse_share=0.3))])
    summary = bench(tmp_path, spec_of(prompts=10), backend)
    for found in summary.cells:
        assert found.requests == 10
        assert found.failed_requests >= 2
        assert found.state == "invalid"
        assert found.speedup is None
    assert summary.verdict.arm is None
    errors = Counter(r.error for r in read_requests(tmp_path / "requests.jsonl"))
    assert errors["http_429: queue is full"] == sum(c.failed_requests for c in summary.cells)


def test_stall_is_a_timeout_and_the_server_is_restarted(tmp_path: Path) -> None:
    spec = spec_of(prompts=20)
    limits = replace(spec.deadlines, first_token_s=5.0, silence_s=0.15)
    stalls = MockScript(faults=MockFaults(stall_after_chunks=5))
    backend = MockBackend([stalls, MockScript()])
    summary = bench(tmp_path, replace(spec, deadlines=limits), backend)
    assert len(backend.started) == 2
    assert {c.state for c in summary.cells} == {"ok"}
    # The block that stalled ran again; its failure is told.
    assert cell(summary, AR).requests == 20
    assert any("1 requests failed in attempts" in w for w in summary.verdict.warnings)
    _, blocks = ledger_of(tmp_path)
    assert [(b.index, b.state, b.reason) for b in blocks["ar"]][:2] == [
        (0, "failed", "no_progress"),
        (0, "ok", None),
    ]


def test_arm_that_kills_the_server_twice_is_quarantined(tmp_path: Path) -> None:
    spec = spec_of()
    backend = MockBackend(dies_at=lambda e: e.method == "ddtree" and e.max_tokens == 12)
    summary = bench(tmp_path, spec, backend)
    assert len(backend.started) == 3
    assert cell(summary, TREE).state == "quarantined"
    assert "killed by the test" in (cell(summary, TREE).reason or "")
    assert {cell(summary, arm).state for arm in (AR, CHAIN)} == {"ok"}
    assert {cell(summary, arm).requests for arm in (AR, CHAIN)} == {4}
    _, blocks = ledger_of(tmp_path)
    assert [b.state for b in blocks["ddtree(4,2)"]] == ["failed", "failed"]


def test_baseline_that_kills_the_server_fails_the_group(tmp_path: Path) -> None:
    backend = MockBackend(dies_at=lambda e: e.method == "ar" and e.max_tokens == 12)
    summary = bench(tmp_path, spec_of(), backend)
    assert {c.state for c in summary.cells} == {"failed"}
    assert summary.verdict.arm is None


def test_noisy_block_is_run_again(tmp_path: Path) -> None:
    # Interval 0 is the calibration's; 1, 2, 3 are the first block's three arms.
    notes = Notes()
    summary = bench(tmp_path, progress=notes, make_reader=hog_in({2}))
    assert {c.state for c in summary.cells} == {"ok"}
    assert {c.requests for c in summary.cells} == {4}
    _, blocks = ledger_of(tmp_path)
    tries = {name: [b.state for b in rows if b.index == 0] for name, rows in blocks.items()}
    # The third arm had not begun when the second was disturbed.
    assert tries == {"ar": ["invalid", "ok"], "chain": ["invalid", "ok"], "ddtree(4,2)": ["ok"]}
    assert all(
        "other processes took 96.0% CPU" in (blocks[n][0].reason or "") for n in ("ar", "chain")
    )
    assert any("other processes took" in note for note in notes.notes)
    assert len({r.attempt for r in read_requests(tmp_path / "requests.jsonl")}) == 2


def test_always_noisy_ends_invalid_and_a_quiet_resume_heals(tmp_path: Path) -> None:
    summary = bench(tmp_path, make_reader=hog_in(set(range(100))))
    assert {c.state for c in summary.cells} == {"invalid"}
    assert all("block 0: other processes took" in (c.reason or "") for c in summary.cells)
    assert summary.verdict.arm is None
    _, blocks = ledger_of(tmp_path)
    assert [b.state for b in blocks["ar"]] == ["invalid"] * 3
    healed = bench(tmp_path)
    assert {c.state for c in healed.cells} == {"ok"}


def test_noisy_calibration_is_repeated(tmp_path: Path) -> None:
    backend, spec = MockBackend(), spec_of(prompts=1)
    bench(tmp_path, spec, backend, make_reader=hog_in({0, 1}))
    assert sum(entry.max_tokens == spec.calibration_tokens for entry in backend.log) == 3


def test_calibration_fills_all_slots(tmp_path: Path) -> None:
    backend, spec = MockBackend(), spec_of(concurrencies=(3,), prompts=3)
    summary = bench(tmp_path, spec, backend)
    assert spec.max_tokens > spec.calibration_tokens
    warm = [entry for entry in backend.log if entry.max_tokens == spec.warmup_tokens]
    rest = [entry for entry in backend.log if entry.max_tokens == spec.max_tokens]
    assert len(warm) + len(rest) == len(backend.log)
    # A wave to calibrate, and each arm's part.
    assert len(rest) == 3 + sum(c.requests for c in summary.cells)


def test_slow_baseline_step_is_invalid(tmp_path: Path) -> None:
    # The first measured request slows the server down to a tenth.
    backend = MockBackend([MockScript(round_s={"ar": 0.002})])
    started = backend.start

    async def start(*, drafter: bool) -> object:
        handle = await started(drafter=drafter)

        class Log(list[MockRequest]):
            def append(self, entry: MockRequest) -> None:
                super().append(entry)
                if entry.max_tokens == 12:
                    handle.server.script = MockScript(round_s={"ar": 0.02})

        handle.server.log = Log()
        return handle

    backend.start = start  # type: ignore[method-assign, assignment]
    summary = bench(tmp_path, spec_of(prompts=1), backend)
    assert {c.state for c in summary.cells} == {"invalid"}
    assert all("the ar step took" in (c.reason or "") for c in summary.cells)


@pytest.mark.parametrize("temperature", [0.0, 0.7])
def test_output_is_capped_by_the_baselines_natural_length(
    tmp_path: Path, temperature: float
) -> None:
    # A corrupted output goes its own way and may run past the baseline's end of sequence.
    spec = spec_of(max_tokens=40, prompts=12, workload="document", temperatures=(temperature,))
    script = MockScript(eos_every=12, faults=MockFaults(corrupt={"ddtree": 1, "chain": 1}))
    backend = MockBackend([script])
    bench(tmp_path, spec, backend)
    _, blocks = ledger_of(tmp_path)
    last = {name: {b.index: b.attempt for b in rows} for name, rows in blocks.items()}
    names = {row.key: name for name, row in ledger_of(tmp_path)[0].items()}
    natural: dict[str, int] = {}
    kept: dict[str, list[tuple[str, int]]] = {}
    for record in read_requests(tmp_path / "requests.jsonl"):
        name = names[record.cell]
        if record.attempt == last[name][record.block]:
            kept.setdefault(name, []).append((record.prompt_id, len(record.token_ids)))
    natural = dict(kept["ar"])
    assert min(natural.values()) < 40
    for name in ("chain", "ddtree(4,2)"):
        assert len(kept[name]) == 12
        assert all(length <= natural[prompt] + 1 for prompt, length in kept[name])
    repeated = [
        (arm, b.index) for arm in (CHAIN, TREE) for b in blocks[arm.label] if b.reason == OVERRUN
    ]
    assert repeated
    # Arms that come after the baseline are sent with the cap at once.
    for arm, block in repeated:
        order = arm_order(spec.arms, block)
        assert order.index(arm) < order.index(AR)
    asked = {(entry.prompt, entry.sampling) for entry in backend.log if entry.max_tokens == 40}
    whole = {len(continuation(p, 40, 12, sampling)) for p, sampling in asked}
    assert whole >= set(natural.values())


def test_control_runs_on_two_servers_in_abba(tmp_path: Path) -> None:
    spec = spec_of(control=True, prompts=2)
    script = MockScript(round_s={"ar": 0.002})
    backend = MockBackend([script])
    summary = bench(tmp_path, spec, backend)
    assert [drafter for drafter, _ in backend.started] == [True, False]
    (control,) = summary.controls
    assert (control.context, control.concurrency, control.requests) == (60, 1, 6)
    assert control.ratio > 0
    assert control.ratio_interval is not None
    cells, blocks = ledger_of(tmp_path)
    assert {c.arm for c in summary.cells} == {AR, CHAIN, TREE}
    sides = ("control-with-drafter", "control-without-drafter")
    assert {cells[side].state for side in sides} == {"ok"}
    order = sorted((b.started or 0.0, side[8:15]) for side in sides for b in blocks[side])
    on, off = "with-dr", "without"
    assert [side for _, side in order] == [on, off, off, on, on, off]


def test_control_without_a_finished_request_keeps_the_run(tmp_path: Path) -> None:
    refusing = MockScript(faults=MockFaults(refuse_share=1.0))
    backend = MockBackend([MockScript(), refusing])
    summary = bench(tmp_path, spec_of(control=True, prompts=1), backend)
    assert summary.controls == ()
    assert cell(summary, TREE).losslessness.grade == "exact"
    cells, _ = ledger_of(tmp_path)
    assert cells["control-with-drafter"].state == "invalid"
    assert "no block that both servers finished" in (cells["control-with-drafter"].reason or "")


def test_finished_run_is_not_run_again(tmp_path: Path) -> None:
    spec = spec_of(control=True)
    first = bench(tmp_path, spec, MockBackend([MockScript(round_s={"ar": 0.002})]))
    backend = MockBackend()
    second = bench(tmp_path, spec, backend)
    assert backend.log == []
    assert len(backend.started) == 1
    assert second.cells == first.cells
    assert second.controls == first.controls
    assert len(json.loads((tmp_path / "provenance.json").read_text())["resumed"]) == 1


def test_folder_of_another_spec_is_refused(tmp_path: Path) -> None:
    bench(tmp_path, spec_of(prompts=1))
    with pytest.raises(ConfigError, match=r"another spec \(prompts: 1, now 2; seed: 0, now 5\)"):
        bench(tmp_path, spec_of(prompts=2, seed=5))
    with pytest.raises(ConfigError, match="holds a run already"):
        bench(tmp_path, spec_of(prompts=1), resume=False)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"contexts": (9000,)}, "contexts .* needs 9012, the server's max_context is 8192"),
        ({"concurrencies": (65,)}, "concurrencies: the run needs 65, the server's slots is 64"),
        ({"arms": (AR, CHAIN, Arm("ddtree", 65, 2))}, "budget: the run needs 65"),
        ({"dtype": "bfloat16"}, "dtype: the run asks for bfloat16, the server runs float32"),
    ],
)
def test_what_the_server_cannot_do_is_refused(
    tmp_path: Path, changes: dict[str, object], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        bench(tmp_path, spec_of(**changes))


KILLED = """
import sys
from pathlib import Path
sys.path[:0] = {path!r}
from mock_backend import MockBackend, bench, spec_of
from ddtree.endpoint.mock_script import MockScript
script = MockScript(round_s=dict.fromkeys(("ar", "chain", "ddtree"), 0.004))
bench(Path({folder!r}), spec_of(concurrencies=(2,), prompts=8), MockBackend([script]))
"""


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, RunSummary]:
    folder = tmp_path_factory.mktemp("whole")
    return folder, bench(folder, spec_of(concurrencies=(2,), prompts=8))


@pytest.mark.parametrize("lines", [1, 15])
def test_kill_9_and_resume_give_the_same_cells_and_counts(
    tmp_path: Path, lines: int, undisturbed: tuple[Path, RunSummary]
) -> None:
    log = tmp_path / "requests.jsonl"
    source = KILLED.format(path=sys.path, folder=str(tmp_path))
    with subprocess.Popen([sys.executable, "-c", source], env=dict(os.environ)) as client:
        end = time.monotonic() + 20
        while not (log.exists() and log.read_bytes().count(b"\n") >= lines):
            assert client.poll() is None, "the run ended before it could be killed"
            assert time.monotonic() < end
            time.sleep(0.005)
        os.kill(client.pid, signal.SIGKILL)
    finished = log.read_bytes().split(b"\n")[:-1]
    _, before = ledger_of(tmp_path)
    whole, reference = undisturbed
    resumed = bench(tmp_path, spec_of(concurrencies=(2,), prompts=8))
    assert log.read_bytes().split(b"\n")[: len(finished)] == finished
    facts = ("arm", "context", "concurrency", "state", "requests", "failed_requests")
    for mine, theirs in zip(resumed.cells, reference.cells, strict=True):
        assert [getattr(mine, f) for f in facts] == [getattr(theirs, f) for f in facts]
        assert mine.losslessness == theirs.losslessness
    cells, blocks = ledger_of(tmp_path)
    assert {name: row.key for name, row in cells.items()} == {
        name: row.key for name, row in ledger_of(whole)[0].items()
    }
    # A block that all arms had finished was not run again.
    complete = set.intersection(
        *({b.index for b in rows if b.state == "ok"} for rows in before.values())
    )
    assert bool(complete) is (lines > 6)
    for name, rows in blocks.items():
        assert [b for b in rows if b.index in complete] == [
            b for b in before[name] if b.index in complete
        ]
