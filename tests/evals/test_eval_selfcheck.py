"""The self-check: clean where grading works, not clean for every way in which it may not."""

import dataclasses

import pytest

from ddtree.errors import ConfigError
from ddtree.evals import mutants as mutants_module
from ddtree.evals import selfcheck as selfcheck_module
from ddtree.evals.mutants import mutants
from ddtree.evals.tasks import AssertTests, CallTests, IOCase, StdinTests, Task
from evals.inline_runner import inline
from mutations.planting import Mutation, assert_caught

LARGEST = Task(
    id="largest",
    prompt="",
    entry_point="largest",
    tests=AssertTests("assert largest([1, 3, 2]) == 3\nassert largest([5, 1, 1]) == 5\n"),
    preamble="from typing import List\n",
    reference=(
        "from typing import List\n"
        "def largest(values: List[int]) -> int:\n"
        "    best = values[0]\n"
        "    for value in values:\n"
        "        if value > best:\n"
        "            best = value\n"
        "    return best\n"
    ),
)
DOUBLE = Task(
    id="double",
    prompt="",
    entry_point="double",
    tests=CallTests(((1,), (2.5,), ([1],)), None),
    reference="def double(x):\n    return x * 2\n",
)
METHOD = Task(
    id="method",
    prompt="",
    entry_point="half",
    tests=CallTests(((4,), (7,)), (2, 3), of_class="Solution"),
)
SCRIPT = Task(
    id="script",
    prompt="",
    entry_point=None,
    tests=StdinTests((IOCase("1 2\n", "3\n"), IOCase("4 5\n", "9\n"))),
    reference="print(sum(int(x) for x in input().split()))\n",
)
OPEN_TASKS = (LARGEST, DOUBLE, METHOD, SCRIPT)


def filled() -> tuple[Task, ...]:
    return selfcheck_module.with_expected(OPEN_TASKS, inline())


def check_clean() -> None:
    found = selfcheck_module.selfcheck(filled(), inline())
    assert found.ok, found.line
    assert (found.tasks, found.references, found.hard) == (4, 3, 5 + 5 + 5 + 3)
    # Two of them are as right as the reference.
    assert (found.near_misses, found.near_misses_failed) == (3, 1)


def check_expected_results() -> None:
    double = filled()[1]
    assert isinstance(double.tests, CallTests)
    assert double.tests.expected == (2, 5.0, [1, 1])
    assert filled()[::2] == OPEN_TASKS[::2]


@pytest.mark.parametrize("check", [check_clean, check_expected_results])
def test_on_the_code_as_it_is(check) -> None:
    check()


def programs(hole) -> set[tuple[str, str]]:
    found = selfcheck_module.selfcheck(filled(), inline(hole))
    assert not found.ok
    assert "NOT CLEAN" in found.line
    return {(finding.task, finding.program) for finding in found.survivors}


def check_exits() -> None:
    assert programs("exit is a pass") == {(task.id, "exits") for task in OPEN_TASKS}


def check_forged_equality() -> None:
    assert {task for task, program in programs("no guard") if program == "equals everything"} == {
        *("largest", "double", "method")
    }


def check_printed() -> None:
    assert programs("output decides") == {
        (task, "prints PASSED") for task in ("largest", "double", "method", "script")
    }


def check_no_tests() -> None:
    survivors = programs("tests never run")
    assert {task for task, _ in survivors} == {task.id for task in OPEN_TASKS}
    assert {"returns None", "does nothing"} <= {program for _, program in survivors}


def check_breaks() -> None:
    found = selfcheck_module.selfcheck(filled(), inline("breaks"))
    assert not found.ok
    assert not found.failed
    assert not found.survivors
    assert len(found.errors) == found.hard + found.near_misses + found.references
    assert "the sandbox failed on" in found.line


def check_tight() -> None:
    found = selfcheck_module.selfcheck(filled(), inline("tight"))
    assert not found.ok
    assert [finding.task for finding in found.failed] == ["largest", "double", "script"]
    assert "0 of 3 references pass (1 tasks have none)" in found.line
    assert "largest, reference: memory" in found.line


HOLES = (check_exits, check_forged_equality, check_printed, check_no_tests, check_breaks)


@pytest.mark.parametrize("check", [*HOLES, check_tight])
def test_every_hole_is_seen(check) -> None:
    check()


def test_nothing_checked_is_not_clean() -> None:
    assert not selfcheck_module.selfcheck((), inline()).ok


