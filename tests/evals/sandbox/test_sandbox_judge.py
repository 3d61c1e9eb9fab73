"""From runs as they may end to verdicts, and from results to whether they are right."""

import json
import math
import signal
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddtree.evals.outcomes import Outcome
from ddtree.evals.sandbox import compare as compare_module
from ddtree.evals.sandbox import judge as judge_module
from ddtree.evals.sandbox.job import Job
from ddtree.evals.sandbox.limits import Limits
from ddtree.evals.sandbox.process import Ended
from ddtree.evals.tasks import AssertTests, CallTests, IOCase, StdinTests
from mutations.planting import Mutation, assert_caught

WORD = "c0ffee"
LIMITS = Limits(cpu_s=2.0, wall_s=3.0)
ASSERTS = Job("", AssertTests(""), "f", LIMITS)
CALLS = Job("", CallTests(((1,), (2,)), ([1], 2.0)), "f", LIMITS)
CASE = IOCase("", "1 2\n")
SCRIPT = Job("", StdinTests((CASE,)), None, LIMITS)


def line(message: object, word: str = WORD) -> bytes:
    return f"\n{word} {json.dumps(message)}\n".encode()


STARTED = line({"started": True})
PASSED = line({"outcome": "passed"})
QUIET = Ended("end", 0, b"", b"", STARTED, 0.5, 0.1)


def outcome(job: Job, ended: Ended, case: IOCase | None = None) -> Outcome:
    return judge_module.judge(job, ended, WORD, case).outcome


def report(*lines: bytes) -> Ended:
    return replace(QUIET, report=b"".join(lines))


def check_word() -> None:
    assert outcome(ASSERTS, report(STARTED, PASSED)) == "passed"
    assert outcome(ASSERTS, QUIET) == "runtime_error"
    forged = line({"outcome": "passed"}, "deadbeef")
    assert outcome(ASSERTS, report(STARTED, forged)) == "runtime_error"
    assert outcome(ASSERTS, report(STARTED, b'{"outcome": "passed"}\n')) == "runtime_error"
    assert outcome(ASSERTS, report(STARTED, b"half a line", PASSED)) == "passed"


def check_first_word_counts() -> None:
    failed = line({"outcome": "assertion", "detail": "d"})
    assert outcome(ASSERTS, report(STARTED, failed, PASSED)) == "assertion"


def check_exit_proves_nothing() -> None:
    for status in (0, 1):
        assert outcome(ASSERTS, replace(QUIET, status=status)) == "runtime_error"
    assert outcome(ASSERTS, replace(report(STARTED, PASSED), status=1)) == "passed"


def check_not_started() -> None:
    for stop in ("end", "wall"):
        ended = Ended(stop, 1, b"", b"bwrap: no\npermission", b"", 0.5, 0.1)
        for job, case in ((ASSERTS, None), (SCRIPT, CASE)):
            verdict = judge_module.judge(job, ended, WORD, case)
            assert verdict.outcome == "sandbox_error"
            assert "bwrap: no permission" in verdict.detail


def check_too_much() -> None:
    for stop in ("output", "results", "folder"):
        ended = replace(report(STARTED, PASSED), stop=stop)
        assert outcome(ASSERTS, ended) == "output_limit"


def check_time() -> None:
    assert outcome(ASSERTS, replace(QUIET, stop="wall", status=-9)) == "timeout"
    for status in (-signal.SIGXCPU, 128 + signal.SIGXCPU):
        assert outcome(ASSERTS, replace(QUIET, status=status)) == "timeout"
    assert outcome(ASSERTS, replace(QUIET, status=-9, cpu_s=2.1)) == "timeout"
    assert outcome(ASSERTS, replace(QUIET, status=137, cpu_s=0.1)) == "killed"
    in_time = replace(report(STARTED, PASSED), stop="wall", status=-9)
    assert outcome(ASSERTS, in_time) == "passed"


def check_signals() -> None:
    for status in (-signal.SIGSEGV, 128 + signal.SIGSEGV):
        verdict = judge_module.judge(ASSERTS, replace(QUIET, status=status), WORD)
        assert (verdict.outcome, verdict.detail) == ("killed", "SIGSEGV")
    assert outcome(ASSERTS, replace(QUIET, status=128)) == "runtime_error"
    assert outcome(ASSERTS, replace(QUIET, status=255)) == "runtime_error"


