"""Answers become graded samples: each program runs once, and nothing is taken for another's."""

from collections.abc import Iterable, Sequence

import pytest

from ddtree.evals import grade
from ddtree.evals.comparison import GradedSample
from ddtree.evals.outcomes import Outcome, Verdict
from ddtree.evals.sandbox.job import Job
from ddtree.evals.sandbox.pool import Sandbox
from ddtree.evals.sandbox.probe import choose
from ddtree.evals.tasks import AssertTests, CallTests, IOCase, StdinTests, Task
from evals.eval_parts import RIGHT, WRONG, by_key, fenced, reply, right, spec_of, task, tasks, wrong
from evals.inline_runner import inline


class Runner:
    """Runs nothing: verdicts by what the program holds, the first that does."""

    def __init__(self, **verdicts: Outcome) -> None:
        self.verdicts = verdicts
        self.calls: list[Sequence[Job]] = []

    @property
    def jobs(self) -> Sequence[Job]:
        (jobs,) = self.calls
        return jobs

    def __call__(self, jobs: Sequence[Job]) -> Iterable[Verdict]:
        self.calls.append(jobs)
        for job in jobs:
            found = [v for word, v in self.verdicts.items() if word in job.program]
            yield Verdict(found[0] if found else "passed")


def graded(runner, some: Sequence[Task], *sides, **changes) -> list[list[GradedSample]]:
    return grade.grade_answers(spec_of(**changes), some, [by_key(*side) for side in sides], runner)


def outcomes(side: Iterable[GradedSample]) -> list[tuple[str, int, str]]:
    return [(sample.task, sample.sample, sample.outcome) for sample in side]


def check_a_common_program_runs_once() -> None:
    base = [reply("ar", 1, right(1)), reply("ar", 2, wrong(2))]
    arm = [
        # Another text around the same program.
        reply("ddtree(8,4)", 1, "So:\n" + right(1)),
        reply("ddtree(8,4)", 2, right(2)),
    ]
    runner = Runner(**{" - ": "assertion"})
    first, second = graded(runner, tasks(2), base, arm)
    assert [job.program.strip() for job in runner.jobs] == [
        text.strip() for text in (RIGHT.format(1), WRONG.format(2), RIGHT.format(2))
    ]
    assert outcomes(first) == [("add#1", 0, "passed"), ("add#2", 0, "assertion")]
    assert outcomes(second) == [("add#1", 0, "passed"), ("add#2", 0, "passed")]


def test_a_program_in_common_runs_once() -> None:
    check_a_common_program_runs_once()


def test_one_program_for_two_tasks_runs_for_each() -> None:
    both = RIGHT.format(1) + RIGHT.format(2)
    runner = Runner()
    graded(runner, tasks(2), [reply("ar", 1, fenced(both)), reply("ar", 2, fenced(both))])
    assert [job.entry_point for job in runner.jobs] == ["add1", "add2"]
    assert [job.tests for job in runner.jobs] == [item.tests for item in tasks(2)]


def test_jobs_have_the_tasks_own_time_and_preamble() -> None:
    slow = task(1, timeout_s=40.0, preamble="import math\n")
    runner = Runner()
    graded(runner, [slow, task(2)], [reply("ar", 1, right(1)), reply("ar", 2, right(2))])
    first, second = runner.jobs
    assert (first.limits.wall_s, second.limits.wall_s) == (40.0, 15.0)
    assert "import math" in first.program
    assert "import math" not in second.program


def check_order() -> None:
    """Of tasks and samples, whatever finished first; what is no task of ours is left out."""
    some = [task(3), task(1)]
    side = [reply("ar", n, right(n), sample) for n, sample in [(1, 1), (2, 0), (3, 1), (1, 0)]]
    side.append(reply("ar", 3, wrong(3), 0))
    (found,) = graded(Runner(**{" - ": "timeout"}), some, side)
    assert outcomes(found) == [
        ("add#3", 0, "timeout"),
        ("add#3", 1, "passed"),
        ("add#1", 0, "passed"),
        ("add#1", 1, "passed"),
    ]


def test_samples_come_in_the_order_of_tasks() -> None:
    check_order()


CUT = {"finish_reason": "length"}


@pytest.mark.parametrize(
    ("text", "fields", "outcome"),
    [
        ("I can't do that.", {}, "no_code"),
        ("", {}, "no_code"),
        (None, {}, "no_code"),
        ("", CUT, "truncated_thinking"),
        ("<think>Let me see", CUT, "truncated_thinking"),
        (f"<think>Maybe {right(1)}", CUT, "truncated_thinking"),
        (fenced("class Nothing:\n    pass\n"), {}, "entry_point_missing"),
    ],
)
def test_what_is_missing_is_the_outcome(text, fields, outcome) -> None:
    runner = Runner()
    ((found,),) = graded(runner, tasks(1), [reply("ar", 1, text, **fields)])
    assert (found.outcome, found.missing, found.method) == (outcome, outcome, "none")
    assert runner.jobs == []
    assert not found.passed
    assert not found.lenient_passed
    assert found.text == (text or "")