def test_a_wrong_reference_is_named() -> None:
    wrong = dataclasses.replace(LARGEST, reference="def largest(values):\n    return values[0]\n")
    found = selfcheck_module.selfcheck([wrong], inline())
    assert [finding.words for finding in found.failed] == [
        "largest, reference: assertion (AssertionError)"
    ]
    assert "0 of 1 references pass" in found.line


def test_many_findings_are_counted() -> None:
    tasks = [
        dataclasses.replace(LARGEST, id=f"task {n}", reference="def largest(v): return 0\n")
        for n in range(7)
    ]
    line = selfcheck_module.selfcheck(tasks, inline()).line
    assert "task 4, reference" in line
    assert "task 5" not in line
    assert "and 2 more" in line


def test_unknown_results_are_refused() -> None:
    with pytest.raises(ConfigError, match="task double: no expected results"):
        selfcheck_module.selfcheck([DOUBLE], inline())
    without = dataclasses.replace(DOUBLE, reference=None)
    with pytest.raises(ConfigError, match="neither expected results nor a reference"):
        selfcheck_module.with_expected([without], inline())
    broken = dataclasses.replace(DOUBLE, reference="def double(x):\n    return x + None\n")
    with pytest.raises(ConfigError, match=r"double, reference: runtime_error \(TypeError\)"):
        selfcheck_module.with_expected([broken], inline())


def test_a_tasks_own_time_holds() -> None:
    slow = dataclasses.replace(LARGEST, timeout_s=40.0)
    assert selfcheck_module.limits_of(slow).wall_s == 40.0
    seen = []

    def run(jobs):
        seen.extend(jobs)
        return inline()(jobs)

    selfcheck_module.selfcheck([slow], run)
    reference, *rest = [job.limits.wall_s for job in seen]
    assert reference == 40.0
    assert set(rest) == {selfcheck_module.MUTANT_WALL_S}


def test_near_misses_change_the_entry_point_alone() -> None:
    reference = "def helper(n):\n    return n < 9\n\ndef f(n):\n    return helper(n) and n > 3\n"
    task = Task("t", "", "f", AssertTests("assert f(4)"), reference=reference)
    near = {mutant.name: mutant.program for mutant in mutants(task) if not mutant.hard}
    assert near == {
        "swapped comparison": reference.replace("n > 3", "n >= 3"),
        "constant off by one": reference.replace("n > 3", "n > 4"),
    }


def test_a_reference_that_is_no_python_has_no_near_misses() -> None:
    task = dataclasses.replace(LARGEST, reference="def largest(:\n")
    assert all(mutant.hard for mutant in mutants(task))


SELFCHECK, MUTANTS = selfcheck_module.__name__, mutants_module.__name__
MUTATIONS = (
    Mutation(
        "survivors are not looked for",
        SELFCHECK,
        (('by_role["hard"] if pair[1].passed)', 'by_role["hard"] if False)'),),
        (check_exits, check_forged_equality, check_printed, check_no_tests),
        harmless_to=check_clean,
    ),
    Mutation(
        "references are not looked at",
        SELFCHECK,
        (('by_role["reference"] if not pair[1].passed)', 'by_role["reference"] if False)'),),
        (check_tight,),
        harmless_to=check_clean,
    ),
    Mutation(
        "a sandbox's failure counts as a wrong program",
        SELFCHECK,
        (('if verdict.outcome != "sandbox_error":', "if True:"),),
        (check_breaks,),
        harmless_to=check_clean,
    ),
    Mutation(
        "errors leave it clean",
        SELFCHECK,
        (("self.failed or self.survivors or self.errors)", "self.failed or self.survivors)"),),
        (check_breaks,),
        harmless_to=check_clean,
    ),
    Mutation(
        "mutants stand before the reference's own definition",
        MUTANTS,
        (
            (
                'f"{base}\\n\\n{_definition(task, task.entry_point, body)}"',
                'f"{_definition(task, task.entry_point, body)}\\n\\n{base}"',
            ),
        ),
        (check_clean,),
    ),
    Mutation(
        "no class around a method's mutant",
        MUTANTS,
        (("task.tests.of_class:", "not task.tests:"),),
        (check_forged_equality,),
    ),
    Mutation(
        "expected results of the wrong task",
        SELFCHECK,
        (("if task.id in open_tasks]", "if task.reference][:len(open_tasks)]"),),
        (check_expected_results,),
        error=Exception,
    ),
)


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.name)
def test_planted_bugs_are_caught(mutation: Mutation) -> None:
    assert_caught(mutation)
