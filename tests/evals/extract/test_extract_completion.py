"""Continuations of a code prompt."""

from dataclasses import replace

import pytest
from grading_of_extracts import BODY, CIPHER, PROMPT, TASK, outcome

from ddtree.evals.extract.extract import EXTRACTOR, complete

GOOD = f"{BODY}\n"

CASES = {
    "body alone": (GOOD, "passed", ()),
    "no last line end": (BODY, "passed", ()),
    "another function": (
        f"{GOOD}\n\ndef other():\n    return 1\n",
        "passed",
        ("continuation_cut",),
    ),
    "prose": (f"{GOOD}\nThis adds them.\n", "passed", ("continuation_cut",)),
    "a fence": (f"{GOOD}```\n\nDone", "passed", ("continuation_cut",)),
    "main guard": (
        f'{GOOD}\nif __name__ == "__main__":\n    1 / 0\n',
        "passed",
        ("continuation_cut",),
    ),
    "failing demo": (f"{GOOD}\nassert total([2]) == 3\n", "passed", ("continuation_cut",)),
    "comment at the margin": (BODY.replace("\n    for", "\n# each\n    for"), "passed", ()),
    "bracket at the margin": (
        "    xs = [\n        x for x in xs\n        if x % 2 == 0\n]\n    return sum(xs)",
        "passed",
        (),
    ),
    "string at the margin": ('    text = """\nHello\n"""\n' + GOOD, "passed", ()),
    "cut in a line": (f"{GOOD}    more = (1,", "passed", ("trimmed",)),
    "cut in the first line": ("    return sum(", "syntax", ("unparsable",)),
    "token behind": (f"{BODY}<|endoftext|>", "passed", ("special_tokens",)),
    "line ends": (GOOD.replace("\n", "\r\n"), "passed", ("line_ends",)),
    "wrong": ("    return -1\n", "assertion", ()),
    "pass": ("    pass\n", "no_code", ("stub",)),
    "nothing": ("", "no_code", ()),
    "blank": ("\n\n  \n", "no_code", ()),
    "at the margin at once": ("def other():\n    return 1\n", "no_code", ("stub",)),
    "tabs": (BODY.replace("    ", "\t"), "syntax", ("unparsable",)),
}


@pytest.mark.parametrize("name", CASES)
def test_continuation(name: str):
    text, expected, flags = CASES[name]
    answer = complete(text, TASK)
    assert outcome(answer) == expected
    assert answer.flags == flags
    assert answer.method == ("none" if answer.program is None else "completion")
    assert (answer.program is None) == (answer.code_sha256 is None)


def test_program_is_prompt_and_continuation():
    assert complete(GOOD, TASK).program == PROMPT + GOOD
    assert complete(f"{GOOD}\nclass A:\n    pass\n", TASK).program == PROMPT + GOOD


def test_prompt_without_a_last_line_end():
    task = replace(TASK, prompt=PROMPT.rstrip())
    assert outcome(complete(f"\n{GOOD}\nprint(1)", task)) == "passed"


def test_prompt_that_ends_in_its_signature():
    task = replace(TASK, prompt="from typing import List\n\n\ndef total(xs: List[int]):\n")
    assert outcome(complete(f"{GOOD}\nprint(1)", task)) == "passed"


def test_helpers_of_the_prompt():
    body = "    for _ in range(25):\n        text = shift(text)\n    return text\n"
    assert outcome(complete(body, CIPHER), CIPHER) == "passed"


def test_preamble_of_a_suites_own():
    task = replace(TASK, preamble="import operator\n")
    body = "    return sum(x for x in xs if operator.mod(x, 2) == 0)\n"
    assert outcome(complete(body, task), task) == "passed"


def test_version():
    assert EXTRACTOR == "1"
