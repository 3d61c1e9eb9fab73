"""Lines that open or close a fenced block."""

import re
from dataclasses import dataclass
from typing import Literal

from ddtree.evals.extract.cleaning import END_TOKEN
from ddtree.evals.extract.source import CODE_LINE

PYTHON_LABELS = frozenset(("python", "python3", "py", "py3", "pycon", "ipython", "ipython3"))

_MARKS = ("```", "~~~")
_FENCE = re.compile(
    r"(?P<lead>[ \t>]*(?:(?:[-*+]|\d{1,9}[.)])[ \t]+)?)(?P<mark>`{3,}|~{3,})(?P<info>.*)"
)
_LABEL = re.compile(r"[{.\s]*([\w+#-]*)\}?")
_ONE_LINE = re.compile(r"\A(?:python3?|py)[ \t]+(?=\S)", re.IGNORECASE)


@dataclass(frozen=True)
class Fence:
    """`late` stands behind other text, and can only open; `span` opens and closes in one line.
    `code` is what of the program stands beside the fence."""

    lead: str
    mark: str
    label: str
    code: str
    bare: bool
    kind: Literal["line", "late", "span"] = "line"

    @property
    def may_be_python(self) -> bool:
        """Whether it says that it opens Python, or says nothing."""
        return not self.label or self.label in PYTHON_LABELS

    def closes(self, opener: "Fence") -> bool:
        """Same character, at least as long, nothing beside it."""
        is_own = self.bare and self.kind == "line" and not self.lead.strip(" \t>")
        return is_own and self.mark.startswith(opener.mark)

    def interrupts(self, opener: "Fence") -> bool:
        """A label opens: inside a program any, inside anything else only Python's."""
        if self.kind != "line" or not self.label:
            return False
        return opener.may_be_python or self.label in PYTHON_LABELS


def read_fence(line: str) -> Fence | None:
    """The fence in a line, None where there is none."""
    if not any(mark in line for mark in _MARKS):
        return None
    hit = _FENCE.fullmatch(line)
    if hit is None:
        return _late_fence(line)
    info = END_TOKEN.sub("", hit["info"]).strip()
    if hit["mark"][0] == "`" and "`" in info:
        return _span(hit["lead"], hit["mark"], info)
    label, code = _read_info(info)
    return Fence(hit["lead"], hit["mark"], label, code, bare=not info)


def _read_info(info: str) -> tuple[str, str]:
    """The label, and what of the program has got beside the fence."""
    if CODE_LINE.match(info):
        return "", info
    hit = _LABEL.match(info)
    label, rest = (hit[1].lower(), info[hit.end() :].strip()) if hit else ("", "")
    return label, (rest if label in PYTHON_LABELS and CODE_LINE.match(rest) else "")


def _span(lead: str, mark: str, info: str) -> Fence | None:
    inner = info.removesuffix(mark)
    if inner == info or "`" in inner:
        return None
    code = _ONE_LINE.sub("", inner.strip(), count=1)
    return Fence(lead, mark, "", code, bare=False, kind="span")


def _late_fence(line: str) -> Fence | None:
    """`Here it is: ```python`."""
    before, _, after = line.rpartition("```")
    label = after.strip().lower()
    if label not in PYTHON_LABELS or "```" in before:
        return None
    return Fence("", "```", label, "", bare=False, kind="late")
