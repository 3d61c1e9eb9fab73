"""An evaluation's summary from its folder: graded, compared, and held against its own checks."""

import dataclasses
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ddtree.errors import ConfigError
from ddtree.evals.comparison import GradedSample, evidence, paired, row
from ddtree.evals.extract.extract import EXTRACTOR
from ddtree.evals.extract.thinking import ALL_TAGS, FAMILIES, cut_thinking
from ddtree.evals.generate import REQUESTS_FILE, Side, answers_of, asked_of, sides_of
from ddtree.evals.grade import grade_answers
from ddtree.evals.lossless import read_grades
from ddtree.evals.selfcheck import Runner, SelfCheck
from ddtree.evals.spec import EvalSpec
from ddtree.evals.speeds import speeds_of
from ddtree.evals.tasks import Task
from ddtree.records.evals import EVAL_FILE, EvalRow, EvalSummary, PairedResult
from ddtree.records.files import read_requests, write_atomic
from ddtree.records.requests import RequestRecord
from ddtree.records.summary import Losslessness

PROVENANCE_FILE = "provenance.json"
SAMPLES_FILE = "samples.jsonl"
"""A line for each graded answer: what became of it, and how its program was found."""
_RAW = ("text", "token_ids")
# Answers that may contradict the thinking switch, and that may end at the limit, as shares.
_AGAINST_SWITCH = 0.05
_AT_LIMIT = 0.02

Answers = Mapping[tuple[str, int], RequestRecord]


@dataclass(frozen=True)
class Grader:
    """`run` runs jobs in the sandbox that `sandbox` describes in one line."""

    run: Runner
    sandbox: str
    selfcheck: SelfCheck


def write_eval(folder: Path, spec: EvalSpec, tasks: Sequence[Task], grader: Grader) -> EvalSummary:
    """Grade what is on file and keep the summary in the folder."""
    graded = grade_folder(folder, spec, tasks, grader)
    write_atomic(folder / SAMPLES_FILE, "".join(_lines(graded)))
    summary = summarise(folder, spec, tasks, grader, graded)
    write_atomic(folder / EVAL_FILE, summary.to_json())
    return summary


def grade_folder(
    folder: Path, spec: EvalSpec, tasks: Sequence[Task], grader: Grader
) -> dict[Side, list[GradedSample]]:
    """Every answer on file, graded. ConfigError where an arm has none."""
    sides = sides_of(spec)
    answers = [answers_of(folder, side) for side in sides]
    for side, found in zip(sides, answers, strict=True):
        if not found:
            raise ConfigError(_nothing(folder, side))
    return dict(zip(sides, grade_answers(spec, tasks, answers, grader.run), strict=True))


def _lines(graded: Mapping[Side, Sequence[GradedSample]]) -> Iterator[str]:
    for side, samples in graded.items():
        for sample in samples:
            fields = dataclasses.asdict(sample)
            kept = {name: value for name, value in fields.items() if name not in _RAW}
            yield json.dumps({"cell": side.cell, **kept}, separators=(",", ":")) + "\n"


def summarise(
    folder: Path,
    spec: EvalSpec,
    tasks: Sequence[Task],
    grader: Grader,
    graded: Mapping[Side, Sequence[GradedSample]],
) -> EvalSummary:
    """The summary of graded answers. ConfigError where none of an arm's was graded."""
    sides = sides_of(spec)
    answers = [answers_of(folder, side) for side in sides]
    common = _common(graded)
    results = {
        side: [s for s in found if (s.task, s.sample) in common] for side, found in graded.items()
    }
    grades = read_grades(folder)
    asked = [asked_of(folder, side) for side in sides]
    rows, noise = [], None
    for side, records in zip(sides, asked, strict=True):
        against = _against(spec, side, results, grades)
        if side.again:
            noise = against
        else:
            rows.append(_row(spec, side, results[side], (records, asked[0]), against))
    summary = EvalSummary(
        suite=spec.suite,
        suite_sha256=spec.suite_sha256,
        model=spec.model,
        prompting=spec.prompting,
        sampling=spec.sampling.label,
        samples=spec.samples,
        max_tokens=spec.max_tokens,
        extractor=EXTRACTOR,
        sandbox=grader.sandbox,
        selfcheck=grader.selfcheck.line,
        rows=tuple(rows),
        noise=noise,
        problems=(
            *_problems(spec, tasks, dict(zip(sides, answers, strict=True)), rows, grader),
            *_sandbox_errors(graded),
        ),
        provenance=_provenance(folder),
    )
    return dataclasses.replace(summary, warnings=warnings_of(summary))


