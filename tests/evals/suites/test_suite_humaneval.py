"""HumanEval's own file, as it lies in the wheel."""

import pytest
from suite_files import humaneval_record, json_lines_of, zipped

from ddtree.errors import ConfigError
from ddtree.evals.sandbox.job import Job
from ddtree.evals.sandbox.limits import Limits
from ddtree.evals.suites import humaneval
from ddtree.evals.suites.fetch import SuiteFiles
from ddtree.evals.suites.humaneval import read_humaneval
from ddtree.evals.suites.read import read_suite
from ddtree.evals.suites.sources import source_of
from ddtree.evals.tasks import AssertTests
from ddtree.models.datasets import HUMANEVAL, humaneval_prompts
from ddtree.models.download import fetch_wheel_file
from evals.inline_runner import inline
from mutations.planting import Mutation, planted

HELPERS = {32: "poly", 38: "encode_cyclic", 50: "encode_shift"}


@pytest.fixture(scope="module")
def tasks(model_cache):
    fetch_wheel_file(HUMANEVAL, model_cache / "humaneval")
    return read_suite("humaneval", SuiteFiles(model_cache).read("humaneval").data)


def verdicts(tasks, programs):
    jobs = [
        Job(program, task.tests, task.entry_point, Limits())
        for task, program in zip(tasks, programs, strict=True)
    ]
    return [verdict.outcome for verdict in inline()(jobs)]


def test_the_pinned_file_is_the_wheels(model_cache) -> None:
    source = source_of("humaneval")
    assert (source.origin, source.revision) == (HUMANEVAL.package, HUMANEVAL.version)
    assert (source.member, source.sha256) == (HUMANEVAL.member, HUMANEVAL.member_sha256)
    folder = model_cache / "humaneval"
    assert SuiteFiles(model_cache).path("humaneval") == folder / HUMANEVAL.file_name


def test_all_tasks_are_there(tasks, model_cache) -> None:
    assert [task.id for task in tasks] == [f"HumanEval/{n}" for n in range(164)]
    assert tuple(task.prompt for task in tasks) == humaneval_prompts(model_cache)
    assert all(task.prompt_is_code and task.timeout_s is None for task in tasks)


def test_preambles_hold_imports_and_helpers(tasks) -> None:
    typed = [task for task in tasks if "from typing import" in task.prompt]
    assert len(typed) >= 19
    for task in typed:
        assert "from typing import" in task.preamble
    for number, helper in HELPERS.items():
        assert f"def {helper}(" in tasks[number].preamble
        assert f"def {tasks[number].entry_point}(" not in tasks[number].preamble


def test_references_pass_and_others_fail(tasks) -> None:
    some = [tasks[n] for n in (0, 2, 4, *HELPERS, 115, 163)]
    assert set(verdicts(some, [task.reference for task in some])) == {"passed"}
    wrong = [f"{task.reference}\n\ndef {task.entry_point}(*_): return None\n" for task in some]
    assert "passed" not in verdicts(some, wrong)


def check_tests_run() -> None:
    (task,) = humaneval.read_humaneval(json_lines_of(humaneval_record()))
    assert task.tests == AssertTests(
        "def check(candidate):\n    assert candidate([1, 2]) == 3\n\ncheck(total)\n"
    )
    wrong = "def total(x):\n    return 4\n"
    assert verdicts([task, task], [task.reference, wrong]) == ["passed", "assertion"]


def test_on_the_code_as_it_is() -> None:
    check_tests_run()


def test_zipped_or_not() -> None:
    lines = json_lines_of(humaneval_record(), humaneval_record(task_id="HumanEval/1"))
    assert read_humaneval(lines) == read_humaneval(zipped(lines))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"prompt": None}, "line 2: prompt: expected a text, got None"),
        ({"test": 3}, "line 2: test: expected a text, got 3"),
    ],
)
def test_what_is_wrong_is_named(changes, message) -> None:
    with pytest.raises(ConfigError, match=message):
        read_humaneval(json_lines_of(humaneval_record(), humaneval_record(**changes)))


def test_no_suite_file_at_all() -> None:
    with pytest.raises(ConfigError, match="line 1: not JSON"):
        read_humaneval(b"<html>\n")
    with pytest.raises(ConfigError, match="line 1: expected an object, got list"):
        read_humaneval(b"[]\n")
    with pytest.raises(ConfigError, match="neither UTF-8 nor gzip"):
        read_humaneval(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match="neither UTF-8 nor gzip"):
        read_humaneval(zipped(json_lines_of(humaneval_record()))[:40])
    with pytest.raises(ConfigError, match="line 1: entry_point: missing"):
        read_humaneval(b'{"prompt": ""}')


def test_tests_that_are_never_called_are_caught() -> None:
    bug = Mutation(
        "check is defined and not called",
        humaneval.__name__,
        (("\\ncheck({entry_point})\\n", "\\n"),),
        (check_tests_run,),
    )
    with planted(bug), pytest.raises(AssertionError):
        check_tests_run()
