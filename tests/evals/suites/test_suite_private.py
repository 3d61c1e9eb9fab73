"""The form of `file:PATH`, and what is refused in it."""

import json

import pytest
from suite_files import json_lines_of, private_record

from ddtree.errors import ConfigError
from ddtree.evals.sandbox.job import Job
from ddtree.evals.sandbox.limits import Limits
from ddtree.evals.suites import private
from ddtree.evals.suites.private import KEYS, read_private
from ddtree.evals.tasks import AssertTests, CallTests, IOCase, StdinTests, Task
from evals.inline_runner import inline

CALLS = {"args": [1, 2], "expected": 3}


def read(*records) -> tuple[Task, ...]:
    return read_private(json_lines_of(*records), "mine.jsonl")


def without(*keys: str, **changes) -> dict:
    return {k: v for k, v in private_record(**changes).items() if k not in keys}


def test_tests_as_source() -> None:
    (task,) = read(private_record())
    assert task == Task("one", "Write add(a, b).", "add", AssertTests("assert add(1, 2) == 3\n"))
    programs = ("def add(a, b): return a + b\n", "def add(a, b): return a\n")
    jobs = [Job(program, task.tests, task.entry_point, Limits()) for program in programs]
    assert [verdict.outcome for verdict in inline()(jobs)] == ["passed", "assertion"]


def test_all_the_rest() -> None:
    (task,) = read(
        private_record(
            prompt_is_code=True, preamble="import os\n", reference="x = 1\n", timeout=2.5
        )
    )
    assert (task.prompt_is_code, task.preamble) == (True, "import os\n")
    assert (task.reference, task.timeout_s) == ("x = 1\n", 2.5)
    (empty,) = read(private_record(preamble=None, reference=None, timeout=None))
    assert (empty.preamble, empty.reference, empty.timeout_s) == ("", None, None)


def test_calls() -> None:
    (task,) = read(without("tests", calls=[CALLS, {"args": [], "expected": None}]))
    assert task.tests == CallTests(((1, 2), ()), (3, None))
    (task,) = read(without("tests", calls=[{"args": [1, 2]}], reference="def add(a, b): ..."))
    assert task.tests == CallTests(((1, 2),), None)


def test_standard_input() -> None:
    (task,) = read(
        without("tests", "entry_point", stdin_tests=[{"stdin": "1 2\n", "stdout": "3\n"}])
    )
    assert task.tests == StdinTests((IOCase("1 2\n", "3\n"),))
    assert task.entry_point is None


def test_separators_inside_texts_are_no_line_ends() -> None:
    (task,) = read_private(
        json.dumps(private_record(prompt="a\u2028b\x85c"), ensure_ascii=False).encode(), "mine"
    )
    assert task.prompt == "a\u2028b\x85c"
    assert len(read_private(b"\xef\xbb\xbf" + json_lines_of(private_record()), "mine")) == 1


@pytest.mark.parametrize(
    ("record", "message"),
    [
        (private_record(entrypoint="add"), "unknown key 'entrypoint'; known are id, prompt"),
        (private_record(language="cpp"), "language: got 'cpp', expected python; other languages"),
        (without("language"), "language: missing"),
        (private_record(id=""), "id: expected a text that isn't empty"),
        (private_record(id=3), "id: expected a text, got 3"),
        (without("prompt"), "prompt: missing, expected a text"),
        (without("tests"), "give one of tests, calls, stdin_tests, got none"),
        (private_record(calls=[CALLS]), "give one of .*, got tests and calls"),
        (without("entry_point"), "entry_point: expected the name of a function, got None"),
        (private_record(entry_point="a b"), "entry_point: expected the name .*, got 'a b'"),
        (private_record(tests=""), "tests: expected a text that isn't empty"),
        (without("tests", calls=[]), "calls: expected a list of objects that isn't empty"),
        (without("tests", calls=[1]), "calls: expected a list of objects that isn't empty"),
        (without("tests", calls=[{"args": 1, "expected": 1}]), "calls 1: args: expected a list"),
        (without("tests", calls=[CALLS, {"args": []}]), "calls: give `expected` in all of them"),
        (without("tests", calls=[{"args": []}]), "calls: give `expected`, or a `reference`"),
        (without("tests", calls=[CALLS | {"kwargs": {}}]), "calls 1: unknown key 'kwargs'"),
        (
            without("tests", stdin_tests=[{"stdin": "", "stdout": ""}]),
            "entry_point: a task with stdin_tests has none",
        ),
        (
            without("tests", "entry_point", stdin_tests=[{"stdin": "1"}]),
            "stdin_tests 1: stdout: missing",
        ),
        (private_record(timeout=0), "timeout: expected seconds above 0, got 0"),
        (private_record(timeout="9"), "timeout: expected a number, got '9'"),
        (private_record(prompt_is_code=1), "prompt_is_code: expected true or false, got 1"),
        (private_record(reference=1), "reference: expected a text, got 1"),
    ],
)
def test_what_is_wrong_is_named(record, message) -> None:
    with pytest.raises(ConfigError, match=f"mine.jsonl, line 2(:|,) {message}"):
        read(private_record(), record)


def test_every_key_is_described() -> None:
    described = [
        line.split()[0] for line in str(private.__doc__).splitlines() if line[:4] == "    "
    ]
    assert set(KEYS) <= set(described)
