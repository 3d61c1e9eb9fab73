"""A whole evaluation from its folder: rows, noise, and every reason not to believe it."""

import json
from collections.abc import Iterable, Sequence
from pathlib import Path

import pytest

from ddtree.errors import ConfigError
from ddtree.evals import summarise
from ddtree.evals.extract.extract import EXTRACTOR
from ddtree.evals.lossless import GRADES_FILE
from ddtree.evals.outcomes import Verdict
from ddtree.evals.sandbox.job import Job
from ddtree.evals.selfcheck import Runner, SelfCheck, selfcheck
from ddtree.records.arms import Arm
from ddtree.records.evals import EVAL_FILE, EvalRow, EvalSummary, read_eval
from evals.eval_parts import (
    AR,
    CHAIN,
    RIGHT,
    TREE,
    WARM,
    keep,
    reply,
    right,
    spec_of,
    tasks,
    wrong,
)
from evals.inline_runner import inline

TREE_CELL, AGAIN = TREE.label, "ar, again"


def checked(count: int = 4) -> SelfCheck:
    return selfcheck(tasks(count), inline())


def summary_of(folder: Path, count: int = 4, run: Runner | None = None, **changes) -> EvalSummary:
    grader = summarise.Grader(run or inline(), "inline", checked(count))
    return summarise.write_eval(folder, spec_of(**changes), tasks(count), grader)


def row_of(summary: EvalSummary, arm: Arm) -> EvalRow:
    (found,) = [row for row in summary.rows if row.arm == arm]
    return found


def answers(cell: str, passes: str, **fields) -> list:
    """p passes, f fails, - is not on file, ! is a request that failed; one task each."""
    return [
        reply(
            cell,
            n,
            right(n) if letter == "p" else wrong(n),
            error="in_band: no" if letter == "!" else None,
            **fields,
        )
        for n, letter in enumerate(passes, start=1)
        if letter != "-"
    ]


def folder_of(tmp_path: Path, base: str, tree: str, again: str = "") -> Path:
    sides = [answers("ar", base), answers(TREE_CELL, tree), answers(AGAIN, again)]
    return keep(tmp_path, [record for side in sides for record in side])


def test_every_sample_is_kept_with_what_became_of_it(tmp_path) -> None:
    summary_of(folder_of(tmp_path, "ppfp", "pf-p"))
    lines = (tmp_path / summarise.SAMPLES_FILE).read_text().splitlines()
    kept = [json.loads(line) for line in lines]
    assert [(k["cell"], k["task"], k["outcome"]) for k in kept if k["cell"] != "ar"] == [
        (TREE_CELL, tasks(4)[n].id, outcome)
        for n, outcome in ((0, "passed"), (1, "assertion"), (3, "passed"))
    ]
    assert len(kept) == 7
    assert set(kept[0]) >= {"method", "flags", "block", "blocks", "thinking_chars", "code_sha256"}
    assert kept[0]["finish_reason"]
    assert "text" not in kept[0]


def test_rows(tmp_path) -> None:
    summary = summary_of(folder_of(tmp_path, "ppfp", "pfpp"))
    assert [row.arm for row in summary.rows] == [AR, TREE]
    base, tree = summary.rows
    assert (base.tasks, base.samples, base.passed, base.pass_at) == (4, 4, 3, {1: 0.75})
    assert base.paired is None
    assert tree.outcomes == {"passed": 3, "assertion": 1}
    assert tree.methods == {"fence": 4}
    assert tree.paired is not None
    table = tree.paired
    assert (table.both, table.only_baseline, table.only_arm, table.neither) == (2, 1, 1, 0)
    assert (table.identical, table.compared) == (2, 4)
    lost, won = table.discordant
    assert (lost.task, lost.baseline_outcome, lost.arm_outcome) == (
        *("add#2", "passed", "assertion"),
    )
    assert (lost.baseline_answer, lost.arm_answer) == (right(2), wrong(2))
    assert won.task == "add#3"
    assert summary.problems == ()
    assert summarise.warnings_of(summary) == ()


def test_what_it_was(tmp_path) -> None:
    summary = summary_of(folder_of(tmp_path, "pp", "pp"), 2, max_tokens=99)
    assert (summary.suite, summary.suite_sha256, summary.model) == ("small", "0" * 64, "mock")
    assert (summary.prompting, summary.sampling, summary.samples) == ("chat", "greedy", 1)
    assert (summary.max_tokens, summary.extractor, summary.sandbox) == (99, EXTRACTOR, "inline")
    assert summary.selfcheck == checked(2).line
    assert summary.noise is None


