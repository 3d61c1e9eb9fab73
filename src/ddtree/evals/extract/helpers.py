"""Definitions of other blocks that the chosen code lives on."""

import ast
from collections.abc import Sequence
from dataclasses import dataclass

from ddtree.evals.extract.definitions import (
    Goal,
    free_names,
    is_stub,
    loaded_names,
    names_of,
    top_level,
)
from ddtree.evals.extract.source import segment

_DEFINING = (
    ast.FunctionDef,
    ast.AsyncFunctionDef,
    ast.ClassDef,
    ast.Import,
    ast.ImportFrom,
    ast.Assign,
    ast.AnnAssign,
    ast.If,
    ast.Try,
    ast.Pass,
)


@dataclass(frozen=True)
class _Definition:
    source: str
    binds: frozenset[str]


def helpers_for(chosen: str, others: Sequence[tuple[str, ast.Module]], goal: Goal) -> str:
    """Source of what `chosen` reads, does not define, and `others` do; empty where nothing is.

    `others` are code and tree of the other blocks: of two definitions of a name the later one is
    taken. Definitions of the goal, what is computed with it, and stubs are none. What nobody reads
    is left out: it could only do harm, by an import that isn't installed.
    """
    definitions = [
        found for code, tree in others for found in _definitions(code.split("\n"), tree, goal)
    ]
    place_of = {name: place for place, found in enumerate(definitions) for name in found.binds}
    seen = set(free_names(chosen))
    waiting = sorted(seen)
    taken: set[int] = set()
    while waiting:
        place = place_of.get(waiting.pop())
        if place is None or place in taken:
            continue
        taken.add(place)
        more = free_names(definitions[place].source) - seen
        seen |= more
        waiting.extend(sorted(more))
    return "\n\n".join(definitions[place].source for place in sorted(taken))


def _definitions(lines: Sequence[str], tree: ast.Module, goal: Goal) -> list[_Definition]:
    goals = {goal.name, goal.of_class}
    return [
        _Definition(segment(lines, node), frozenset(names_of([node])))
        for node in tree.body
        if _is_helper(node, goals)
    ]


def _is_helper(node: ast.stmt, goals: set[str | None]) -> bool:
    binds = names_of([node])
    if not binds or goals & binds or is_stub(node):
        return False
    if isinstance(node, ast.Assign | ast.AnnAssign) and goals & loaded_names(node):
        return False
    return all(isinstance(inner, _DEFINING) for inner in top_level([node]))
