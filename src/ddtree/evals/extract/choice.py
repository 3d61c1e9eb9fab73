"""Which of an answer's pieces of code is the answer."""

import ast
import dataclasses
import re
from collections.abc import Sequence
from dataclasses import dataclass

from ddtree.evals.extract.answer import Method
from ddtree.evals.extract.bare import bare_pieces
from ddtree.evals.extract.bodies import continued, head_of
from ddtree.evals.extract.cleaning import read_code
from ddtree.evals.extract.definitions import (
    Goal,
    definition,
    goal_of,
    has_code,
    is_stub,
    leaves_function,
    reads_input,
)
from ddtree.evals.extract.fence_lines import PYTHON_LABELS
from ddtree.evals.extract.fences import Block, Page
from ddtree.evals.extract.source import parse
from ddtree.evals.tasks import Task

_HEAD = re.compile(r"^(?:(?:async[ \t]+)?def|class)[ \t]", re.MULTILINE)


@dataclass(frozen=True)
class Candidate:
    """A piece of code that may be the answer. `tree` is None where it does not parse. `whole` is
    the text before its end was left off. With method `body` the code goes on from the prompt, and
    `tree` is of both."""

    code: str
    tree: ast.Module | None
    method: Method
    whole: str
    block: int | None = None
    is_python: bool = False
    flags: tuple[str, ...] = ()


@dataclass(frozen=True)
class Choice:
    """`found` is None where nothing defines what the task asks for; `candidates` are all pieces
    that were looked at."""

    found: Candidate | None
    candidates: tuple[Candidate, ...]


def choose(page: Page, task: Task) -> Choice:
    """The last one that defines the entry point and is no stub, blocks before bare text.

    Blocks with another language's label count where no Python block solves. Then come bodies of
    the prompt's function, bare text, and what would define the entry point if it parsed. Nothing
    is run, and no test is looked at.
    """
    goal = goal_of(task)
    ours, others = _of_blocks(page)
    found = (
        _last_solving(ours, goal) or _last_solving(others, goal) or _body_block(ours, page, task)
    )
    if found is not None:
        return Choice(found, ours)
    pieces = _of_text(page)
    every = (*pieces, *ours)
    found = (
        _last_solving(pieces, goal)
        or _bare_body(page, task)
        or _broken(every, goal)
        or (_acting(every) if goal.name is None else None)
    )
    return Choice(found, every)


def _of_blocks(page: Page) -> tuple[tuple[Candidate, ...], tuple[Candidate, ...]]:
    """Blocks that may be Python, and blocks that say they are something else."""
    numbered = list(enumerate(page.blocks))
    ours = tuple(_of_block(n, block) for n, block in numbered if block.may_be_python)
    others = (_of_block(n, block) for n, block in numbered if not block.may_be_python)
    return ours, tuple(
        dataclasses.replace(other, flags=(*other.flags, "other_label")) for other in others
    )


def _of_block(number: int, block: Block) -> Candidate:
    code = read_code(block.code, trim=not block.closed)
    return Candidate(
        code=code.text,
        tree=code.tree,
        method="fence" if block.closed else "unclosed_fence",
        whole=block.code,
        block=number,
        is_python=block.label in PYTHON_LABELS,
        flags=(*block.flags, *code.flags),
    )


def _of_text(page: Page) -> tuple[Candidate, ...]:
    return tuple(
        Candidate(
            code=piece.code.text,
            tree=piece.code.tree,
            method="bare",
            whole=piece.whole,
            flags=piece.flags,
        )
        for stretch in page.outside
        for piece in bare_pieces(stretch)
    )


def _last_solving(candidates: Sequence[Candidate], goal: Goal) -> Candidate | None:
    return next((found for found in reversed(candidates) if _solves(found.tree, goal)), None)


def _solves(tree: ast.Module | None, goal: Goal) -> bool:
    if tree is None:
        return False
    if goal.name is None:
        return reads_input(tree)
    node = definition(tree, goal)
    return node is not None and not is_stub(node)


def _body_block(ours: Sequence[Candidate], page: Page, task: Task) -> Candidate | None:
    """The last block that completes the prompt's function. One that parses and returns nothing
    outside of functions is no body."""
    if not task.prompt_is_code:
        return None
    for found in reversed(ours):
        if found.tree is not None and not leaves_function(found.tree):
            continue
        trim = found.method == "unclosed_fence"
        body = continued(found.whole, task, trim=trim)
        if body is not None and found.block is not None:
            flags = page.blocks[found.block].flags
            return dataclasses.replace(
                _body(body, found.whole, task), block=found.block, flags=flags
            )
    return None


def _bare_body(page: Page, task: Task) -> Candidate | None:
    """The last stretch of text that completes the prompt's function. One with a function of its
    own is none: its body belongs to that."""
    if not task.prompt_is_code:
        return None
    for stretch in reversed([text for text in page.outside if not _HEAD.search(text)]):
        lines = stretch.split("\n")
        indented = next((n for n, line in enumerate(lines) if line[:1] in (" ", "\t")), 0)
        for text in (stretch, "\n".join(lines[indented:])):
            body = continued(text, task, trim=True)
            if body is not None:
                return _body(body, text, task)
    return None


def _body(body: str, whole: str, task: Task) -> Candidate:
    tree = parse(head_of(task) + body).tree
    return Candidate(code=body, tree=tree, method="body", whole=whole)


def _broken(candidates: Sequence[Candidate], goal: Goal) -> Candidate | None:
    """The last one in which the entry point stands, though not where it parses: a wrong answer, and
    not a missing one."""
    if goal.name is None:
        stands = re.compile(r"\binput\(|\bstdin\b")
    else:
        stands = re.compile(
            rf"^[ \t]*(?:async[ \t]+)?(?:def|class)[ \t]+{re.escape(goal.name)}\b", re.MULTILINE
        )
    for found in reversed(candidates):
        is_cut = found.tree is None or "trimmed" in found.flags
        if is_cut and stands.search(found.whole) and parse(found.whole).tree is None:
            flags = tuple(flag for flag in found.flags if flag != "trimmed")
            return dataclasses.replace(
                found, code=found.whole, tree=None, flags=(*flags, "unparsable")
            )
    return None


def _acting(candidates: Sequence[Candidate]) -> Candidate | None:
    """For a program that should read input: the last that does anything at all."""
    for found in reversed(candidates):
        if found.tree is not None and has_code(found.tree):
            return dataclasses.replace(found, flags=(*found.flags, "reads_nothing"))
    return None
