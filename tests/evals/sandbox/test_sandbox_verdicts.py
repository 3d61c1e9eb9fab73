"""What becomes of programs that mean no harm: tests of all kinds, in the strongest tier."""

import math
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from ddtree.evals.outcomes import Verdict
from ddtree.evals.sandbox.job import Job
from ddtree.evals.sandbox.limits import Limits
from ddtree.evals.sandbox.pool import Sandbox
from ddtree.evals.sandbox.probe import TIERS
from ddtree.evals.tasks import AssertTests, CallTests, IOCase, StdinTests, Tests

pytestmark = pytest.mark.sandbox

Run = Callable[..., Verdict]

RIGHT = "def f(x):\n    return x + 1\n"
ADD_TESTS = AssertTests("assert f(1) == 2\nassert f(2) == 3\n")


@pytest.fixture(scope="module")
def run() -> Iterator[Run]:
    with Sandbox.open(TIERS["bubblewrap"]()) as sandbox:

        def one(
            program: str, tests: Tests = ADD_TESTS, entry: str | None = "f", **limits: Any
        ) -> Verdict:
            (verdict,) = sandbox.run([Job(program, tests, entry, Limits(**limits))])
            return verdict

        yield one


@pytest.mark.parametrize(
    ("program", "outcome", "detail"),
    [
        (RIGHT, "passed", ""),
        ("def f(x):\n    return x\n", "assertion", "assert f(1) == 2"),
        ("def f(x):\n    return 2\n", "assertion", "assert f(2) == 3"),
        ("def f(x:\n", "syntax", "SyntaxError"),
        ("def f(x):\nreturn 1\n", "syntax", "IndentationError"),
        ("x = 1\0\n", "syntax", ""),
        ("x = '\ud800'\n", "syntax", "UnicodeEncodeError"),
        (RIGHT + "assert f(1) == 3\n", "own_assert", ""),
        (RIGHT + "eval('1 +')\n", "runtime_error", "SyntaxError"),
        ("def f(x):\n    return x + None\n", "runtime_error", "TypeError"),
        (RIGHT + "1 / 0\n", "runtime_error", "ZeroDivisionError"),
        (RIGHT + "raise KeyboardInterrupt\n", "runtime_error", "KeyboardInterrupt"),
        (RIGHT + "raise SystemExit(0)\n", "runtime_error", "SystemExit"),
        ("import os\n" + RIGHT + "os._exit(0)\n", "runtime_error", "ended before the tests did"),
        ("import os\n" + RIGHT + "os._exit(3)\n", "runtime_error", "ended before the tests did"),
        ("import nothing_of_that_name\n" + RIGHT, "runtime_error", "ModuleNotFoundError"),
        ("def g(x):\n    return x + 1\n", "entry_point_missing", "f"),
        ("f = 3\n", "entry_point_missing", "f"),
        ("", "entry_point_missing", "f"),
        ("def f(x):\n    return [0] * (1 << 40)\n", "memory", ""),
        (RIGHT + "y = [0] * (1 << 40)\n", "memory", ""),
        ("f = lambda x: x + 1\n", "passed", ""),
        ("class f(int):\n    def __new__(cls, x):\n        return x + 1\n", "passed", ""),
        (RIGHT + "if __name__ == '__main__':\n    raise ValueError\n", "passed", ""),
        (RIGHT + "print('PASSED')\n", "passed", ""),
        ("from typing import List\n" + RIGHT, "passed", ""),
    ],
)
def test_asserts(run: Run, program: str, outcome: str, detail: str) -> None:
    verdict = run(program)
    assert verdict.outcome == outcome, verdict
    assert detail in verdict.detail
    assert not verdict.values


