"""A lenient reading of answers that do not define the entry point by its name and place."""

import ast

from ddtree.evals.extract.definitions import (
    Function,
    Goal,
    definition,
    goal_of,
    is_stub,
    methods,
)
from ddtree.evals.extract.source import parse
from ddtree.evals.tasks import CallTests, Task

_SOLUTION = "Solution"


def alias_for(tree: ast.Module, task: Task) -> str | None:
    """A line that gives the entry point's name to what must be meant; None where it is not clear.

    That is a method of `Solution` with the name, or the only one there; else the only function
    that takes as many arguments as are asked for. Where a method is asked for, a function of its
    name will do.
    """
    goal = goal_of(task)
    if goal.name is None:
        return None
    if goal.of_class is not None:
        function = definition(tree, Goal(goal.name))
        if not isinstance(function, ast.FunctionDef) or is_stub(function):
            return None
        return f"class {goal.of_class}:\n    {goal.name} = staticmethod({goal.name})\n"
    wanted = _arguments(task)
    for node in tree.body:
        if isinstance(node, ast.ClassDef) and node.name == _SOLUTION:
            method = _only(methods(node), goal, None if wanted is None else wanted + 1)
            return f"{goal.name} = {_SOLUTION}().{method}\n" if method else None
    functions = [
        node for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    ]
    function_name = _only(functions, goal, wanted)
    return f"{goal.name} = {function_name}\n" if function_name else None


def _only(functions: list[Function], goal: Goal, wanted: int | None) -> str | None:
    """The name of the one with the goal's name, or of the only one that fits."""
    whole = [item for item in functions if not item.name.startswith("_") and not is_stub(item)]
    if any(item.name == goal.name for item in whole):
        return goal.name
    fitting = [item.name for item in whole if wanted is None or _takes(item.args, wanted)]
    return fitting[0] if len(fitting) == 1 else None


def _takes(arguments: ast.arguments, count: int) -> bool:
    most = len(arguments.posonlyargs) + len(arguments.args)
    least = most - len(arguments.defaults)
    return least <= count and (count <= most or arguments.vararg is not None)


def _arguments(task: Task) -> int | None:
    """How many arguments the entry point is given, as far as the task says so."""
    if isinstance(task.tests, CallTests):
        return len(task.tests.inputs[0]) if task.tests.inputs else None
    tree = parse(task.prompt).tree if task.prompt_is_code else None
    node = None if tree is None else definition(tree, goal_of(task))
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        return len(node.args.posonlyargs) + len(node.args.args)
    return None
