"""A user's own problems, in JSON lines: the form of `file:PATH`.

    id           a name, once in the file
    prompt       what the model is given
    language     "python"; there is no other yet
    tests        Python source, run after the answer in its namespace; or
    calls        [{"args": [...], "expected": ...}, ...], calls of the entry point; or
    stdin_tests  [{"stdin": "...", "stdout": "..."}, ...], runs of the answer as a script
    entry_point  the function that is asked for; with `tests` and `calls`, not with `stdin_tests`

and, where they are wanted,

    prompt_is_code  true where the prompt is the head of a Python program that goes on in the answer
    preamble        source that stands before every answer
    reference       a whole right program, for the self-check; without `expected` in `calls` the
                    results are taken from it
    timeout         seconds

Of `tests`, `calls` and `stdin_tests` each task has one. Unknown keys are refused.
"""

from typing import Any

from ddtree.evals.suites.fields import Record, json_lines, shown
from ddtree.evals.tasks import AssertTests, CallTests, IOCase, StdinTests, Task, Tests

LANGUAGES = ("python",)
TEST_KEYS = ("tests", "calls", "stdin_tests")
KEYS = (
    *("id", "prompt", "language", *TEST_KEYS, "entry_point"),
    *("prompt_is_code", "preamble", "reference", "timeout"),
)


def read_private(data: bytes, where: str) -> tuple[Task, ...]:
    """Tasks in the file's order. ConfigError names `where`, the line and what is wrong there."""
    return tuple(_task(record) for record in json_lines(data, where))


def _task(record: Record) -> Task:
    _check_keys(record, KEYS)
    _check_language(record)
    entry_point = record.optional_text("entry_point")
    return Task(
        id=_filled(record, "id"),
        prompt=_filled(record, "prompt"),
        entry_point=entry_point,
        tests=_tests(record, entry_point),
        prompt_is_code=_flag(record, "prompt_is_code"),
        preamble=record.optional_text("preamble") or "",
        reference=record.optional_text("reference"),
        timeout_s=_timeout(record),
    )


def _check_keys(record: Record, known: tuple[str, ...]) -> None:
    unknown = sorted(set(record.fields) - set(known))
    if unknown:
        raise record.refused(f"unknown key {unknown[0]!r}; known are {', '.join(known)}")


def _check_language(record: Record) -> None:
    language = record.text("language")
    if language not in LANGUAGES:
        raise record.refused(
            f"language: got {language!r}, expected {' or '.join(LANGUAGES)}; other languages can't "
            "be run"
        )


def _filled(record: Record, key: str) -> str:
    text = record.text(key)
    if not text:
        raise record.refused(f"{key}: expected a text that isn't empty")
    return text


def _flag(record: Record, key: str) -> bool:
    value = record.fields.get(key, False)
    if not isinstance(value, bool):
        raise record.refused(f"{key}: expected true or false, got {shown(value)}")
    return value


def _timeout(record: Record) -> float | None:
    if record.fields.get("timeout") is None:
        return None
    seconds = record.number("timeout")
    if not 0 < seconds < float("inf"):
        raise record.refused(f"timeout: expected seconds above 0, got {seconds}")
    return seconds


def _tests(record: Record, entry_point: str | None) -> Tests:
    given = [key for key in TEST_KEYS if key in record.fields]
    if len(given) != 1:
        raise record.refused(
            f"give one of {', '.join(TEST_KEYS)}, got {' and '.join(given) or 'none'}"
        )
    if given == ["stdin_tests"]:
        if entry_point is not None:
            raise record.refused("entry_point: a task with stdin_tests has none; leave it out")
        return StdinTests(tuple(_io_case(case) for case in _objects(record, "stdin_tests")))
    if entry_point is None or not entry_point.isidentifier():
        raise record.refused(
            f"entry_point: expected the name of a function, got {shown(entry_point)}"
        )
    if given == ["tests"]:
        return AssertTests(_filled(record, "tests"))
    return _calls(record)


def _calls(record: Record) -> CallTests:
    cases = _objects(record, "calls")
    for case in cases:
        _check_keys(case, ("args", "expected"))
    inputs = tuple(tuple(case.items("args")) for case in cases)
    given = ["expected" in case.fields for case in cases]
    if all(given):
        return CallTests(inputs, tuple(case.fields["expected"] for case in cases))
    if any(given):
        raise record.refused("calls: give `expected` in all of them or in none")
    if record.optional_text("reference") is None:
        raise record.refused("calls: give `expected`, or a `reference` that gives the results")
    return CallTests(inputs, None)


def _io_case(case: Record) -> IOCase:
    _check_keys(case, ("stdin", "stdout"))
    return IOCase(case.text("stdin"), case.text("stdout"))


def _objects(record: Record, key: str) -> list[Record]:
    values: list[Any] = record.items(key)
    if not values or not all(isinstance(value, dict) for value in values):
        raise record.refused(f"{key}: expected a list of objects that isn't empty")
    return [Record(f"{record.where}, {key} {n}", value) for n, value in enumerate(values, 1)]
