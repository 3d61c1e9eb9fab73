"""Two runs side by side: known ratios, the run against itself, and what can't be compared."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
import yaml
from run_folders import AR, CHAIN, SPEC, TREE, Answer, RunFolder, answers, fill, identity

from ddtree.bench import compare as module
from ddtree.bench.compare import CellComparison, Comparison, compare, comparison_text
from ddtree.bench.summarise import PROVENANCE_FILE, SPEC_FILE, SUMMARY_FILE, write_summary
from ddtree.errors import ConfigError
from ddtree.records.arms import Arm
from ddtree.records.summary import Interval, Losslessness
from mutations.planting import Mutation, planted


def run(path: Path, **factors: float) -> Path:
    """A run whose arms have these speeds; chunks of a tree hold 4 tokens."""
    folder = RunFolder(path)
    for name, factor in factors.items():
        arm = {"ar": AR, "chain": CHAIN, "tree": TREE}[name]
        folder.cell(arm, answers(factor, chunk={"ar": 1, "chain": 2, "tree": 4}[name]))
    return path


def find(found: Comparison, arm: Arm) -> CellComparison:
    (cell,) = [cell for cell in found.cells if cell.arm == arm]
    return cell


def check_a_run_against_itself(path: Path) -> None:
    found = module.compare(path, path)
    assert len(found.cells) == 3
    assert (found.only_a, found.only_b, found.differences) == (0, 0, ())
    for cell in found.cells:
        assert cell.paired
        assert cell.notes == ()
        for ratio in (cell.speed, cell.speedup):
            assert ratio is not None
            assert ratio.value == pytest.approx(1.0, abs=1e-12)
            assert ratio.interval is not None
            assert (ratio.interval.low, ratio.interval.high) == pytest.approx((1.0, 1.0))
            assert not ratio.is_changed
        assert cell.acceptance[0] == cell.acceptance[1]


def test_a_run_against_itself_is_one_everywhere(tmp_path: Path) -> None:
    fill(folder := RunFolder(tmp_path / "a"))
    check_a_run_against_itself(folder.path)
    other = Mutation(
        "against the baseline",
        "ddtree.bench.compare_ratios",
        (("b.cells.get(place), a.cells.get(place)", "b.cells.get(place), a.cells[_AR, place[1]]"),),
        (),
    )
    with planted(other), pytest.raises(AssertionError):
        check_a_run_against_itself(folder.path)


def test_ratios_are_of_b_to_a(tmp_path: Path) -> None:
    a = run(tmp_path / "a", ar=1.0, tree=1.5)
    b = run(tmp_path / "b", ar=1.0, tree=1.8)
    tree = find(compare(a, b), TREE)
    assert tree.paired
    assert tree.speed is not None
    assert tree.speed.value == pytest.approx(1.2)
    assert tree.speed.is_changed
    assert tree.speedup is not None
    assert tree.speedup.value == pytest.approx(1.2)
    back = find(compare(b, a), TREE).speed
    assert back is not None
    assert back.value == pytest.approx(1 / 1.2)


def test_a_faster_machine_changes_speeds_and_no_speedup(tmp_path: Path) -> None:
    a = run(tmp_path / "a", ar=1.0, tree=1.5)
    b = run(tmp_path / "b", ar=1.1, tree=1.65)
    found = compare(a, b)
    tree, base = find(found, TREE), find(found, AR)
    assert tree.speed is not None
    assert tree.speedup is not None
    assert base.speed is not None
    assert (tree.speed.value, base.speed.value) == pytest.approx((1.1, 1.1))
    assert tree.speedup.value == pytest.approx(1.0)
    assert not tree.speedup.is_changed


def test_pairs_see_what_differences_of_prompts_hide(tmp_path: Path) -> None:
    # Prompts differ fourfold in speed, the runs by 3 %.
    a, b = (run(tmp_path / name, ar=f) for name, f in (("a", 1.0), ("b", 1.03)))
    paired = find(compare(a, b), AR).speed
    assert paired is not None
    assert paired.is_changed
    other = RunFolder(tmp_path / "c")
    cell = identity(AR)
    other.cell(type(cell)(**{**cell.__dict__, "prompts_sha256": "q"}), answers(1.03))
    found = compare(a, other.path)
    unpaired = find(found, AR)
    assert not unpaired.paired
    assert unpaired.speed is not None
    assert unpaired.speed.value == pytest.approx(1.03)
    assert not unpaired.speed.is_changed
    assert "1 of 1 cells are unpaired" in comparison_text(found)


def test_too_few_blocks_give_no_interval(tmp_path: Path) -> None:
    paths = []
    for name, factor in (("a", 1.0), ("b", 2.0)):
        folder = RunFolder(tmp_path / name)
        folder.cell(AR, answers(factor)[:2])
        paths.append(folder.path)
    ratio = find(compare(*paths), AR).speed
    assert ratio is not None
    assert (ratio.value, ratio.interval, ratio.is_changed) == (pytest.approx(2.0), None, False)


def test_system_throughputs_are_compared_above_concurrency_one(tmp_path: Path) -> None:
    paths = []
    for name, fast in (("a", 0.1), ("b", 0.05)):
        folder = RunFolder(tmp_path / name)
        pair = [Answer(fast, ttft=0.0), Answer(0.1, ttft=0.0)]
        folder.cell(identity(AR, concurrency=2), [pair] * 3)
        paths.append(folder.path)
    ratio = find(compare(*paths), AR).speed
    assert ratio is not None
    # 20 tokens/s against 30, see the summary's own test; per prompt it would be 1.41.
    assert ratio.value == pytest.approx(1.5)


def test_intervals_cover_the_truth(tmp_path: Path) -> None:
    rng, covered = np.random.default_rng(0), 0
    for number in range(20):
        paths = []
        for name, factor in (("a", 1.0), ("b", 1.05)):
            folder = RunFolder(tmp_path / f"{number}{name}")
            noise = rng.normal(0, 0.02, 8)
            folder.cell(AR, [[Answer(0.1 / factor * math.exp(x))] for x in noise])
            paths.append(folder.path)
        ratio = find(compare(*paths), AR).speed
        assert ratio is not None
        assert ratio.interval is not None
        covered += ratio.interval.low <= 1.05 <= ratio.interval.high
    assert covered >= 16


def test_grades_states_and_acceptance_are_beside(tmp_path: Path) -> None:
    a = run(tmp_path / "a", ar=1.0, chain=1.2, tree=1.5)
    folder = RunFolder(tmp_path / "b")
    folder.cell(AR, answers(1.0))
    folder.cell(CHAIN, answers(1.2, chunk=2), state="invalid")
    folder.cell(TREE, answers(1.5, chunk=2), grade=Losslessness("not-lossless", 4, 3, bugs=1))
    found = compare(a, folder.path)
    tree, chain = find(found, TREE), find(found, CHAIN)
    assert tree.notes == ("grade: exact, then not-lossless",)
    assert tree.acceptance == (4.0, 2.0)
    assert chain.notes == ("state: ok, then invalid",)
    assert (chain.speed, chain.speedup) == (None, None)
    text = comparison_text(found)
    assert "grade: exact, then not-lossless" in text
    assert "none" in text
    told = json.loads(found.to_json())
    assert told["cells"][2]["label"] == "ddtree(8,4)"
    assert told["cells"][2]["speed"]["interval"]["level"] == 0.95


def test_cells_of_one_run_alone_are_counted(tmp_path: Path) -> None:
    a = run(tmp_path / "a", ar=1.0, chain=1.2, tree=1.5)
    b = run(tmp_path / "b", ar=1.0)
    found = compare(a, b)
    assert ([c.arm for c in found.cells], found.only_a, found.only_b) == ([AR], 2, 0)
    assert "2 cells are in A alone, 0 in B alone" in comparison_text(found)
    other = run(tmp_path / "c", tree=1.0)
    with pytest.raises(ConfigError, match="share no cell"):
        compare(b, other)


def test_a_summary_alone_gives_ratios_without_intervals(tmp_path: Path) -> None:
    a = run(tmp_path / "a", ar=1.0, tree=1.5)
    b = run(tmp_path / "b", ar=1.0, tree=1.8)
    write_summary(b)
    found = compare(a, b / SUMMARY_FILE)
    tree = find(found, TREE)
    assert tree.speed is not None
    assert tree.speedup is not None
    assert tree.speed.value == pytest.approx(1.2)
    assert tree.speedup.value == pytest.approx(1.2)
    assert (tree.speed.interval, tree.paired) == (None, False)
    assert any("metric version" in text for text in found.differences)


def test_another_schema_is_refused(tmp_path: Path) -> None:
    a = run(tmp_path / "a", ar=1.0)
    write_summary(a)
    old = json.loads((a / SUMMARY_FILE).read_text()) | {"schema_version": 2}
    (tmp_path / "old.json").write_text(json.dumps(old))
    with pytest.raises(ConfigError, match="schema_version 2"):
        compare(a, tmp_path / "old.json")
    for text in ("{", "[]", "{}", '{"schema_version": 3}'):
        (tmp_path / "bad.json").write_text(text)
        with pytest.raises(ConfigError):
            compare(tmp_path / "bad.json", a)
    with pytest.raises(ConfigError, match="neither a run folder nor a summary"):
        compare(a, tmp_path / "nothing")


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("dtype", "float32"),
        ("max_tokens", 99),
        ("workload", "text"),
        ("ignore_eos", True),
        ("top_p", 0.5),
    ],
)
def test_other_work_is_refused_by_name(tmp_path: Path, key: str, value: object) -> None:
    a, b = (run(tmp_path / name, ar=1.0) for name in "ab")
    (b / SPEC_FILE).write_text(yaml.safe_dump(SPEC | {key: value}))
    with pytest.raises(ConfigError, match=f"can't be compared: {key}: .* against {value!r}"):
        compare(a, b, allow=("hardware", "drafter", "endpoint", "versions", "server"))


@pytest.mark.parametrize("field", ["model_sha256", "metric_version"])
def test_another_checkpoint_or_metric_is_refused(tmp_path: Path, field: str) -> None:
    a = run(tmp_path / "a", ar=1.0)
    folder = RunFolder(tmp_path / "b")
    cell = identity(AR)
    folder.cell(type(cell)(**{**cell.__dict__, field: 77}), answers(1.0))
    with pytest.raises(ConfigError, match=field):
        compare(a, folder.path)


PROVENANCE = {
    "cpu": "one",
    "memory_bytes": 8,
    "versions": {"torch": "2.13", "ddtree": "0.1"},
    "server": {"threads": 2},
}


@pytest.mark.parametrize(
    ("changes", "kind", "name"),
    [
        ({"cpu": "two"}, "hardware", "cpu"),
        ({"memory_bytes": 16}, "hardware", "memory_bytes"),
        ({"versions": {"torch": "2.14", "ddtree": "0.1"}}, "versions", "torch"),
        ({"server": {"threads": 4}}, "server", "threads"),
    ],
)
def test_another_machine_is_refused_unless_allowed(
    tmp_path: Path, changes: dict[str, object], kind: str, name: str
) -> None:
    a, b = (run(tmp_path / name, ar=1.0) for name in "ab")
    (a / PROVENANCE_FILE).write_text(json.dumps(PROVENANCE))
    (b / PROVENANCE_FILE).write_text(json.dumps(PROVENANCE | changes))
    with pytest.raises(ConfigError, match=rf"{name}: .* \(--allow {kind} compares all the same\)"):
        compare(a, b)
    assert name in compare(a, b, [kind]).differences[0]
    with pytest.raises(ConfigError, match="--allow: got 'everything'"):
        compare(a, b, ["everything"])


def test_another_drafter_or_endpoint_is_refused_unless_allowed(tmp_path: Path) -> None:
    a = run(tmp_path / "a", ar=1.0)
    folder = RunFolder(tmp_path / "b", SPEC | {"endpoint": {"kind": "sglang"}})
    cell = identity(AR)
    folder.cell(type(cell)(**{**cell.__dict__, "drafter_sha256": "e"}), answers(1.0))
    for allowed, named in ((["drafter"], "endpoint"), (["endpoint"], "drafter")):
        with pytest.raises(ConfigError, match=named):
            compare(a, folder.path, allowed)
    assert len(compare(a, folder.path, ["drafter", "endpoint"]).differences) == 2


def test_our_own_versions_may_always_differ(tmp_path: Path) -> None:
    a, b = (run(tmp_path / name, ar=1.0) for name in "ab")
    for path, version in ((a, "0.1"), (b, "0.2")):
        text = json.dumps(PROVENANCE | {"versions": {"torch": "2.13", "ddtree": version}})
        (path / PROVENANCE_FILE).write_text(text)
    assert compare(a, b).differences == ()


def test_an_interval_that_holds_one_is_no_change() -> None:
    assert module.Ratio(1.1, Interval(1.01, 1.2)).is_changed
    assert module.Ratio(0.9, Interval(0.8, 0.99)).is_changed
    assert not module.Ratio(1.1, Interval(1.0, 1.2)).is_changed
    assert not module.Ratio(1.1, None).is_changed