def check_noise(tmp_path) -> None:
    """The second run against the first: no arm of its own, whatever the arms do."""
    folder = folder_of(tmp_path, "ppff", "pppf", again="pfpp")
    summary = summary_of(folder, noise=True)
    assert [row.arm for row in summary.rows] == [AR, TREE]
    assert summary.noise is not None
    noise = summary.noise
    assert (noise.both, noise.only_baseline, noise.only_arm, noise.neither) == (1, 1, 2, 0)
    assert (noise.identical, noise.compared, noise.grade) == (1, 4, None)
    tree = row_of(summary, TREE).paired
    assert tree is not None
    assert (tree.both, tree.only_arm, tree.neither, tree.identical) == (2, 1, 1, 3)


def test_noise_is_the_baseline_against_itself(tmp_path) -> None:
    check_noise(tmp_path)


def test_several_samples(tmp_path) -> None:
    """Of two answers to each task the second one fails in the tree's."""
    records = [
        reply(cell, n, wrong(n) if cell == TREE_CELL and sample else right(n), sample)
        for cell in ("ar", TREE_CELL)
        for n in (1, 2)
        for sample in (0, 1)
    ]
    summary = summary_of(keep(tmp_path, records), 2, sampling=WARM, samples=2)
    assert (summary.sampling, summary.samples, summary.problems) == ("T=0.9", 2, ())
    base, tree = summary.rows
    assert (base.samples, base.pass_at) == (4, {1: 1.0, 2: 1.0})
    assert (tree.samples, tree.passed, tree.pass_at) == (4, 2, {1: 0.5, 2: 1.0})


def check_grades(tmp_path) -> None:
    """Each arm's own, and none where outputs were never graded."""
    arms = (AR, CHAIN, TREE, Arm("ddtree", 16, 4))
    records = [record for arm in arms for record in answers(arm.label, "pp")]
    folder = keep(tmp_path, records)
    grades = {TREE.label: "near-ties", CHAIN.label: "not-lossless"}
    kept = {cell: {"grade": found, "outputs": 3, "identical": 1} for cell, found in grades.items()}
    (folder / GRADES_FILE).write_text(json.dumps(kept))
    found = {
        row.arm: row.paired.grade
        for row in summary_of(folder, 2, arms=arms).rows
        if row.paired is not None
    }
    assert found == {CHAIN: "not-lossless", TREE: "near-ties", arms[3]: None}


def test_grades_are_each_arms_own(tmp_path) -> None:
    check_grades(tmp_path)


def check_only_common_answers_count(tmp_path) -> None:
    """Task 2 has no answer of the tree's, task 3 none of the second run: left out everywhere."""
    folder = folder_of(tmp_path, "pffp", "p-pf", again="pp!p")
    summary = summary_of(folder, noise=True)
    base, tree = summary.rows
    assert (base.samples, base.passed) == (2, 2)
    assert (tree.samples, tree.passed) == (2, 1)
    assert tree.paired is not None
    assert [item.task for item in tree.paired.discordant] == ["add#4"]
    assert summary.noise is not None
    assert summary.noise.compared == 2
    assert summary.problems == (
        f"{TREE_CELL}: 1 of 4 answers are missing",
        f"{AGAIN}: 1 of 4 answers are missing",
    )


def test_only_answers_that_all_have_count(tmp_path) -> None:
    check_only_common_answers_count(tmp_path)


def test_no_common_answer_is_no_evaluation(tmp_path) -> None:
    with pytest.raises(ConfigError, match="no sample was graded"):
        summary_of(folder_of(tmp_path, "pp--", "--pp"))
    assert not (tmp_path / EVAL_FILE).exists()


def test_an_arm_without_any_answer_says_why(tmp_path) -> None:
    failed = folder_of(tmp_path / "failed", "pp", "!!")
    with pytest.raises(ConfigError, match=r"^ddtree\(8,4\): no request succeeded, .*: in_band: no"):
        summary_of(failed, 2)
    unasked = folder_of(tmp_path / "unasked", "pp", "pp")
    with pytest.raises(ConfigError, match=r"^ar, again: nothing was asked .*requests\.jsonl"):
        summary_of(unasked, 2, noise=True)


def timed(cell: str, number: int, rate: float, accepted: int) -> object:
    """21 tokens, the first at 0, at this rate."""
    return reply(
        cell,
        number,
        right(number),
        chunk_times_s=(0.0, 20 / rate),
        chunk_tokens=(1, 20),
        stats={"rounds": 10, "num_accepted": accepted},
    )


def check_speeds(tmp_path) -> None:
    folder = keep(tmp_path, [timed("ar", 1, 10, 0), timed(TREE_CELL, 1, 30, 15)])
    base, tree = summary_of(folder, 1).rows
    assert (base.tokens_per_s, base.speedup) == (pytest.approx(10), pytest.approx(1))
    assert (tree.tokens_per_s, tree.speedup) == (pytest.approx(30), pytest.approx(3))
    assert (base.acceptance_length, tree.acceptance_length) == (1, pytest.approx(2.5))


