"""Runs with a time budget, on the mock over HTTP; what replay would say is scripted here, the real
one is tested with the server."""

import json
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from bench.mock_backend import MockBackend, Notes, bench, spec_of
from ddtree.bench import tuned
from ddtree.bench.spec import BenchSpec, TuningSpec
from ddtree.bench.summarise import TUNING_FILE
from ddtree.bench.tuned import TuningBook
from ddtree.endpoint.mock_script import MockScript
from ddtree.endpoint.replay import ReplayedArm
from ddtree.errors import EndpointError
from ddtree.records.arms import Arm
from ddtree.records.ledger import Ledger
from ddtree.records.settings import Setting
from ddtree.records.summary import Prediction, Rung, Skip

AR, CHAIN = Arm("ar"), Arm("chain")
TREES = tuple(Arm("ddtree", b, k) for b, k in product((2, 4, 8, 16), (1, 2)))
HERE = Setting(60, 1)
SCRIPT = MockScript(round_s={"ar": 0.002, "chain": 0.002, "ddtree": 0.002})


def tuning_spec(**changes: Any) -> BenchSpec:
    tuning = TuningSpec(candidates=4, prompts=1, growth=2, finalists=1, predict=True)
    settings: dict[str, Any] = {
        "arms": (AR, CHAIN, *TREES),
        "prompts": 2,
        "budget_minutes": 5.0,
        "tuning": tuning,
    }
    return spec_of(**(settings | changes))


async def scripted(
    _client: object,
    _prompt: Sequence[int],
    output: Sequence[int],
    _reason: str,
    arms: Sequence[Arm],
    _sampling: object,
) -> list[ReplayedArm]:
    """Trees accept more with their budget, those of topk 2 most, a chain one token a round."""
    found = []
    for arm in arms:
        accepted = 1 if arm == CHAIN else (arm.budget or 0) // 2 + (arm.topk == 2)
        rounds = len(output)
        histogram = (*(0 for _ in range(accepted)), rounds)
        found.append(ReplayedArm(arm, rounds, histogram, rounds, (), (), 0))
    return found


@pytest.fixture(autouse=True)
def replays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tuned, "replay", scripted)


def cells_by_role(folder: Path, role: str) -> list[str]:
    with Ledger.read(folder / "ledger.sqlite") as ledger:
        return [row.arm.label for row in ledger.cells() if row.role == role]


def test_the_grid_is_narrowed_down_to_what_is_foretold_to_win(tmp_path: Path) -> None:
    progress = Notes()
    summary = bench(tmp_path, tuning_spec(), MockBackend([SCRIPT]), progress)
    book = TuningBook(tmp_path / TUNING_FILE)
    # Rounds cost the same, so what accepts most is foretold to be fastest.
    assert book.predicted(HERE)[0].arm == Arm("ddtree", 16, 2)
    chosen = {p.arm for p in book.predictions if p.chosen}
    assert chosen == {CHAIN, *(a for a in TREES if a in chosen)}
    assert len(chosen) == 1 + 4
    (first, *_) = book.rungs
    assert (first.name, first.prompts) == ("rung 1", 1)
    assert set(first.arms) == chosen - {CHAIN}
    assert Arm("ddtree", 16, 2) in first.kept
    ran = [cell.arm for cell in summary.cells]
    assert ran[:2] == [AR, CHAIN]
    assert Arm("ddtree", 16, 2) in ran
    assert 3 <= len(ran) <= 4
    assert {cell.state for cell in summary.cells} == {"ok"}
    assert any("predicted at context 60" in note for note in progress.notes)


def test_measured_prompts_are_those_of_a_run_without_a_budget(tmp_path: Path) -> None:
    bench(tmp_path / "narrow", tuning_spec(), MockBackend([SCRIPT]))
    bench(tmp_path / "whole", tuning_spec(budget_minutes=None), MockBackend([SCRIPT]))
    keys = []
    for name in ("narrow", "whole"):
        with Ledger.read(tmp_path / name / "ledger.sqlite") as ledger:
            keys.append({row.key for row in ledger.cells() if row.role == "arm"})
    assert keys[0] < keys[1]


