"""Tasks of these tests' own, and what becomes of an answer; only these tests' code is run."""

import contextlib
import io
import sys
import types
from unittest import mock

from ddtree.evals.extract import extract as extraction
from ddtree.evals.extract.answer import Answer
from ddtree.evals.extract.program import preamble_of
from ddtree.evals.tasks import AssertTests, CallTests, IOCase, StdinTests, Task

PROMPT = '''from typing import List


def total(xs: List[int]) -> int:
    """The sum of the even numbers.

    >>> total([1, 2, 4])
    6
    """
'''
RIGHT = """def total(xs: List[int]) -> int:
    return sum(x for x in xs if x % 2 == 0)"""
WRONG = """def total(xs):
    return -1"""
BODY = """    result = 0
    for x in xs:
        if x % 2 == 0:
            result += x
    return result"""
CHECKS = "assert total([1, 2, 4]) == 6\nassert total([]) == 0\nassert total([3]) == 0\n"

TASK = Task(
    id="even/0",
    prompt=PROMPT,
    entry_point="total",
    tests=AssertTests(CHECKS),
    prompt_is_code=True,
    preamble=preamble_of(PROMPT, "total"),
)

CIPHER_PROMPT = '''def shift(text: str) -> str:
    """Each letter five further on."""
    return "".join(chr((ord(c) - 97 + 5) % 26 + 97) for c in text)


def unshift(text: str) -> str:
    """Undoes shift."""
'''
CIPHER = Task(
    id="cipher/0",
    prompt=CIPHER_PROMPT,
    entry_point="unshift",
    tests=AssertTests('assert unshift(shift("hello")) == "hello"\n'),
    prompt_is_code=True,
    preamble=preamble_of(CIPHER_PROMPT, "unshift"),
)
METHOD = Task(
    id="method/0",
    prompt="Give the even sum as the method `total` of a class `Solution`.",
    entry_point="total",
    tests=CallTests((([1, 2, 4],),), (6,), of_class="Solution"),
)
SCRIPT = Task(
    id="script/0",
    prompt="Read a number n and print 2 n.",
    entry_point=None,
    tests=StdinTests((IOCase("3\n", "6\n"), IOCase("0\n", "0\n"))),
)


def fence(code: str, label: str = "python", mark: str = "```") -> str:
    """A closed block on lines of its own."""
    return f"{mark}{label}\n{code}\n{mark}\n"


def extracted(text: str | None, task: Task = TASK, finish_reason: str | None = None) -> Answer:
    """By the module's function as it is at the time."""
    return extraction.extract(text, task, finish_reason)


def outcome(answer: Answer, task: Task = TASK) -> str:
    """What a sandbox would say."""
    if answer.program is None:
        return str(answer.missing)
    return run(answer.program, task)


def run(program: str, task: Task) -> str:
    """A right program passes, a wrong one fails its tests."""
    try:
        code = compile(program, "<answer>", "exec")
    except (SyntaxError, ValueError):
        return "syntax"
    scope: dict[str, object] = {"__name__": "answer"}
    if isinstance(task.tests, StdinTests):
        return _scripted(code, task.tests)
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            exec(code, scope)
    except AssertionError:
        return "own_assert"
    except Exception as error:  # noqa: BLE001 - an answer may raise anything
        return type(error).__name__
    try:
        exec(_checks(task), scope)
    except AssertionError:
        return "assertion"
    except Exception as error:  # noqa: BLE001 - an answer may raise anything
        return type(error).__name__
    return "passed"


def _checks(task: Task) -> str:
    if isinstance(task.tests, AssertTests):
        return task.tests.source
    return "assert Solution().total([1, 2, 4]) == 6\n"


def _scripted(code: types.CodeType, tests: StdinTests) -> str:
    for case in tests.cases:
        out = io.StringIO()
        stdin = mock.patch.object(sys, "stdin", io.StringIO(case.stdin))
        with stdin, contextlib.redirect_stdout(out):
            exec(code, {"__name__": "__main__"})
        if out.getvalue().split() != case.stdout.split():
            return "assertion"
    return "passed"
