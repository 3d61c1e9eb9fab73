"""What can become of an answer."""

from dataclasses import dataclass
from typing import Any, Literal, get_args

Outcome = Literal[
    "passed",
    "assertion",
    "runtime_error",
    "own_assert",
    "syntax",
    "timeout",
    "memory",
    "output_limit",
    "killed",
    "no_code",
    "truncated_thinking",
    "entry_point_missing",
    "sandbox_error",
]
"""`own_assert` is an assertion of the answer's own at its top level; `killed` ended by a signal;
`truncated_thinking` never came to its answer. `sandbox_error` says nothing about the answer: it is
never counted as wrong, and a run with any is not valid."""

OUTCOMES: tuple[Outcome, ...] = get_args(Outcome)


@dataclass(frozen=True)
class Verdict:
    """`detail` names the exception, the signal or the failed test in few words; `seconds` is wall
    clock time in the sandbox. `values` are the results of a `CallTests` run whose expected results
    were not given, in the order of its inputs; empty otherwise."""

    outcome: Outcome
    detail: str = ""
    seconds: float = 0.0
    values: tuple[Any, ...] = ()

    @property
    def passed(self) -> bool:
        """Whether every test passed."""
        return self.outcome == "passed"
