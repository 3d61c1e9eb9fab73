"""Speeds of an evaluation's own requests, by hand-computed numbers."""

import math
from collections.abc import Sequence
from typing import Any

import pytest

from ddtree.endpoint.mock_script import MockFaults, MockScript
from ddtree.evals import generate, speeds
from ddtree.evals.comparison import Speeds
from ddtree.records.requests import RequestRecord
from evals.eval_parts import AR, TREE, ask, keep, log_of, spec_of, tasks
from support.streams import record as request_record


def timed(
    name: str, start: float, seconds: float, tokens: int, block: int = 0, **fields: Any
) -> RequestRecord:
    """The first token at `start`, `tokens` more by the end of `seconds`: with nothing beside it
    that is tokens / seconds."""
    plain: dict[str, Any] = {
        "block": block,
        "sent_s": start - 0.5,
        "chunk_times_s": (start, start + seconds),
        "chunk_tokens": (1, tokens),
        "end_s": start + seconds,
        "finish_reason": "stop",
    }
    return request_record(name, **{**plain, **fields})


def blocks(*rates: float | None) -> list[RequestRecord]:
    """A request of 10 tokens for each block at this rate; one without a rate has one token."""
    found = []
    for block, rate in enumerate(rates):
        if rate is None:
            one = {"chunk_times_s": (100.0 * block,), "chunk_tokens": (1,)}
            found.append(timed(f"{block}#0", 100.0 * block, 0, 0, block, **one))
        else:
            found.append(timed(f"{block}#0", 100.0 * block, 10 / rate, 10, block))
    return found


def check_means() -> None:
    """Ratios 2, 8 and 1/2 have the geometric mean 2; rates 20, 40 and 15 the mean 25."""
    found = speeds.speeds_of(blocks(20, 40, 15), blocks(10, 5, 30), 1)
    assert found.tokens_per_s == pytest.approx(25)
    assert found.speedup == pytest.approx(2)
    assert found.acceptance_length is None


def test_means_over_blocks() -> None:
    check_means()


def test_the_baseline_against_itself() -> None:
    found = speeds.speeds_of(blocks(20, 5), blocks(20, 5), 1)
    assert (found.tokens_per_s, found.speedup) == (pytest.approx(12.5), pytest.approx(1))


def check_ratios_are_of_the_same_block() -> None:
    """A block that only one side measured is in no ratio; the order of the log is no matter."""
    mine, base = blocks(20, None, 40, 80), blocks(10, 10, None, 20)
    found = speeds.speeds_of(mine[::-1], base, 1)
    assert found.tokens_per_s == pytest.approx((20 + 40 + 80) / 3)
    assert found.speedup == pytest.approx(math.sqrt(2 * 4))
    assert speeds.speeds_of(mine, base[:1], 1).speedup == pytest.approx(2)


def test_ratios_are_of_the_same_block() -> None:
    check_ratios_are_of_the_same_block()


@pytest.mark.parametrize("mine", [[], blocks(None, None)])
def test_nothing_measured(mine: Sequence[RequestRecord]) -> None:
    assert speeds.speeds_of(mine, blocks(10), 1) == Speeds(None, None, None)
    assert speeds.speeds_of(blocks(10), mine, 1).speedup is None


def test_a_block_counts_while_all_slots_are_busy() -> None:
    """Of [0, 4] and [2, 6], each 10 tokens in 4 s, the two seconds together have 5 + 5 tokens."""
    mine = [timed("a#0", 0.0, 4.0, 10), timed("b#0", 2.0, 4.0, 10)]
    one_token = timed("c#0", 50.0, 1.0, 10)
    found = speeds.speeds_of([*mine, one_token], [timed("a#0", 0.0, 5.0, 10)], 2)
    # The second one's first token comes on the window's edge.
    assert found.tokens_per_s == pytest.approx(10 / 2)
    assert found.speedup is None


def test_acceptance_is_of_all_rounds_together() -> None:
    """1 + (0*1 + 1*1 + 2*2 + 9) / (4 + 6)."""
    mine = blocks(10, 20)
    stats = [{"rounds": 4, "accepted_histogram": [1, 1, 2]}, {"rounds": 6, "num_accepted": 9}]
    told = [
        timed(f"{n}#0", 100.0 * n, 1.0, 10, n, stats=account) for n, account in enumerate(stats)
    ]
    assert speeds.speeds_of([*mine, *told], mine, 1).acceptance_length == pytest.approx(2.4)


