"""HumanEval: the prompt is the head of a function, the tests are a `check` of a candidate."""

from ddtree.evals.extract.program import preamble_of
from ddtree.evals.suites.fields import Record, json_lines
from ddtree.evals.tasks import AssertTests, Task


def read_humaneval(data: bytes, where: str = "HumanEval") -> tuple[Task, ...]:
    """Tasks in the file's order; `data` are JSON lines, gzipped or not.

    ConfigError names the line that is not as expected.
    """
    return tuple(_task(record) for record in json_lines(data, where))


def _task(record: Record) -> Task:
    prompt, entry_point = record.text("prompt"), record.text("entry_point")
    return Task(
        id=record.text("task_id"),
        prompt=prompt,
        entry_point=entry_point,
        tests=AssertTests(f"{record.text('test')}\ncheck({entry_point})\n"),
        prompt_is_code=True,
        preamble=preamble_of(prompt, entry_point),
        reference=prompt + record.text("canonical_solution"),
    )
