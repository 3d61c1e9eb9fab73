"""Does the grading work? Every reference must pass, and programs that don't solve a task must fail.

A sandbox that runs nothing, tests that never run and limits that are too tight all look like a
model that got better or worse. No evaluation is reported unless its self-check is clean.
"""

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from ddtree.errors import ConfigError
from ddtree.evals.mutants import mutants
from ddtree.evals.outcomes import Outcome, Verdict
from ddtree.evals.sandbox.job import Job
from ddtree.evals.sandbox.limits import Limits
from ddtree.evals.tasks import CallTests, Task

Runner = Callable[[Sequence[Job]], Iterable[Verdict]]
"""Runs jobs in a sandbox; one verdict for each, in their order."""

MUTANT_WALL_S = 5.0
"""What a mutant may take: some never end, and those have failed by then."""

_NAMED = 5

Role = Literal["reference", "hard", "near miss"]


@dataclass(frozen=True)
class Finding:
    """A program whose verdict is not the one it should have; `program` is `reference` or the
    mutant's name."""

    task: str
    program: str
    outcome: Outcome
    detail: str

    @property
    def words(self) -> str:
        """`HumanEval/3, returns None: passed`."""
        detail = f" ({self.detail})" if self.detail else ""
        return f"{self.task}, {self.program}: {self.outcome}{detail}"


@dataclass(frozen=True)
class SelfCheck:
    """Of `tasks`, `references` have a reference. `failed` are references that don't pass,
    `survivors` those of the `hard` mutants that do, `errors` programs that the sandbox failed on.
    Of `near_misses`, mutants that may be right after all, `near_misses_failed` fail.
    """

    tasks: int
    references: int
    failed: tuple[Finding, ...]
    hard: int
    survivors: tuple[Finding, ...]
    near_misses: int
    near_misses_failed: int
    errors: tuple[Finding, ...]

    @property
    def ok(self) -> bool:
        """Whether grading may be trusted: something was checked and nothing was found."""
        return self.hard > 0 and not (self.failed or self.survivors or self.errors)

    @property
    def line(self) -> str:
        """For the report: what was checked, and what was found."""
        parts = [
            f"{self.references - len(self.failed)} of {self.references} references pass",
            f"{self.hard - len(self.survivors)} of {self.hard} wrong programs fail",
        ]
        if self.references < self.tasks:
            parts[0] += f" ({self.tasks - self.references} tasks have none)"
        if self.near_misses:
            parts.append(f"{self.near_misses_failed} of {self.near_misses} near misses fail")
        if self.errors:
            parts.append(f"the sandbox failed on {len(self.errors)}")
        found = [*self.failed, *self.survivors, *self.errors]
        return ", ".join(parts) + (f". NOT CLEAN: {_some(found)}" if found else "")


def selfcheck(tasks: Sequence[Task], run: Runner) -> SelfCheck:
    """Run all references and mutants of `tasks`.

    ConfigError where a task's expected results are not known yet: whatever the reference does
    would be right (`with_expected` fills them in).
    """
    for task in tasks:
        if isinstance(task.tests, CallTests) and task.tests.expected is None:
            raise ConfigError(f"task {task.id}: no expected results; take them from its reference")
    planned = [item for task in tasks for item in _programs(task)]
    verdicts = run([_job(item) for item in planned])
    pairs = list(zip(planned, verdicts, strict=True))
    by_role: dict[Role, list[tuple[_Program, Verdict]]] = {
        "reference": [],
        "hard": [],
        "near miss": [],
    }
    for item, verdict in pairs:
        if verdict.outcome != "sandbox_error":
            by_role[item.role].append((item, verdict))
    return SelfCheck(
        tasks=len(tasks),
        references=sum(task.reference is not None for task in tasks),
        failed=_findings(pair for pair in by_role["reference"] if not pair[1].passed),
        hard=sum(item.role == "hard" for item in planned),
        survivors=_findings(pair for pair in by_role["hard"] if pair[1].passed),
        near_misses=sum(item.role == "near miss" for item in planned),
        near_misses_failed=sum(not verdict.passed for _, verdict in by_role["near miss"]),
        errors=_findings(pair for pair in pairs if pair[1].outcome == "sandbox_error"),
    )


def with_expected(tasks: Sequence[Task], run: Runner) -> tuple[Task, ...]:
    """The tasks with the results that their references give, where none were given.

    ConfigError names tasks without a reference, and references that don't run to their end.
    """
    open_tasks = {
        task.id: task.tests
        for task in tasks
        if isinstance(task.tests, CallTests) and task.tests.expected is None
    }
    jobs = [_reference_job(task) for task in tasks if task.id in open_tasks]
    verdicts = dict(zip(open_tasks, run(jobs), strict=True))
    bad = [
        Finding(task, "reference", verdict.outcome, verdict.detail)
        for task, verdict in verdicts.items()
        if not verdict.passed or len(verdict.values) != len(open_tasks[task].inputs)
    ]
    if bad:
        raise ConfigError(f"references that give no expected results: {_some(bad)}")
    return tuple(
        dataclasses.replace(
            task,
            tests=dataclasses.replace(open_tasks[task.id], expected=verdicts[task.id].values),
        )
        if task.id in open_tasks
        else task
        for task in tasks
    )


def limits_of(task: Task) -> Limits:
    """The sandbox's limits, with the task's own time where it has one."""
    if task.timeout_s is None:
        return Limits()
    return dataclasses.replace(Limits(), wall_s=task.timeout_s, cpu_s=task.timeout_s)


@dataclass(frozen=True)
class _Program:
    task: Task
    name: str
    source: str
    role: Role


def _programs(task: Task) -> list[_Program]:
    made = [
        _Program(task, mutant.name, mutant.program, "hard" if mutant.hard else "near miss")
        for mutant in mutants(task)
    ]
    if task.reference is None:
        return made
    return [_Program(task, "reference", task.reference, "reference"), *made]


def _job(item: _Program) -> Job:
    limits = limits_of(item.task)
    if item.role != "reference":
        limits = dataclasses.replace(limits, wall_s=min(limits.wall_s, MUTANT_WALL_S))
    return Job(item.source, item.task.tests, item.task.entry_point, limits)


def _reference_job(task: Task) -> Job:
    if task.reference is None:
        raise ConfigError(
            f"task {task.id}: neither expected results nor a reference that gives them"
        )
    return Job(task.reference, task.tests, task.entry_point, limits_of(task))


def _findings(pairs: Iterable[tuple[_Program, Verdict]]) -> tuple[Finding, ...]:
    return tuple(
        Finding(item.task.id, item.name, verdict.outcome, verdict.detail) for item, verdict in pairs
    )


def _some(found: Sequence[Finding]) -> str:
    """The first few, and how many more."""
    named = "; ".join(finding.words for finding in found[:_NAMED])
    more = f"; and {len(found) - _NAMED} more" if len(found) > _NAMED else ""
    return named + more
