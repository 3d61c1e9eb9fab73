import dataclasses
import math
from pathlib import Path

import pytest
import yaml
from run_folders import (
    AR,
    CHAIN,
    SPEC,
    STEPS,
    TREE,
    Answer,
    RunFolder,
    answers,
    fill,
    find,
    identity,
)

from ddtree.bench.group_parts import OVERRUN
from ddtree.bench.summarise import (
    LEDGER_FILE,
    PROVENANCE_FILE,
    REQUESTS_FILE,
    SPEC_FILE,
    SUMMARY_FILE,
    summarise,
    write_summary,
)
from ddtree.errors import ConfigError
from ddtree.records.arms import Arm
from ddtree.records.files import RequestLog, read_requests
from ddtree.records.ledger import CellRow, Ledger
from ddtree.records.requests import RequestRecord
from ddtree.records.summary import Losslessness
from ddtree.records.summary_json import read_summary


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    return RunFolder(tmp_path / "run")


@pytest.fixture
def full(folder: RunFolder) -> RunFolder:
    return fill(folder)


def test_speedups_are_paired_by_prompt_and_block(full: RunFolder) -> None:
    summary = summarise(full.path)
    tree = find(summary, TREE)
    assert tree.speedup == pytest.approx(1.8)
    assert tree.speedup_vs_chain == pytest.approx(1.2)
    assert tree.speedup_interval is not None
    assert tree.speedup_interval.low == pytest.approx(1.8)
    assert tree.speedup_interval.high == pytest.approx(1.8)
    # 21 tokens: 0.5 s and 20 steps, against 0.5 s and 20 steps at 1.8 times the speed.
    ratios = [(0.5 + 20 * s) / (0.5 + 20 * s / 1.8) for s in STEPS]
    assert tree.end_to_end_speedup == pytest.approx(math.prod(ratios) ** 0.25)
    assert find(summary, AR).speedup == 1.0
    assert find(summary, CHAIN).speedup_vs_chain == 1.0


def test_a_cells_own_numbers(full: RunFolder) -> None:
    tree = find(summarise(full.path), TREE)
    assert (tree.state, tree.reason, tree.requests, tree.failed_requests) == ("ok", None, 4, 0)
    assert tree.ttft_s == pytest.approx(0.5)
    # Median of the four prompts' steps, and of their inverses.
    assert tree.tpot_s == pytest.approx((0.05 + 0.08) / 2 / 1.8)
    assert tree.decode_tokens_per_s == pytest.approx((20 + 12.5) / 2 * 1.8)
    assert tree.acceptance_length == pytest.approx(4.0)
    assert tree.accepted_by_depth == (1.0, 1.0, 1.0)
    assert tree.stage_seconds is not None
    assert tree.stage_seconds["host"] == pytest.approx(0.001)
    assert tree.round_s == pytest.approx(sum(tree.stage_seconds.values()))
    assert tree.losslessness == Losslessness("exact", 4, 4)


def test_the_rest_of_the_summary(full: RunFolder) -> None:
    summary = summarise(full.path)
    assert (summary.title, summary.model, summary.dtype) == ("a run", "smollm2-135m", "bfloat16")
    assert summary.spec == SPEC
    assert summary.provenance == {"python": "3.11"}
    assert summary.created.endswith("+00:00")
    assert [cell.arm for cell in summary.cells] == [AR, CHAIN, TREE]
    assert summary.verdict.arm == TREE
    assert summary.verdict.warnings == ()
    assert summarise(full.path) == summary


def test_written_summary_reads_back(full: RunFolder) -> None:
    summary = write_summary(full.path)
    assert read_summary((full.path / SUMMARY_FILE).read_text()) == summary


