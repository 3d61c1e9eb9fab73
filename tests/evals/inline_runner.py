"""Runs jobs in this very process: for programs of the tests' own, never for a model's.

`holes` are faults that a sandbox may have; each is one that a self-check must see.
"""

import contextlib
import copy
import io
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal
from unittest import mock

from ddtree.evals.outcomes import Outcome, Verdict
from ddtree.evals.sandbox.job import Job
from ddtree.evals.tasks import AssertTests, CallTests, StdinTests

Hole = Literal["exit is a pass", "no guard", "tests never run", "output decides", "breaks", "tight"]
PLAIN = (
    bool,
    int,
    float,
    complex,
    str,
    bytes,
    type(None),
    list,
    tuple,
    dict,
    set,
    frozenset,
    re.Match,
)


def inline(*holes: Hole) -> Callable[[Sequence[Job]], Iterator[Verdict]]:
    """A runner with these holes."""
    return lambda jobs: (_verdict(job, holes) for job in jobs)


def _verdict(job: Job, holes: Sequence[Hole]) -> Verdict:
    if "breaks" in holes:
        return Verdict("sandbox_error", "could not start")
    if "tight" in holes:
        return Verdict("memory")
    out = io.StringIO()
    try:
        with contextlib.redirect_stdout(out):
            verdict = _tested(job, holes)
    except SystemExit:
        verdict = Verdict("passed" if "exit is a pass" in holes else "runtime_error", "SystemExit")
    except Exception as error:  # noqa: BLE001 - a program may raise anything
        kind: Outcome = "assertion" if isinstance(error, AssertionError) else "runtime_error"
        verdict = Verdict(kind, type(error).__name__)
    if "output decides" in holes and "PASSED" in out.getvalue():
        return Verdict("passed")
    return verdict


def _tested(job: Job, holes: Sequence[Hole]) -> Verdict:
    if isinstance(job.tests, StdinTests):
        return _scripted(job.program, job.tests, holes)
    scope: dict[str, Any] = {"__name__": "answer"}
    exec(compile(job.program, "<answer>", "exec"), scope)
    if "tests never run" in holes:
        return Verdict("passed")
    if isinstance(job.tests, CallTests):
        return _called(scope, str(job.entry_point), job.tests, holes)
    assert isinstance(job.tests, AssertTests)
    entry_point = scope[str(job.entry_point)]

    def guarded(*arguments: Any, **named: Any) -> Any:
        result = entry_point(*arguments, **named)
        assert "no guard" in holes or isinstance(result, PLAIN), "a type of its own"
        return result

    scope[str(job.entry_point)] = guarded
    exec(compile(job.tests.source, "<tests>", "exec"), scope)
    return Verdict("passed")


def _called(
    scope: dict[str, Any], entry_point: str, tests: CallTests, holes: Sequence[Hole]
) -> Verdict:
    owner = scope[tests.of_class]() if tests.of_class else None
    function = getattr(owner, entry_point) if owner else scope[entry_point]
    results = [function(*copy.deepcopy(arguments)) for arguments in tests.inputs]
    if tests.expected is None:
        return Verdict("passed", values=tuple(results))
    for got, right in zip(results, tests.expected, strict=True):
        assert "no guard" in holes or type(got) is type(right)
        assert got == right or (isinstance(right, float) and abs(got - right) <= tests.atol)
    return Verdict("passed")


def _scripted(program: str, tests: StdinTests, holes: Sequence[Hole]) -> Verdict:
    for case in tests.cases:
        out = io.StringIO()
        stdin = mock.patch.object(sys, "stdin", io.StringIO(case.stdin))
        with stdin, contextlib.redirect_stdout(out):
            exec(compile(program, "<answer>", "exec"), {"__name__": "__main__"})
        sys.stdout.write(out.getvalue())
        if "tests never run" not in holes:
            assert out.getvalue().split() == case.stdout.split()
    return Verdict("passed")