def _provenance(folder: Path) -> Mapping[str, Any]:
    path = folder / PROVENANCE_FILE
    return dict(json.loads(path.read_text(encoding="utf-8"))) if path.exists() else {}


def _nothing(folder: Path, side: Side) -> str:
    path = folder / REQUESTS_FILE
    errors = [r.error for r in read_requests(path) if r.cell == side.cell and r.error]
    last = f"no request succeeded, the last one: {errors[-1]}" if errors else "nothing was asked"
    return f"{side.cell}: {last} (see {path})"


def _row(
    spec: EvalSpec,
    side: Side,
    samples: Sequence[GradedSample],
    asked: tuple[Sequence[RequestRecord], Sequence[RequestRecord]],
    against: PairedResult | None,
) -> EvalRow:
    speeds = speeds_of(*asked, spec.concurrency)
    found = row(side.arm, samples, spec.seed, speeds=speeds, against=against)
    return dataclasses.replace(found, evidence=evidence(found))


def _against(
    spec: EvalSpec,
    side: Side,
    results: Mapping[Side, Sequence[GradedSample]],
    grades: Mapping[str, Losslessness],
) -> PairedResult | None:
    baseline = next(iter(results))
    if side == baseline:
        return None
    found = grades.get(side.cell)
    return paired(results[baseline], results[side], spec.seed, found.grade if found else None)


def _common(graded: Mapping[Side, Sequence[GradedSample]]) -> set[tuple[str, int]]:
    """Answers that every side has."""
    keys = [{(s.task, s.sample) for s in found} for found in graded.values()]
    return set.intersection(*keys)


def _problems(
    spec: EvalSpec,
    tasks: Sequence[Task],
    answers: Mapping[Side, Answers],
    rows: Sequence[EvalRow],
    grader: Grader,
) -> tuple[str, ...]:
    """Why the evaluation is not valid."""
    found = []
    if not grader.selfcheck.ok:
        found.append(f"the self-check is not clean: {grader.selfcheck.line}")
    wanted = len(tasks) * spec.samples
    for side, records in answers.items():
        if len(records) != wanted:
            found.append(f"{side.cell}: {wanted - len(records)} of {wanted} answers are missing")
        against = sum(_contradicts(spec, record) for record in records.values())
        if against > _AGAINST_SWITCH * max(1, len(records)):
            switch = "on" if spec.thinking else "off"
            found.append(
                f"{side.cell}: thinking was switched {switch}, and {against} of {len(records)} "
                "answers contradict that: the server does not pass the switch on"
            )
    for arm in rows:
        if arm.paired is not None and arm.paired.method_shift is not None:
            found.append(
                f"{arm.arm.label}: extraction found code otherwise than for the baseline: "
                f"{arm.paired.method_shift}"
            )
    return tuple(found)


def _sandbox_errors(graded: Mapping[Side, Sequence[GradedSample]]) -> list[str]:
    """Of every side, the second run of the baseline included."""
    found = []
    for side, samples in graded.items():
        errors = sum(not sample.graded for sample in samples)
        if errors:
            found.append(f"{side.cell}: the sandbox failed on {errors} answers; grade them anew")
    return found


def warnings_of(summary: EvalSummary) -> tuple[str, ...]:
    """What does not make the evaluation invalid and should be known."""
    return tuple(
        f"{row.arm.label}: {row.length_share:.0%} of the answers ended at the limit of "
        f"{summary.max_tokens} tokens, so that a comparison is of shortened answers"
        for row in summary.rows
        if row.length_share > _AT_LIMIT
    )


def _contradicts(spec: EvalSpec, record: RequestRecord) -> bool:
    """Whether an answer thinks, or doesn't, against the switch."""
    if spec.thinking is None:
        return False
    thought = bool((record.thinking or "").strip()) or _thinks(record.text or "")
    # Cut off without a tag it may have been in a thinking that the template opened.
    unknown = spec.thinking and record.finish_reason == "length"
    return thought != spec.thinking and not unknown


def _thinks(text: str) -> bool:
    """Whether the content itself holds thinking: an empty pair of tags is none."""
    spoken = cut_thinking(text, ALL_TAGS)
    if spoken.unclosed or not spoken.thinking_chars:
        return spoken.unclosed
    head = text.removesuffix(spoken.text)
    for tag in (tag for family in FAMILIES for tag in family):
        head = head.replace(tag, "")
    return bool(head.strip())
