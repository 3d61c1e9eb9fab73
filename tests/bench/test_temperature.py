"""Temperature as an axis: seeds, grades, identities, and a run cut off between two of them."""

import dataclasses
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
from mock_backend import MockBackend, Notes, bench, measured, run, spec_of

from ddtree.bench import part
from ddtree.bench.cells import grid_of
from ddtree.bench.plan import Group, make_plan, request_sampling
from ddtree.bench.tasks import kinds_of
from ddtree.bench.workload import PromptSource
from ddtree.endpoint.client import ServerClient
from ddtree.endpoint.mock import MockRequest
from ddtree.endpoint.mock_script import MockFaults, MockScript, continuation
from ddtree.records.arms import Arm
from ddtree.records.files import read_requests
from ddtree.records.ledger import BlockRow, Ledger
from ddtree.records.sampling import Sampling
from ddtree.records.settings import Setting
from ddtree.records.summary import RunSummary

AR, CHAIN, TREE = Arm("ar"), Arm("chain"), Arm("ddtree", 4, 2)
BOTH = (0.0, 0.7)


def grades(summary: RunSummary) -> dict[tuple[float, Arm], str]:
    return {(c.temperature, c.arm): c.losslessness.grade for c in summary.cells}


def sampled(entries: list[MockRequest]) -> list[MockRequest]:
    return [entry for entry in entries if entry.sampling.temperature > 0]


def test_every_temperature_has_its_cells_graded_exact(tmp_path: Path) -> None:
    backend, notes = MockBackend(), Notes()
    spec = spec_of(temperatures=BOTH, top_p=0.9, top_k=4)
    summary = bench(tmp_path, spec, backend, notes)
    assert grades(summary) == {
        (t, arm): "baseline" if arm == AR else "exact" for t in BOTH for arm in (AR, CHAIN, TREE)
    }
    assert {(c.state, c.requests) for c in summary.cells} == {("ok", 4)}
    assert [choice.temperature for choice in summary.verdict.choices] == list(BOTH)
    assert notes.done == pytest.approx(notes.work)
    assert any("control at context 60, temperature 0.7" in note for note in notes.notes)
    assert any(
        note.startswith("grading: chain at context 60, concurrency 1, temperature 0.7: exact")
        for note in notes.notes
    )
    # Other outputs than greedy ones, by the filters asked for, on prompts of their own.
    entries = measured(backend, spec)
    prompts = {t: {e.prompt for e in entries if e.sampling.temperature == t} for t in BOTH}
    assert [len(found) for found in prompts.values()] == [4, 4]
    assert not prompts[0.0] & prompts[0.7]
    assert {dataclasses.replace(e.sampling, seed=None) for e in entries} == {
        Sampling(),
        Sampling(0.7, top_p=0.9, top_k=4),
    }
    answers = {record.token_ids for record in read_requests(tmp_path / "requests.jsonl")}
    greedy = {continuation(prompt, 12) for prompt in prompts[0.7]}
    assert not greedy & answers
    assert {continuation(e.prompt, 12, sampling=e.sampling) for e in entries} == answers


def test_a_prompt_has_one_seed_and_every_prompt_another(tmp_path: Path) -> None:
    spec = spec_of(temperatures=(0.7,), control=True, prompts=3)
    backend = MockBackend([MockScript(round_s={"ar": 0.002})])
    summary = bench(tmp_path, spec, backend)
    seeds: dict[tuple[int, ...], set[int | None]] = defaultdict(set)
    calibration = [e for e in backend.log if e.max_tokens == spec.calibration_tokens]
    for entry in sampled(backend.log):
        if entry not in calibration:
            seeds[entry.prompt].add(entry.sampling.seed)
    # A prompt each of warm-up, three blocks, and the same of the drafter control.
    assert [len(found) for found in seeds.values()] == [1] * 8
    assert len(set.union(*seeds.values())) == 8
    (control,) = summary.controls
    assert (control.temperature, control.outputs, control.identical) == (0.7, 3, 3)
    assert {(e.method, e.sampling.temperature) for e in calibration} == {("ar", 0.7)}


def test_seeds_follow_from_the_specs_seed(tmp_path: Path) -> None:
    group = Group(Setting(60, 1, 0.7), (), (), (), ())
    spec = spec_of(temperatures=BOTH)
    first = request_sampling(spec, group, "code-0001-60")
    assert first == request_sampling(spec, group, "code-0001-60")
    assert first.temperature == 0.7
    assert first != request_sampling(spec, group, "code-0002-60")
    assert first != request_sampling(dataclasses.replace(spec, seed=1), group, "code-0001-60")
    assert (
        request_sampling(spec, dataclasses.replace(group, setting=Setting(60, 1)), "p")
        == Sampling()
    )


