"""MBPP, the sanitised file: a JSON list of texts, each with its code and a few asserts.

The function's name stands nowhere but in the asserts, so the prompt shows them, as the paper's
does (Austin et al. 2021).
"""

import ast
import json
from collections.abc import Iterator, Sequence

from ddtree.errors import ConfigError
from ddtree.evals.extract.source import parse
from ddtree.evals.suites.fields import Record, decoded, shown
from ddtree.evals.tasks import AssertTests, Task

_TESTS_FOLLOW = "Your code should pass these tests:"


def read_mbpp(data: bytes, where: str = "MBPP") -> tuple[Task, ...]:
    """Tasks in the file's order; `data` is one JSON list.

    ConfigError names the entry that is not as expected, and a task whose asserts call nothing that
    its code defines.
    """
    return tuple(_task(record) for record in _entries(data, where))


def _entries(data: bytes, where: str) -> Iterator[Record]:
    try:
        entries = json.loads(decoded(data, where))
    except ValueError as error:
        raise ConfigError(f"{where}: not JSON ({error})") from None
    if not isinstance(entries, list):
        raise ConfigError(f"{where}: expected a list, got {type(entries).__name__}")
    for number, fields in enumerate(entries, 1):
        place = f"{where}, entry {number}"
        if not isinstance(fields, dict):
            raise ConfigError(f"{place}: expected an object, got {type(fields).__name__}")
        yield Record(place, fields)


def _task(record: Record) -> Task:
    code = record.text("code")
    imports, tests = _lines(record, "test_imports"), _lines(record, "test_list")
    if not tests:
        raise record.refused("test_list: empty, expected asserts")
    shown_tests = "\n".join(tests)
    return Task(
        id=f"Mbpp/{record.number('task_id'):.0f}",
        prompt=f"{record.text('prompt')}\n{_TESTS_FOLLOW}\n\n{shown_tests}\n",
        entry_point=_entry_point(record, code, tests),
        tests=AssertTests("\n".join([*imports, *tests]) + "\n"),
        reference=code + "\n",
    )


def _lines(record: Record, key: str) -> list[str]:
    lines = record.items(key)
    if not all(isinstance(line, str) for line in lines):
        raise record.refused(f"{key}: expected a list of texts")
    return lines


def _entry_point(record: Record, code: str, tests: Sequence[str]) -> str:
    """The first function that an assert calls and the code defines."""
    defined = {
        node.name
        for node in _tree(record, "code", code).body
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
    }
    calls = [
        node.func.id
        for test in tests
        for node in ast.walk(_tree(record, "test_list", test))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
    ]
    found = next((name for name in calls if name in defined), None)
    if found is None:
        raise record.refused("test_list: no assert calls a function that code defines")
    return found


def _tree(record: Record, key: str, source: str) -> ast.Module:
    tree = parse(source).tree
    if tree is None:
        raise record.refused(f"{key}: expected Python, got {shown(source)}")
    return tree