def test_speeds_are_of_the_same_requests(tmp_path) -> None:
    check_speeds(tmp_path)


def test_a_block_with_an_answer_that_never_came_measures_nothing(tmp_path) -> None:
    records = [timed(cell, n, 10, 0) for cell in ("ar", TREE_CELL) for n in (1, 2)]
    lost = [reply(TREE_CELL, 3, None, error="in_band: no", attempt=attempt) for attempt in range(2)]
    base, tree = summary_of(keep(tmp_path, [*records, timed("ar", 3, 10, 0), *lost]), 3).rows
    assert base.tokens_per_s == pytest.approx(30)
    assert (tree.tokens_per_s, tree.speedup) == (None, None)
    assert tree.acceptance_length == 1


def test_a_self_check_that_is_not_clean(tmp_path) -> None:
    bad = selfcheck(tasks(2), inline("tests never run"))
    grader = summarise.Grader(inline(), "inline", bad)
    summary = summarise.write_eval(folder_of(tmp_path, "pp", "pp"), spec_of(), tasks(2), grader)
    assert summary.problems == (f"the self-check is not clean: {bad.line}",)
    assert "NOT CLEAN" in summary.problems[0]


def broken_on(*programs: str) -> Runner:
    """A sandbox that fails on these programs."""

    def run(jobs: Sequence[Job]) -> Iterable[Verdict]:
        for job, verdict in zip(jobs, inline()(jobs), strict=True):
            lost = any(program.strip() in job.program for program in programs)
            yield Verdict("sandbox_error", "gone") if lost else verdict

    return run


def check_sandbox_errors(tmp_path) -> None:
    """No answer is called wrong for them, and the evaluation is not valid."""
    folder = folder_of(tmp_path, "pppp", "ppfp")
    summary = summary_of(folder, run=broken_on(RIGHT.format(3), RIGHT.format(4)))
    base, tree = summary.rows
    assert (base.passed, base.tasks, base.pass_at[1]) == (2, 2, 1.0)
    assert (tree.passed, tree.tasks, tree.pass_at[1]) == (2, 3, pytest.approx(2 / 3))
    assert tree.paired is not None
    assert tree.paired.discordant == ()
    assert summary.problems == (
        "ar: the sandbox failed on 2 answers; grade them anew",
        f"{TREE_CELL}: the sandbox failed on 1 answers; grade them anew",
    )


def test_sandbox_errors_make_it_invalid(tmp_path) -> None:
    check_sandbox_errors(tmp_path)


def test_sandbox_errors_in_the_second_run_make_it_invalid(tmp_path) -> None:
    """They are in no row, and spoil what noise there seems to be."""
    folder = folder_of(tmp_path, "pppp", "pppp", again="pppf")
    summary = summary_of(folder, run=broken_on("return x - 4"), noise=True)
    assert summary.problems == (f"{AGAIN}: the sandbox failed on 1 answers; grade them anew",)


def thinking_problems(folder: Path, switch: bool, texts: Sequence[tuple[str, dict]]) -> list[str]:
    """What is said of an arm whose answers are these, beside a baseline that is as it should be."""
    fine = f"<think>Hm.</think>\n{right(1)}" if switch else right(1)
    records = [reply("ar", n, fine) for n in range(1, 1 + len(texts))]
    for n, (text, fields) in enumerate(texts, start=1):
        records.append(reply(TREE_CELL, n, text, **fields))
    summary = summary_of(keep(folder, records), len(texts), thinking=switch)
    found = [problem for problem in summary.problems if "thinking" in problem]
    assert all(problem.startswith(f"{TREE_CELL}: thinking was switched") for problem in found)
    return found


THOUGHT = [
    ("<think>Hm.</think>\n" + right(1), {}),
    ("Hm.</think>\n" + right(1), {}),
    (right(1), {"thinking": "It came apart."}),
    ("<think>Hm.", {"finish_reason": "length"}),
]
SILENT = [
    (right(1), {}),
    ("<think>\n\n</think>\n" + right(1), {}),
    (right(1), {"thinking": " \n"}),
]


@pytest.mark.parametrize("answer", THOUGHT, ids=["tags", "closed", "apart", "cut off"])
def test_thinking_that_was_switched_off(answer, tmp_path) -> None:
    (problem,) = thinking_problems(tmp_path / "off", False, [answer])
    assert "thinking was switched off, and 1 of 1 answers contradict that" in problem
    assert "the server does not pass the switch on" in problem
    assert thinking_problems(tmp_path / "on", True, [answer]) == []


