"""Code that stands in a text without fences."""

import re
from dataclasses import dataclass

from ddtree.evals.extract.cleaning import Code, read_code
from ddtree.evals.extract.source import CODE_LINE

MOST_TRIED = 1_000_000
"""Characters of text that are tried, each place that looks like code counting for the rest of the
text: this bounds the work where very many do."""

_NAMES = "answer|code|solution|response|output|result|python|final_answer|final"
_SQUARE = r"\[/?(?:PYTHON|ANSWER|BEGIN|DONE|CODE|SOLUTION)\]"
_WRAPPER = re.compile(
    rf"^[ \t]*(?:</?(?:{_NAMES})>|{_SQUARE})|(?:</?(?:{_NAMES})>|{_SQUARE})[ \t]*$",
    re.MULTILINE | re.IGNORECASE,
)
_STATEMENT = re.compile(
    r"[ \t]*(?:\w+(?:[ \t]*,[ \t]*\w+)*[ \t]*=(?!=)|(?:for|while|if|with|try)\b.*:[ \t]*(?:#|$)"
    r"|print\(|.*\b(?:input\(|stdin\b))"
)


@dataclass(frozen=True)
class Piece:
    """Code between prose; `whole` is what it was trimmed from."""

    code: Code
    whole: str
    flags: tuple[str, ...]


def bare_pieces(text: str) -> list[Piece]:
    """Code from each line that looks like a program's, as far as it parses, in order; prose
    between is passed over."""
    unwrapped, wrappers = _WRAPPER.subn("", text)
    lines = unwrapped.split("\n")
    flags = ("wrapper",) if wrappers else ()
    pieces: list[Piece] = []
    tried = 0
    start = _next_start(lines, 0)
    while start is not None and tried < MOST_TRIED:
        whole = "\n".join(lines[start : _stop(lines, start)])
        tried += len(whole)
        code = read_code(whole, trim=True)
        pieces.append(Piece(code, whole, (*flags, *code.flags)))
        start = _next_start(lines, _after(lines, start, code))
    return pieces


def _next_start(lines: list[str], at: int) -> int | None:
    return next((n for n in range(at, len(lines)) if _looks_like_code(lines[n])), None)


def _looks_like_code(line: str) -> bool:
    starts = CODE_LINE.match(line) or _STATEMENT.match(line)
    return starts is not None or line.lstrip().startswith(">>> ")


def _stop(lines: list[str], start: int) -> int:
    """Code that is indented as a whole ends where its margin ends."""
    margin = _indent(lines[start])
    inside = (n for n in range(start + 1, len(lines)) if lines[n].strip())
    if not margin:
        return len(lines)
    return next((n for n in inside if _indent(lines[n]) < margin), len(lines))


def _after(lines: list[str], start: int, code: Code) -> int:
    """Where the next piece may begin: not inside what was left off this one's function."""
    used = 1 if code.tree is None else len(code.text.split("\n"))
    if "transcript" in code.flags:
        used = _stop(lines, start) - start
    margin = _indent(lines[start])
    rest = range(start + used, len(lines))
    return next((n for n in rest if lines[n].strip() and _indent(lines[n]) <= margin), len(lines))


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip(" \t"))
