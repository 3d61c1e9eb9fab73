"""A coding task: what the model is asked, and how its answer is tested."""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class AssertTests:
    """Python source run after the program, in its namespace, with the entry point's results
    guarded (`sandbox.inside.runner`); an exception fails the answer."""

    source: str


@dataclass(frozen=True)
class CallTests:
    """The entry point is called with each of `inputs` (positional arguments).

    `expected[i]` is the right result; None where the reference's results are to be taken. With
    `atol` floats may differ by so much (absolutely; 0 is equality). With `of_class` the entry point
    is a method of that class, called on a fresh instance.
    """

    inputs: tuple[tuple[Any, ...], ...]
    expected: tuple[Any, ...] | None
    atol: float = 0.0
    of_class: str | None = None


@dataclass(frozen=True)
class IOCase:
    """What a program reads from standard input, and what it must print."""

    stdin: str
    stdout: str


@dataclass(frozen=True)
class StdinTests:
    """The program is run as a script once for each case."""

    cases: tuple[IOCase, ...]


Tests = AssertTests | CallTests | StdinTests


@dataclass(frozen=True)
class Task:
    """One problem.

    `prompt` is what the model is given. With `prompt_is_code` it is the head of a Python program
    (imports, helpers, signature, docstring) that an answer may go on from. `entry_point` is the
    function that tests call, None for a program that reads standard input. `preamble` is source
    that stands before every answer (the prompt's imports and helper functions). `reference` is a
    whole right program. `timeout_s` None leaves the sandbox's limit.
    """

    id: str
    prompt: str
    entry_point: str | None
    tests: Tests
    prompt_is_code: bool = False
    preamble: str = ""
    reference: str | None = None
    timeout_s: float | None = None