def test_unpaired_prompts_do_not_count(folder: RunFolder) -> None:
    # The baseline lacks the slow prompt, the arm the fast one.
    folder.cell(AR, [[Answer(0.1)], [Answer(0.1), Answer(0.1, error="http_500: no")]] * 5)
    folder.cell(TREE, [[Answer(0.05)], [Answer(0.05), Answer(9.0)]] * 5)
    summary = summarise(folder.path)
    assert find(summary, AR).state == "invalid"
    folder2 = RunFolder(folder.path.with_name("other"))
    good = [[Answer(0.1)] for _ in range(24)]
    folder2.cell(AR, [*good, [Answer(0.1, error="http_500: no")]])
    folder2.cell(TREE, [*[[Answer(0.05)] for _ in range(24)], [Answer(9.0)]])
    tree = find(summarise(folder2.path), TREE)
    assert tree.speedup == pytest.approx(2.0)
    assert tree.requests == 25


@pytest.mark.parametrize("broken", [AR, TREE])
@pytest.mark.parametrize("concurrency", [1, 2])
def test_a_block_with_a_failed_request_gives_no_ratio(
    folder: RunFolder, broken: Arm, concurrency: int
) -> None:
    # In block 0 the tree is 20 times as fast, beside a request that failed on one of the sides.
    for arm, quick in ((AR, 0.1), (TREE, 0.005)):
        error = "stall: x" if arm == broken else None
        rest = 0.1 if arm == AR else 0.05
        first = [*[Answer(quick)] * 2, Answer(quick, error=error)]
        folder.cell(identity(arm, concurrency=concurrency), [first, *[[Answer(rest)] * 6] * 3])
    tree = find(summarise(folder.path), TREE)
    assert tree.speedup == pytest.approx(2.0)
    # The first token takes 0.5 s on both sides.
    assert tree.end_to_end_speedup == pytest.approx(2.5 / 1.5)


def test_thirty_percent_refused_is_invalid_not_faster(folder: RunFolder) -> None:
    folder.cell(AR, [[Answer(0.1)] for _ in range(10)])
    refused = [[Answer(0.01, error="http_429: busy")]] * 3
    folder.cell(TREE, [*refused, *[[Answer(0.01)] for _ in range(7)]])
    summary = summarise(folder.path)
    tree = find(summary, TREE)
    assert tree.state == "invalid"
    assert tree.reason == "3 of 10 requests failed (http_429 3)"
    assert (tree.requests, tree.failed_requests) == (10, 3)
    assert (tree.speedup, tree.end_to_end_speedup, tree.speedup_interval) == (None, None, None)
    assert summary.verdict.arm is None
    assert summary.verdict.warnings == (
        "ddtree(8,4) at context 60, concurrency 1: invalid (3 of 10 requests failed (http_429 3))",
    )


@pytest.mark.parametrize(("failed", "state"), [(1, "ok"), (2, "invalid")])
def test_the_limit_is_five_percent(folder: RunFolder, failed: int, state: str) -> None:
    folder.cell(AR, [[Answer(0.1)] for _ in range(20)])
    bad = [[Answer(0.1, error="stall: x")]] * failed
    folder.cell(TREE, [*bad, *[[Answer(0.05)] for _ in range(20 - failed)]])
    summary = summarise(folder.path)
    assert find(summary, TREE).state == state
    assert any(f"{failed} of 20 requests failed" in text for text in summary.verdict.warnings)


def test_failures_that_a_later_attempt_repeated_are_a_warning(folder: RunFolder) -> None:
    folder.cell(AR, answers(1.0))
    key = folder.cell(TREE, answers(2.0)[:3])
    folder.block(key, 3, [Answer(0.1, error="server_crash: gone")], "failed", "server_crash")
    folder.block(key, 3, answers(2.0)[3])
    with folder.ledger() as ledger:
        ledger.set_grade(key, Losslessness("exact", 4, 4))
    summary = summarise(folder.path)
    tree = find(summary, TREE)
    assert (tree.state, tree.requests, tree.failed_requests) == ("ok", 4, 0)
    assert summary.verdict.arm == TREE
    assert summary.verdict.warnings == (
        "ddtree(8,4) at context 60, concurrency 1: 1 requests failed in attempts that were given "
        "up or repeated (server_crash 1)",
    )


