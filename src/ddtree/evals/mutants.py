"""Programs that tests must fail, made from a task: what a self-check plants."""

import ast
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from ddtree.evals.extract.source import parse
from ddtree.evals.tasks import CallTests, Task

_ANYTHING = """\
class _EqualsEverything:
    def __eq__(self, other):
        return True

    def __ne__(self, other):
        return False

    def __hash__(self):
        return 0

"""

# Bodies of an entry point that does not do what was asked.
_BODIES: Mapping[str, str] = {
    "returns None": "return None",
    "does nothing": "pass",
    "prints PASSED": 'print("PASSED")',
    "equals everything": "return _EqualsEverything()",
}
_SCRIPTS: Mapping[str, str] = {
    "does nothing": "pass\n",
    "prints PASSED": 'print("PASSED")\n',
}
_EXIT = "import sys\n\nsys.exit(0)\n"

_SWAPS: Mapping[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
}


@dataclass(frozen=True)
class Mutant:
    """A program in place of an answer. A hard one must fail; others are near misses, which count
    but may be right after all."""

    name: str
    program: str
    hard: bool


def mutants(task: Task) -> tuple[Mutant, ...]:
    """The task's mutants, hard ones first; near misses only where there is a reference."""
    base = task.preamble if task.reference is None else task.reference
    hard = [Mutant("exits", _EXIT + base, True)]
    if task.entry_point is None:
        hard += [Mutant(name, script, True) for name, script in _SCRIPTS.items()]
    else:
        hard += [
            Mutant(name, f"{base}\n\n{_definition(task, task.entry_point, body)}", True)
            for name, body in _BODIES.items()
        ]
    return (*hard, *_near_misses(task))


def _definition(task: Task, entry_point: str, body: str) -> str:
    """The entry point anew: what stands last counts, and helpers before it stay."""
    function = f"def {entry_point}(*arguments, **named):\n    {body}\n"
    if isinstance(task.tests, CallTests) and task.tests.of_class:
        inside = "".join(f"    {line}\n" for line in function.splitlines())
        function = f"class {task.tests.of_class}:\n{inside}"
    return _ANYTHING + function


def _scope(tree: ast.Module, entry_point: str | None) -> ast.AST:
    """The entry point's definition, the whole program where it has none."""
    return next(
        (
            node
            for node in ast.walk(tree)
            if isinstance(node, ast.FunctionDef) and node.name == entry_point
        ),
        tree,
    )


def _swap_comparison(node: ast.AST) -> bool:
    if not isinstance(node, ast.Compare) or type(node.ops[0]) not in _SWAPS:
        return False
    node.ops[0] = _SWAPS[type(node.ops[0])]()
    return True


def _shift_constant(node: ast.AST) -> bool:
    # type(): True and False are no numbers here.
    if not isinstance(node, ast.Constant) or type(node.value) is not int:
        return False
    node.value += 1
    return True


def _near_misses(task: Task) -> list[Mutant]:
    found = []
    for name, change in _CHANGES.items():
        tree = parse(task.reference or "").tree
        if tree is None:
            # The reference's own check says so.
            continue
        if any(change(node) for node in ast.walk(_scope(tree, task.entry_point))):
            found.append(Mutant(name, ast.unparse(tree) + "\n", False))
    return found


_CHANGES: Mapping[str, Callable[[ast.AST], bool]] = {
    "swapped comparison": _swap_comparison,
    "constant off by one": _shift_constant,
}
