"""Answers that go on from the prompt's function instead of writing it anew."""

import ast
import textwrap
from collections.abc import Iterator, Sequence

from ddtree.evals.extract.cleaning import Cleaned
from ddtree.evals.extract.definitions import definition, goal_of, is_stub, leaves_function
from ddtree.evals.extract.source import MOST_CUTS, longest_prefix, parse
from ddtree.evals.tasks import Task

# At the margin these go on with what stands above them.
_CONTINUING = "#)]}"


def head_of(task: Task) -> str:
    """The prompt, ready for lines of its function's body."""
    return task.prompt if task.prompt.endswith("\n") else task.prompt + "\n"


def continued(body: str, task: Task, *, trim: bool) -> str | None:
    """`body`, indented so that it completes the prompt's function; None where it does not.

    With `trim` its end may be left off. Outside of functions of its own it must return something:
    calls and prints alone are as likely a sample of use.
    """
    if not any(word in body for word in ("return", "yield")):
        return None
    head = head_of(task)
    for text in _indentations(body, _margin(task)):
        source = head + text
        code, tree = longest_prefix(source) if trim else (source, parse(source).tree)
        if _is_complete(tree, task):
            inner = parse(textwrap.dedent(code[len(head) :])).tree
            if inner is not None and leaves_function(inner):
                return code[len(head) :]
    return None


def up_to_next(continuation: str, task: Task) -> Cleaned:
    """A completion up to the first line that begins something else at top level, once the prompt's
    function has a body; trimmed to the longest prefix that parses."""
    lines = continuation.split("\n")
    end = _next_at_top_level(lines, task)
    text = "\n".join(lines[:end])
    flags = ("continuation_cut",) if end < len(lines) else ()
    source = task.prompt + text
    if parse(source).tree is not None:
        return Cleaned(text, flags)
    prefix, tree = longest_prefix(source)
    if tree is None or is_promise(prefix, task):
        return Cleaned(text, (*flags, "unparsable"))
    return Cleaned(prefix[len(task.prompt) :], (*flags, "trimmed"))


def is_promise(code: str, task: Task) -> bool:
    """Whether `code` parses and leaves the task's function a stub."""
    tree = parse(code).tree
    return tree is not None and not _is_complete(tree, task)


def _next_at_top_level(lines: Sequence[str], task: Task) -> int:
    """The number of the line, that of all lines where there is none.

    A line at the margin up to which nothing parses stands inside a string or brackets; where the
    whole does not parse either, the first one outside of strings is taken.
    """
    first = None
    tries = 0
    for number, line in enumerate(lines):
        is_inner = not line.strip() or line[0] in " \t" or line[0] in _CONTINUING
        if is_inner or (number == 0 and not task.prompt.endswith("\n")):
            continue
        source = task.prompt + "\n".join(lines[:number])
        parsed = parse(source)
        if _is_complete(parsed.tree, task):
            return number
        if first is None and parsed.tree is None and not parsed.in_string:
            first = number
        tries += 1
        if tries == MOST_CUTS:
            break
    if first is None or parse(task.prompt + "\n".join(lines)).tree is not None:
        return len(lines)
    return first


def _is_complete(tree: ast.Module | None, task: Task) -> bool:
    """Whether the task's function has a body, and nothing of it stands outside."""
    if tree is None or leaves_function(tree):
        return False
    node = definition(tree, goal_of(task))
    return node is not None and not is_stub(node)


def _indentations(body: str, margin: str) -> Iterator[str]:
    """The body as it came, indented as a whole, and with its first line alone indented, which
    servers strip."""
    lines = body.strip("\n")
    yield lines
    yield textwrap.indent(textwrap.dedent(lines), margin)
    first, _, rest = lines.lstrip().partition("\n")
    yield f"{margin}{first}\n{rest}"
    yield f"{margin}{first}\n{textwrap.indent(textwrap.dedent(rest), margin)}"


def _margin(task: Task) -> str:
    """The indentation of the prompt's function."""
    tree = parse(task.prompt).tree
    node = None if tree is None else definition(tree, goal_of(task))
    body = getattr(node, "body", None)
    line = task.prompt.split("\n")[body[0].lineno - 1] if isinstance(body, list) else ""
    return line[: len(line) - len(line.lstrip(" \t"))] or "    "