RESULTS = {
    "tuple with list": ("(1, [2.5, None])", "(1, [2.5, None])"),
    "generator": ("(n for n in [1, 2])", "[1, 2]", "list"),
    "map": ("map(str, [1, 2])", "['1', '2']", "list"),
    "range": ("range(3)", "range(3)"),
    "Counter": ("collections.Counter('aab')", "{'a': 2, 'b': 1}"),
    "OrderedDict": ("collections.OrderedDict(a=1)", "{'a': 1}"),
    "defaultdict": ("collections.defaultdict(list, a=[1])", "{'a': [1]}"),
    "deque": ("collections.deque([1])", "[1]", "list"),
    "named tuple": ("collections.namedtuple('P', 'x y')(1, 2)", "(1, 2)"),
    "Fraction": ("fractions.Fraction(1, 2)", "0.5"),
    "Decimal": ("decimal.Decimal('0.5')", "0.5"),
    "date": ("datetime.date(2020, 1, 2)", "__import__('datetime').date(2020, 1, 2)"),
    "match": ("re.match('a', 'ab')", "True", "bool"),
    "array": ("array.array('i', [1, 2])", "[1, 2]", "list"),
    "itself in a list": ("loop()", "True", "bool"),
    "function": ("len", "len"),
}


@pytest.mark.parametrize("name", RESULTS)
def test_results_of_honest_types_are_seen(run: Run, name: str) -> None:
    result, expected, *call = RESULTS[name]
    program = (
        "import array, collections, datetime, decimal, fractions, re\n"
        "def loop():\n    one = []\n    one.append(one)\n    return one\n"
        f"def f():\n    return {result}\n"
    )
    got = f"{call[0]}(f())" if call else "f()"
    assert run(program, AssertTests(f"assert {got} == {expected}\n")).passed


@pytest.mark.parametrize(
    "own",
    [
        "class A:\n    def __eq__(self, other):\n        return True\n",
        "class A(int):\n    pass\n",
        "import enum\nclass E(enum.IntEnum):\n    ONE = 1\nA = lambda: E.ONE\n",
        "import collections\nclass A(collections.namedtuple('P', '')):\n"
        "    def __eq__(self, other):\n        return True\n",
        "import dataclasses\n@dataclasses.dataclass\nclass A:\n    x: int = 1\n",
    ],
)
@pytest.mark.parametrize("around", ["A()", "[A()]", "(1, {'k': A()})"])
def test_results_of_own_types_are_refused(run: Run, own: str, around: str) -> None:
    verdict = run(f"{own}def f():\n    return {around}\n", AssertTests("assert f() == 1\n"))
    assert verdict.outcome == "assertion"
    assert verdict.detail == "result of a type of its own"


@pytest.mark.parametrize("around", ["{A(): 1}", "{A()}", "frozenset([(A(),)])"])
def test_keys_and_members_are_looked_at(run: Run, around: str) -> None:
    program = f"class A:\n    pass\ndef f():\n    return {around}\n"
    assert run(program, AssertTests("assert len(f()) == 1\n")).outcome == "assertion"


def test_a_refusal_can_not_be_caught(run: Run) -> None:
    program = "class A:\n    pass\ndef f():\n    return A()\n"
    tests = "try:\n    f()\nexcept BaseException:\n    pass\n"
    assert run(program, AssertTests(tests)).outcome == "assertion"


def test_the_programs_own_calls_are_not_guarded(run: Run) -> None:
    """As deep as without a sandbox, and with whatever it likes."""
    program = (
        "class Box:\n    def __init__(self, n):\n        self.n = n\n"
        "def f(n, boxed=False):\n"
        "    value = 0 if n == 0 else f(n - 1, True).n + 1\n"
        "    return Box(value) if boxed else value\n"
    )
    assert run(program, AssertTests("assert f(960) == 960\n")).passed


def test_tests_see_helpers_and_the_entry_point_by_name(run: Run) -> None:
    program = "import functools\ndef helper(x):\n    return x * 2\n@functools.lru_cache\n"
    program += "def f(x):\n    'Doubles.'\n    return helper(x)\n"
    tests = "def check(candidate):\n    assert candidate(2) == 4 == helper(2)\n"
    tests += "    assert f.__doc__ == 'Doubles.'\ncheck(f)\n"
    assert run(program, AssertTests(tests)).passed


def test_classes_know_their_module(run: Run) -> None:
    program = (
        "from dataclasses import dataclass\nimport pickle\nfrom typing import NamedTuple\n"
        "@dataclass\nclass P:\n    x: int\n"
        "class Q(NamedTuple):\n    y: int = 1\n"
        "def f(x):\n    return pickle.loads(pickle.dumps(P(x))).x + Q().y\n"
    )
    assert run(program).passed


