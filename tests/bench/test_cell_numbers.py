"""What a cell's summary holds beyond its ratio: spreads, rounds, tree, flags, an open loop."""

import dataclasses
import json
from pathlib import Path

import pytest
from run_folders import AR, CHAIN, TREE, Answer, RunFolder, answers, find, identity

from ddtree.bench.gates import looped_reason
from ddtree.bench.summarise import TUNING_FILE, summarise
from ddtree.errors import ConfigError
from ddtree.records.arms import Arm
from ddtree.records.settings import Setting
from ddtree.records.summary import CellSummary, Prediction, Rung, Skip
from ddtree.records.summary_json import read_summary
from mutations.planting import Mutation, planted


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    return RunFolder(tmp_path / "run")


def tree_of(folder: RunFolder) -> CellSummary:
    return find(summarise(folder.path), TREE)


def test_spreads_have_only_the_quantiles_that_n_can_bound(folder: RunFolder) -> None:
    # 30 prompts with first tokens after 1, 2, ... 30 s.
    waits = [[Answer(0.1, ttft=float(n))] for n in range(1, 31)]
    folder.cell(AR, waits)
    folder.cell(TREE, waits[:8])
    spread = find(summarise(folder.path), AR).ttft
    assert spread is not None
    assert (spread.count, spread.p10, spread.p50, spread.p90) == (30, 3.0, 15.0, 27.0)
    assert (spread.p95, spread.p99) == (None, None)
    few = tree_of(folder).ttft
    assert few is not None
    assert (few.count, few.p10, few.p50, few.p90) == (8, None, 4.0, None)


def check_failures_are_slow(folder: RunFolder) -> None:
    # 57 answers and 3 failures: the median moves up, p95 is still an answer's, just.
    good = [[Answer(0.1, ttft=float(n))] for n in range(1, 58)]
    folder.cell(AR, [*good, *[[Answer(0.1, error="stall: x")]] * 3])
    cell = find(summarise(folder.path), AR)
    assert cell.state == "ok"
    assert cell.ttft is not None
    assert (cell.ttft.count, cell.ttft.p50, cell.ttft.p95) == (60, 30.0, 57.0)
    assert "quantiles count 3 failed requests as slower than any other" in cell.flags


def test_failed_requests_are_slower_than_any_other(folder: RunFolder, tmp_path: Path) -> None:
    check_failures_are_slow(folder)
    survivors = Mutation(
        "quantiles of survivors",
        "ddtree.bench.cell_summary",
        (("values = [math.inf for record in records if record.error is not None]", "values = []"),),
        (),
    )
    with planted(survivors), pytest.raises(AssertionError):
        check_failures_are_slow(RunFolder(tmp_path / "again"))


def test_a_quantile_that_falls_on_a_failure_is_no_number(folder: RunFolder) -> None:
    folder.cell(AR, [*[[Answer(0.1)]] * 50, *[[Answer(0.1, error="stall: x")]] * 20])
    cell = find(summarise(folder.path), AR)
    assert cell.state == "invalid"
    assert cell.end_to_end is not None
    assert cell.end_to_end.p50 is not None
    assert (cell.end_to_end.p90, cell.end_to_end.p95) == (None, None)
    json.loads(summarise(folder.path).to_json(), parse_constant=pytest.fail)


def test_the_speedup_is_the_gain_over_the_rounds_cost(folder: RunFolder) -> None:
    folder.cell(AR, answers(1.0))
    folder.cell(TREE, answers(1.8, chunk=4))
    summary = summarise(folder.path)
    tree, base = find(summary, TREE), find(summary, AR)
    assert tree.acceptance_gain == pytest.approx(4.0)
    # Four tokens a round at 1.8 times the speed: a round takes 4 / 1.8 steps.
    assert tree.round_cost == pytest.approx(4 / 1.8)
    assert tree.speedup is not None
    assert tree.acceptance_gain / tree.round_cost == pytest.approx(tree.speedup)
    assert (base.acceptance_gain, base.round_cost) == (1.0, pytest.approx(1.0))
    assert (tree.acceptance_source, base.acceptance_source) == ("server", "server")
    assert tree.acceptance_interval is not None
    assert tree.acceptance_interval.low == pytest.approx(4.0)
    assert base.acceptance_interval is None


def test_a_baseline_without_stats_still_has_steps(folder: RunFolder) -> None:
    folder.cell(AR, answers(1.0, stats=False))
    folder.cell(TREE, answers(1.8, chunk=4, told={"source": "estimate"}))
    summary = summarise(folder.path)
    assert find(summary, TREE).round_cost == pytest.approx(4 / 1.8)
    assert find(summary, TREE).acceptance_source == "estimate"
    assert find(summary, AR).acceptance_source is None