def check_results() -> None:
    def told(*results: object) -> Ended:
        return report(STARTED, line({"outcome": "passed", "results": results}))

    assert outcome(CALLS, told([1], 2)) == "passed"
    assert outcome(CALLS, told([1], 3)) == "assertion"
    assert outcome(CALLS, told({"tuple": [1]}, 2)) == "assertion"
    assert outcome(CALLS, told([1])) == "runtime_error"
    assert outcome(CALLS, told([1], 2, 3)) == "runtime_error"
    assert outcome(CALLS, report(STARTED, PASSED)) == "runtime_error"
    open_job = replace(CALLS, tests=CallTests(((1,), (2,)), None))
    assert judge_module.judge(open_job, told([1], {"set": [3]}), WORD).values == ([1], {3})


def check_scripts() -> None:
    right = replace(QUIET, stdout=b"1 2")
    assert outcome(SCRIPT, right, CASE) == "passed"
    assert outcome(SCRIPT, replace(right, stdout=b"2"), CASE) == "assertion"
    assert outcome(SCRIPT, replace(right, stdout=b"\xff"), CASE) == "assertion"
    assert outcome(SCRIPT, replace(right, status=1), CASE) == "runtime_error"
    failed = replace(right, report=STARTED + line({"outcome": "memory"}))
    assert outcome(SCRIPT, failed, CASE) == "memory"


@pytest.mark.parametrize(
    "rest",
    [
        line({"outcome": "a new one"}),
        line({"outcome": "timeout"}),
        line({"outcome": ["passed"]}),
        line({}),
        line([]),
        line(None),
        f"\n{WORD} nothing\n".encode(),
        f"\n{WORD} {'[' * 100_000}\n".encode(),
        line({"outcome": "passed", "results": [{"no such tag": 1}]}),
        line({"outcome": "passed", "results": 1}),
        line({"outcome": "passed", "results": [{"Fraction": [1, 0]}, 2]}),
    ],
)
def test_unreadable_reports_are_no_pass(rest: bytes) -> None:
    verdict = judge_module.judge(CALLS, report(STARTED, rest), WORD)
    assert verdict.outcome == "runtime_error"
    assert verdict.detail == "unreadable report"


def test_details_are_short_and_seconds_are_the_runs() -> None:
    told = line({"outcome": "assertion", "detail": "x" * 5000})
    verdict = judge_module.judge(ASSERTS, report(STARTED, told), WORD)
    assert len(verdict.detail) == 300
    assert verdict.seconds == 0.5
    long = replace(CALLS, tests=CallTests(((1,),), (2**20000,)))
    told = line({"outcome": "passed", "results": [1]})
    assert "a long value" in judge_module.judge(long, report(STARTED, told), WORD).detail


def check_same() -> None:
    same = compare_module.same
    for one, other in (
        (1, 1.0),
        (True, 1),
        ([1, (2,)], [1, (2,)]),
        ({"a": [1.0]}, {"a": [1]}),
        ({1, 2}, {2, 1}),
        ({1}, frozenset({1})),
        (math.nan, math.nan),
        ([math.inf], [math.inf]),
        (complex(1, math.nan), complex(math.nan, 0)),
    ):
        assert same(one, other), (one, other)
    for one, other in (
        (1, 2),
        ("1", 1),
        (1.0, "1"),
        (None, math.nan),
        ([1], (1,)),
        ([1], [1, 2]),
        ([1, 2], [1]),
        ({"a": 1}, {"a": 1, "b": 1}),
        ({"a": 1}, {"b": 1}),
        (math.nan, 1.0),
        (1.0, math.nan),
        (math.inf, -math.inf),
        (1.0, 1.0 + 1e-9),
    ):
        assert not same(one, other), (one, other)


def check_near() -> None:
    same = compare_module.same
    assert same([1.0, {"k": (2,)}], [1.0 + 1e-7, {"k": (2.0 - 1e-7,)}], 1e-6)
    assert not same(1.0, 1.00001, 1e-6)
    assert not same(1, 2, 1.5)
    assert not same(10**400, 1.0, 1e-6)
    assert not same(math.inf, 1.0, 1e-6)
    assert not same(math.nan, 1.0, 1e6)