def test_what_a_failed_block_had_finished_gives_no_ratio(folder: RunFolder) -> None:
    folder.cell(AR, [[Answer(0.1), Answer(0.1)] for _ in range(20)])
    key = folder.cell(TREE, [[Answer(0.05), Answer(0.05)] for _ in range(19)])
    crashed = [Answer(1e-6), Answer(0.05, error="server_crash: gone")]
    folder.block(key, 19, crashed, "failed", "server_crash")
    tree = find(summarise(folder.path), TREE)
    assert (tree.state, tree.requests, tree.failed_requests) == ("ok", 38, 0)
    assert tree.speedup == pytest.approx(2.0)
    assert tree.tpot_s == pytest.approx(0.05)


@pytest.mark.parametrize(("base_error", "grade"), [(None, "unclassified"), ("stall: x", "exact")])
def test_a_prompt_that_only_the_arm_failed_leaves_the_cell_unclassified(
    folder: RunFolder, base_error: str | None, grade: str
) -> None:
    folder.cell(AR, [*[[Answer(0.1)] * 8] * 3, [Answer(0.1, error=base_error)]])
    exact = Losslessness("exact", 24, 24)
    last = [Answer(0.05, error="stall: x", first_id=7)]
    folder.cell(TREE, [*[[Answer(0.05)] * 8] * 3, last], grade=exact)
    summary = summarise(folder.path)
    assert find(summary, TREE).losslessness == dataclasses.replace(exact, grade=grade)  # type: ignore[arg-type]
    assert summary.verdict.arm == (TREE if grade == "exact" else None)


def test_a_failure_hides_no_difference(folder: RunFolder) -> None:
    folder.cell(AR, [[Answer(0.1)] * 5] * 5)
    mine = [*[[Answer(0.05)] * 5] * 4, [*[Answer(0.05)] * 4, Answer(0.05, error="stall: x")]]
    bug = Losslessness("not-lossless", 24, 23, bugs=1)
    folder.cell(TREE, mine, grade=bug)
    assert find(summarise(folder.path), TREE).losslessness == bug


@pytest.mark.parametrize("error", ["count_mismatch: 3 ids arrived, usage is 4", None])
@pytest.mark.parametrize("graded", [True, False])
def test_counts_that_contradict_each_other_are_a_bug(
    folder: RunFolder, error: str | None, graded: bool
) -> None:
    folder.cell(AR, [[Answer(0.1)] * 5] * 5)
    grade = Losslessness("exact", 24, 24) if graded else None
    folder.cell(TREE, [[Answer(0.05)] * 5] * 5, grade=grade)
    log = folder.path / REQUESTS_FILE
    *records, last = read_requests(log)
    assert last.stats is not None
    stats = last.stats if error else last.stats | {"cut_tokens": 1}
    records.append(dataclasses.replace(last, error=error, stats=stats))
    log.write_text("".join(record.to_json() + "\n" for record in records))
    tree = find(summarise(folder.path), TREE)
    assert tree.state == "ok"
    assert (tree.losslessness.grade, tree.losslessness.bugs) == ("not-lossless", 1)
    assert tree.losslessness.outputs == (25 if graded else 1)


def test_invalid_blocks_give_no_ratio_and_are_named(full: RunFolder) -> None:
    with full.ledger() as ledger:
        key = next(row.key for row in ledger.cells() if row.arm == TREE)
        ledger.finish_block(key, 1, "invalid", "other processes took 12 % CPU")
    full.block(key, 1, [Answer(0.1 / 1.8, chunk=4)])
    # A bogus win in an invalid attempt must not leak into anything.
    full.block(key, 4, [Answer(1e-6, chunk=4)], "invalid", "other processes took 31 % CPU")
    summary = summarise(full.path)
    tree = find(summary, TREE)
    assert tree.speedup == pytest.approx(1.8)
    assert tree.requests == 4
    assert (
        "ddtree(8,4) at context 60, concurrency 1: 2 invalid blocks: "
        "other processes took 12 % CPU, and 1 alike"
    ) in summary.verdict.warnings