def test_a_class_may_be_the_entry_point(run: Run) -> None:
    program = "class f:\n    def __init__(self, x):\n        self.x = x\n"
    assert run(program, AssertTests("assert f(3).x == 3\n")).passed


def test_broken_tests_are_nobodys_wrong_answer(run: Run) -> None:
    verdict = run(RIGHT, AssertTests("assert f(1) =\n"))
    assert verdict.outcome == "sandbox_error"
    assert "the tests are no Python" in verdict.detail


def test_sets_have_the_same_order_in_every_run(run: Run) -> None:
    program = "def f():\n    return list({'alpha', 'beta', 'gamma', 'delta', 'epsilon'})\n"
    values = {tuple(run(program, CallTests(((),), None)).values[0]) for _ in range(4)}
    assert len(values) == 1


def test_threads_processes_and_files_work(run: Run) -> None:
    program = (
        "import asyncio, concurrent.futures, multiprocessing, pathlib, subprocess, sys, tempfile\n"
        "def f():\n"
        "    with concurrent.futures.ThreadPoolExecutor(4) as pool:\n"
        "        total = sum(pool.map(abs, [-1, 2]))\n"
        "    made = subprocess.run([sys.executable, '-c', 'print(4)'], capture_output=True)\n"
        "    with tempfile.TemporaryDirectory() as name:\n"
        "        path = pathlib.Path(name, 'x')\n"
        "        path.write_text('5')\n"
        "        total += int(path.read_text())\n"
        "    async def six():\n"
        "        await asyncio.sleep(0)\n"
        "        return 6\n"
        "    queue = multiprocessing.get_context('fork').SimpleQueue()\n"
        "    process = multiprocessing.get_context('fork').Process(target=queue.put, args=(7,))\n"
        "    process.start()\n"
        "    process.join()\n"
        "    return total + int(made.stdout) + asyncio.run(six()) + queue.get()\n"
    )
    verdict = run(program, AssertTests("assert f() == 25\n"))
    assert verdict.passed, verdict


def calls(*inputs: tuple[Any, ...], expected: Any = None, **more: Any) -> CallTests:
    return CallTests(inputs, expected, **more)


VALUES = (
    None,
    True,
    2**2000,
    -1,
    1.5,
    math.inf,
    1 + 2j,
    "a\n\ud800",
    b"\0\xff",
    (1, (2,)),
    {1, 2},
    frozenset({(1,)}),
    {(1, 2): [None], "x": {}},
    range(1, 9, 2),
)


def test_arguments_and_results_keep_their_types(run: Run) -> None:
    verdict = run("def f(x):\n    return x\n", calls(*((value,) for value in VALUES)))
    assert verdict.passed
    assert verdict.values == VALUES
    assert [type(value) for value in verdict.values] == [type(value) for value in VALUES]


def test_every_call_has_arguments_of_its_own(run: Run) -> None:
    program = "def f(x, y=()):\n    x.append(len(x))\n    return x\n"
    assert run(program, calls(([],), ([],), expected=([0], [0]))).passed


@pytest.mark.parametrize(
    ("result", "outcome", "detail"),
    [
        ("[1, 2.0]", "passed", ""),
        ("(1, 2)", "assertion", "call 2: (1, 2), expected [1, 2]"),
        ("[1, 2] if x else 3", "assertion", "call 1: 3"),
        ("1 / 0", "runtime_error", "ZeroDivisionError"),
        ("exit()", "runtime_error", "SystemExit"),
        ("(n for n in [1, 2])", "assertion", "result of a type of its own"),
        ("[0] * (1 << 40)", "memory", ""),
    ],
)
def test_calls(run: Run, result: str, outcome: str, detail: str) -> None:
    program = f"def f(x):\n    return {result}\n"
    if result == "(1, 2)":
        program = f"def f(x):\n    return {result} if x else [1, 2]\n"
    verdict = run(program, calls((0,), (1,), expected=([1, 2], [1, 2])))
    assert verdict.outcome == outcome, verdict
    assert detail in verdict.detail


