"""Where a model's thinking ends and its answer begins, when both come in one text."""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from ddtree.evals.extract.source import parse

FAMILIES: tuple[tuple[str, str], ...] = (
    ("<think>", "</think>"),
    ("<thinking>", "</thinking>"),
    ("<reasoning>", "</reasoning>"),
    ("<thought>", "</thought>"),
    ("<seed:think>", "</seed:think>"),
    ("<|begin_of_thought|>", "<|end_of_thought|>"),
    ("[THINK]", "[/THINK]"),
    ("◁think▷", "◁/think▷"),
)
"""Opening and closing tags in use; those in angle brackets in capitals as well."""

_QUOTES = frozenset("'\"`“”‘’«»")
# A tag that stands further in than this is not at its line's start, for all we care.
_MARGIN = 64
# How far back in a tag's line one that opens is looked for.
_LONGEST_LINE = 2_000
_ANY_FAMILY = -1
# A tag in a program longer than this is not looked for: such a stretch is no program.
_LONGEST_PROGRAM = 20_000

_CHANNEL_TOKEN = "<|channel|>"
_CHANNEL = re.compile(r"<\|channel\|>\s*(?:analysis|commentary|final)\b")
_FINAL = re.compile(r"<\|channel\|>\s*final\b[^<\n]*(?:<\|constrain\|>[^<\n]*)?<\|message\|>")
_CHANNEL_END = re.compile(r"<\|(?:end|return|call|start|channel)\|>")
# What is left of the channels where a server has dropped the special tokens.
_BARE_ANALYSIS = re.compile(r"\s*analysis(?=[A-Z])")
_BARE_FINAL = "assistantfinal"


@dataclass(frozen=True)
class ThinkingTags:
    """`families` are pairs of tags. `channels` reads harmony's channels. `opened` says that the
    prompt's template has opened the thinking: then an answer without a closing tag is none."""

    families: tuple[tuple[str, str], ...] = FAMILIES
    channels: bool = True
    opened: bool = False


ALL_TAGS = ThinkingTags()


@dataclass(frozen=True)
class Visible:
    """`text` is what was said aloud, `thinking_chars` the length of the rest without its tags.
    `unclosed` thinking goes on to the end; `text` then is what stood before it."""

    text: str
    thinking_chars: int = 0
    unclosed: bool = False
    flags: tuple[str, ...] = ()


class _Mark(NamedTuple):
    """A tag; `inline` has other text on both its sides in its line."""

    start: int
    end: int
    family: int
    closing: bool
    inline: bool


def cut_thinking(text: str, tags: ThinkingTags = ALL_TAGS) -> Visible:
    """What stands after the last closing tag that counts.

    Quoted tags, tags amid a sentence, and tags in the strings and comments of a fenced program
    never count. Other tags with text on both their sides count only where there is no other closing
    tag. A closing tag without an opening one closes a thinking that the prompt has opened. An
    opening tag is answered by one of its own family. Where nothing follows the last closing tag,
    what was said before the thinking is taken. Time is linear in the text.
    """
    if tags.channels:
        spoken = _final_channel(text)
        if spoken is not None:
            return spoken
    marks, flags = _counting(list(_marks(text, tags)))
    if not marks:
        return Visible("", len(text), True, flags) if tags.opened else Visible(text)
    return _spoken(text, marks, tags.opened, flags)


def _spoken(text: str, marks: list[_Mark], opened: bool, flags: tuple[str, ...]) -> Visible:
    """Walk from tag to tag; what lies between them is thinking or said aloud."""
    inside: int | None = _ANY_FAMILY if opened or marks[0].closing else None
    edge = chars = 0
    pieces: list[str] = []
    for mark in marks:
        if not mark.closing:
            if inside is None:
                pieces.append(text[edge : mark.start])
                inside, edge = mark.family, mark.end
            continue
        if inside is None:
            # One more closing tag: all that came before it was thinking.
            pieces, chars = [], mark.start
        elif inside in (_ANY_FAMILY, mark.family):
            chars += mark.start - edge
        else:
            continue
        inside, edge = None, mark.end
    if inside is None:
        pieces.append(text[edge:])
    else:
        chars += len(text) - edge
    return _last_said(pieces, chars, inside is not None, flags)


def _last_said(pieces: list[str], chars: int, unclosed: bool, flags: tuple[str, ...]) -> Visible:
    said = [piece for piece in pieces if piece.strip()]
    more = ["thinking_unclosed" if unclosed else "thinking_cut"]
    if said and not unclosed and not pieces[-1].strip():
        more.append("answer_before_thinking")
    return Visible(said[-1] if said else "", chars, unclosed, (*flags, *more))