def test_what_voids_all_arms_is_told_once(full: RunFolder) -> None:
    with full.ledger() as ledger:
        keys = {row.arm: row.key for row in ledger.cells()}
    for arm, share in ((AR, 12), (TREE, 31)):
        full.block(keys[arm], 4, [Answer(0.1)], "invalid", f"others took {share} % CPU")
    full.block(keys[TREE], 5, [Answer(0.1)], "invalid", OVERRUN)
    invalid = [w for w in summarise(full.path).verdict.warnings if "invalid block" in w]
    assert invalid == ["ar at context 60, concurrency 1: 1 invalid block: others took 12 % CPU"]
    full.block(keys[TREE], 6, [Answer(0.1)], "invalid", "its own trouble")
    invalid = [w for w in summarise(full.path).verdict.warnings if "invalid block" in w]
    assert invalid[1].endswith("1 invalid block: its own trouble")


def test_a_block_valid_for_one_arm_only_gives_no_pair(full: RunFolder) -> None:
    with full.ledger() as ledger:
        keys = {row.arm: row.key for row in ledger.cells()}
        ledger.finish_block(keys[AR], 0, "invalid", "noise")
    # Block 0 of the tree runs 100 times faster: it would show if it were used.
    with full.ledger() as ledger:
        ledger.finish_block(keys[TREE], 0, "invalid", "to be repeated")
    full.block(keys[TREE], 0, [Answer(0.0005, chunk=4)])
    assert find(summarise(full.path), TREE).speedup == pytest.approx(1.8)


def test_requests_of_a_crashed_attempt_are_not_counted_twice(full: RunFolder) -> None:
    with full.ledger() as ledger, RequestLog(full.path / REQUESTS_FILE) as log:
        key = next(row.key for row in ledger.cells() if row.arm == TREE)
        attempt = ledger.start_block(key, 4)
        log.append([Answer(1e-6, chunk=4).record(key, attempt, 4, "4.0")])
    with full.ledger() as ledger:
        assert [b.state for b in ledger.blocks(key)].count("planned") == 1
    tree = find(summarise(full.path), TREE)
    assert (tree.requests, tree.speedup) == (4, pytest.approx(1.8))


def test_lost_requests_of_an_ok_block_are_an_error(full: RunFolder) -> None:
    log = full.path / REQUESTS_FILE
    lines = log.read_text().splitlines(keepends=True)
    log.write_text("".join(lines[:-1]))
    with pytest.raises(ConfigError, match="damaged"):
        summarise(full.path)


def test_a_request_whose_counts_do_not_reconcile_is_a_failure(folder: RunFolder) -> None:
    folder.cell(AR, answers(1.0))
    folder.cell(TREE, answers(2.0))
    log = folder.path / REQUESTS_FILE
    records = list(read_requests(log))
    last = records[-1]
    assert last.stats is not None
    records[-1] = dataclasses.replace(last, stats=last.stats | {"cut_tokens": 1})
    log.write_text("".join(record.to_json() + "\n" for record in records))
    tree = find(summarise(folder.path), TREE)
    assert (tree.state, tree.reason) == ("invalid", "1 of 4 requests failed (counts 1)")


@pytest.mark.parametrize("state", ["planned", "running", "invalid", "failed", "quarantined"])
def test_cells_that_are_not_ok_show_their_state_and_no_speedup(
    folder: RunFolder, state: str
) -> None:
    folder.cell(AR, answers(1.0))
    folder.cell(CHAIN, answers(1.2))
    folder.cell(TREE, answers(9.0), state=state)  # type: ignore[arg-type]
    with folder.ledger() as ledger:
        key = next(row.key for row in ledger.cells() if row.arm == TREE)
        ledger.set_cell_state(key, state, "why")  # type: ignore[arg-type]
    summary = summarise(folder.path)
    tree = find(summary, TREE)
    assert (tree.state, tree.reason, tree.speedup) == (state, "why", None)
    assert tree.decode_tokens_per_s is not None
    assert summary.verdict.arm == CHAIN


