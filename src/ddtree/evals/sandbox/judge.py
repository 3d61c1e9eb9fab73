"""From how a run ended, and what its runner told, to a verdict.

A pass needs the runner's own word, or for a script the right output: how a process exits proves
nothing.
"""

import dataclasses
import json
import reprlib
import signal
from collections.abc import Sequence
from typing import Any

from ddtree.evals.outcomes import Verdict
from ddtree.evals.sandbox.compare import difference, same
from ddtree.evals.sandbox.inside.tagged import heard
from ddtree.evals.sandbox.job import Job
from ddtree.evals.sandbox.limits import Limits
from ddtree.evals.sandbox.process import Ended, Stop
from ddtree.evals.tasks import CallTests, IOCase

_LONGEST = 300
# What a runner may find by itself.
_TOLD = (
    "passed",
    "assertion",
    "runtime_error",
    "own_assert",
    "syntax",
    "memory",
    "entry_point_missing",
    "sandbox_error",
)
_TOO_MUCH: dict[Stop, str] = {
    "output": "printed too much",
    "results": "results too large",
    "folder": "wrote too much",
}
_SIGNALS = {one.value: one.name for one in signal.Signals}
# Shells and bubblewrap exit so where a signal ended their command.
_SIGNALLED = 128
_UNREADABLE = Verdict("runtime_error", "unreadable report")


def judge(job: Job, ended: Ended, word: str, case: IOCase | None = None) -> Verdict:
    """The verdict on one run. `word` begins the runner's lines; `case` is what a script was run
    on, None for tests of another kind."""
    verdict = _judged(job, ended, word, case)
    return dataclasses.replace(verdict, detail=verdict.detail[:_LONGEST], seconds=ended.seconds)


def _judged(job: Job, ended: Ended, word: str, case: IOCase | None) -> Verdict:
    mark = f"{word} ".encode()
    lines = [line for line in ended.report.split(b"\n") if line.startswith(mark)]
    if not lines:
        return _not_started(ended)
    if ended.stop in _TOO_MUCH:
        return Verdict("output_limit", _TOO_MUCH[ended.stop])
    if len(lines) > 1:
        return _told(job, lines[1].removeprefix(mark))
    if ended.stop == "wall":
        return Verdict("timeout", f"{job.limits.wall_s:g} s")
    if case is not None and ended.status == 0:
        found = difference(ended.stdout.decode(errors="replace"), case.stdout)
        return Verdict("passed") if found is None else Verdict("assertion", found)
    return _broke_off(ended, job.limits, script=case is not None)


def _not_started(ended: Ended) -> Verdict:
    """Nothing of the program has run: that is nobody's wrong answer."""
    said = " ".join(ended.stderr.decode(errors="replace").split())
    how = "no start in time" if ended.stop == "wall" else f"status {ended.status}"
    return Verdict("sandbox_error", f"not started: {how}; {said[-_LONGEST // 2 :]}")


def _told(job: Job, line: bytes) -> Verdict:
    try:
        message = json.loads(line)
        outcome, detail = message["outcome"], message.get("detail", "")
        results = [heard(item) for item in message.get("results", ())]
    except (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError):
        return _UNREADABLE
    if outcome not in _TOLD:
        return _UNREADABLE
    if outcome == "passed" and isinstance(job.tests, CallTests):
        return _compared(job.tests, results)
    return Verdict(outcome, str(detail))


def _compared(tests: CallTests, results: Sequence[Any]) -> Verdict:
    if len(results) != len(tests.inputs):
        return _UNREADABLE
    if tests.expected is None:
        return Verdict("passed", values=tuple(results))
    for number, (got, right) in enumerate(zip(results, tests.expected, strict=True), start=1):
        if not same(got, right, tests.atol):
            return Verdict("assertion", f"call {number}: {_short(got)}, expected {_short(right)}")
    return Verdict("passed")


def _broke_off(ended: Ended, limits: Limits, *, script: bool) -> Verdict:
    """The process ended without a word."""
    number = -ended.status if ended.status < 0 else ended.status - _SIGNALLED
    out_of_time = number == signal.SIGKILL and ended.cpu_s >= limits.cpu_s
    if number == signal.SIGXCPU or out_of_time:
        return Verdict("timeout", f"{limits.cpu_s:g} s of CPU")
    if number in _SIGNALS:
        return Verdict("killed", _SIGNALS[number])
    if script:
        return Verdict("runtime_error", f"exit status {ended.status}")
    return Verdict("runtime_error", "ended before the tests did")


def _short(value: Any) -> str:
    try:
        return reprlib.repr(value)
    except ValueError:
        # Ints may be too long to be written.
        return "a long value"