def check_printed() -> None:
    difference = compare_module.difference
    for printed, expected in (
        ("1 2\n", "1 2"),
        ("1 2  \r\n", "1 2\n"),
        ("1\n\n\n", "1\n"),
        ("1   2", "1 2"),
        (" 1", "1"),
        ("", "\n"),
        ("a b\n -1.5e3 .5\n", "a b\n-1.5e3  .5"),
    ):
        assert difference(printed, expected) is None, (printed, expected)
    for printed, expected, words in (
        ("1.0", "1", "line 1 differs"),
        ("01", "1", "line 1 differs"),
        ("a  b", "a b", "line 1 differs"),
        (" a", "a", "line 1 differs"),
        ("1\n\n2", "1\n2", "line 2 differs"),
        ("1\n2", "1", "2 lines, expected 1"),
        ("", "1", "0 lines, expected 1"),
        ("A", "a", "line 1 differs"),
    ):
        assert difference(printed, expected) == words, (printed, expected)


@given(st.text(), st.text(" \t", max_size=3))
def test_a_text_is_the_same_as_itself(text: str, blank: str) -> None:
    assert compare_module.difference(text, text) is None
    padded = "".join(f"{line}{blank}\n" for line in text.splitlines())
    assert compare_module.difference(padded, text) is None


CHECKS = (
    check_word,
    check_first_word_counts,
    check_exit_proves_nothing,
    check_not_started,
    check_too_much,
    check_time,
    check_signals,
    check_results,
    check_scripts,
    check_same,
    check_near,
    check_printed,
)


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_on_the_code_as_it_is(check) -> None:
    check()


JUDGE, COMPARE = judge_module.__name__, compare_module.__name__
MUTATIONS = (
    Mutation(
        "any line is the runner's",
        JUDGE,
        (("if line.startswith(mark)]", "if line]"),),
        (check_word,),
        error=BaseException,
    ),
    Mutation(
        "the last word counts",
        JUDGE,
        (("lines[1].removeprefix", "lines[-1].removeprefix"),),
        (check_first_word_counts,),
        harmless_to=check_word,
    ),
    Mutation(
        "a clean exit is a pass",
        JUDGE,
        (("if case is not None and ended.status == 0:", "if ended.status == 0:"),),
        (check_exit_proves_nothing,),
        error=BaseException,
    ),
    Mutation(
        "a failed start is a wrong answer",
        JUDGE,
        (('"sandbox_error", f"not started', '"runtime_error", f"not started'),),
        (check_not_started,),
        harmless_to=check_word,
    ),
    Mutation(
        "too much output is overlooked",
        JUDGE,
        (("if ended.stop in _TOO_MUCH:", "if False:"),),
        (check_too_much,),
        harmless_to=check_word,
    ),
    Mutation(
        "a kill for its processor time is one of its own",
        JUDGE,
        (("and ended.cpu_s >= limits.cpu_s", "and False"),),
        (check_time,),
        harmless_to=check_signals,
    ),
    Mutation(
        "missing results are right",
        JUDGE,
        (("if len(results) != len(tests.inputs):", "if False:"), ("strict=True", "strict=False")),
        (check_results,),
        harmless_to=check_word,
    ),
    Mutation(
        "a script's status does not matter",
        JUDGE,
        (("if case is not None and ended.status == 0:", "if case is not None:"),),
        (check_scripts,),
        harmless_to=check_exit_proves_nothing,
    ),
    Mutation(
        "lists and tuples are one",
        COMPARE,
        (("and type(got) is type(expected):", "and isinstance(expected, list | tuple):"),),
        (check_same, check_results),
        harmless_to=check_near,
    ),
    Mutation(
        "only what both have is compared",
        COMPARE,
        (
            ("if len(got) != len(expected):\n            return False\n", ""),
            ("strict=True))", "strict=False))"),
        ),
        (check_same,),
        harmless_to=check_near,
        error=BaseException,
    ),
    Mutation(
        "whole numbers may be off",
        COMPARE,
        (("isinstance(got, float | complex) or", "isinstance(got, int | float | complex) or"),),
        (check_near,),
        harmless_to=check_same,
    ),
    Mutation(
        "missing lines are overlooked",
        COMPARE,
        (("if len(got) != len(wanted):", "if False:"),),
        (check_printed,),
        harmless_to=check_same,
    ),
)


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.name)
def test_planted_bugs_are_caught(mutation: Mutation) -> None:
    assert_caught(mutation)
