"""A program from its parts."""

import ast
import hashlib
import re

from ddtree.errors import ConfigError
from ddtree.evals.extract.definitions import Goal, definition
from ddtree.evals.extract.source import parse, segment

_FUTURE = re.compile(r"^from[ \t]+__future__[ \t]+import[ \t]+\w[\w, \t]*(?:#.*)?$", re.MULTILINE)


def preamble_of(prompt: str, entry_point: str) -> str:
    """What of a code prompt every answer may rely on: imports, helper functions, constants.

    `prompt` is Python source that ends inside the entry point's body, behind its signature or its
    docstring. Empty where there is nothing but the entry point. ConfigError where it is no such
    source.
    """
    tree = parse(prompt).tree or parse(f"{prompt.rstrip()}\n    pass\n").tree
    if tree is None:
        raise ConfigError(
            f"prompt of {entry_point!r}: does not parse as Python, expected the head of a program"
        )
    entry = definition(tree, Goal(entry_point))
    lines = prompt.split("\n")
    kept = [
        segment(lines, node)
        for node in tree.body
        if node is not entry and not isinstance(node, ast.Expr)
    ]
    return "\n\n".join(kept) + "\n" if kept else ""


def preamble_beside(prompt: str, preamble: str) -> str:
    """The preamble where a program begins with the prompt: empty if the prompt holds all of it."""
    lines = set(prompt.splitlines())
    lacks = any(line.strip() and line not in lines for line in preamble.splitlines())
    return preamble if lacks else ""


def program_of(*parts: str) -> str:
    """The parts in their order, empty ones left out. Imports from `__future__` come first, where
    alone Python takes them."""
    filled = [part.strip("\n").rstrip() for part in parts if part.strip()]
    if len(filled) == 1:
        return filled[0] + "\n"
    future = dict.fromkeys(hit[0] for part in filled for hit in _FUTURE.finditer(part))
    bodies = [_FUTURE.sub("", part) for part in filled]
    return "\n\n\n".join(["\n".join(future), *bodies] if future else bodies) + "\n"


def sha256_of(code: str) -> str:
    """Of the code as UTF-8; lone surrogates, which a server may send, are digested as they are."""
    return hashlib.sha256(code.encode("utf-8", "surrogatepass")).hexdigest()
