"""The control of speed and outputs, `ar` with and without a drafter, in a summary."""

import dataclasses
from pathlib import Path

import pytest
from run_folders import AR, STEPS, TREE, Answer, RunFolder, answers, fill, find, identity

from ddtree.bench.summarise import control_of, summarise
from ddtree.errors import ConfigError
from ddtree.records.settings import Setting
from ddtree.records.summary import Control


@pytest.fixture
def full(tmp_path: Path) -> RunFolder:
    return fill(RunFolder(tmp_path / "run"))


def test_controls_are_shown_apart(full: RunFolder) -> None:
    role = dataclasses.replace(identity(AR), role="control-with-drafter")
    full.cell(role, answers(0.5))
    with full.ledger() as ledger:
        ledger.set_control(Control(60, 1, 0.95, None, 8))
        ledger.set_control(Control(60, 4, 0.99, None, 8))
    summary = summarise(full.path)
    assert len(summary.cells) == 3
    assert find(summary, TREE).speedup == pytest.approx(1.8)
    assert [control.ratio for control in summary.controls] == [0.95, 0.99]
    (warning,) = [w for w in summary.verdict.warnings if "without a drafter" in w]
    assert "concurrency 1 runs at 0.950 (n too small) times" in warning


def test_control_ratio_is_paired() -> None:
    def blocks(factor: float) -> dict[int, list[object]]:
        return {
            index: [Answer(step / factor).record("c", 0, index, f"{index}")]
            for index, step in enumerate(STEPS)
        }

    control = control_of(Setting(60, 1), blocks(0.9), blocks(1.0), 0)  # type: ignore[arg-type]
    assert control.ratio == pytest.approx(0.9)
    assert control.ratio_interval is not None
    assert control.requests == 8
    assert (control.outputs, control.identical) == (4, 4)
    with pytest.raises(ConfigError, match="no block that both"):
        control_of(Setting(60, 1), {}, blocks(1.0), 0)  # type: ignore[arg-type]


def test_control_compares_outputs_and_a_difference_is_a_warning(full: RunFolder) -> None:
    def blocks(*ids: int) -> dict[int, list[object]]:
        return {i: [Answer(0.1, first_id=n).record("c", 0, i, f"{i}")] for i, n in enumerate(ids)}

    control = control_of(Setting(60, 1), blocks(1, 1, 1, 1), blocks(1, 1, 5, 9), 0)  # type: ignore[arg-type]
    assert (control.outputs, control.identical, control.differing) == (4, 2, 2)
    for explained, warned in ((0, "2 of 4"), (1, "1 of 4"), (2, None)):
        with full.ledger() as ledger:
            ledger.set_control(dataclasses.replace(control, near_ties=explained))
        found = [w for w in summarise(full.path).verdict.warnings if "answers" in w]
        assert len(found) == (0 if warned is None else 1)
        assert warned is None or f"{warned} prompts differently" in found[0]
