"""What a program defines and what it lives on, by its tree."""

import ast
import symtable
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ddtree.evals.extract.source import is_word
from ddtree.evals.tasks import CallTests, Task

Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class Goal:
    """What an answer must define: `name`, or the method `name` of `of_class`; with None a program
    that reads standard input."""

    name: str | None
    of_class: str | None = None


def goal_of(task: Task) -> Goal:
    """What tests of this task call."""
    tests = task.tests
    return Goal(task.entry_point, tests.of_class if isinstance(tests, CallTests) else None)


def definition(tree: ast.Module, goal: Goal) -> ast.stmt | None:
    """The last top-level statement that defines the goal; imports of it define nothing."""
    if goal.name is None:
        return None
    found: ast.stmt | None = None
    for node in top_level(tree.body):
        if isinstance(node, ast.Import | ast.ImportFrom):
            continue
        if goal.of_class is None:
            found = node if goal.name in bound_names(node) else found
        elif isinstance(node, ast.ClassDef) and node.name == goal.of_class:
            method = next((item for item in methods(node) if item.name == goal.name), None)
            found = method or found
    return found


def top_level(body: Sequence[ast.stmt]) -> Iterator[ast.stmt]:
    """Statements that run when the program is loaded as a module, in order; those inside `if`,
    `try` and `with` as well, those under a main guard not."""
    waiting = list(reversed(body))
    while waiting:
        node = waiting.pop()
        yield node
        waiting.extend(reversed(_inner(node)))


def bound_names(node: ast.stmt) -> set[str]:
    """Names that a statement itself binds where it stands."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return {node.name}
    if isinstance(node, ast.Import | ast.ImportFrom):
        return {alias.asname or alias.name.split(".")[0] for alias in node.names}
    if isinstance(node, ast.Assign):
        targets: list[ast.expr] = node.targets
    elif isinstance(node, ast.AnnAssign) and node.value is not None:
        targets = [node.target]
    else:
        return set()
    return {
        name.id
        for target in targets
        for name in ast.walk(target)
        if isinstance(name, ast.Name) and isinstance(name.ctx, ast.Store)
    }


def names_of(body: Sequence[ast.stmt]) -> set[str]:
    """Names that a module's statements bind when it is loaded."""
    return {name for node in top_level(body) for name in bound_names(node)}


def methods(node: ast.ClassDef) -> list[Function]:
    """Functions that stand in a class's body."""
    return [item for item in node.body if isinstance(item, ast.FunctionDef | ast.AsyncFunctionDef)]


def is_stub(node: ast.stmt) -> bool:
    """Whether a definition only promises: a docstring, `pass`, `...`, NotImplementedError. A class
    is a stub if it has methods and nothing but such."""
    if isinstance(node, ast.ClassDef):
        return bool(methods(node)) and all(
            says_nothing(item) or (item in methods(node) and is_stub(item)) for item in node.body
        )
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        return all(says_nothing(item) for item in node.body)
    return False


def says_nothing(node: ast.stmt) -> bool:
    """Whether a statement stands where work is still to be done."""
    if isinstance(node, ast.Pass):
        return True
    if isinstance(node, ast.Raise):
        return "NotImplementedError" in loaded_names(node)
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def leaves_function(tree: ast.Module) -> bool:
    """Whether a `return` or `yield` stands outside any function: then it is a function's body."""
    waiting: list[ast.AST] = list(tree.body)
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.Return | ast.Yield | ast.YieldFrom):
            return True
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Lambda):
            waiting.extend(ast.iter_child_nodes(node))
    return False


def reads_input(tree: ast.Module) -> bool:
    """Whether a program has a look at its standard input."""
    return any(
        (isinstance(node, ast.Name) and node.id in ("input", "stdin", "fileinput"))
        or (isinstance(node, ast.Attribute) and node.attr == "stdin")
        or (isinstance(node, ast.Call) and _opens_input(node))
        for node in ast.walk(tree)
    )


def has_code(tree: ast.Module) -> bool:
    """Whether anything is defined, bound or called: the words and numbers of a sample's output
    parse too."""
    return any(
        isinstance(node.value, ast.Call | ast.Await)
        if isinstance(node, ast.Expr)
        else not (is_word(node) or says_nothing(node))
        for node in tree.body
    )


def loaded_names(tree: ast.AST) -> set[str]:
    """Names that are read anywhere, those of local variables among them."""
    return {
        node.id
        for node in ast.walk(tree)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)
    }


def free_names(code: str) -> set[str]:
    """Names that a program reads and neither binds at its own top level nor in the function that
    reads them. Empty where it could not be compiled: then no name helps it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            module = symtable.symtable(code, "<answer>", "exec")
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            return set()
    read: set[str] = set()
    waiting = [module]
    while waiting:
        table = waiting.pop()
        waiting.extend(table.get_children())
        read.update(
            symbol.get_name()
            for symbol in table.get_symbols()
            if symbol.is_referenced() and (symbol.is_global() or table is module)
        )
    bound = (symbol for symbol in module.get_symbols() if symbol.is_assigned())
    imported = (symbol for symbol in module.get_symbols() if symbol.is_imported())
    return read - {symbol.get_name() for symbol in (*bound, *imported)}


def _inner(node: ast.stmt) -> list[ast.stmt]:
    if isinstance(node, ast.If) and not _is_main_guard(node):
        return [*node.body, *node.orelse]
    if isinstance(node, ast.Try):
        handlers = [inner for handler in node.handlers for inner in handler.body]
        return [*node.body, *handlers, *node.orelse, *node.finalbody]
    return node.body if isinstance(node, ast.With) else []


def _is_main_guard(node: ast.If) -> bool:
    return "__name__" in loaded_names(node.test)


def _opens_input(node: ast.Call) -> bool:
    is_open = isinstance(node.func, ast.Name) and node.func.id == "open"
    where = node.args[0] if node.args else None
    return is_open and isinstance(where, ast.Constant) and where.value in (0, "/dev/stdin")