def check_lenient() -> None:
    """Code of another name counts under the lenient reading alone."""
    renamed = fenced("def plus_one(x):\n    return x + 1\n")
    runner = Runner()
    ((found,),) = graded(runner, tasks(1), [reply("ar", 1, renamed)])
    assert (found.outcome, found.lenient_passed) == ("entry_point_missing", True)
    (job,) = runner.jobs
    assert job.program.rstrip().endswith("add1 = plus_one")
    ((found,),) = graded(Runner(plus="assertion"), tasks(1), [reply("ar", 1, renamed)])
    assert (found.outcome, found.lenient_passed) == ("entry_point_missing", False)
    ((found,),) = graded(Runner(), tasks(1), [reply("ar", 1, right(1))])
    assert (found.outcome, found.lenient_passed) == ("passed", True)
    ((found,),) = graded(Runner(add="assertion"), tasks(1), [reply("ar", 1, right(1))])
    assert (found.outcome, found.lenient_passed) == ("assertion", False)


def test_the_lenient_reading_is_a_column_of_its_own() -> None:
    check_lenient()


def check_a_sandbox_error_stays_one() -> None:
    ((found,),) = graded(Runner(add="sandbox_error"), tasks(1), [reply("ar", 1, right(1))])
    assert found.outcome == "sandbox_error"
    assert not found.graded
    assert not found.passed


def test_a_sandbox_error_says_nothing() -> None:
    check_a_sandbox_error_stays_one()


def test_token_ids_are_kept_where_they_were_counted() -> None:
    ids = {"token_ids": (4, 5), "counted": "ids"}
    text = {"token_ids": (), "counted": "usage", "finish_reason": "length"}
    ((first, second),) = graded(
        Runner(), tasks(2), [reply("ar", 1, right(1), **ids), reply("ar", 2, right(2), **text)]
    )
    assert (first.token_ids, first.finish_reason) == ((4, 5), "stop")
    assert (second.token_ids, second.finish_reason) == (None, "length")


def test_a_completion_goes_on_from_its_prompt() -> None:
    body = "    return x + 1\n"
    runner = Runner()
    ((found,),) = graded(runner, tasks(1), [reply("ar", 1, body)], prompting="completion")
    assert (found.outcome, found.method) == ("passed", "completion")
    assert task(1).prompt + body.rstrip() in runner.jobs[0].program
    ((found,),) = graded(runner, tasks(1), [reply("ar", 1, None)], prompting="completion")
    assert found.outcome == "no_code"


def test_code_in_a_thinking_that_was_opened_is_a_draft() -> None:
    """Where thinking was asked for, a template may open it: only what follows its end counts."""
    draft, whole = right(1), f"Hm.\n{wrong(1)}</think>\n{right(1)}"
    runner = Runner(**{" - ": "assertion"})

    def one(text: str, switch: bool | None, **fields) -> str:
        side = [reply("ar", 1, text, **fields)]
        ((found,),) = graded(runner, tasks(1), side, thinking=switch)
        return found.outcome

    assert one(draft, True, **CUT) == "truncated_thinking"
    assert one(draft, None) == one(draft, False) == "passed"
    assert one(draft, True, thinking="It came apart.") == "passed"
    assert one(whole, True) == one(whole, False) == "passed"


def test_nothing_on_file_is_nothing_graded() -> None:
    assert graded(Runner(), tasks(2), [], [reply("ar", 1, right(1))])[0] == []


def check_pairs_of_programs_and_verdicts() -> None:
    """With programs that really run, in this process: each has its own verdict."""
    some = tasks(4)
    base = [reply("ar", n, right(n) if n % 2 else wrong(n)) for n in range(1, 5)]
    arm = [reply("t", n, wrong(n) if n < 3 else right(n)) for n in range(1, 5)]
    first, second = graded(inline(), some, base, arm)
    assert [sample.passed for sample in first] == [True, False, True, False]
    assert [sample.passed for sample in second] == [False, False, True, True]


def test_each_program_has_its_own_verdict() -> None:
    check_pairs_of_programs_and_verdicts()


SQUARE = Task("square", "Square it.", "square", CallTests(((3,), (-2,)), (9, 4)))
TOTAL = Task("total", "Add them.", None, StdinTests((IOCase("1 2\n", "3\n"),)))
ENDLESS = Task("endless", "Wait.", "wait", AssertTests("assert wait() is None\n"), timeout_s=1.0)


def test_in_the_real_sandbox() -> None:
    programs = {
        "square": ("def square(x):\n    return x * x\n", "def square(x):\n    return 9\n"),
        "total": ("print(sum(map(int, input().split())))\n", "print(4)\n"),
        "endless": (
            "def wait():\n    list(range(9))\n",
            "def wait():\n    while True:\n        pass\n",
        ),
    }
    sides = [
        {(name, 0): reply("a", 0, fenced(pair[side])) for name, pair in programs.items()}
        for side in (0, 1)
    ]
    sides[1]["square", 1] = reply("a", 0, fenced("def square(x):\n    return x ** y\n"))
    with Sandbox.open(choose().tier) as sandbox:
        good, bad = grade.grade_answers(spec_of(), [SQUARE, TOTAL, ENDLESS], sides, sandbox.run)
    assert {sample.outcome for sample in good} == {"passed"}
    assert outcomes(bad) == [
        ("square", 0, "assertion"),
        ("square", 1, "runtime_error"),
        ("total", 0, "assertion"),
        ("endless", 0, "timeout"),
    ]
