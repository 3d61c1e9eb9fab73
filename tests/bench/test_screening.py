"""Screened cells beside those that may rank, and the baseline repeated over a run."""

import dataclasses
from pathlib import Path

import pytest
from run_folders import AR, CHAIN, TREE, Answer, RunFolder, answers, find, identity

from ddtree.bench.screening import DRIFT, drift_warnings
from ddtree.bench.summarise import summarise
from ddtree.records.arms import Arm
from ddtree.records.ledger import CellIdentity
from ddtree.records.summary import Sentinel


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    return RunFolder(tmp_path / "run")


def screen(arm: Arm, prompts: str) -> CellIdentity:
    return dataclasses.replace(identity(arm), role="screen", prompts_sha256=prompts)


def rung(folder: RunFolder, number: int, speeds: dict[Arm, float]) -> None:
    """Prompts of its own; every rung's machine is as fast as its number."""
    for arm, speed in speeds.items():
        blocks = answers(
            speed * number, more={"prompt_id": f"rung {number}"}, chunk=1 if arm == AR else 2
        )
        folder.cell(screen(arm, f"p{number}"), blocks)


def test_screened_cells_choose_nothing(folder: RunFolder) -> None:
    folder.cell(AR, answers(1.0))
    folder.cell(CHAIN, answers(1.2, chunk=2))
    rung(folder, 1, {AR: 1.0, TREE: 9.0})
    summary = summarise(folder.path)
    assert [cell.arm for cell in summary.cells] == [AR, CHAIN]
    assert summary.verdict.arm == CHAIN
    assert [(cell.arm, cell.speedup) for cell in summary.screened] == [
        (AR, 1.0),
        (TREE, pytest.approx(9.0)),
    ]
    assert summary.verdict.warnings == ()


def test_each_rung_is_held_against_its_own_baseline(folder: RunFolder) -> None:
    other = Arm("ddtree", 16, 4)
    rung(folder, 1, {AR: 1.0, CHAIN: 1.2, TREE: 1.8, other: 1.5})
    rung(folder, 2, {AR: 1.0, CHAIN: 1.2, TREE: 1.7})
    found = [
        (cell.arm, round(cell.speedup or 0, 6), round(cell.speedup_vs_chain or 0, 6))
        for cell in summarise(folder.path).screened
    ]
    assert sorted(found, key=str) == sorted(
        [
            *[(AR, 1.0, 0.833333), (CHAIN, 1.2, 1.0)] * 2,
            (TREE, 1.8, 1.5),
            (TREE, 1.7, 1.416667),
            (other, 1.5, 1.25),
        ],
        key=str,
    )


def test_a_screened_arm_without_its_baseline_has_no_ratio(folder: RunFolder) -> None:
    rung(folder, 1, {AR: 1.0})
    rung(folder, 2, {TREE: 1.7})
    assert [cell.speedup for cell in summarise(folder.path).screened] == [1.0, None]


SENTINEL = dataclasses.replace(identity(AR, 1024), role="sentinel")


def test_the_sentinel_shows_the_machines_drift(folder: RunFolder) -> None:
    key = folder.cell(SENTINEL, [[Answer(0.1, more={"prompt_id": "s"})]])
    folder.cell(AR, answers(1.0))
    folder.block(key, 1, [Answer(0.1 / 1.02, more={"prompt_id": "s"})])
    folder.cell(TREE, answers(1.8))
    folder.block(key, 2, [Answer(0.1 / 0.9, more={"prompt_id": "s"})])
    summary = summarise(folder.path)
    assert [s.place for s in summary.sentinels] == [0, 4, 8]
    assert [s.ratio for s in summary.sentinels] == pytest.approx([1.0, 1.02, 0.9])
    assert [s.at for s in summary.sentinels] == sorted(s.at for s in summary.sentinels)
    (warning,) = [w for w in summary.verdict.warnings if "drifted" in w]
    assert "between 1 of 2 pairs of measurements, by -11.8%" in warning
    # The sentinel is no cell of the matrix.
    assert [cell.context for cell in summary.cells] == [60, 60]
    assert find(summary, TREE).speedup == pytest.approx(1.8)


def test_sentinels_on_other_prompts_are_held_against_the_mean(folder: RunFolder) -> None:
    folder.cell(SENTINEL, [[Answer(0.1)], [Answer(0.05), Answer(0.2)], [Answer(0.05)]])
    ratios = [sentinel.ratio for sentinel in summarise(folder.path).sentinels]
    assert ratios == pytest.approx([1.0, 1.0, 2.0])


def test_a_failed_sentinel_is_left_out(folder: RunFolder) -> None:
    folder.cell(SENTINEL, [[Answer(0.1)], [Answer(0.1, error="stall: x")], [Answer(0.05)]])
    assert [s.ratio for s in summarise(folder.path).sentinels] == pytest.approx([1.0, 2.0])


@pytest.mark.parametrize(
    ("ratios", "count"),
    [([1.0], 0), ([1.0, 1.029, 1.0], 0), ([1.0, 1.02, 1.04, 1.06], 0), ([1.0, 1.04, 1.0], 2)],
)
def test_drift_counts_between_neighbours(ratios: list[float], count: int) -> None:
    found = list(drift_warnings([Sentinel(n, float(n), r) for n, r in enumerate(ratios)]))
    assert DRIFT == 0.03
    assert len(found) == (1 if count else 0)
    assert not count or f"between {count} of {len(ratios) - 1} pairs" in found[0]
