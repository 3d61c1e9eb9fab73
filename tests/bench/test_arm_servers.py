"""Runs in which an arm is a launch: order of the servers, crashes, quarantine, resume."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from arm_mocks import (
    AR,
    CHAIN,
    MAX_TOKENS,
    TREE,
    MockArms,
    arm_spec,
    blocks_of,
    group_of,
    measure,
    reported,
    row_of,
    states,
)
from mock_backend import Notes, hog_in, run

from ddtree.bench import watch
from ddtree.bench.arm_backend import RunningArms
from ddtree.endpoint.config import EndpointConfig
from ddtree.endpoint.mock import MockServer
from ddtree.endpoint.mock_script import MockFaults, MockScript
from ddtree.endpoint.mock_talk import MockTalk
from ddtree.records.arms import Arm
from ddtree.records.files import read_requests
from mutations.planting import Mutation, planted


@pytest.fixture(autouse=True)
def no_pace(monkeypatch: pytest.MonkeyPatch) -> None:
    """A mock that never waits has no steady step to hold its parts against."""
    monkeypatch.setattr(watch, "STEP_LIMIT", 1e9)


def test_servers_alternate_and_every_group_is_on_each(tmp_path: Path) -> None:
    spec = arm_spec()
    backend, groups = MockArms(spec), [group_of(spec, 60), group_of(spec, 61)]
    ran = run(measure(tmp_path, spec, groups, backend))
    assert ran == tuple(groups)
    # The last server of a block is the first of the next: it is not started anew.
    assert backend.arms == ["ar", "chain", "ddtree(4,2)", "chain", "ar"]
    assert backend.most_running == 1
    assert backend.running == 0
    assert set(states(tmp_path).values()) == {"ok"}
    prompts = {(group.context, b): group.blocks[b][0].token_ids for group in groups for b in (0, 1)}
    assert backend.measured == [
        ("ar", prompts[60, 0]),
        ("ar", prompts[61, 0]),
        ("chain", prompts[60, 0]),
        ("chain", prompts[61, 0]),
        ("ddtree", prompts[60, 0]),
        ("ddtree", prompts[61, 0]),
        ("ddtree", prompts[60, 1]),
        ("ddtree", prompts[61, 1]),
        ("chain", prompts[60, 1]),
        ("chain", prompts[61, 1]),
        ("ar", prompts[60, 1]),
        ("ar", prompts[61, 1]),
    ]
    for arm in spec.arms:
        assert [b.extra["length_mismatches"] for b in blocks_of(tmp_path, arm)] == [0, 0]


def test_progress_adds_up(tmp_path: Path) -> None:
    spec, notes = arm_spec(), Notes()
    group = group_of(spec)
    run(measure(tmp_path, spec, [group], MockArms(spec), notes))
    once = notes.done
    run(measure(tmp_path, spec, [group], MockArms(spec), notes))
    assert notes.done == pytest.approx(2 * once)


def test_what_is_on_file_starts_no_server(tmp_path: Path) -> None:
    spec = arm_spec()
    run(measure(tmp_path, spec, [group_of(spec)], MockArms(spec)))
    idle = MockArms(spec)
    assert run(measure(tmp_path, spec, [group_of(spec)], idle)) == ()
    assert idle.tried == []


def test_outputs_of_other_lengths_are_counted(tmp_path: Path) -> None:
    spec = arm_spec(max_tokens=MAX_TOKENS)
    # From its second token on the tree's output is another one, and ends elsewhere.
    script = MockScript(eos_every=3, faults=MockFaults(corrupt={"ddtree": 0}))
    groups = [group_of(spec, blocks=12)]
    run(measure(tmp_path, spec, groups, MockArms(spec, script)))
    records = read_requests(tmp_path / "requests.jsonl")
    length = {(r.cell, r.block): sum(r.chunk_tokens) for r in records}
    ar, tree = row_of(tmp_path, AR).key, row_of(tmp_path, TREE).key
    expected = [int(length[ar, b] != length[tree, b]) for b in range(12)]
    assert [b.extra["length_mismatches"] for b in blocks_of(tmp_path, TREE)] == expected
    assert sum(expected) > 0
    assert not any(b.extra["length_mismatches"] for b in blocks_of(tmp_path, CHAIN))
    # An output that is longer than the baseline's is not run again.
    assert set(states(tmp_path).values()) == {"ok"}
    assert run(measure(tmp_path, spec, groups, MockArms(spec, script))) == ()


def test_an_arm_that_kills_its_server_twice_is_quarantined_where_it_does(tmp_path: Path) -> None:
    spec, notes = arm_spec(), Notes()
    groups = [group_of(spec, 60), group_of(spec, 61)]
    backend = MockArms(
        spec,
        dies_at=lambda e: (
            e.method == "ddtree" and e.max_tokens == MAX_TOKENS and len(e.prompt) == 61
        ),
    )
    run(measure(tmp_path, spec, groups, backend, notes))
    assert states(tmp_path) == {
        **{(label, 60): "ok" for label in ("ar", "chain", "ddtree(4,2)")},
        **{("ar", 61): "ok", ("chain", 61): "ok", ("ddtree(4,2)", 61): "quarantined"},
    }
    assert "killed by the test" in (row_of(tmp_path, TREE, 61).reason or "")
    # Its crashes voided the other arms' parts of that block, which were run again.
    assert [b.state for b in blocks_of(tmp_path, CHAIN, 61)].count("ok") == 2
    assert [b.reason for b in blocks_of(tmp_path, CHAIN, 61) if b.state == "invalid"] == [
        "the server stopped while running ddtree(4,2)"
    ] * 2
    assert [b.state for b in blocks_of(tmp_path, TREE, 61)] == ["failed", "failed"]


def test_one_crash_costs_a_pass_and_no_arm(tmp_path: Path) -> None:
    spec, killed = arm_spec(), []

    def once(entry: Any) -> bool:
        if entry.method == "chain" and entry.max_tokens == MAX_TOKENS and not killed:
            killed.append(entry)
            return True
        return False

    backend = MockArms(spec, dies_at=once)
    run(measure(tmp_path, spec, [group_of(spec)], backend))
    assert set(states(tmp_path).values()) == {"ok"}
    assert backend.arms[:5] == ["ar", "chain", "ar", "chain", "ddtree(4,2)"]


def test_a_crash_in_warm_up_is_counted_too(tmp_path: Path) -> None:
    spec = arm_spec()
    backend = MockArms(spec, dies_at=lambda e: e.method == "chain" and e.max_tokens == 2)
    run(measure(tmp_path, spec, [group_of(spec)], backend))
    assert states(tmp_path)["chain", 60] == "quarantined"
    assert states(tmp_path)["ddtree(4,2)", 60] == "ok"


def test_a_server_that_never_starts_is_tried_twice_in_all(tmp_path: Path) -> None:
    spec = arm_spec()
    backend = MockArms(spec, fails=lambda arm, before: arm == TREE)
    groups = [group_of(spec, 60), group_of(spec, 61), group_of(spec, 62)]
    run(measure(tmp_path, spec, groups, backend))
    assert backend.tried.count(TREE) == 2
    assert {state for (label, _), state in states(tmp_path).items() if label != "ddtree(4,2)"} == {
        "ok"
    }
    assert {states(tmp_path)["ddtree(4,2)", c] for c in (60, 61, 62)} == {"quarantined"}
    assert "no memory" in (row_of(tmp_path, TREE, 62).reason or "")


def test_one_failed_start_is_forgiven(tmp_path: Path) -> None:
    spec = arm_spec()
    backend = MockArms(spec, fails=lambda arm, before: arm == CHAIN and before == 0)
    run(measure(tmp_path, spec, [group_of(spec)], backend))
    assert set(states(tmp_path).values()) == {"ok"}


def test_without_a_baseline_nothing_is_measured(tmp_path: Path) -> None:
    spec, notes = arm_spec(), Notes()
    backend = MockArms(spec, fails=lambda arm, before: arm == AR)
    groups = [group_of(spec, 60), group_of(spec, 61)]
    run(measure(tmp_path, spec, groups, backend, notes))
    assert set(states(tmp_path).values()) == {"failed"}
    assert backend.measured == []
    assert backend.tried == [AR, AR]


def test_a_flag_that_was_ignored_is_named(tmp_path: Path) -> None:
    narrow = Arm("chain", draft_window=64)
    spec = arm_spec(arms=(AR, narrow))

    def ignores_the_window(arm: Arm) -> dict[str, Any]:
        return reported(arm) | ({} if arm == AR else {"speculative_draft_window_size": None})

    backend = MockArms(spec, reported=ignores_the_window)
    run(measure(tmp_path, spec, [group_of(spec)], backend))
    row = row_of(tmp_path, narrow)
    assert row.state == "quarantined"
    assert "draft_window: asked for 64, the server runs None" in (row.reason or "")
    assert states(tmp_path)["ar", 60] == "ok"
    assert backend.running == 0


def test_a_noisy_block_is_run_again_by_all_arms(tmp_path: Path) -> None:
    spec, notes = arm_spec(), Notes()
    # Interval 0 is the calibration's, 1 the baseline's part, 2 the chain's.
    reader = hog_in({2})(lambda: ())
    backend = MockArms(spec)
    run(measure(tmp_path, spec, [group_of(spec, blocks=1)], backend, notes, reader))
    assert set(states(tmp_path).values()) == {"ok"}
    assert [b.state for b in blocks_of(tmp_path, AR)] == ["invalid", "ok"]
    assert [b.state for b in blocks_of(tmp_path, CHAIN)] == ["invalid", "ok"]
    # The tree was spared the part that was void already.
    assert [b.state for b in blocks_of(tmp_path, TREE)] == ["ok"]


def test_noise_that_stays_is_the_groups_end(tmp_path: Path) -> None:
    spec = arm_spec()
    reader = hog_in(set(range(1, 50)))(lambda: ())
    run(measure(tmp_path, spec, [group_of(spec)], MockArms(spec), reader=reader))
    assert set(states(tmp_path).values()) == {"invalid"}
    assert len(blocks_of(tmp_path, AR)) == 3
    assert "block 0: other processes" in (row_of(tmp_path, CHAIN).reason or "")


@pytest.mark.parametrize("starts", [1, 2, 4])
def test_a_run_that_was_cut_off_goes_on(tmp_path: Path, starts: int) -> None:
    spec = arm_spec()
    groups = [group_of(spec, 60), group_of(spec, 61)]

    class Cut(BaseException):
        pass

    def cut(arm: Arm, before: int) -> bool:
        if len(first.tried) > starts:
            raise Cut
        return False

    first = MockArms(spec, fails=cut)
    with pytest.raises(Cut):
        run(measure(tmp_path, spec, groups, first))
    assert first.running == 0
    kept = (tmp_path / "requests.jsonl").read_bytes()
    second = MockArms(spec)
    run(measure(tmp_path, spec, groups, second))
    assert set(states(tmp_path).values()) == {"ok"}
    assert (tmp_path / "requests.jsonl").read_bytes().startswith(kept)
    for arm in spec.arms:
        good = [b for b in blocks_of(tmp_path, arm) if b.state == "ok"]
        assert [b.index for b in good] == [0, 1]
    # After four starts the first block was whole: it is not measured again.
    again = {prompt for _, prompt in second.measured}
    assert (groups[0].blocks[0][0].token_ids in again) is (starts < 4)


def test_parts_start_on_an_empty_cache(tmp_path: Path) -> None:
    spec = arm_spec()
    backend = MockArms(spec, prefix_cache=True)
    run(measure(tmp_path, spec, [group_of(spec)], backend))
    assert {r.cached_tokens for r in read_requests(tmp_path / "requests.jsonl")} == {0}
    resets = [handle.server.resets for _, handle in backend.started]
    # The tree's server had a part of each block.
    assert resets == [1, 1, 2, 1, 1]


def test_vllms_counters_are_kept_with_the_block(tmp_path: Path) -> None:
    spec = arm_spec(arms=(AR, CHAIN), endpoint=EndpointConfig("vllm"))

    def vllm(arm: Arm) -> dict[str, Any]:
        drafts = None if arm == AR else {"method": "dflash", "model": "d"}
        return {"vllm_config": {"speculative_config": drafts}}

    backend = MockArms(spec, MockScript(accepted={"ar": (0,), "chain": (2, 1)}), reported=vllm)
    run(measure(tmp_path, spec, [group_of(spec)], backend))
    assert set(states(tmp_path).values()) == {"ok"}
    for block in blocks_of(tmp_path, CHAIN):
        # Rounds give 3, 2, 3, 2, 1 tokens after the first; the last one accepted 2 and was cut.
        assert block.extra["counters"] == {
            "rounds": 5,
            "num_accepted": 8,
            "tree_nodes": 10,
            "source": "counters",
            "accepted_histogram": [0, 2, 3],
        }
    assert [b.extra["counters"] for b in blocks_of(tmp_path, AR)] == [None, None]


def test_servers_by_url_are_open_all_at_once_and_arms_take_turns(tmp_path: Path) -> None:
    async def work() -> list[list[str]]:
        servers = [MockServer(talk=MockTalk("openai", method=m)) for m in ("ar", "chain")]
        async with servers[0] as plain, servers[1] as fast:
            urls = (("ar", plain.url), ("chain", fast.url))
            endpoint = EndpointConfig("openai", urls=urls)
            spec = arm_spec(arms=(AR, CHAIN), endpoint=endpoint)
            notes = Notes()
            await measure(tmp_path, spec, [group_of(spec)], RunningArms(spec), notes)
            assert any("nothing is known" in note for note in notes.notes)
            order = sorted((e.started_s, e.method) for s in servers for e in s.log)
            return [method for _, method in order]

    order = run(work())
    assert set(states(tmp_path).values()) == {"ok"}
    records = read_requests(tmp_path / "requests.jsonl")
    assert {r.counted for r in records} == {"estimate"}
    assert [order[i] for i in range(-4, 0)] == ["ar", "chain", "chain", "ar"]
    flags = blocks_of(tmp_path, CHAIN)[0].extra["flags"]
    assert any("no route" in flag for flag in flags)


def test_a_url_that_does_not_answer_costs_its_arm_alone(tmp_path: Path) -> None:
    async def work() -> None:
        async with MockServer(talk=MockTalk("openai", method="ar")) as plain:
            endpoint = EndpointConfig(
                "openai", urls=(("ar", plain.url), ("chain", "http://127.0.0.1:9"))
            )
            spec = arm_spec(arms=(AR, CHAIN), endpoint=endpoint)
            spec = replace(spec, deadlines=replace(spec.deadlines, ready_s=0.1))
            await measure(tmp_path, spec, [group_of(spec)], RunningArms(spec))

    run(work())
    assert states(tmp_path) == {("ar", 60): "ok", ("chain", 60): "quarantined"}
    assert "doesn't generate: connect" in (row_of(tmp_path, CHAIN).reason or "")


def test_nothing_runs_without_groups(tmp_path: Path) -> None:
    spec = arm_spec()
    assert asyncio.run(measure(tmp_path, spec, [], MockArms(spec))) == ()


def alternates(folder: Path) -> None:
    spec = arm_spec()
    backend = MockArms(spec)
    run(measure(folder, spec, [group_of(spec)], backend))
    assert backend.arms == ["ar", "chain", "ddtree(4,2)", "chain", "ar"]
    assert backend.most_running == 1


def voids_all(folder: Path) -> None:
    spec = arm_spec()
    reader = hog_in({2})(lambda: ())
    run(measure(folder, spec, [group_of(spec, blocks=1)], MockArms(spec), reader=reader))
    first, second = blocks_of(folder, AR)
    assert (first.state, second.state) == ("invalid", "ok")
    assert (first.reason or "").startswith("other processes took")


def empties_caches(folder: Path) -> None:
    spec = arm_spec()
    backend = MockArms(spec, prefix_cache=True)
    run(measure(folder, spec, [group_of(spec)], backend))
    assert [handle.server.resets for _, handle in backend.started] == [1, 1, 2, 1, 1]


BUGS = [
    (
        Mutation(
            "servers of other arms stay",
            "ddtree.bench.arm_servers",
            (("                await self.close()\n", "                pass\n"),),
            (),
        ),
        alternates,
    ),
    (
        Mutation(
            "a void part voids no other",
            "ddtree.bench.arm_servers",
            (
                (
                    "            parts.void(block, parts.live, reason)\n",
                    "            parts.void(block, (arm,), reason)\n",
                ),
            ),
            (),
        ),
        voids_all,
    ),
    (
        Mutation(
            "the cache is left as it is",
            "ddtree.bench.group_parts",
            (("await server.client.reset_cache()", "True"),),
            (),
        ),
        empties_caches,
    ),
]


@pytest.mark.parametrize(("bug", "check"), BUGS, ids=[bug.name for bug, _ in BUGS])
def test_planted_bugs_are_seen(
    tmp_path: Path, bug: Mutation, check: Callable[[Path], None]
) -> None:
    for name in ("right", "wrong"):
        (tmp_path / name).mkdir()
    check(tmp_path / "right")
    with planted(bug), pytest.raises(AssertionError):
        check(tmp_path / "wrong")
