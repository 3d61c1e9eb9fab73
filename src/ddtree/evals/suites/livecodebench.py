"""LiveCodeBench: problems of contests, tested through standard input or a method of `Solution`.

Its files are JSON lines. Tests are public ones as JSON and private ones that are mostly packed
(`packed`); both count. There are no references. Read as LiveCodeBench reads it, but that a list
and a tuple are not the same.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date, datetime
from typing import Any

from ddtree.evals.suites.fields import Record, json_lines, shown
from ddtree.evals.suites.packed import unpacked
from ddtree.evals.tasks import CallTests, IOCase, StdinTests, Task, Tests

SOLUTION = "Solution"

_STDIN_ASKED = "Read the input from standard input and print the answer to standard output."
_STARTER_ASKED = "Complete this code and keep its names:"

# What LiveCodeBench gives every answer without an import; `builtins` last, since `math` and
# `operator` have a `pow` as well.
_OPEN_MODULES = (
    *("typing", "collections", "itertools", "functools", "heapq", "bisect", "math", "string"),
    *("operator", "builtins"),
)
_CLOSED_MODULES = (
    *("typing", "collections", "itertools", "functools", "heapq", "bisect", "math", "string"),
    *("operator", "random", "re", "sys"),
)
PREAMBLE = "".join(
    [f"from {name} import *\n" for name in _OPEN_MODULES]
    + [f"import {name}\n" for name in _CLOSED_MODULES]
    + ["sys.setrecursionlimit(50_000)\n"]
)


@dataclass(frozen=True)
class Window:
    """Days of contests, both ends included; None leaves an end open."""

    since: date | None = None
    until: date | None = None

    def holds(self, day: date) -> bool:
        """Whether a contest of that day is inside."""
        early = self.since is not None and day < self.since
        return not early and not (self.until is not None and day > self.until)


def read_livecodebench(
    data: bytes, where: str = "LiveCodeBench", window: Window | None = None
) -> tuple[Task, ...]:
    """Tasks in the file's order, of contests inside `window` (None takes all).

    ConfigError names the line that is not as expected.
    """
    chosen = window or Window()
    records = json_lines(data, where)
    return tuple(_task(record) for record in records if chosen.holds(_day(record)))


def _day(record: Record) -> date:
    text = record.text("contest_date")
    try:
        return datetime.fromisoformat(text).date()
    except ValueError:
        raise record.refused(f"contest_date: expected an ISO date, got {text!r}") from None


def _task(record: Record) -> Task:
    cases = [
        *_cases(record, "public_test_cases", record.text("public_test_cases")),
        *_cases(record, "private_test_cases", record.text("private_test_cases")),
    ]
    kinds = {case.text("testtype") for case in cases}
    if kinds not in ({"stdin"}, {"functional"}):
        raise record.refused(
            f"testtype: expected stdin or functional for all tests, got {sorted(kinds)}"
        )
    functional = kinds == {"functional"}
    return Task(
        id=record.text("question_id"),
        prompt=_prompt(record, functional),
        entry_point=_method(record) if functional else None,
        tests=_call_tests(cases) if functional else _stdin_tests(cases),
        preamble=PREAMBLE,
    )


def _prompt(record: Record, functional: bool) -> str:
    question = record.text("question_content").rstrip()
    if not functional:
        return f"{question}\n\n{_STDIN_ASKED}\n"
    starter = record.text("starter_code").rstrip()
    return f"{question}\n\n{_STARTER_ASKED}\n\n```python\n{starter}\n```\n"


def _cases(record: Record, key: str, text: str) -> list[Record]:
    where = f"{record.where}, {key}"
    try:
        cases = json.loads(text)
    except ValueError:
        cases = unpacked(text, where)
    if not isinstance(cases, list) or not all(isinstance(case, dict) for case in cases):
        raise record.refused(f"{key}: expected a list of objects, got {shown(cases)}")
    return [Record(f"{where} {number}", case) for number, case in enumerate(cases, 1)]


def _method(record: Record) -> str:
    metadata = _json(record, "metadata")
    name = metadata.get("func_name") if isinstance(metadata, dict) else None
    if not isinstance(name, str):
        raise record.refused(f"metadata: expected func_name, got {shown(metadata)}")
    return name


def _stdin_tests(cases: Sequence[Record]) -> Tests:
    return StdinTests(tuple(IOCase(case.text("input"), case.text("output")) for case in cases))


def _call_tests(cases: Sequence[Record]) -> Tests:
    """Each line of an input is one argument in JSON."""
    inputs = []
    for case in cases:
        try:
            inputs.append(tuple(json.loads(line) for line in case.text("input").split("\n")))
        except ValueError as error:
            raise case.refused(f"input: expected one JSON value a line ({error})") from None
    expected = tuple(_json(case, "output") for case in cases)
    return CallTests(tuple(inputs), expected, of_class=SOLUTION)


def _json(record: Record, key: str) -> Any:
    try:
        return json.loads(record.text(key))
    except ValueError as error:
        raise record.refused(f"{key}: expected JSON ({error})") from None
