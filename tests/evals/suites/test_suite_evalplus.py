"""EvalPlus' files: inputs by task, tasks with several right answers."""

import json
import math

import pytest
from suite_files import evalplus_record, humaneval_record, json_lines_of, zipped

from ddtree.errors import ConfigError
from ddtree.evals.sandbox.job import Job
from ddtree.evals.sandbox.limits import Limits
from ddtree.evals.selfcheck import with_expected
from ddtree.evals.suites import evalplus, mbpp_inputs, oracles
from ddtree.evals.tasks import AssertTests, CallTests, Task
from evals.inline_runner import inline
from mutations.planting import Mutation, planted

POLY = {
    "task_id": "HumanEval/32",
    "entry_point": "find_zero",
    "prompt": (
        "import math\n\n\ndef poly(xs: list, x: float):\n"
        "    return sum(c * math.pow(x, i) for i, c in enumerate(xs))\n\n\n"
        'def find_zero(xs: list):\n    """A zero."""\n'
    ),
    "canonical_solution": "    return round(-xs[0] / xs[1], 2)\n",
    "base_input": [[[1, 2]], [[-6, 3]]],
    "plus_input": [[[1, 3]]],
    "atol": 0.0001,
}


def mbpp_task(**changes) -> Task:
    (task,) = evalplus.read_mbpp_plus(json_lines_of(evalplus_record(**changes)))
    return task


def zero_task() -> Task:
    record = humaneval_record(**POLY)
    (task,) = evalplus.read_humaneval_plus(json_lines_of(record))
    return task


def inputs_of(number: int, *rows) -> tuple:
    task = mbpp_task(task_id=f"Mbpp/{number}", base_input=list(rows), plus_input=[])
    assert isinstance(task.tests, CallTests)
    # repr, since 1 == 1.0 and a set equals a frozenset.
    return task.tests.inputs


def outcomes(task: Task, *programs: str) -> list[str]:
    jobs = [Job(program, task.tests, task.entry_point, Limits()) for program in programs]
    return [verdict.outcome for verdict in inline()(jobs)]


# Task, a row as in JSON, the arguments of the call.
CONVERSIONS = (
    (1, [[1, 2], "a"], ([1, 2], "a")),
    (2, [[3, 4], [5]], ((3, 4), (5,))),
    (63, [[[3, 5], [1, 7]]], ([(3, 5), (1, 7)],)),
    (75, [[[6, 24], [7]], 6], ([(6, 24), (7,)], 6)),
    (106, [[5, 6], [9, 10]], ([5, 6], (9, 10))),
    (115, [[[1], [], {}, 7]], ([{1}, {}, {}, {}],)),
    (124, ["0", "1j"], (0.0, 1j)),
    (250, [[10, 8], 4], ((10, 8), 4)),
    (252, ["(1+2j)"], (1 + 2j,)),
    (259, [[[1, 3], [4, 5]], [[6, 7]]], (((1, 3), (4, 5)), ((6, 7),))),
    (278, [[1, 5, [4, 6], "a"]], ((1, 5, (4, 6), "a"),)),
    (307, [["HELLO", []], 2, 50], (("HELLO", []), 2, 50)),
    (580, [[4, [7, [2]], "x"]], ((4, (7, (2,)), "x"),)),
    (722, [{"Ann": [6.2, 70]}, 6.0, 70], ({"Ann": (6.2, 70)}, 6.0, 70)),
)


def check_conversions() -> None:
    for number, row, arguments in CONVERSIONS:
        assert repr(inputs_of(number, row)) == repr((arguments,)), number


def check_plain_tests() -> None:
    task = mbpp_task()
    assert task.tests == CallTests(((1, 2), (0.5, 0.25)), None, evalplus.FLOAT_ATOL)
    assert task.reference is not None
    assert task.reference.endswith("return a + b\n")
    assert not task.prompt_is_code
    (filled,) = with_expected([task], inline())
    assert isinstance(filled.tests, CallTests)
    assert filled.tests.expected == (3, 0.75)
    close = "def add(a, b): return a + b + (1e-8 if isinstance(a, float) else 0)\n"
    wrong = "def add(a, b): return a + b + (1e-4 if isinstance(a, float) else 0)\n"
    assert outcomes(filled, close, wrong) == ["passed", "assertion"]
    tolerant = mbpp_task(atol=0.01).tests
    assert isinstance(tolerant, CallTests)
    assert tolerant.atol == 0.01


def check_zeros() -> None:
    """The third input's own reference misses the tolerance: as near is near enough."""
    task = zero_task()
    assert task.prompt_is_code
    assert "def poly" in task.preamble
    assert isinstance(task.tests, AssertTests)
    near = f"{task.preamble}\ndef find_zero(xs): return -xs[0] / xs[1]\n"
    far = f"{task.preamble}\ndef find_zero(xs): return -xs[0] / xs[1] + 0.1\n"
    none = f"{task.preamble}\ndef find_zero(xs): return None\n"
    assert outcomes(task, str(task.reference), near, far, none) == [
        *("passed", "passed", "assertion", "assertion"),
    ]


# Entry point, reference, input, another right answer, a wrong one.
SEVERAL = (
    ("similar_elements", "tuple(sorted(set(a) & set(b)))", [[1, 2], [1, 2]], "[2, 1]", "(1,)"),
    ("Diff", "list(set(a) ^ set(b))", [[1, 2], [2, 3]], "[3, 1]", "None"),
    ("check_str", "__import__('re').search('a', a)", ["abc", ""], "True", "None"),
    ("text_match_three", "__import__('re').search('x', a)", ["abc", ""], "False", "True"),
    ("are_equivalent", "a == b", [1, 2], "True", "None"),
    ("sum_div", "a + b", [3, 4], "0", "8"),
    ("surface_Area", "33", [3, 4], "round(9 + 6 * (1.5 ** 2 + 16) ** 0.5)", "36"),
    ("digit_distance_nums", "1", [1, 256], "2 + 5 + 5", "3"),
)


