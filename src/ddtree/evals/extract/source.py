"""Python source as far as extraction looks at it: does it parse, and how far."""

import ast
import re
import warnings
from collections.abc import Sequence
from dataclasses import dataclass

MOST_CUTS = 24
"""How often a text is cut and parsed again before it counts as one that has no parsing prefix: each
cut costs a parse, so this bounds the work to a multiple of the text."""

CODE_LINE = re.compile(
    r"[ \t]*(?:(?:async[ \t]+)?def[ \t]+\w+[ \t]*[(\[]|class[ \t]+\w+[ \t]*[(:\[]|@\w"
    r"|from[ \t]+[\w.]+[ \t]+import\b|import[ \t]+\w[\w.]*(?:[ \t]*,|[ \t]+as\b|[ \t]*(?:[;#]|$)))"
)
"""A line with which a program may begin, and prose hardly ever does."""


@dataclass(frozen=True)
class Parsed:
    """`tree` is None where the text does not parse; then `line` (from 1) is where the parser gave
    up, None where it can't say, and `in_string` tells of a triple-quoted string without end."""

    tree: ast.Module | None
    line: int | None = None
    in_string: bool = False


def parse(code: str) -> Parsed:
    """By the grammar of this interpreter; nothing is compiled or run."""
    with warnings.catch_warnings():
        # Doubtful escapes in an answer's strings are not our warnings.
        warnings.simplefilter("ignore")
        try:
            return Parsed(ast.parse(code))
        except SyntaxError as error:
            return Parsed(None, error.lineno, "unterminated triple-quoted" in (error.msg or ""))
        except (ValueError, RecursionError, MemoryError, OverflowError):
            # Null bytes, lone surrogates, nesting too deep for the parser.
            return Parsed(None)


def longest_prefix(code: str) -> tuple[str, ast.Module | None]:
    """The longest run of whole lines from the top that parses, with its tree.

    The parser says where it gave up, so a few parses are enough. Words of prose that happen to
    parse are left off the end. Empty with None where nothing but comments would be left, or after
    MOST_CUTS cuts.
    """
    lines = code.split("\n")
    end = len(lines)
    for _ in range(MOST_CUTS):
        prefix = "\n".join(lines[:end])
        parsed = parse(prefix)
        if parsed.tree is not None:
            said = _without_words(parsed.tree)
            if not said:
                break
            if len(said) == len(parsed.tree.body):
                return prefix, parsed.tree
            end = said[-1].end_lineno or 0
        elif parsed.line:
            # Never less than one line, also where the error stands behind the last one.
            end = _without_comments(lines, max(0, min(parsed.line - 1, end - 1)))
        else:
            break
    return "", None


def is_word(node: ast.stmt) -> bool:
    """`Done`, `Note: fast`: statements without any effect but a NameError."""
    if isinstance(node, ast.Expr):
        return isinstance(node.value, ast.Name)
    return isinstance(node, ast.AnnAssign) and node.value is None


def segment(lines: Sequence[str], node: ast.stmt) -> str:
    """The lines of a statement, its decorators among them."""
    decorators: Sequence[ast.expr] = getattr(node, "decorator_list", ())
    first = min([node.lineno, *(decorator.lineno for decorator in decorators)])
    return "\n".join(lines[first - 1 : node.end_lineno])


def _without_words(tree: ast.Module) -> list[ast.stmt]:
    said = list(tree.body)
    while said and is_word(said[-1]):
        said.pop()
    return said


def _without_comments(lines: Sequence[str], end: int) -> int:
    """Where the lines end once comments and empty lines at their end are left off."""
    while end and (not lines[end - 1].strip() or lines[end - 1].lstrip().startswith("#")):
        end -= 1
    return end