def test_a_blocks_counters_count_for_more_than_estimates(folder: RunFolder) -> None:
    # 20 tokens after the first in 8 rounds of the server's; chunks of 4 look like 5.
    counters = {"rounds": 8, "num_accepted": 12, "tree_nodes": 56, "source": "counters"}
    folder.cell(AR, answers(1.0))
    extra = {"counters": counters}
    folder.cell(TREE, answers(1.8, chunk=4, told={"source": "estimate"}), extra=extra)
    tree = tree_of(folder)
    assert tree.acceptance_source == "counters"
    assert tree.acceptance_length == pytest.approx(2.5)
    assert tree.round_cost == pytest.approx(2.5 / 1.8)
    assert tree.acceptance_interval is not None
    assert tree.acceptance_interval.high == pytest.approx(2.5)
    # It doesn't say at which depth.
    assert tree.accepted_by_depth == ()
    without = {"counters": None}
    other = RunFolder(folder.path.with_name("other"))
    other.cell(AR, answers(1.0))
    other.cell(TREE, answers(1.8, chunk=4, told={"source": "estimate"}), extra=without)
    assert tree_of(other).acceptance_length == pytest.approx(4.0)


def test_end_to_end_speedups_have_intervals(folder: RunFolder) -> None:
    folder.cell(AR, answers(1.0))
    folder.cell(TREE, answers(1.8))
    tree = tree_of(folder)
    assert tree.end_to_end_speedup is not None
    assert tree.end_to_end_interval is not None
    assert tree.end_to_end_interval.low < tree.end_to_end_speedup < tree.end_to_end_interval.high
    assert tree.speedup_p is not None
    assert tree.speedup_p < 1e-6


def test_tree_use_is_of_the_cells_own_paths(folder: RunFolder) -> None:
    told = {"accepted_ranks": [[0], [1]], "accepted_nodes": [[0], [1]], "tree_nodes": 16}
    folder.cell(AR, answers(1.0))
    folder.cell(TREE, answers(1.8, told=told))
    summary = summarise(folder.path)
    tree = find(summary, TREE).tree
    assert tree is not None
    assert (tree.accepted_ranks, tree.rescued, tree.node_use) == ((0.5, 0.5), 0.5, 2 / 16)
    assert find(summary, AR).tree is None


def test_deciles_need_as_many_prompts_as_their_ends(folder: RunFolder) -> None:
    # Prompt n gains n %: a mean hides that.
    gains = [1 + n / 100 for n in range(30)]
    folder.cell(AR, [[Answer(0.1)] for _ in gains])
    folder.cell(TREE, [[Answer(0.1 / gain)] for gain in gains])
    deciles = tree_of(folder).ratio_deciles
    assert deciles == pytest.approx([gains[3 * n - 1] for n in range(1, 10)])
    small = RunFolder(folder.path.with_name("small"))
    small.cell(AR, answers(1.0))
    small.cell(TREE, answers(1.8))
    assert tree_of(small).ratio_deciles == ()


def test_what_blocks_saw_is_told(folder: RunFolder) -> None:
    seen = {
        "flags": ["1 of 1 outputs repeat themselves (code-0003-60)"],
        "achieved_concurrency": 0.98,
        "loop_lag_p99_s": 0.001,
        "length_mismatches": 2,
    }
    folder.cell(AR, answers(1.0), extra={"achieved_concurrency": None, "loop_lag_p99_s": None})
    key = folder.cell(TREE, answers(1.8, more={"cached_tokens": 3}), extra=seen)
    more = {
        **seen,
        "flags": ["2 of 9 outputs repeat themselves (code-0007-60)", "times are odd"],
        "achieved_concurrency": 1.0,
        "loop_lag_p99_s": 0.004,
    }
    folder.block(key, 4, [Answer(0.05, more={"cached_tokens": 3})], extra=more)
    summary = summarise(folder.path)
    tree = find(summary, TREE)
    assert tree.flags == (
        "1 of 1 outputs repeat themselves (code-0003-60) (the first of 5 such flags)",
        "times are odd",
        "10 outputs are not as long as the baseline's",
    )
    assert (tree.achieved_concurrency, tree.loop_lag_s, tree.cached_tokens) == (0.98, 0.004, 15)
    base = find(summary, AR)
    assert (base.flags, base.achieved_concurrency, base.loop_lag_s) == ((), None, None)
    assert base.cached_tokens is None


def test_an_outlier_is_flagged_and_counts_all_the_same(folder: RunFolder) -> None:
    def check(path: Path) -> None:
        run = RunFolder(path)
        run.cell(AR, [[Answer(0.1)] for _ in range(12)])
        usual = [[Answer(0.1 / (1.5 + 0.01 * (n % 3)))] for n in range(11)]
        run.cell(TREE, [*usual, [Answer(0.01)]])
        tree = tree_of(run)
        (flag,) = tree.flags
        assert flag == (
            "1 of 12 ratios lie over 5 median absolute deviations from the median: 1.767x with "
            "them, 1.509x without"
        )
        assert tree.speedup == pytest.approx(1.767, abs=1e-3)

    check(folder.path)
    deleted = Mutation(
        "outliers deleted",
        "ddtree.bench.cell_checks",
        (("{speedup:.3f}x with them", "{found.ratio_without:.3f}x with them"),),
        (),
    )
    with planted(deleted), pytest.raises(AssertionError):
        check(folder.path.with_name("again"))


