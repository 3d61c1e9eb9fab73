"""Fenced blocks of a text: CommonMark's rules, and a few for what models write instead."""

import dataclasses
import re
import textwrap
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

from ddtree.evals.extract.fence_lines import PYTHON_LABELS, Fence, read_fence
from ddtree.evals.extract.source import CODE_LINE, longest_prefix, parse

MOST_CLOSERS = 8
"""How many closing fences of a block are tried: those inside its docstrings close nothing."""

_QUOTE_MARK = re.compile(r"[ \t]*>[ \t]?")


@dataclass(frozen=True)
class Block:
    """`label` is the first word of what stands beside the opening fence, in lower case; `code` has
    the fence's own indentation taken away."""

    label: str
    code: str
    closed: bool
    flags: tuple[str, ...] = ()

    @property
    def may_be_python(self) -> bool:
        """Whether it says that it is, or says nothing."""
        return not self.label or self.label in PYTHON_LABELS


@dataclass(frozen=True)
class Page:
    """A text's blocks, and the stretches of lines outside of them that are not blank, in order."""

    blocks: tuple[Block, ...]
    outside: tuple[str, ...]
    flags: tuple[str, ...] = ()


def read_fences(text: str) -> Page:
    """The blocks of a text whose lines end in line feeds.

    Beyond CommonMark: any indentation; a closing fence inside a string of the block's program
    closes nothing; a labelled fence inside a block begins a new one; a bare fence that nothing but
    prose follows has closed a block without an opening one; a fence may stand at a line's end.
    """
    return _Reader(text).page()


@dataclass(frozen=True)
class _End:
    """The block's lines end before `line`; reading goes on at `resume`. `tail` is what of the
    program stands before a closing fence in the same line."""

    line: int
    resume: int
    closed: bool
    tail: str | None = None
    in_string: bool = False


class _Reader:
    """Lines, and where the fences among them are."""

    def __init__(self, text: str) -> None:
        self._lines = text.split("\n")
        self._fences: dict[int, Fence] = {}
        for number, line in enumerate(self._lines):
            fence = read_fence(line)
            if fence is not None:
                self._fences[number] = fence
        self._places = sorted(self._fences)

    def page(self) -> Page:
        blocks: list[Block] = []
        outside: list[str] = []
        flags: set[str] = set()
        edge = resume = 0
        for place in self._places:
            if place < resume:
                continue
            end = self._end(place)
            outside.append("\n".join(self._lines[edge:place]))
            resume = end.resume
            if self._is_stray(place, end):
                flags.add("stray_fence")
                edge = place + 1
                continue
            blocks.append(self._block(place, end))
            edge = resume
        outside.append("\n".join(self._lines[edge:]))
        kept = tuple(stretch for stretch in outside if stretch.strip())
        return Page(tuple(blocks), kept, tuple(sorted(flags)))

    def _end(self, start: int) -> _End:
        opener = self._fences[start]
        if opener.kind == "span":
            return _End(start + 1, start + 1, True)
        end = self._fenced_end(start, opener)
        if end.closed or not opener.may_be_python:
            return end
        return self._glued_end(start, end) or end

    def _fenced_end(self, start: int, opener: Fence) -> _End:
        first: _End | None = None
        tries = 0
        for number in range(bisect_right(self._places, start), len(self._places)):
            place = self._places[number]
            closed = self._fences[place].closes(opener)
            if not closed and not self._fences[place].interrupts(opener):
                continue
            end = _End(place, place + closed, closed)
            if not opener.may_be_python:
                return end
            parsed = parse(textwrap.dedent(self._body(start, end)))
            if parsed.tree is not None:
                return end if first is None else dataclasses.replace(end, in_string=True)
            first = first or end
            tries += 1
            if not parsed.in_string or tries == MOST_CLOSERS:
                break
        return first or _End(len(self._lines), len(self._lines), False)

    def _glued_end(self, start: int, end: _End) -> _End | None:
        """A closing fence at the end of a line of code, up to which the block parses."""
        mark = self._fences[start].mark
        tries = 0
        for place in range(start + 1, end.line):
            line = self._lines[place].rstrip()
            code = line.removesuffix(mark)
            if code == line or not code.strip() or code[-1] in (mark[0], " ", "\t"):
                continue
            found = _End(place, place + 1, True, tail=code)
            if parse(textwrap.dedent(self._body(start, found))).tree is not None:
                return found
            tries += 1
            if tries == MOST_CLOSERS:
                break
        return None

    def _is_stray(self, start: int, end: _End) -> bool:
        opener = self._fences[start]
        if not opener.bare or end.closed:
            return False
        body = self._body(start, end)
        if any(CODE_LINE.match(line) for line in body.split("\n")):
            return False
        return longest_prefix(body)[1] is None

    def _block(self, start: int, end: _End) -> Block:
        opener = self._fences[start]
        flags = [] if opener.kind == "line" else [f"{opener.kind}_fence"]
        if opener.code and opener.kind == "line":
            flags.append("code_beside_fence")
        if end.tail is not None:
            flags.append("glued_fence")
        if end.in_string:
            flags.append("fence_in_string")
        return Block(opener.label, self._body(start, end), end.closed, tuple(flags))

    def _body(self, start: int, end: _End) -> str:
        opener = self._fences[start]
        lines = self._lines[start + 1 : end.line]
        if end.tail is not None:
            lines.append(end.tail)
        if opener.lead:
            lines = _without_lead(lines, opener.lead)
        return "\n".join([opener.code, *lines] if opener.code else lines)


def _without_lead(lines: Sequence[str], lead: str) -> list[str]:
    """Lines freed from a quotation's marks and from the fence's indentation, as far as they have
    any."""
    depth, indent = lead.count(">"), len(lead.rpartition(">")[2])
    if depth:
        indent = max(0, indent - 1)
        lines = [_unquoted(line, depth) for line in lines]
    return [line[min(indent, len(line) - len(line.lstrip(" \t"))) :] for line in lines]


def _unquoted(line: str, depth: int) -> str:
    for _ in range(depth):
        hit = _QUOTE_MARK.match(line)
        if hit is None:
            break
        line = line[hit.end() :]
    return line