@pytest.mark.parametrize("answer", SILENT, ids=["nothing", "empty tags", "empty apart"])
def test_thinking_that_was_switched_on(answer, tmp_path) -> None:
    (problem,) = thinking_problems(tmp_path / "on", True, [answer])
    assert "thinking was switched on, and 1 of 1 answers contradict that" in problem
    assert thinking_problems(tmp_path / "off", False, [answer]) == []


def test_an_answer_cut_off_may_have_been_thinking(tmp_path) -> None:
    cut = (right(1), {"finish_reason": "length"})
    assert thinking_problems(tmp_path, True, [cut]) == []


def test_a_few_may_contradict_the_switch(tmp_path) -> None:
    few = [THOUGHT[0]] + [SILENT[0]] * 19
    assert thinking_problems(tmp_path / "1 of 20", False, few) == []
    more = [THOUGHT[0]] * 2 + [SILENT[0]] * 18
    assert "2 of 20" in thinking_problems(tmp_path / "2 of 20", False, more)[0]


def test_nothing_contradicts_a_switch_that_nobody_set(tmp_path) -> None:
    records = [reply(cell, 1, THOUGHT[0][0]) for cell in ("ar", TREE_CELL)]
    assert summary_of(keep(tmp_path, records), 1).problems == ()


def test_a_shift_in_how_code_was_found(tmp_path) -> None:
    """The tree leaves the fences out: what it lost may be extraction's doing."""
    base = [reply("ar", n, right(n)) for n in range(1, 21)]
    tree = [reply(TREE_CELL, n, RIGHT.format(n)) for n in range(1, 21)]
    summary = summary_of(keep(tmp_path, [*base, *tree]), 20)
    assert row_of(summary, TREE).passed == 20
    (problem,) = summary.problems
    assert problem.startswith(f"{TREE_CELL}: extraction found code otherwise than for the baseline")
    assert "fence 20 of 20 -> 0 of 20" in problem


def test_answers_at_the_limit_are_named(tmp_path) -> None:
    """More than 2 % of an arm's."""
    tree = answers(TREE_CELL, "p" * 50)
    tree[0] = reply(TREE_CELL, 1, right(1), finish_reason="length")
    folder = keep(tmp_path / "1 of 50", [*answers("ar", "p" * 50), *tree])
    summary = summary_of(folder, 50, max_tokens=77)
    assert row_of(summary, TREE).length_share == 0.02
    assert summarise.warnings_of(summary) == ()
    tree[1] = reply(TREE_CELL, 2, right(2), finish_reason="length")
    folder = keep(tmp_path / "2 of 50", [*answers("ar", "p" * 50), *tree])
    summary = summary_of(folder, 50, max_tokens=77)
    (warning,) = summarise.warnings_of(summary)
    assert warning.startswith(f"{TREE_CELL}: 4% of the answers ended at the limit of 77 tokens")
    assert summary.problems == ()


def test_it_can_be_read_back(tmp_path) -> None:
    folder = folder_of(tmp_path, "ppfp", "pfp-", again="pppp")
    (folder / GRADES_FILE).write_text(
        json.dumps({TREE.label: {"grade": "near-ties", "outputs": 2, "identical": 1}})
    )
    summary = summary_of(folder, noise=True)
    assert summary.problems
    assert read_eval(folder / EVAL_FILE) == summary
    assert summary_of(folder, noise=True) == summary


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"{",
        b"\xff\xfe",
        b"[1]",
        b'"words"',
        b"7",
        b'{"schema": 1}',
        b'{"schema": 1, "rows": 3, "noise": null, "problems": []}',
    ],
)
def test_a_file_that_is_no_evaluation(text: bytes, tmp_path) -> None:
    path = tmp_path / EVAL_FILE
    path.write_bytes(text)
    with pytest.raises(ConfigError, match=r"eval\.json: no evaluation can be read there"):
        read_eval(path)


def test_another_schema_and_unknown_fields(tmp_path) -> None:
    path = folder_of(tmp_path, "p", "p") / EVAL_FILE
    summary_of(tmp_path, 1)
    data = json.loads(path.read_text())
    path.write_text(json.dumps(data | {"mood": "good"}))
    with pytest.raises(ConfigError, match=r"eval\.json: no evaluation .*mood"):
        read_eval(path)
    path.write_text(json.dumps(data | {"schema": 99}))
    with pytest.raises(ConfigError, match="schema 99, expected 1; grade it anew"):
        read_eval(path)
    with pytest.raises(ConfigError, match=r"none\.json: no evaluation can be read there"):
        read_eval(tmp_path / "none.json")
