"""Bugs planted in extraction: some case must see each."""

from collections.abc import Callable

import pytest
from grading_of_extracts import BODY, TASK, extracted, outcome
from more_cases import MORE
from noted_cases import NOTED

from ddtree.evals.extract import extract as extraction
from mutations.planting import Mutation, planted

PACKAGE = "ddtree.evals.extract"
CASES = {case.name: case for case in (*NOTED, *MORE)}


def check(name: str) -> Callable[[], None]:
    """The case of that name, as a check."""
    case = CASES[name]

    def checked() -> None:
        answer = extracted(case.text, case.task, case.finish_reason)
        assert outcome(answer, case.task) == case.outcome
        assert answer.method == case.method
        assert set(case.flags) <= set(answer.flags)
        assert case.block is None or answer.block == case.block

    return checked


def check_completion() -> None:
    text = f'    text = """\nHello\n"""\n{BODY}\n    more = ('
    assert outcome(extraction.complete(text, TASK)) == "passed"


def check_completion_end() -> None:
    assert outcome(extraction.complete(f"{BODY}\n\nassert total([2]) == 3\n", TASK)) == "passed"


def bug(name: str, module: str, old: str, new: str, *cases: str) -> Mutation:
    """Seen by these cases, and not by that of one plain block."""
    seen = tuple(check(case) for case in cases)
    return Mutation(name, f"{PACKAGE}.{module}", ((old, new),), seen, check("1 one block"))


BUGS = (
    bug(
        "the first block instead of the last",
        "choice",
        "(found for found in reversed(candidates) if _solves(found.tree, goal))",
        "(found for found in candidates if _solves(found.tree, goal))",
        "12 corrected",
        "13 two right ones",
    ),
    bug(
        "thinking is not cut",
        "extract",
        'spoken = cut_thinking(content or "", thinking)',
        'spoken = Visible(content or "")',
        "5 thinking never closed",
        "second closing tag",
        "thinking behind the answer",
    ),
    bug(
        "unclosed thinking is graded",
        "thinking",
        "    if inside is None:\n        pieces.append(text[edge:])\n    else:\n",
        "    pieces.append(text[edge:])\n    inside = None\n    if inside is not None:\n",
        "5 thinking never closed",
        "only a second thinking has code",
    ),
    bug(
        "thinking of channels without a final one is graded",
        "thinking",
        'return Visible("", len(text), True, ("channels", "thinking_unclosed"))\n    start',
        "return Visible(text)\n    start",
        "35 harmony without an end",
    ),
    bug(
        "helpers are not prepended",
        "extract",
        "program=program_of(_preamble(found, task), helpers, _whole(found, task)),",
        "program=program_of(_preamble(found, task), _whole(found, task)),",
        "helpers in an earlier block",
        "helper of a helper",
        "helper and import of an earlier attempt",
    ),
    bug(
        "every earlier definition is a helper",
        "helpers",
        "waiting = sorted(seen)",
        "waiting = sorted(place_of)",
        "a block that nobody needs is no helper",
    ),
    bug(
        "a stub is a helper",
        "helpers",
        " or is_stub(node):",
        ":",
        "prompt's helper as a stub",
    ),
    Mutation(
        "the preamble is not prepended",
        f"{PACKAGE}.extract",
        (("preamble_beside(task.prompt, task.preamble) if is_body else task.preamble", '""'),),
        (check("1 one block"), check("prompt's helper in use")),
    ),
    bug(
        "a stub is an answer",
        "choice",
        "return node is not None and not is_stub(node)",
        "return node is not None",
        "38 stub behind",
        "39 stub alone",
        "stub with dots",
    ),
    bug(
        "a closing fence is an opener",
        "fences",
        "return longest_prefix(body)[1] is None",
        "return False",
        "7 opening fence missing",
    ),
    bug(
        "text outside of blocks is not read",
        "choice",
        "for stretch in page.outside\n",
        "for stretch in page.outside[:0]\n",
        "opener missing, bare usage behind",
        "bare code, usage in a block",
    ),
    bug(
        "a labelled fence does not end an unclosed block",
        "fence_lines",
        'if self.kind != "line" or not self.label:',
        "if True:",
        "unclosed draft, then the answer",
        "unclosed bash, then the answer",
    ),
    bug(
        "the first fence closes",
        "fences",
        "MOST_CLOSERS = 8",
        "MOST_CLOSERS = 1",
        "fences in the docstring",
    ),
    bug(
        "quoted tags count",
        "thinking",
        "if is_quoted or programs.hold(start):",
        "if programs.hold(start):",
        "quoted tag, thinking never closed",
    ),
    bug(
        "tags in programs count",
        "thinking",
        "if is_quoted or programs.hold(start):",
        "if is_quoted:",
        "tags inside the program",
    ),
    bug(
        "tags amid a sentence count",
        "thinking",
        "if not (inline and _is_mention(",
        "if not (False and _is_mention(",
        "tag amid a sentence, thinking never closed",
    ),
    bug(
        "another family's tag closes",
        "thinking",
        "elif inside in (_ANY_FAMILY, mark.family):",
        "elif True:",
        "another family's closing tag",
    ),
    bug(
        "inline tags never count",
        "thinking",
        "if not inline:\n        return counting, ()",
        "if inline or not inline:\n        return counting, ()",
        "closing tag inline before the answer",
    ),
    bug(
        "imports define",
        "definitions",
        "        if isinstance(node, ast.Import | ast.ImportFrom):\n            continue\n",
        "",
        "usage that imports the answer",
    ),
    bug(
        "a body is not put under its head",
        "bodies",
        "    yield textwrap.indent(textwrap.dedent(lines), margin)\n",
        "    yield lines\n",
        "body at the margin, all in a loop",
    ),
    bug(
        "any function's body is the answer's",
        "choice",
        "[text for text in page.outside if not _HEAD.search(text)]",
        "page.outside",
        "another name, bare",
    ),
    bug(
        "an unclosed block is not trimmed",
        "choice",
        "trim=not block.closed",
        "trim=False",
        "6 closing fence missing, prose behind",
        "cut in the middle of a line",
    ),
    Mutation(
        "a string at the margin ends a completion",
        f"{PACKAGE}.bodies",
        ((" and not parsed.in_string:", ":"),),
        (check_completion,),
        check_completion_end,
    ),
    Mutation(
        "a completion goes on behind its function",
        f"{PACKAGE}.bodies",
        (("            return number\n", "            continue\n"),),
        (check_completion_end,),
    ),
)


@pytest.mark.parametrize("mutation", BUGS, ids=lambda mutation: mutation.name)
def test_planted_bug_is_caught(mutation: Mutation):
    with planted(mutation):
        for seen in mutation.caught_by:
            with pytest.raises(AssertionError):
                seen()
        if mutation.harmless_to is not None:
            mutation.harmless_to()
    for seen in mutation.caught_by:
        seen()
