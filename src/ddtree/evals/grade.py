"""From answers on file to graded samples: extraction, then tests in the sandbox."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ddtree.evals.comparison import GradedSample
from ddtree.evals.extract.answer import Answer
from ddtree.evals.extract.extract import complete, extract
from ddtree.evals.extract.thinking import ALL_TAGS, ThinkingTags
from ddtree.evals.outcomes import Verdict
from ddtree.evals.sandbox.job import Job
from ddtree.evals.selfcheck import Runner, limits_of
from ddtree.evals.spec import EvalSpec
from ddtree.evals.tasks import Task
from ddtree.records.requests import RequestRecord

Key = tuple[str, int]


@dataclass(frozen=True)
class _Read:
    """An answer as extraction read it."""

    key: Key
    record: RequestRecord
    answer: Answer


def grade_answers(
    spec: EvalSpec,
    tasks: Sequence[Task],
    answers: Sequence[Mapping[Key, RequestRecord]],
    run: Runner,
) -> list[list[GradedSample]]:
    """Graded samples of each side, in the order of tasks and samples.

    A program that several answers have in common runs once.
    """
    by_id = {task.id: task for task in tasks}
    sides = [
        [_read(spec, by_id, key, side[key]) for key in _order(tasks, side)] for side in answers
    ]
    jobs: dict[tuple[str, str], Job] = {}
    for side in sides:
        for read in side:
            task = by_id[read.key[0]]
            for program in (read.answer.program, read.answer.lenient):
                if program is not None:
                    job = Job(program, task.tests, task.entry_point, limits_of(task))
                    jobs.setdefault((task.id, program), job)
    verdicts = dict(zip(jobs, run(list(jobs.values())), strict=True))
    return [[_graded(read, verdicts) for read in side] for side in sides]


def _order(tasks: Sequence[Task], side: Mapping[Key, RequestRecord]) -> list[Key]:
    place = {task.id: number for number, task in enumerate(tasks)}
    return sorted((key for key in side if key[0] in place), key=lambda key: (place[key[0]], key[1]))


def _read(spec: EvalSpec, tasks: Mapping[str, Task], key: Key, record: RequestRecord) -> _Read:
    task, text = tasks[key[0]], record.text
    if spec.prompting == "completion":
        return _Read(key, record, complete(text or "", task))
    return _Read(key, record, extract(text, task, record.finish_reason, tags_of(spec, record)))


def tags_of(spec: EvalSpec, record: RequestRecord) -> ThinkingTags:
    """How thinking is marked in an answer's content.

    Where thinking was asked for and did not come apart, the template may have opened it: then an
    answer without any tag was cut off before its end, and what looks like code in it is a draft.
    """
    opened = spec.thinking is True and not (record.thinking or "").strip()
    return ThinkingTags(opened=True) if opened else ALL_TAGS


def _graded(read: _Read, verdicts: Mapping[tuple[str, str], Verdict]) -> GradedSample:
    answer, record, task = read.answer, read.record, read.key[0]
    verdict = Verdict(answer.missing or "no_code")
    if answer.program is not None:
        verdict = verdicts[task, answer.program]
    lenient = answer.lenient is not None and verdicts[task, answer.lenient].passed
    return GradedSample(
        task=task,
        sample=read.key[1],
        outcome=verdict.outcome,
        lenient_passed=verdict.passed or lenient,
        method=answer.method,
        flags=answer.flags,
        missing=answer.missing,
        text=record.text or "",
        token_ids=record.token_ids if record.counted == "ids" else None,
        finish_reason=record.finish_reason,
        detail=verdict.detail,
        seconds=verdict.seconds,
        blocks=answer.blocks,
        block=answer.block,
        thinking_chars=answer.thinking_chars,
        code_sha256=answer.code_sha256,
    )
