"""What a sandbox is asked to run."""

from dataclasses import dataclass, field

from ddtree.evals.sandbox.limits import Limits
from ddtree.evals.tasks import Tests


@dataclass(frozen=True)
class Job:
    """A program and its tests. `entry_point` is the function that the tests call, None for a
    program that reads standard input."""

    program: str
    tests: Tests
    entry_point: str | None
    limits: Limits = field(default_factory=Limits)
