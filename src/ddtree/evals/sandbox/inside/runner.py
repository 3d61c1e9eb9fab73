"""Runs a program and its tests, and tells the parent what came of it.

Nothing of this stands in the way of a program that looks for the parent's word in the runner's own
frames: the sandbox keeps such a program from doing harm, not from lying about its tests. Results
that the parent compares itself (`kind` call and script) can't be lied about.
"""

import sys
import types
from json import dumps
from os import _exit, getpid, write
from typing import Any

from ddtree.evals.sandbox.inside.results import guarded
from ddtree.evals.sandbox.inside.tagged import UntoldError, heard, told

Told = dict[str, Any]

_ANSWER = "<answer>"
_TESTS = "<tests>"
# A program gets as deep as it would by itself: these are the frames that stand below it.
_FRAMES = 50
_LONGEST = 160
_type_name = type.__dict__["__name__"].__get__


class Report:
    """Lines for the parent, each after a word that only the parent and this process know; a fork
    of it says nothing."""

    def __init__(self, descriptor: int, word: str) -> None:
        self._descriptor = descriptor
        self._word = word
        self._pid = getpid()
        # Ready beforehand: once memory has run out nothing more can be made.
        self._memory = self._line({"outcome": "memory"})

    def send(self, message: Told) -> None:
        """Tell it all."""
        self._write(self._line(message))

    def out_of_memory(self) -> None:
        """Tell that, in no more memory."""
        self._write(self._memory)

    def _line(self, message: Told) -> bytes:
        return f"\n{self._word} {dumps(message)}\n".encode()

    def _write(self, line: bytes) -> None:
        if getpid() != self._pid:
            return
        rest = memoryview(line)
        while rest:
            rest = rest[write(self._descriptor, rest) :]


def run(job: Told) -> None:
    """Run a job. Returns where the interpreter is to end as it would after a script."""
    sys.setrecursionlimit(sys.getrecursionlimit() + _FRAMES)
    report = Report(job["descriptor"], job["word"])
    report.send({"started": True})
    if job["kind"] == "script":
        _script(job["program"], report)
        return
    try:
        report.send(_graded(job))
    except MemoryError:
        report.out_of_memory()
    _exit(0)


def _script(program: str, report: Report) -> None:
    """A program by itself: its exit is left to the interpreter, which waits for its threads."""
    module = types.ModuleType("__main__")
    sys.modules["__main__"] = module
    try:
        failure = _loaded(program, module)
    except MemoryError:
        report.out_of_memory()
        _exit(1)
    if failure is not None:
        report.send(failure)
        _exit(1)


def _graded(job: Told) -> Told:
    module = types.ModuleType("answer")
    # Where dataclasses and pickle look for a class's module.
    sys.modules["answer"] = module
    failure = _loaded(job["program"], module)
    if failure is not None:
        return failure
    return _called(job, module) if job["kind"] == "call" else _asserted(job, module)


def _loaded(program: str, module: types.ModuleType) -> Told | None:
    """What goes wrong when the program itself runs; a script's exit goes on its way."""
    try:
        code = compile(program, _ANSWER, "exec", dont_inherit=True)
    except (SyntaxError, ValueError, RecursionError, OverflowError) as error:
        return _found("syntax", _kind(error))
    try:
        exec(code, module.__dict__)
    except MemoryError:
        raise
    except AssertionError:
        return _found("own_assert")
    except BaseException as error:
        if module.__name__ == "__main__" and isinstance(error, SystemExit):
            raise
        return _found("runtime_error", _kind(error))
    return None


def _asserted(job: Told, module: types.ModuleType) -> Told:
    """Tests run in a copy of the program's names: its own calls of the entry point stay as they
    are, those of the tests are guarded."""
    names = dict(module.__dict__)
    refused: list[str] = []
    name = job["entry_point"]
    if name is not None:
        if not callable(names.get(name)):
            return _found("entry_point_missing", name)
        if not isinstance(names[name], type):
            names[name] = guarded(names[name], refused)
    try:
        tests = compile(job["tests"], _TESTS, "exec", dont_inherit=True)
    except (SyntaxError, ValueError) as error:
        return _found("sandbox_error", f"the tests are no Python: {error}")
    try:
        exec(tests, names)
    except MemoryError:
        raise
    except AssertionError as error:
        return _found("assertion", refused[0] if refused else _failed(error, job["tests"]))
    except BaseException as error:  # noqa: BLE001 - whatever a program raises is its verdict
        return _found("runtime_error", _kind(error))
    return _found("assertion", refused[0]) if refused else _found("passed")


def _called(job: Told, module: types.ModuleType) -> Told:
    """All results, each on a fresh copy of its arguments; the parent compares them."""
    results = []
    for arguments in job["inputs"]:
        try:
            function = _function(job, module)
            if function is None:
                return _found("entry_point_missing", job["entry_point"])
            results.append(told(function(*heard(arguments))))
        except MemoryError:
            raise
        except UntoldError as error:
            return _found("assertion", str(error))
        except BaseException as error:  # noqa: BLE001 - whatever a program raises is its verdict
            return _found("runtime_error", _kind(error))
    return {"outcome": "passed", "results": results}


def _function(job: Told, module: types.ModuleType) -> Any:
    """The entry point, of a fresh instance where it is a method; None where it is missing."""
    owner: object = module
    if job["of_class"] is not None:
        made = getattr(module, job["of_class"], None)
        if not callable(made):
            return None
        owner = made()
    function = getattr(owner, job["entry_point"], None)
    return function if callable(function) else None


def _failed(error: AssertionError, tests: str) -> str:
    """The line of the tests that failed."""
    number = 0
    trace = error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == _TESTS:
            number = trace.tb_lineno
        trace = trace.tb_next
    return tests.split("\n")[number - 1].strip()[:_LONGEST] if number else ""


def _kind(error: BaseException) -> str:
    return str(_type_name(type(error)))[:_LONGEST]


def _found(outcome: str, detail: str = "") -> Told:
    return {"outcome": outcome, "detail": detail}
