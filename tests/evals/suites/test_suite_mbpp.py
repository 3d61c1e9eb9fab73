"""MBPP: asserts, imports and a name that has to be found."""

import json

import pytest
from suite_files import mbpp_record

from ddtree.errors import ConfigError
from ddtree.evals.sandbox.job import Job
from ddtree.evals.sandbox.limits import Limits
from ddtree.evals.suites.mbpp import read_mbpp
from evals.inline_runner import inline


def read(*records):
    return read_mbpp(json.dumps(records).encode())


def test_a_task() -> None:
    (task,) = read(mbpp_record())
    assert task.id == "Mbpp/2"
    assert task.entry_point == "shared"
    assert task.prompt == (
        "Write a function to find the shared elements.\nYour code should pass these tests:\n\n"
        "assert set(shared((1, 2), (2, 3))) == {2}\n"
        "assert set(shared((1,), (math.floor(1.5),))) == {1}\n"
    )
    assert not task.prompt_is_code
    programs = [task.reference, "def shared(a, b): return a\n"]
    jobs = [Job(program, task.tests, task.entry_point, Limits()) for program in programs]
    assert [verdict.outcome for verdict in inline()(jobs)] == ["passed", "assertion"]


@pytest.mark.parametrize(
    ("code", "test", "entry_point"),
    [
        ("def helper(n): return n\ndef f(n): return helper(n)", "assert f(1) == 1", "f"),
        ("def f(n): return n", "assert not f(0)", "f"),
        ("def check(n): return n", "assert check(70) == False", "check"),
        ("class Box:\n    pass", "assert isinstance(Box(), Box)", "Box"),
        ("import re\ndef f(s): return re.sub('\\d', '', s)", "assert len(f('a1')) == 1", "f"),
    ],
)
def test_the_entry_point_is_what_asserts_call(code, test, entry_point) -> None:
    (task,) = read(mbpp_record(code=code, test_list=[test]))
    assert task.entry_point == entry_point


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"test_list": []}, "entry 2: test_list: empty"),
        ({"test_list": [1]}, "entry 2: test_list: expected a list of texts"),
        ({"test_list": ["assert len([]) == 0"]}, "no assert calls a function that code defines"),
        ({"code": "def ("}, "entry 2: code: expected Python, got .def \\(."),
        ({"task_id": "2"}, "entry 2: task_id: expected a number, got '2'"),
    ],
)
def test_what_is_wrong_is_named(changes, message) -> None:
    with pytest.raises(ConfigError, match=message):
        read(mbpp_record(), mbpp_record(**changes))


def test_no_suite_file_at_all() -> None:
    with pytest.raises(ConfigError, match="expected a list, got dict"):
        read_mbpp(b"{}")
    with pytest.raises(ConfigError, match="entry 1: expected an object, got int"):
        read_mbpp(b"[1]")
    with pytest.raises(ConfigError, match="not JSON"):
        read_mbpp(b"404: Not Found")
