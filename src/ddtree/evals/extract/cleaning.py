"""What an answer's text and the code in it are freed from before they are read."""

import ast
import re
import textwrap
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from ddtree.evals.extract.source import longest_prefix, parse

MOST_CHARS = 100_000
"""As much is read of an answer, its thinking apart: what comes later is a loop."""

END_TOKEN = re.compile(
    r"<\|(?:im_end|endoftext|end_of_text|eot_id|eom_id|end|return|END_OF_TURN_TOKEN|endofprompt)\|>"
    r"|<｜end▁of▁sentence｜>|</s>|<eos>|<end_of_turn>"
)
"""What models say at the end of their turn, where a server lets it through."""

_NEXT_TURN = re.compile(
    r"\s*(?:\Z|<\|(?:im_start|start_header_id|user|start|endoftext)\|>|<start_of_turn>|\[INST\]"
    r"|<｜User｜>|<s>)"
)
_TURN_START = re.compile(
    r"\A\s*(?:<\|im_start\|>assistant\b|<\|start_header_id\|>assistant<\|end_header_id\|>"
    r"|<start_of_turn>model\b|<\|assistant\|>|<｜Assistant｜>)"
)
# What a notebook's cell may hold beside Python.
_MAGIC = re.compile(r"^[ \t]*(?:%{1,2}[A-Za-z]|![A-Za-z]).*$", re.MULTILINE)
_TRANSCRIPT = re.compile(r"[ \t]*(?:>>>|\.\.\.)(?:[ \t]|$)")
_ODD_SPACES = str.maketrans(
    {
        **dict.fromkeys("\u00a0\u2007\u202f\u3000", " "),
        **dict.fromkeys("\u200b\u200c\u200d\u2060\ufeff", ""),
    }
)


@dataclass(frozen=True)
class Cleaned:
    """Text with line feeds for line ends, and what was mended."""

    text: str
    flags: tuple[str, ...] = ()


@dataclass(frozen=True)
class Code:
    """`tree` is None where nothing could make it parse; `text` then is as it came."""

    text: str
    tree: ast.Module | None
    flags: tuple[str, ...] = ()


def clean(text: str) -> Cleaned:
    """Without odd line ends, a byte order mark and what leaked from the chat's template; not more
    than MOST_CHARS."""
    flags = []
    if text.startswith("\ufeff"):
        flags.append("byte_order_mark")
    plain = text.removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n")
    if "\r" in text:
        flags.append("line_ends")
    turn = _one_turn(_TURN_START.sub("", plain, count=1))
    if turn != plain:
        flags.append("special_tokens")
    if len(turn) > MOST_CHARS:
        flags.append("cut_long")
        turn = turn[:MOST_CHARS]
    return Cleaned(turn, tuple(flags))


def read_code(text: str, *, trim: bool = False) -> Code:
    """Code that parses as it is, or once odd spaces, a transcript's prompts, a notebook's commands
    and indentation that all lines share are taken away. With `trim` the end may be left off too."""
    readings = list(_readings(text))
    for reading, flags in readings:
        tree = parse(reading).tree
        if tree is not None:
            return _trimmed(reading, flags) if trim else Code(reading, tree, flags)
    if trim:
        for reading, flags in readings:
            code = _trimmed(reading, flags)
            if code.tree is not None:
                return code
    return Code(text, None)


def _trimmed(text: str, flags: tuple[str, ...]) -> Code:
    prefix, tree = longest_prefix(text)
    whole = prefix.rstrip() == text.rstrip()
    return Code(prefix, tree, flags if whole else (*flags, "trimmed"))


def _readings(text: str) -> Iterator[tuple[str, tuple[str, ...]]]:
    """The text as it is, then after one repair, then after two, and so on."""
    repairs: tuple[tuple[str, Callable[[str], str]], ...] = (
        ("odd_spaces", lambda code: code.translate(_ODD_SPACES)),
        ("transcript", _without_prompts),
        ("magics", lambda code: _MAGIC.sub("", code)),
        ("dedented", textwrap.dedent),
    )
    flags: tuple[str, ...] = ()
    yield text, flags
    for name, repair in repairs:
        repaired = repair(text)
        if repaired != text:
            text, flags = repaired, (*flags, name)
            yield text, flags


def _without_prompts(text: str) -> str:
    """The input of an interactive session; any other text as it is."""
    lines = text.split("\n")
    first = next((line for line in lines if line.strip()), "")
    if not first.lstrip().startswith(">>>"):
        return text
    hits = [(line, _TRANSCRIPT.match(line)) for line in lines]
    return "\n".join(line[hit.end() :] for line, hit in hits if hit is not None)


def _one_turn(text: str) -> str:
    """Up to the first end of a turn that ends the text, or after which another turn begins."""
    start, end = 0, -1
    for hit in END_TOKEN.finditer(text):
        if end < 0 or text[end : hit.start()].strip():
            start = hit.start()
        end = hit.end()
        if _NEXT_TURN.match(text, end):
            return text[:start].rstrip(" \t")
    return text