def test_blocks_are_in_the_order_of_sending() -> None:
    records = [timed(name, start, 1.0, 5, block) for name, start, block in [
        ("c", 9.0, 1), ("a", 1.0, 0), ("d", 12.0, 1), ("b", 0.0, 0), ("e", 3.0, 1),
    ]]  # fmt: skip
    found = speeds.by_block(records)
    assert {block: [r.prompt_id for r in mine] for block, mine in found.items()} == {
        0: ["b", "a"],
        1: ["e", "c", "d"],
    }


def check_asked_again_is_no_measurement() -> None:
    """Of block 1 an answer came at the second attempt: 1,000 is the speed of nothing."""
    mine, base = blocks(20, 1000), blocks(10, 10)
    late = timed("again#0", 150.0, 1.0, 1000, 1, attempt=1)
    found = speeds.speeds_of([*mine, late], base, 1)
    assert found.tokens_per_s == pytest.approx(20)
    assert found.speedup == pytest.approx(2)
    other = speeds.speeds_of(base, [*mine, late], 1)
    assert other.tokens_per_s == pytest.approx(10)
    assert other.speedup == pytest.approx(0.5)


def test_a_block_that_was_asked_again_measures_nothing() -> None:
    check_asked_again_is_no_measurement()


def test_acceptance_counts_what_was_asked_again() -> None:
    """A round accepts what it accepts, whatever ran beside it."""
    stats = {"rounds": 2, "accepted_histogram": [0, 2]}
    mine = [timed("a#0", 0.0, 1.0, 5, attempt=1, stats=stats)]
    assert speeds.speeds_of(mine, [], 1).acceptance_length == pytest.approx(2)


SLOW = {"ar": 0.003, "ddtree": 0.003}


def speeds_in(folder) -> tuple[Speeds, Speeds]:
    """The baseline's and the tree's."""
    base, tree = (generate.answers_of(folder, generate.Side(arm)).values() for arm in (AR, TREE))
    return speeds.speeds_of(base, base, 1), speeds.speeds_of(tree, base, 1)


def test_speeds_of_a_mock(tmp_path) -> None:
    """Per round the tree gives 3 tokens and 2 in turn, the baseline 1."""
    ask(tmp_path, spec_of(max_tokens=31), tasks(5), MockScript(round_s=SLOW))
    base, tree = speeds_in(tmp_path)
    assert base.tokens_per_s is not None
    assert base.speedup == pytest.approx(1)
    assert tree.acceptance_length == pytest.approx(2.5)
    assert tree.tokens_per_s is not None
    assert tree.speedup is not None


def test_a_failure_voids_its_block_alone(tmp_path) -> None:
    """Of 5 tasks in blocks of 4 and 1 the seventh request fails: the tree's third."""
    script = MockScript(round_s=SLOW, faults=MockFaults(error_share=0.15))
    ask(tmp_path, spec_of(), tasks(5), script)
    assert {(r.cell, r.block) for r in log_of(tmp_path) if r.attempt} == {(TREE.label, 0)}
    base, tree = speeds_in(tmp_path)
    (alone,) = (r for r in log_of(tmp_path) if (r.cell, r.block) == (TREE.label, 1))
    assert tree.tokens_per_s == pytest.approx(speeds.speeds_of([alone], [], 1).tokens_per_s)
    assert base.speedup == pytest.approx(1)


def test_a_stop_voids_the_block_it_fell_into(tmp_path) -> None:
    """What was asked for after it never ran beside what was before."""
    spec, some = spec_of(), tasks(8)
    ask(tmp_path / "whole", spec, some, MockScript(round_s=SLOW))
    part = log_of(tmp_path / "whole")
    kept = [r for r in part if r.block == 0 and not (r.cell == TREE.label and "4#" in r.prompt_id)]
    keep(tmp_path / "part", kept)
    ask(tmp_path / "part", spec, some, MockScript(round_s=SLOW))
    answers = generate.answers_of(tmp_path / "part", generate.Side(TREE))
    assert len(answers) == 8
    second = [record for record in answers.values() if record.block == 1]
    _, tree = speeds_in(tmp_path / "part")
    assert tree.tokens_per_s == pytest.approx(speeds.speeds_of(second, [], 1).tokens_per_s)
