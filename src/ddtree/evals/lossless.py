"""Outputs that differ from the baseline's, scored by the server token by token."""

import asyncio
import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from ddtree.endpoint.calls import Prompt
from ddtree.endpoint.client import ServerClient
from ddtree.errors import DDTreeError
from ddtree.evals.generate import Progress, Side, answers_of
from ddtree.evals.prompting import sampling_of
from ddtree.evals.spec import BASELINE, EvalSpec
from ddtree.records.files import write_atomic
from ddtree.records.requests import RequestRecord
from ddtree.verify.control import ControlResult, run_control
from ddtree.verify.endpoint_source import EndpointSource
from ddtree.verify.grade import grade_cell
from ddtree.verify.outputs import Output
from ddtree.verify.scoring import CachedScorer, Scorer

GRADES_FILE = "lossless.json"
# Baseline outputs that the control scores.
_CONTROL_OUTPUTS = 8

Key = tuple[str, int]


async def grade_outputs(
    spec: EvalSpec,
    folder: Path,
    client: ServerClient,
    prompts: Mapping[str, Prompt],
    progress: Progress,
) -> None:
    """Grade each arm against the baseline and keep the grades.

    Answers without token ids stay unclassified unless they are identical, and so do all where the
    server can't score: `progress` is told why.
    """
    base = answers_of(folder, Side(BASELINE))
    sides = {arm.label: answers_of(folder, Side(arm)) for arm in spec.arms[1:]}
    outputs = {key: _output(spec, prompts, key, record) for key, record in base.items()}
    some = [output for output in outputs.values() if output is not None][:_CONTROL_OUTPUTS]
    scorer, control = await _control(spec, some, client, progress)
    grades = {}
    for label, answers in sides.items():
        pairs = _pairs(spec, prompts, outputs, answers)
        try:
            found = await grade_cell(pairs, scorer, spec.dtype, control)
        except DDTreeError as error:
            grades[label] = "unclassified"
            progress.note(f"grading outputs: {label}: differences stay open: {error}")
            continue
        apart = _apart(base, answers, outputs)
        grades[label] = "unclassified" if apart and found.grade != "not-lossless" else found.grade
        progress.note(
            f"grading outputs: {label}: {grades[label]}, {found.identical} of {found.outputs} "
            f"identical, {found.near_ties} near-ties"
        )
    await asyncio.to_thread(write_atomic, folder / GRADES_FILE, json.dumps(grades, indent=1) + "\n")


async def _control(
    spec: EvalSpec, some: Sequence[Output], client: ServerClient, progress: Progress
) -> tuple[Scorer | None, ControlResult | None]:
    """The server as a scorer, with what its arithmetic alone moves; None where it can't score."""
    if not some:
        progress.note("grading outputs: there are no token ids, differences stay open")
        return None, None
    scorer = CachedScorer(EndpointSource(client))
    rows = max([2, *((arm.budget or 0) + 1 for arm in spec.arms)])
    try:
        return scorer, await run_control(some, scorer, rows, spec.dtype)
    except DDTreeError as error:
        progress.note(f"grading outputs: differences stay open: {error}")
        return None, None


def read_grades(folder: Path) -> dict[str, str]:
    """Grades by arm's label; empty before they were made."""
    path = folder / GRADES_FILE
    return dict(json.loads(path.read_text())) if path.exists() else {}


def _pairs(
    spec: EvalSpec,
    prompts: Mapping[str, Prompt],
    outputs: Mapping[Key, Output | None],
    answers: Mapping[Key, RequestRecord],
) -> list[tuple[Output, Output]]:
    pairs = []
    for key, record in answers.items():
        base, mine = outputs.get(key), _output(spec, prompts, key, record)
        if base is not None and mine is not None:
            pairs.append((base, mine))
    return pairs


def _apart(
    base: Mapping[Key, RequestRecord],
    answers: Mapping[Key, RequestRecord],
    outputs: Mapping[Key, Output | None],
) -> int:
    """Answers that differ from the baseline's and can't be compared by token ids."""
    return sum(
        key in base
        and (outputs[key] is None or record.counted != "ids")
        and record.text != base[key].text
        for key, record in answers.items()
    )


def _output(
    spec: EvalSpec, prompts: Mapping[str, Prompt], key: Key, record: RequestRecord
) -> Output | None:
    """None where the prompt or the answer is not known in token ids."""
    prompt = prompts.get(key[0])
    if not isinstance(prompt, tuple) or record.counted != "ids":
        return None
    return Output(
        prompt,
        record.token_ids,
        record.finish_reason,
        spec.max_tokens,
        sampling_of(spec, *key),
        stop_strings=spec.prompting == "completion",
    )


def missing(spec: EvalSpec, grades: Mapping[str, str]) -> Sequence[str]:
    """Arms that were not graded, or only in part."""
    return [
        arm.label
        for arm in spec.arms[1:]
        if grades.get(arm.label, "unclassified") == "unclassified"
    ]