def test_without_a_valid_baseline_there_are_no_speedups(folder: RunFolder) -> None:
    folder.cell(AR, answers(1.0), state="invalid")
    folder.cell(TREE, answers(2.0))
    summary = summarise(folder.path)
    assert find(summary, TREE).speedup is None
    assert summary.verdict.choices == ()


def test_one_chunk_answers_are_left_out_and_counted(folder: RunFolder) -> None:
    folder.cell(AR, [*answers(1.0), [Answer(0.1, tokens=1)]])
    folder.cell(TREE, [*answers(2.0), [Answer(0.1, tokens=1)]])
    summary = summarise(folder.path)
    assert find(summary, TREE).speedup == pytest.approx(2.0)
    assert any("1 answers came in one chunk" in w for w in summary.verdict.warnings)


def test_too_few_blocks_for_an_interval_recommend_nothing(folder: RunFolder) -> None:
    folder.cell(AR, answers(1.0)[:2])
    folder.cell(TREE, answers(9.0)[:2])
    summary = summarise(folder.path)
    assert find(summary, TREE).speedup == pytest.approx(9.0)
    assert find(summary, TREE).speedup_interval is None
    assert summary.verdict.arm is None
    assert summary.verdict.choices[0].arm == AR
    assert "9.00x, n too small" in summary.verdict.choices[0].reason


def test_above_one_the_ratio_is_of_system_throughputs(folder: RunFolder) -> None:
    # Two at once. In the tree's blocks one is quick, the other as slow as the baseline: per
    # prompt that is 2 and 1, but the window ends with the quick one.
    def pair(fast: float) -> list[Answer]:
        return [Answer(fast, ttft=0.0), Answer(0.1, ttft=0.0)]

    folder.cell(identity(AR, concurrency=2), [pair(0.1)] * 3)
    folder.cell(identity(TREE, concurrency=2), [pair(0.05)] * 3)
    tree = find(summarise(folder.path), TREE)
    # Baseline: 2 x 20 tokens in 2 s (the first tokens are on the edge). Tree: 20 + 10 in 1 s.
    assert find(summarise(folder.path), AR).system_tokens_per_s == pytest.approx(20)
    assert tree.system_tokens_per_s == pytest.approx(30)
    assert tree.speedup == pytest.approx(1.5)


def test_grades_that_do_not_cover_all_outputs_prove_nothing(folder: RunFolder) -> None:
    folder.cell(AR, answers(1.0))
    folder.cell(CHAIN, answers(1.2), grade=Losslessness("exact", 3, 3))
    folder.cell(TREE, answers(2.0, first_id=500), grade=Losslessness("exact", 4, 4))
    folder.cell(Arm("ddtree", 16, 4), answers(2.0), grade=None)
    summary = summarise(folder.path)
    assert [cell.losslessness.grade for cell in summary.cells] == [
        "baseline",
        "unclassified",
        "unclassified",
        "unclassified",
    ]
    assert summary.verdict.arm is None


def test_a_near_tie_grade_covers_the_outputs_that_differ(folder: RunFolder) -> None:
    folder.cell(AR, answers(1.0))
    grade = Losslessness("near-ties", 4, 0, near_ties=4)
    folder.cell(TREE, answers(2.0, first_id=500), grade=grade)
    summary = summarise(folder.path)
    assert find(summary, TREE).losslessness == grade
    assert summary.verdict.arm == TREE


def test_not_lossless_is_never_recommended(folder: RunFolder) -> None:
    folder.cell(AR, answers(1.0))
    folder.cell(TREE, answers(9.0), grade=Losslessness("not-lossless", 4, 3, bugs=1))
    summary = summarise(folder.path)
    assert find(summary, TREE).speedup == pytest.approx(9.0)
    assert summary.verdict.arm is None
    assert any("NOT lossless, 1 bugs" in warning for warning in summary.verdict.warnings)