def test_a_wrong_token_is_a_bug_at_every_temperature(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    score, scored = ServerClient.score, defaultdict(set)

    async def listening(self: ServerClient, *asked: Any) -> Any:
        ids, start, _, sampling = (*asked, 1, None)[:4]
        scored[ids[:start]].add(sampling)
        return await score(self, *asked)

    monkeypatch.setattr(ServerClient, "score", listening)
    script = MockScript(faults=MockFaults(corrupt={"ddtree": 5}))
    spec, backend = spec_of(temperatures=BOTH), MockBackend([script])
    summary = bench(tmp_path, spec, backend)
    # Each output is scored as it was sampled; plain scores are asked of greedy ones.
    for entry in measured(backend, spec):
        asked = None if entry.sampling.is_plain else entry.sampling
        assert scored[entry.prompt] == {asked}
    found = grades(summary)
    for temperature in BOTH:
        assert found[temperature, TREE] == "not-lossless"
        assert found[temperature, CHAIN] == "exact"
    (bad,) = [c for c in summary.cells if (c.temperature, c.arm) == (0.7, TREE)]
    assert (bad.losslessness.bugs, bad.losslessness.identical) == (4, 0)
    assert any(w.startswith(f"{bad.place}: NOT lossless") for w in summary.verdict.warnings)


def test_an_arm_with_seeds_of_its_own_is_found_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    honest = part.request_sampling

    def by_arm(*place: object) -> Sampling:
        by_arm.calls += 1  # type: ignore[attr-defined]
        return honest(*place).with_seed(by_arm.calls)  # type: ignore[attr-defined, arg-type]

    by_arm.calls = 0  # type: ignore[attr-defined]
    monkeypatch.setattr(part, "request_sampling", by_arm)
    summary = bench(tmp_path, spec_of(temperatures=(0.7,)))
    assert {g for (_, arm), g in grades(summary).items() if arm != AR} == {"not-lossless"}


def blocks_by_temperature(folder: Path) -> dict[float, list[BlockRow]]:
    with Ledger.read(folder / "ledger.sqlite") as ledger:
        found: dict[float, list[BlockRow]] = defaultdict(list)
        for row in ledger.cells():
            found[row.temperature].extend(ledger.blocks(row.key))
    return found


def test_resume_adds_a_temperature_and_runs_no_finished_cell_again(tmp_path: Path) -> None:
    spec = spec_of(temperatures=BOTH)
    dying = MockBackend(dies_at=lambda e: e.sampling.temperature > 0)
    first = bench(tmp_path, spec, dying)
    assert {(c.temperature, c.state) for c in first.cells} == {(0.0, "ok"), (0.7, "failed")}
    assert [choice.temperature for choice in first.verdict.choices] == [0.0]
    before = blocks_by_temperature(tmp_path)
    backend = MockBackend()
    second = bench(tmp_path, spec, backend)
    assert {c.state for c in second.cells} == {"ok"}
    assert set(grades(second).values()) == {"baseline", "exact"}
    assert {e.sampling.temperature for e in measured(backend, spec)} == {0.7}
    assert blocks_by_temperature(tmp_path)[0.0] == before[0.0]


def test_greedy_cells_have_the_prompts_of_a_greedy_run() -> None:
    async def tokenize(text: str) -> tuple[int, ...]:
        return tuple(ord(letter) for letter in text[:50])

    def prompts(*temperatures: float) -> list[tuple[str, ...]]:
        spec = spec_of(temperatures=temperatures, concurrencies=(1, 2), prompts=2)
        source = PromptSource(tokenize, kinds_of(spec, tuple, None), spec.seed)
        groups = run(make_plan(spec, grid_of(spec), source)).groups
        return [tuple(p.sha256 for p in g.prompts) for g in groups if g.temperature == 0]

    assert prompts(0.0) == prompts(0.0, 0.7)


@pytest.mark.parametrize(
    "changes", [{"top_p": 0.8}, {"top_k": 3}, {"min_p": 0.2}, {"temperatures": (0.0, 0.8)}]
)
def test_what_shapes_samples_is_part_of_a_sampled_cells_key(
    tmp_path: Path, changes: dict[str, object]
) -> None:
    spec = spec_of(temperatures=BOTH, prompts=1, top_p=0.9)
    folders = {tmp_path / "a": spec, tmp_path / "b": dataclasses.replace(spec, **changes)}
    keys: dict[bool, list[set[str]]] = {True: [], False: []}
    for folder, one in folders.items():
        bench(folder, one)
        with Ledger.read(folder / "ledger.sqlite") as ledger:
            for greedy, found in keys.items():
                rows = [row for row in ledger.cells() if (row.temperature == 0) is greedy]
                found.append({row.key for row in rows})
    assert keys[True][0] == keys[True][1]
    assert len(keys[False][0]) == 3
    assert not keys[False][0] & keys[False][1]
