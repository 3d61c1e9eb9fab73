"""Whole answers, each with what must become of it."""

import ast

import pytest
from grading_of_extracts import CIPHER, METHOD, RIGHT, SCRIPT, TASK, extracted, fence, outcome, run
from more_cases import MORE
from noted_cases import NOTED, Case

from ddtree.evals.extract.answer import Answer

CASES = (*NOTED, *MORE)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_case(case: Case):
    answer = extracted(case.text, case.task, case.finish_reason)
    assert outcome(answer, case.task) == case.outcome
    assert answer.method == case.method
    assert set(case.flags) <= set(answer.flags)
    if case.block is not None:
        assert answer.block == case.block


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_fields_agree(case: Case):
    answer = extracted(case.text, case.task, case.finish_reason)
    assert (answer.program is None) == (answer.missing is not None)
    assert (answer.program is None) == (answer.method == "none")
    assert (answer.program is None) == (answer.code_sha256 is None)
    assert answer.flags == tuple(sorted(set(answer.flags)))
    assert answer.block is None or 0 <= answer.block < answer.blocks
    assert answer.lenient is None or answer.missing == "entry_point_missing"
    assert answer == extracted(case.text, case.task, case.finish_reason)


def test_names_differ():
    names = [case.name for case in CASES]
    assert len(set(names)) == len(names)


def test_there_are_enough():
    numbers = {int(case.name.split()[0]) for case in NOTED}
    assert numbers == set(range(1, 43))
    assert len(MORE) >= 40


def test_whole_answer():
    found = extracted(f"<think>12345</think>\n{fence(RIGHT)}")
    assert found == Answer(
        program=f"from typing import List\n\n\n{RIGHT}\n",
        missing=None,
        method="fence",
        flags=("thinking_cut",),
        blocks=1,
        block=0,
        thinking_chars=5,
        code_sha256=found.code_sha256,
    )


def test_digest_is_of_the_code_alone():
    plain = extracted(fence(RIGHT))
    assert extracted(f"Hello.\n{fence(RIGHT)}Bye.").code_sha256 == plain.code_sha256
    assert extracted(fence(RIGHT), CIPHER).code_sha256 is None
    assert extracted(fence(RIGHT + " # x")).code_sha256 != plain.code_sha256


LENIENT = {
    "another name": (fence(RIGHT.replace("total", "even_sum")), TASK, "passed"),
    "two functions": (
        fence(RIGHT.replace("total", "a") + "\n\ndef b(x):\n    return x"),
        TASK,
        None,
    ),
    "one of two has the arity": (
        fence(RIGHT.replace("total", "a") + "\n\ndef b(x, y):\n    return x"),
        TASK,
        "passed",
    ),
    "another arity": (fence("def even_sum(xs, n):\n    return 6"), TASK, None),
    "private": (fence("def _sum(xs):\n    return 6"), TASK, None),
    "method": (
        fence(
            "class Solution:\n    def total(self, xs):\n"
            "        return sum(x for x in xs if x % 2 == 0)"
        ),
        TASK,
        "passed",
    ),
    "method of another name": (
        fence("class Solution:\n    def f(self, xs):\n        return -1"),
        TASK,
        "assertion",
    ),
    "function for a method": (fence(RIGHT.replace(": List[int]", "")), METHOD, "passed"),
    "no function": (fence("print(6)"), TASK, None),
    "no script": (fence("3", ""), SCRIPT, None),
}


@pytest.mark.parametrize("name", LENIENT)
def test_lenient_reading(name: str):
    text, task, expected = LENIENT[name]
    answer = extracted(text, task)
    assert answer.program is None
    assert (answer.lenient and run(answer.lenient, task)) == expected


def test_strict_answers_have_no_lenient_reading():
    assert extracted(fence(RIGHT)).lenient is None
    unclosed = f"{fence(RIGHT.replace('total', 'even_sum'))}<think>\nno"
    assert extracted(unclosed).missing == "truncated_thinking"
    assert extracted(unclosed).lenient is None


def test_programs_are_python():
    for case in CASES:
        answer = extracted(case.text, case.task, case.finish_reason)
        if answer.program is not None and "unparsable" not in answer.flags:
            ast.parse(answer.program)
