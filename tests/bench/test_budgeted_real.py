"""A budgeted run on a real server: what replay foretells is what real requests then did."""

import os
from pathlib import Path

import pytest

from bench.mock_backend import Notes, quiet, run
from ddtree.bench import gates, watch
from ddtree.bench.run import RunSetup, run_bench
from ddtree.bench.session import ServeBackend
from ddtree.bench.spec_file import parse_spec
from ddtree.records.acceptance import accounts_of, length_of
from ddtree.records.arms import Arm
from ddtree.records.files import read_requests
from ddtree.records.ledger import Ledger

SPEC = """
title: Budgeted
model: smollm2-135m
dtype: float32
axes: {budget: [3, 6, 12], topk: [2], draft_window: [16, full]}
contexts: [60]
concurrencies: [1]
prompts: 1
blocks: 1
max_tokens: 10
workload: code
warmup_context: 60
warmup_tokens: 2
calibration_tokens: 4
control: false
control_outputs: 1
budget_minutes: 2
tuning: {candidates: 3, prompts: 1, growth: 3, finalists: 1}
"""


@pytest.mark.model
def test_a_budgeted_run(tmp_path: Path, smollm2: object, monkeypatch: pytest.MonkeyPatch) -> None:
    # Other tests share the machine; whether it is quiet is not what this one asks.
    monkeypatch.setattr(watch, "STEP_LIMIT", 1000.0)
    monkeypatch.setattr(gates, "MEAN_LAG_LIMIT_S", 10.0)
    spec = parse_spec(SPEC, "test")
    backend = ServeBackend(spec, tmp_path, {**os.environ, "OMP_NUM_THREADS": "1"})
    notes = Notes()
    setup = RunSetup(tmp_path, backend, notes, make_reader=quiet)
    summary = run(run_bench(spec, setup), 280)
    trees = {arm for arm in spec.arms if arm.method == "ddtree"}
    foretold = {p.arm: p for p in summary.predictions}
    assert set(foretold) == {*trees, Arm("chain")}
    assert len(trees) == 6

    real = _acceptance_of_the_probe(tmp_path)
    # The baseline is not drafted for; chain and one tree of each budget are.
    assert len(real) == 4
    for arm, length in real.items():
        assert foretold[arm].acceptance_length == pytest.approx(length), arm.label

    chosen = {p.arm for p in summary.predictions if p.chosen} & trees
    assert len(chosen) == 3
    measured = {cell.arm: cell for cell in summary.cells}
    finalists = set(measured) & trees
    assert {Arm("ar"), Arm("chain")} < set(measured)
    assert finalists
    assert finalists <= chosen | {max(foretold, key=lambda a: foretold[a].speedup)}
    assert {cell.state for cell in measured.values()} == {"ok"}
    grades = {arm: cell.losslessness for arm, cell in measured.items()}
    assert all(found is not None for found in grades.values())
    assert {grades[arm].grade for arm in finalists | {Arm("chain")}} == {"exact"}
    # The work told last is what was measured in the end, not the whole grid.
    assert notes.work < 0.7 * notes.done


def _acceptance_of_the_probe(folder: Path) -> dict[Arm, float]:
    """Acceptance length of each drafting arm over its requests of the probe."""
    with Ledger.read(folder / "ledger.sqlite") as ledger:
        rows = {row.key: row for row in ledger.cells() if row.role == "screen"}
    first: dict[Arm, str] = {}
    for row in rows.values():
        first.setdefault(row.arm, row.key)
    records = read_requests(folder / "requests.jsonl")
    found = {}
    for arm, key in first.items():
        length = length_of(accounts_of(r for r in records if r.cell == key))
        if arm.method != "ar" and length is not None:
            found[arm] = length
    return found