OPEN = Setting(60, 4, 0.0, 2.0)


def open_loop(arm: Arm) -> object:
    return dataclasses.replace(identity(arm, concurrency=4), rate=2.0)


def test_an_open_loop_is_compared_prompt_by_prompt(folder: RunFolder) -> None:
    def sent(step: float) -> list[list[Answer]]:
        # Four at once at most: the busy window is there, but the arrivals decide how long.
        return [
            [Answer(step * f, sent=0.1 * n, more={"planned_s": 0.1 * n - 1}) for n in range(4)]
            for f in (1, 3, 2)
        ]

    folder.cell(open_loop(AR), sent(0.1))  # type: ignore[arg-type]
    folder.cell(open_loop(TREE), sent(0.05))  # type: ignore[arg-type]
    tree = tree_of(folder)
    assert tree.setting == OPEN
    assert tree.speedup == pytest.approx(2.0)
    # From when they were planned, a second before they were sent.
    assert tree.ttft_s == pytest.approx(1.5)
    assert summarise(folder.path).verdict.choices[0].setting == OPEN


def test_how_the_grid_was_narrowed_is_read_from_the_folder(folder: RunFolder) -> None:
    folder.cell(AR, answers(1.0))
    folder.cell(CHAIN, answers(1.2))
    here = Setting(60, 1)
    told = (
        Prediction(TREE, here, 3.0, 0.1, 1.7, True, "on the front"),
        Rung("rung 1", here, 8, (CHAIN, TREE), (1.1, None), (CHAIN,)),
        Skip(Arm("ddtree", 4, 8), here, "drafts the same trees", Arm("ddtree", 4, 4)),
    )
    lists = dict(zip(("predictions", "rungs", "skips"), told, strict=True))
    text = json.dumps({name: [dataclasses.asdict(one)] for name, one in lists.items()})
    assert summarise(folder.path).predictions == ()
    (folder.path / TUNING_FILE).write_text(text)
    summary = summarise(folder.path)
    assert (summary.predictions, summary.rungs, summary.skips) == tuple((one,) for one in told)
    assert read_summary(summary.to_json()) == summary
    for broken in ("[", '{"rungs": [{"name": "x"}]}', '{"predictions": [{"speed": 1}]}'):
        (folder.path / TUNING_FILE).write_text(broken)
        with pytest.raises(ConfigError, match=TUNING_FILE):
            summarise(folder.path)


@pytest.mark.parametrize(("endpoint", "kind"), [(None, "ddtree"), ({"kind": "sglang"}, "sglang")])
def test_the_kind_of_server_is_the_specs(
    tmp_path: Path, endpoint: dict[str, str] | None, kind: str
) -> None:
    spec = {"title": "t", "model": "m", "dtype": "float32", "seed": 0, "endpoint": endpoint}
    assert summarise(RunFolder(tmp_path / "run", spec).path).endpoint == kind


def test_outputs_without_ids_are_compared_as_texts(folder: RunFolder) -> None:
    def said(text: str) -> list[list[Answer]]:
        return answers(1.0, more={"token_ids": (), "text": text, "counted": "usage"})

    folder.cell(AR, said("yes"))
    folder.cell(CHAIN, said("yes"))
    folder.cell(TREE, said("no"))
    summary = summarise(folder.path)
    assert find(summary, CHAIN).losslessness.grade == "exact"
    assert find(summary, TREE).losslessness.grade == "unclassified"


def test_what_drafts_the_same_trees_is_shown_under_both_names(folder: RunFolder) -> None:
    folder.cell(AR, answers(1.0))
    folder.cell(TREE, answers(0.5))
    here, other = Setting(60, 1), dataclasses.replace(TREE, topk=16)
    skips = (
        Skip(other, here, "drafts the same trees", TREE),
        Skip(CHAIN, here, "excluded by the specification"),
        Skip(dataclasses.replace(TREE, topk=32), Setting(90, 1), "not run either", TREE),
    )
    text = json.dumps({"skips": [dataclasses.asdict(skip) for skip in skips]})
    (folder.path / TUNING_FILE).write_text(text)
    summary = summarise(folder.path)
    assert [cell.arm for cell in summary.cells] == [AR, TREE, other]
    twin, measured = find(summary, other), find(summary, TREE)
    assert dataclasses.replace(twin, arm=TREE, flags=measured.flags) == measured
    assert twin.flags[-1] == f"measured as {TREE.label}, which drafts the same trees there"
    assert [choice.arm for choice in summary.verdict.choices] in ([TREE], [AR])


def test_a_cell_of_loops_is_invalid(folder: RunFolder) -> None:
    loop = Answer(0.5, tokens=61, more={"token_ids": ((1, 2, 3) * 21)[:61]})
    assert looped_reason([]) is None
    folder.cell(AR, answers(1.0))
    folder.cell(TREE, [[loop]] * 4)
    tree = tree_of(folder)
    assert tree.state == "invalid"
    assert "4 of 4 outputs repeat themselves" in (tree.reason or "")
