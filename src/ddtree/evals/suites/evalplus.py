"""EvalPlus' files, HumanEval+ and MBPP+: inputs without results, which the reference gives.

Read as EvalPlus 0.3.1 reads them, with two differences that hold for every arm alike. The contract
is not used: all inputs are valid. Floats may differ by 1e-6 or the task's own tolerance,
absolutely, wherever they stand; EvalPlus adds 1e-7 of the value, and allows the 1e-6 to a float or
a flat sequence of floats alone.
"""

from typing import Any

from ddtree.evals.extract.program import preamble_of
from ddtree.evals.suites.fields import Record, json_lines, shown
from ddtree.evals.suites.mbpp_inputs import converted
from ddtree.evals.suites.oracles import humaneval_rule, mbpp_rule, oracle_tests
from ddtree.evals.tasks import CallTests, Task, Tests

FLOAT_ATOL = 1e-6
"""What floats may differ by where a task gives no tolerance."""


def read_humaneval_plus(data: bytes, where: str = "HumanEval+") -> tuple[Task, ...]:
    """Tasks in the file's order. ConfigError names the line that is not as expected."""
    return tuple(_humaneval_plus(record) for record in json_lines(data, where))


def read_mbpp_plus(data: bytes, where: str = "MBPP+") -> tuple[Task, ...]:
    """Tasks in the file's order; a prompt is a text with one assertion, no head of a function.

    ConfigError names the line that is not as expected, or whose inputs don't have the form that
    this task's inputs should have.
    """
    return tuple(_mbpp_plus(record) for record in json_lines(data, where))


def _humaneval_plus(record: Record) -> Task:
    prompt, entry_point = record.text("prompt"), record.text("entry_point")
    reference = prompt + record.text("canonical_solution")
    inputs = [*_inputs(record, "base_input"), *_inputs(record, "plus_input")]
    return Task(
        id=record.text("task_id"),
        prompt=prompt,
        entry_point=entry_point,
        tests=_tests(record, humaneval_rule(entry_point), reference, tuple(map(tuple, inputs))),
        prompt_is_code=True,
        preamble=preamble_of(prompt, entry_point),
        reference=reference,
    )


def _mbpp_plus(record: Record) -> Task:
    prompt = record.text("prompt")
    reference = prompt + record.text("canonical_solution")
    entry_point = record.text("entry_point")
    rows = [*_inputs(record, "base_input"), *_inputs(record, "plus_input")]
    return Task(
        id=record.text("task_id"),
        prompt=prompt,
        entry_point=entry_point,
        tests=_tests(record, mbpp_rule(entry_point), reference, converted(record, rows)),
        reference=reference,
    )


def _tests(
    record: Record, rule: str | None, reference: str, inputs: tuple[tuple[Any, ...], ...]
) -> Tests:
    entry_point, atol = record.text("entry_point"), record.number("atol")
    if not inputs:
        raise record.refused("no inputs, expected some in base_input or plus_input")
    if rule is None:
        return CallTests(inputs, None, max(atol, FLOAT_ATOL))
    return oracle_tests(rule, entry_point, reference, inputs, atol)


def _inputs(record: Record, key: str) -> list[list[Any]]:
    # Mbpp/793 of v0.2.0 has an empty object where others have an empty list.
    if record.fields.get(key) == {}:
        return []
    rows = record.items(key)
    for row in rows:
        if not isinstance(row, list):
            raise record.refused(f"{key}: expected lists of arguments, got {shown(row)}")
    return rows