def test_screened_cells_never_count_as_measured(tmp_path: Path) -> None:
    bench(tmp_path, tuning_spec(), MockBackend([SCRIPT]))
    screened = cells_by_role(tmp_path, "screen")
    # The probe: both baselines and each budget once; then the rungs.
    assert screened[:6] == ["ar", "chain", *(f"ddtree({b},2)" for b in (2, 4, 8, 16))]
    assert len(screened) > 6
    arms = cells_by_role(tmp_path, "arm")
    assert len(arms) < len(TREES)


def test_a_resumed_run_decides_the_same_and_measures_nothing_again(tmp_path: Path) -> None:
    first = bench(tmp_path, tuning_spec(), MockBackend([SCRIPT]))
    decided = (tmp_path / TUNING_FILE).read_text()
    backend = MockBackend([SCRIPT])
    again = bench(tmp_path, tuning_spec(), backend)
    assert [c.arm for c in again.cells] == [c.arm for c in first.cells]
    before, after = json.loads(decided), json.loads((tmp_path / TUNING_FILE).read_text())
    assert after.pop("spent_s") >= before.pop("spent_s")
    assert after == before
    assert backend.log == []


def test_without_replay_every_arm_enters_the_first_rung(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refuses(*_: object) -> list[ReplayedArm]:
        raise EndpointError("no such route")

    monkeypatch.setattr(tuned, "replay", refuses)
    progress = Notes()
    bench(tmp_path, tuning_spec(), MockBackend([SCRIPT]), progress)
    book = TuningBook(tmp_path / TUNING_FILE)
    assert book.predictions == ()
    assert set(book.rungs[0].arms) == set(TREES)
    assert [len(r.arms) for r in book.rungs] == [8, 4, 2]
    assert [r.prompts for r in book.rungs] == [1, 2, 4]
    assert any("no prediction at context 60" in note for note in progress.notes)


def test_prediction_can_be_switched_off(tmp_path: Path) -> None:
    tuning = TuningSpec(candidates=4, prompts=1, growth=4, finalists=2, predict=False)
    bench(tmp_path, tuning_spec(tuning=tuning), MockBackend([SCRIPT]))
    book = TuningBook(tmp_path / TUNING_FILE)
    assert book.predictions == ()
    assert [len(r.arms) for r in book.rungs] == [8]


def test_too_little_time_is_said_and_one_finalist_stays(tmp_path: Path) -> None:
    progress = Notes()
    spec = tuning_spec(budget_minutes=0.0001)
    summary = bench(tmp_path, spec, MockBackend([SCRIPT]), progress)
    assert any("minutes left" in note for note in progress.notes)
    assert TuningBook(tmp_path / TUNING_FILE).rungs == ()
    assert [c.arm for c in summary.cells] == [AR, CHAIN, Arm("ddtree", 16, 2)]


def test_one_arm_is_measured_everywhere(tmp_path: Path) -> None:
    spec = tuning_spec(contexts=(60, 90), concurrencies=(1, 2), waves=1)
    summary = bench(tmp_path, spec, MockBackend([SCRIPT]))
    by_setting: dict[Setting, set[Arm]] = {}
    for cell in summary.cells:
        by_setting.setdefault(cell.setting, set()).add(cell.arm)
    assert len(by_setting) == 4
    common = set.intersection(*by_setting.values())
    assert Arm("ddtree", 16, 2) in common


def test_the_book_reads_what_it_wrote(tmp_path: Path) -> None:
    path = tmp_path / TUNING_FILE
    book = TuningBook(path)
    skip = Skip(TREES[0], HERE, "same", TREES[1])
    rung = Rung("rung 1", HERE, 3, TREES[:2], (1.5, None), TREES[:1])
    prediction = Prediction(TREES[0], HERE, 2.5, 0.05, 1.7, True, "on the front")
    book.set_skips([skip])
    book.add_predictions([prediction])
    book.add_rung(rung)
    book.spend(2.5)
    again = TuningBook(path)
    assert (again.skips, again.predictions, again.rungs) == ((skip,), (prediction,), (rung,))
    assert again.spent_s == 2.5
    assert again.rung(HERE, "rung 1") == rung
    assert again.rung(HERE, "rung 2") is None
