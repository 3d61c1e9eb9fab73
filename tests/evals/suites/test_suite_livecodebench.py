"""LiveCodeBench: both kinds of tests, dates, and packed tests that do nothing but hold data."""

import base64
import json
import os
import pickle
import zlib
from collections import OrderedDict
from datetime import date
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from suite_files import functional_record, json_lines_of, packed, stdin_record

from ddtree.errors import ConfigError
from ddtree.evals.sandbox.job import Job
from ddtree.evals.sandbox.limits import Limits
from ddtree.evals.suites import packed as packing
from ddtree.evals.suites.livecodebench import Window, read_livecodebench
from ddtree.evals.tasks import CallTests, IOCase, StdinTests
from evals.inline_runner import inline
from mutations.planting import Mutation, planted

PLAIN = st.recursive(
    st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3)
    ),
    max_leaves=8,
)


class Touch:
    """Unpickled, it would make a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self):
        return Path.touch, (self.path,)


class Shell:
    def __reduce__(self):
        return os.system, ("true",)


class Evaluated:
    def __reduce__(self):
        return eval, ("1 + 1",)


def test_a_program_for_standard_input() -> None:
    (task,) = read_livecodebench(json_lines_of(stdin_record()))
    assert task.tests == StdinTests((IOCase("1 2", "3"), IOCase("4 5\n", "9\n")))
    assert (task.id, task.entry_point, task.reference) == ("abc1_a", None, None)
    assert task.prompt.startswith("Print the sum.\n\nRead the input from standard input")
    right = task.preamble + "print(sum(map(int, input().split())))\n"
    jobs = [Job(program, task.tests, None, Limits()) for program in (right, "print(3)\n")]
    assert [verdict.outcome for verdict in inline()(jobs)] == ["passed", "assertion"]


def test_a_method_of_solution() -> None:
    (task,) = read_livecodebench(json_lines_of(functional_record()))
    assert task.tests == CallTests((([1, 2], 3),) * 2, ([4, 5],) * 2, of_class="Solution")
    assert task.entry_point == "shift"
    assert "class Solution:\n    def shift(self, xs: List[int], by: int):\n```\n" in task.prompt
    right = (
        f"{task.preamble}class Solution:\n"
        "    def shift(self, xs: List[int], by: int) -> List[int]:\n"
        "        return [x + by for x in xs]\n"
    )
    jobs = [
        Job(program, task.tests, task.entry_point, Limits())
        for program in (right, right.replace("x + by", "x"))
    ]
    assert [verdict.outcome for verdict in inline()(jobs)] == ["passed", "assertion"]


def test_the_preamble_leaves_builtins_as_they_are() -> None:
    (task,) = read_livecodebench(json_lines_of(functional_record()))
    scope: dict[str, object] = {}
    source = task.preamble.replace("sys.setrecursionlimit(50_000)\n", "")
    assert source != task.preamble
    exec(source + "answer = pow(2, 5, 7), sum([1]), inf, bisect.bisect([1], 1)\n", scope)
    assert scope["answer"] == (4, 1, float("inf"), 1)


@pytest.mark.parametrize(
    ("since", "until", "count"),
    [
        (None, None, 3),
        (date(2025, 1, 11), None, 2),
        (date(2025, 1, 12), None, 1),
        (None, date(2025, 1, 11), 2),
        (None, date(2025, 1, 10), 1),
        (date(2025, 1, 11), date(2025, 1, 11), 1),
    ],
)
def test_dates_choose(since, until, count) -> None:
    data = json_lines_of(
        stdin_record(contest_date="2024-12-31T23:59:59"), functional_record(), stdin_record()
    )
    assert len(read_livecodebench(data, window=Window(since, until))) == count


def test_tasks_outside_are_not_unpacked() -> None:
    old = stdin_record(contest_date="2024-01-01", private_test_cases="no such thing")
    data = json_lines_of(old, stdin_record())
    assert len(read_livecodebench(data, window=Window(date(2025, 1, 1)))) == 1
    with pytest.raises(ConfigError, match="line 1, private_test_cases: packed tests"):
        read_livecodebench(data)


@given(PLAIN)
def test_texts_lists_and_dicts_survive(value) -> None:
    if isinstance(value, str):
        assert packing.unpacked(packed(json.dumps(value)), "here") == value
    else:
        assert packing.unpacked(packed(value), "here") == value


def check_nothing_runs(tmp: Path) -> None:
    bombs = [Touch(tmp / "touched"), Shell(), Evaluated(), {"a": [Touch(tmp / "touched")]}]
    for bomb in bombs:
        for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
            raw = pickle.dumps(bomb, protocol)
            text = base64.b64encode(zlib.compress(raw)).decode()
            try:
                packing.unpacked(text, "here")
            except ConfigError as error:
                assert "it names" in str(error)  # noqa: PT017 - planted bugs raise nothing
            else:
                raise AssertionError("a pickle that names a function was opened")
    assert not (tmp / "touched").exists()


def check_nothing_else_comes_out() -> None:
    for value in (1, 1.5, None, True, b"x", (1,), ("a",), {1}, frozenset(), [{"a": 3}], {1: "a"}):
        with pytest.raises(ConfigError, match=r"it (holds a value of type|names)"):
            packing.unpacked(packed(value), "here")
    with pytest.raises(ConfigError, match=r"it names collections\.OrderedDict"):
        packing.unpacked(packed(OrderedDict(a="b")), "here")


def test_nothing_in_a_pickle_runs(tmp_path) -> None:
    check_nothing_runs(tmp_path)
    check_nothing_else_comes_out()


def test_loops_and_broken_pickles_are_refused() -> None:
    loop: list[object] = []
    loop.append(loop)
    for text in (packed(loop), packed("no JSON")):
        with pytest.raises(ConfigError, match="here: packed tests"):
            packing.unpacked(text, "here")
    for raw in (b"", b"\x80", b"garbage", b"0", b"R.", b"(lp0\n", b"\x82\x01.", b"Pid\n."):
        text = base64.b64encode(zlib.compress(raw)).decode()
        with pytest.raises(ConfigError, match="expected a pickle"):
            packing.unpacked(text, "here")


@given(st.binary(max_size=40))
def test_any_bytes_are_refused_or_plain(raw: bytes) -> None:
    text = base64.b64encode(zlib.compress(raw)).decode()
    try:
        value = packing.unpacked(text, "here")
    except ConfigError:
        return
    json.dumps(value)


def test_what_unpacks_to_too_much_is_refused(monkeypatch) -> None:
    monkeypatch.setattr(packing, "MAX_BYTES", 10_000)
    with pytest.raises(ConfigError, match="over 10000 bytes unpacked"):
        packing.unpacked(packed("a" * 20_000), "here")
    whole = packed("[]" + " " * 5_000)
    assert packing.unpacked(whole, "here") == []
    cut = base64.b64encode(base64.b64decode(whole)[:-6]).decode()
    with pytest.raises(ConfigError, match="cut short"):
        packing.unpacked(cut, "here")
    for text in ("not base64!", base64.b64encode(b"not zlib").decode()):
        with pytest.raises(ConfigError, match="expected base64 of zlib data"):
            packing.unpacked(text, "here")


@pytest.mark.parametrize(
    ("record", "message"),
    [
        (stdin_record(contest_date="soon"), "contest_date: expected an ISO date, got 'soon'"),
        (stdin_record(public_test_cases="{}"), "public_test_cases: expected a list of objects"),
        (
            stdin_record(
                public_test_cases=json.dumps([{"input": "", "output": "", "testtype": "gui"}])
            ),
            r"testtype: expected stdin or functional for all tests, got \['gui', 'stdin'\]",
        ),
        (
            stdin_record(public_test_cases="[]", private_test_cases="[]"),
            r"testtype: expected .*, got \[\]",
        ),
        (functional_record(metadata="{}"), r"metadata: expected func_name, got {}"),
        (functional_record(metadata="x"), "metadata: expected JSON"),
        (
            functional_record(
                public_test_cases=json.dumps(
                    [{"input": "[1", "output": "1", "testtype": "functional"}]
                )
            ),
            "public_test_cases 1: input: expected one JSON value a line",
        ),
    ],
)
def test_what_is_wrong_is_named(record, message) -> None:
    with pytest.raises(ConfigError, match=message):
        read_livecodebench(json_lines_of(record))


def test_an_open_unpickler_is_caught(tmp_path) -> None:
    bug = Mutation(
        "any class is found",
        packing.__name__,
        (
            (
                'raise pickle.UnpicklingError(f"it names {module_name}.{global_name}")',
                "return super().find_class(module_name, global_name)",
            ),
        ),
        (),
    )
    with planted(bug), pytest.raises(AssertionError):
        check_nothing_runs(tmp_path)
    assert (tmp_path / "touched").exists()


def test_unchecked_values_are_caught() -> None:
    bug = Mutation(
        "values are not looked at",
        packing.__name__,
        (("        _check_plain(value)\n        return", "        return"),),
        (),
    )
    with planted(bug), pytest.raises(pytest.fail.Exception):
        check_nothing_else_comes_out()