def check_several_right_answers() -> None:
    for name, body, row, other, wrong in SEVERAL:
        task = mbpp_task(
            entry_point=name,
            canonical_solution=f"\ndef {name}(a, b):\n    return {body}\n",
            base_input=[row],
            plus_input=[],
        )
        programs = [f"def {name}(a, b): return {text}\n" for text in (other, wrong)]
        assert outcomes(task, str(task.reference), *programs) == [
            *("passed", "passed", "assertion"),
        ], name


CHECKS = (check_conversions, check_plain_tests, check_zeros, check_several_right_answers)


@pytest.mark.parametrize("check", CHECKS)
def test_on_the_code_as_it_is(check) -> None:
    check()


def test_references_and_answers_do_not_share_their_arguments() -> None:
    task = mbpp_task(
        entry_point="Diff",
        canonical_solution="\ndef Diff(a, b):\n    a.sort()\n    return a[:1]\n",
        base_input=[[[3, 1], []]],
        plus_input=[],
    )
    assert outcomes(task, "def Diff(a, b): return [1] if a == [3, 1] else []\n") == ["passed"]


def test_inputs_that_are_no_literals_of_python() -> None:
    """JSON as Python writes it has NaN and Infinity."""
    record = json.dumps(
        evalplus_record(
            entry_point="sum_div",
            canonical_solution="\ndef sum_div(a, b):\n    return max(a, b)\n",
            base_input=[[float("inf"), float("nan")]],
        )
    )
    (task,) = evalplus.read_mbpp_plus(record.encode())
    assert outcomes(task, str(task.reference), "def sum_div(a, b): return 1\n") == [
        *("passed", "assertion"),
    ]
    (plain,) = evalplus.read_mbpp_plus(record.replace("sum_div", "add").encode())
    assert isinstance(plain.tests, CallTests)
    assert math.isnan(plain.tests.inputs[0][1])


def test_an_empty_object_holds_no_inputs() -> None:
    task = mbpp_task(plus_input={})
    assert isinstance(task.tests, CallTests)
    assert task.tests.inputs == ((1, 2),)


def test_zipped_or_not() -> None:
    lines = json_lines_of(evalplus_record(), evalplus_record(task_id="Mbpp/3"))
    assert evalplus.read_mbpp_plus(lines) == evalplus.read_mbpp_plus(zipped(lines))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"task_id": "Mbpp/75", "base_input": [[1, 2, 3]]}, "Mbpp/75: an input has another form"),
        ({"task_id": "Mbpp/2", "base_input": [[1, 2]]}, r"Mbpp/2: .*\[1, 2\]"),
        ({"task_id": "Mbpp/252", "base_input": [["no"]]}, "Mbpp/252: an input"),
        ({"task_id": "Mbpp/722", "base_input": [[[]]]}, "Mbpp/722: an input"),
        ({"task_id": "Mbpp/x"}, "task_id: expected Mbpp/N, got 'Mbpp/x'"),
        ({"base_input": [3]}, "base_input: expected lists of arguments, got 3"),
        ({"base_input": [], "plus_input": []}, "no inputs"),
        ({"atol": "0"}, "atol: expected a number, got '0'"),
        ({"atol": True}, "atol: expected a number, got True"),
        ({"plus_input": None}, "plus_input: expected a list, got None"),
    ],
)
def test_what_is_wrong_is_named(changes, message) -> None:
    with pytest.raises(ConfigError, match=f"MBPP\\+, line 1: {message}"):
        mbpp_task(**changes)


MUTATIONS = (
    Mutation(
        "the task's own tolerance is not used",
        evalplus.__name__,
        (("max(atol, FLOAT_ATOL)", "FLOAT_ATOL"),),
        (check_plain_tests,),
        harmless_to=check_zeros,
    ),
    Mutation(
        "inputs stay as JSON has them",
        mbpp_inputs.__name__,
        (("convert = _BY_TASK.get(number, tuple)", "convert = tuple"),),
        (check_conversions,),
        harmless_to=check_plain_tests,
    ),
    Mutation(
        "a zero must be nearer than the reference's",
        oracles.__name__,
        (("<= max(atol, distance(expected))", "<= atol"),),
        (check_zeros,),
        harmless_to=check_several_right_answers,
    ),
    Mutation(
        "several right answers are forgotten",
        evalplus.__name__,
        (("if rule is None:", "if True:"),),
        (check_zeros, check_several_right_answers),
        harmless_to=check_plain_tests,
    ),
    Mutation(
        "any answer is equivalent",
        oracles.__name__,
        (('"return isinstance(got, bool)"', '"return True"'),),
        (check_several_right_answers,),
        harmless_to=check_zeros,
    ),
    Mutation(
        "a rule that can't be applied passes",
        oracles.__name__,
        (("            right = False\n", "            right = True\n"),),
        (check_zeros, check_several_right_answers),
    ),
)


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.name)
def test_planted_bugs_are_caught(mutation: Mutation) -> None:
    with planted(mutation):
        for check in mutation.caught_by:
            with pytest.raises(AssertionError):
                check()
        if mutation.harmless_to is not None:
            mutation.harmless_to()
