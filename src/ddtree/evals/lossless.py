"""Outputs that differ from the baseline's, scored by the server token by token."""

import asyncio
import dataclasses
import json
from collections.abc import Mapping, Sequence
from itertools import accumulate
from pathlib import Path

from ddtree.endpoint.calls import Prompt
from ddtree.endpoint.client import ServerClient
from ddtree.errors import DDTreeError
from ddtree.evals.generate import Progress, Side, answers_of, sides_of
from ddtree.evals.prompting import sampling_of
from ddtree.evals.spec import BASELINE, EvalSpec
from ddtree.records.files import write_atomic
from ddtree.records.requests import RequestRecord
from ddtree.records.summary import Losslessness
from ddtree.verify.control import ControlResult, run_control
from ddtree.verify.endpoint_source import EndpointSource
from ddtree.verify.grade import grade_cell
from ddtree.verify.outputs import Output
from ddtree.verify.scoring import CachedScorer, Scorer

GRADES_FILE = "lossless.json"
# Positions of the baseline's outputs that the control scores: it reads a 99.9 % quantile off them,
# and what lies beyond the largest of a few hundred moves is no rarity among tens of thousands.
_CONTROL_POSITIONS = 4096

Key = tuple[str, int]


async def grade_outputs(
    spec: EvalSpec,
    folder: Path,
    client: ServerClient,
    prompts: Mapping[str, Prompt],
    progress: Progress,
) -> None:
    """Grade each arm against the baseline and keep how; the baseline's second run as well, which
    says what its own batches move.

    Answers without token ids stay unclassified unless they are identical, and so do all where the
    server can't score: `progress` is told why.
    """
    base = answers_of(folder, Side(BASELINE))
    sides = {side.cell: answers_of(folder, side) for side in sides_of(spec)[1:]}
    outputs = {key: _output(spec, prompts, key, record) for key, record in base.items()}
    scorer, control = await _control(spec, _for_control(outputs), client, progress)
    grades: dict[str, Losslessness] = {}
    for label, answers in sides.items():
        pairs = _pairs(spec, prompts, outputs, answers)
        try:
            found = await grade_cell(pairs, scorer, spec.dtype, control)
        except DDTreeError as error:
            grades[label] = Losslessness("unclassified", len(answers), 0)
            progress.note(f"grading outputs: {label}: differences stay open: {error}")
            continue
        apart = _apart(base, answers, outputs)
        if apart and found.grade != "not-lossless":
            found = dataclasses.replace(found, grade="unclassified")
        grades[label] = found
        progress.note(
            f"grading outputs: {label}: {found.grade}, {found.identical} of {found.outputs} "
            f"identical, {found.near_ties} near-ties"
        )
    text = json.dumps(
        {label: dataclasses.asdict(found) for label, found in grades.items()}, indent=1
    )
    await asyncio.to_thread(write_atomic, folder / GRADES_FILE, text + "\n")


def _for_control(outputs: Mapping[Key, Output | None]) -> list[Output]:
    """The first of the baseline's outputs that make up as many positions."""
    known = [output for output in outputs.values() if output is not None]
    positions = accumulate((len(output.token_ids) for output in known), initial=0)
    return [o for o, before in zip(known, positions, strict=False) if before < _CONTROL_POSITIONS]


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


def read_grades(folder: Path) -> dict[str, Losslessness]:
    """How each side's outputs compare with the baseline's, by cell; empty before they were made."""
    path = folder / GRADES_FILE
    if not path.exists():
        return {}
    return {cell: Losslessness(**found) for cell, found in json.loads(path.read_text()).items()}


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