def test_chain_of_the_same_window_is_the_one_to_compare_with(folder: RunFolder) -> None:
    folder.cell(AR, answers(1.0))
    folder.cell(CHAIN, answers(1.5))
    folder.cell(Arm("chain", draft_window=64), answers(1.25))
    windowed = Arm("ddtree", 8, 4, 64)
    folder.cell(windowed, answers(2.5))
    folder.cell(Arm("ddtree", 8, 4, 128), answers(3.0))
    summary = summarise(folder.path)
    assert find(summary, windowed).speedup_vs_chain == pytest.approx(2.0)
    assert find(summary, Arm("ddtree", 8, 4, 128)).speedup_vs_chain == pytest.approx(2.0)


def test_a_cell_measured_again_replaces_the_older_one(full: RunFolder) -> None:
    full.cell(identity(TREE, version="2"), answers(1.6, chunk=4))
    summary = summarise(full.path)
    assert find(summary, TREE).speedup == pytest.approx(1.6)
    assert any("1 cells were measured again" in w for w in summary.verdict.warnings)


def test_going_back_to_an_older_server_shows_its_cells_again(full: RunFolder) -> None:
    full.cell(identity(TREE, version="2"), answers(1.6, chunk=4))
    with full.ledger() as ledger:
        ledger.add_cell(identity(TREE))
    assert find(summarise(full.path), TREE).speedup == pytest.approx(1.8)


def test_a_block_finished_while_a_summary_is_made_does_not_damage_it(
    full: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    with full.ledger() as ledger:
        key = next(row.key for row in ledger.cells() if row.arm == TREE)
    read = Ledger.cells

    def cells_then_a_block(ledger: Ledger) -> tuple[CellRow, ...]:
        found = read(ledger)
        if not ledger.last_attempt(key, 4):
            monkeypatch.undo()
            full.block(key, 4, [Answer(1e-6, chunk=4)])
        return found

    monkeypatch.setattr(Ledger, "cells", cells_then_a_block)
    assert find(summarise(full.path), TREE).requests == 4
    assert find(summarise(full.path), TREE).requests == 5


def test_a_block_finished_as_the_log_was_read_is_not_damaged_either(
    full: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    with full.ledger() as ledger:
        key = next(row.key for row in ledger.cells() if row.arm == TREE)

    def read_then_a_block(path: Path) -> tuple[RequestRecord, ...]:
        found = read_requests(path)
        full.block(key, 4, [Answer(1e-6, chunk=4)])
        return found

    monkeypatch.setattr("ddtree.bench.summarise.read_requests", read_then_a_block)
    assert find(summarise(full.path), TREE).requests == 4


def test_a_run_in_progress_can_be_read(full: RunFolder) -> None:
    with full.ledger() as ledger:
        key = next(row.key for row in ledger.cells() if row.arm == TREE)
        ledger.start_block(key, 4)
        assert find(summarise(full.path), TREE).requests == 4
        row = ledger.last_attempt(key, 4)
        assert row is not None
        assert row.state == "running"


@pytest.mark.parametrize("name", [SPEC_FILE, PROVENANCE_FILE, LEDGER_FILE])
def test_a_missing_file_is_named(full: RunFolder, name: str) -> None:
    (full.path / name).unlink()
    with pytest.raises(ConfigError, match=f"{name}: no such file"):
        summarise(full.path)


@pytest.mark.parametrize("key", ["title", "model", "dtype", "seed"])
def test_a_spec_without_a_key_is_refused(full: RunFolder, key: str) -> None:
    spec = {name: value for name, value in SPEC.items() if name != key}
    (full.path / SPEC_FILE).write_text(yaml.safe_dump(spec))
    with pytest.raises(ConfigError, match=key):
        summarise(full.path)


@pytest.mark.parametrize(
    ("name", "text"), [(SPEC_FILE, "a: ["), (SPEC_FILE, "- a"), (PROVENANCE_FILE, "{")]
)
def test_an_unreadable_file_is_named(full: RunFolder, name: str, text: str) -> None:
    (full.path / name).write_text(text)
    with pytest.raises(ConfigError, match=name):
        summarise(full.path)