def _counting(marks: list[_Mark]) -> tuple[list[_Mark], tuple[str, ...]]:
    """Tags that count, in order."""
    counting = [mark for mark in marks if not mark.inline]
    if any(mark.closing for mark in counting):
        return counting, ()
    inline = [mark for mark in marks if mark.closing]
    if not inline:
        return counting, ()
    last = inline[-1]
    return [*(mark for mark in counting if mark.start < last.start), last], ("thinking_inline_tag",)


def _marks(text: str, tags: ThinkingTags) -> Iterator[_Mark]:
    kinds = {
        variant: (family, closing)
        for family, pair in enumerate(tags.families)
        for closing, tag in enumerate(pair)
        for variant in _variants(tag)
    }
    programs = _Programs(text)
    for hit in _hits(text, kinds):
        start, end = hit.span()
        is_quoted = text[end : end + 1] in _QUOTES and text[start - 1 : start] in _QUOTES
        if is_quoted or programs.hold(start):
            continue
        family, closing = kinds[hit[0]]
        inline = not (_starts_line(text, start) or _ends_line(text, end))
        if not (inline and _is_mention(text, start, end, tags.families[family][0])):
            yield _Mark(start, end, family, bool(closing), inline)


def _hits(text: str, kinds: Iterable[str]) -> list[re.Match[str]]:
    """Where the tags are, in order. A pattern whose alternatives begin alike is found much faster
    than one without a common beginning."""
    by_first: dict[str, list[str]] = {}
    for tag in kinds:
        by_first.setdefault(tag[0], []).append(tag)
    hits = [
        hit
        for alike in by_first.values()
        for hit in re.finditer("|".join(map(re.escape, alike)), text)
    ]
    return sorted(hits, key=re.Match.start)


def _variants(tag: str) -> tuple[str, ...]:
    # Square brackets and channels' tokens have one spelling: `x[think]` is plain code.
    if not tag.startswith("<") or tag.startswith("<|"):
        return (tag,)
    return (tag, tag.title(), tag.upper())


def _is_mention(text: str, start: int, end: int, opening: str) -> bool:
    """Whether a sentence goes on over the tag, as in `the tag <think> opens it`, and no thinking
    begins in its line."""
    around = text[max(0, start - 2) : start] + text[end : end + 2]
    if not (around[:1].isalnum() and around[1:3] == "  " and around[3:].islower()):
        return False
    near = text[max(0, start - _LONGEST_LINE) : start].rpartition("\n")[2]
    return opening.lower() not in near.lower()


def _starts_line(text: str, start: int) -> bool:
    before = text[max(0, start - _MARGIN) : start].rstrip(" \t\ufeff")
    return before.endswith(("\n", "\r")) or (not before and start <= _MARGIN)


def _ends_line(text: str, end: int) -> bool:
    after = text[end : end + _MARGIN].lstrip(" \t")
    return after.startswith(("\n", "\r")) or (not after and end + _MARGIN >= len(text))


class _Programs:
    """Text between two neighbouring fences that parses as Python although a tag stands in it: the
    tag is in a string or a comment there. Asked in the order of the text, each stretch once."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._asked = 0
        self._before = -1
        self._after = 0
        self._known = (-1, False)

    def hold(self, position: int) -> bool:
        """Whether the program around this place is one."""
        near = self._text.rfind("```", self._asked, position)
        self._before = near if near >= 0 else self._before
        self._asked = position
        if 0 <= self._after < position:
            self._after = self._text.find("```", position)
        if self._before < 0 or self._after < 0:
            return False
        if self._known[0] != self._before:
            self._known = (self._before, self._parses())
        return self._known[1]

    def _parses(self) -> bool:
        start = self._text.find("\n", self._before) + 1
        if not 0 < start <= self._after or self._after - start > _LONGEST_PROGRAM:
            return False
        return parse(self._text[start : self._after]).tree is not None


def _final_channel(text: str) -> Visible | None:
    """Harmony's final channel; None where the text has no channels."""
    if _CHANNEL_TOKEN not in text or _CHANNEL.search(text) is None:
        return _bare_channels(text)
    finals = list(_FINAL.finditer(text))
    if not finals:
        return Visible("", len(text), True, ("channels", "thinking_unclosed"))
    start = finals[-1].end()
    end = _CHANNEL_END.search(text, start)
    said = text[start : end.start() if end else len(text)]
    return Visible(said, finals[-1].start(), False, ("channels",))


def _bare_channels(text: str) -> Visible | None:
    if _BARE_ANALYSIS.match(text) is None:
        return None
    final = text.rfind(_BARE_FINAL)
    if final < 0:
        return Visible("", len(text), True, ("channels", "thinking_unclosed"))
    return Visible(text[final + len(_BARE_FINAL) :], final, False, ("channels",))