def test_methods_are_called_on_fresh_instances(run: Run) -> None:
    program = "class Solution:\n    def __init__(self):\n        self.n = 0\n"
    program += "    def f(self, x):\n        self.n += x\n        return self.n\n"
    tests = calls((1,), (2,), expected=(1, 2), of_class="Solution")
    assert run(program, tests).passed
    assert run(program.replace("Solution", "Other"), tests).outcome == "entry_point_missing"
    assert run(program.replace("def f", "def g"), tests).outcome == "entry_point_missing"
    assert run(program.replace("self.n = 0", "1 / 0"), tests).outcome == "runtime_error"


def test_floats_may_be_near(run: Run) -> None:
    program = "def f(x):\n    return [x + 1e-7, {'k': x}]\n"
    expected = ([1.0, {"k": 1.0}],)
    assert run(program, calls((1,), expected=expected, atol=1e-6)).passed
    assert not run(program, calls((1,), expected=expected)).passed


def test_results_may_be_large_and_not_too_large(run: Run) -> None:
    program = "def f(n):\n    return 'x' * n\n"
    assert (
        len(
            run(
                program,
                calls(
                    (3 << 20,),
                ),
            ).values[0]
        )
        == 3 << 20
    )
    assert run(program, calls((3 << 20,)), results=1 << 20).outcome == "output_limit"


def script(*cases: tuple[str, str]) -> StdinTests:
    return StdinTests(tuple(IOCase(stdin, stdout) for stdin, stdout in cases))


ADD = "a, b = map(int, input().split())\nprint(a + b)\n"
SUMS = script(("1 2\n", "3\n"), ("4 5\n", "9\n"))


@pytest.mark.parametrize(
    ("program", "outcome", "detail"),
    [
        (ADD, "passed", ""),
        (ADD + "exit()\n", "passed", ""),
        (ADD + "import sys\nsys.exit(2)\n", "runtime_error", "case 1: exit status 2"),
        ("print(3)\n", "assertion", "case 2: line 1 differs"),
        ("print(3)\nprint()\nprint(4)\n", "assertion", "case 1: 3 lines, expected 1"),
        (ADD + "print(input())\n", "runtime_error", "case 1: EOFError"),
        (ADD + "assert False\n", "own_assert", "case 1: "),
        ("print(\n", "syntax", "case 1: SyntaxError"),
        ("x = [0] * (1 << 40)\n", "memory", "case 1: "),
        ("import os\nos.abort()\n", "killed", "case 1: SIGABRT"),
        ("import sys\nprint(sum(map(int, sys.stdin.read().split())))\n", "passed", ""),
        ("if __name__ == '__main__':\n    " + ADD.replace("\n", "\n    "), "passed", ""),
        (
            "import threading\ndef main():\n    print(sum(map(int, input().split())))\n"
            "threading.Thread(target=main).start()\n",
            "passed",
            "",
        ),
        (
            "import atexit\natexit.register(lambda: print(sum(map(int, input().split()))))\n",
            "passed",
            "",
        ),
        ("import sys\nsys.stdout.write('%d' % sum(map(int, input().split())))\n", "passed", ""),
        ("import os, sys\nos.write(1, b'3\\n9\\n')\nos._exit(0)\n", "assertion", "case 1: "),
    ],
)
def test_scripts(run: Run, program: str, outcome: str, detail: str) -> None:
    verdict = run(program, SUMS, None)
    assert verdict.outcome == outcome, verdict
    assert detail in verdict.detail


def test_a_script_prints_as_much_as_it_is_to_print(run: Run) -> None:
    text = "x" * 99 + "\n"
    program = "n = int(input())\nprint(('x' * 99 + '\\n') * n, end='')\n"
    assert run(program, script(("2000\n", text * 2000)), None).passed
    assert run(program, script(("5000\n", text * 2000)), None).outcome == "output_limit"


def test_a_script_need_not_read_its_input(run: Run) -> None:
    assert run("print(1)\n", script(("x" * 1_000_000, "1\n")), None).passed
    assert run("print(len(input()))\n", script(("x" * 1_000_000, "1000000\n")), None).passed


def test_seconds_are_those_of_all_cases(run: Run) -> None:
    program = "import time\ntime.sleep(0.2)\n" + ADD
    assert run(program, SUMS, None).seconds >= 0.4


def test_no_cases_are_no_pass(run: Run) -> None:
    assert run(ADD, script(), None).outcome == "sandbox_error"
