"""The table of SGLang's names against a small tree of modules written here: every kind of change
is seen. Against SGLang itself it is checked where SGLang is installed."""

from pathlib import Path

import pytest

from ddtree.errors import ConfigError
from ddtree.sglang_plugin import contract
from ddtree.sglang_plugin.contract import Needed, installed_root, problems

SOURCE = """
from somewhere import borrowed
LIMIT: int = 3

def plain(a, b=1, *, c=None): ...

class Worker:
    ready: bool

    def __init__(self, args, rank=0):
        self.state = args

    def step(self, batch, done=None): ...

class Record:
    first: int
    second: int = 0
"""

GOOD = (
    Needed("part", "borrowed", "a name of others"),
    Needed("part", "LIMIT", "a constant"),
    Needed("part", "plain", "a function", ("a", "b"), also=("c",)),
    Needed("part", "Worker", "a class", ("args",), holds=("state", "ready")),
    Needed("part", "Worker.step", "a method", ("batch", "done")),
    Needed("part", "Record", "a dataclass", ("first",)),
)


def found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, needed: Needed) -> tuple[str, ...]:
    (tmp_path / "part.py").write_text(SOURCE)
    monkeypatch.setattr(contract, "TABLE", (needed,))
    return problems(tmp_path)


@pytest.mark.parametrize("needed", GOOD, ids=lambda needed: needed.name)
def test_what_is_there_is_no_problem(
    needed: Needed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert found(tmp_path, monkeypatch, needed) == ()


@pytest.mark.parametrize(
    ("needed", "problem"),
    [
        (Needed("gone", "x", "why"), "sglang.gone.x (why): the module is not there"),
        (Needed("part", "Worker.stop", "why"), "sglang.part.Worker.stop (why): not there"),
        (Needed("part", "plain", "why", ("a", "z")), "takes (a, b, c), expected (a, z)"),
        (Needed("part", "plain", "why", ("b", "a")), "takes (a, b, c), expected (b, a)"),
        (Needed("part", "plain", "why", ("a",), also=("d",)), "does not take d"),
        (Needed("part", "Worker.step", "why", ("done",)), "also wants batch"),
        (Needed("part", "Record", "why", ("second",)), "also wants first"),
        (Needed("part", "Worker", "why", ("args",), holds=("gone",)), "does not set self.gone"),
    ],
)
def test_a_change_is_named(
    needed: Needed, problem: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (text,) = found(tmp_path, monkeypatch, needed)
    assert text.endswith(problem)


def test_without_sglang_the_reason_is_said() -> None:
    with pytest.raises(ConfigError, match="SGLang is not installed here"):
        installed_root()


def test_every_entry_says_why_and_stands_once() -> None:
    entries = [(needed.module, needed.name) for needed in contract.TABLE]
    assert all(needed.why for needed in contract.TABLE)
    # A class may stand twice: once with its parameters, once for what it holds.
    assert len(entries) == len(set(entries))
