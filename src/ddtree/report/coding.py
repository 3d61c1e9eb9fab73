"""A coding evaluation as rows of text: pass rates beside speed, an arm against the baseline."""

from collections.abc import Mapping
from dataclasses import dataclass

from ddtree.records.evals import Discordant, EvalRow, EvalSummary, PairedResult
from ddtree.records.summary import Interval
from ddtree.report.grid import Column
from ddtree.report.numbers import Shown, count, fixed, missing, number, percent, times
from ddtree.report.tables import GRADE_WORDS

COLUMNS = (
    Column("pass@1"),
    Column("Difference, points"),
    Column("A loss above is excluded, points"),
    Column("Lost and won tasks"),
    Column("McNemar's p"),
    Column("Identical outputs"),
    Column("Losslessness", text=True),
    Column("Ended at the limit"),
    Column("System, tokens/s"),
    Column("Speed-up"),
    Column("Acceptance length"),
)
SHOWN_CHARS = 4_000
"""As much of an answer as the page shows: its end, where the code is."""
SHOWN_TASKS = 25
_BASELINE = "the baseline"
_NOT_SCORED = "no server scored the outputs that differ"


@dataclass(frozen=True)
class ArmView:
    """An arm's row. `evidence` says which of tests and outputs tells more about it."""

    arm: str
    values: tuple[Shown, ...]
    outcomes: str
    methods: str
    evidence: str


@dataclass(frozen=True)
class Pair:
    """A task that passes with one of the two alone; answers from their ends."""

    arm: str
    task: str
    baseline_outcome: str
    arm_outcome: str
    baseline_answer: str
    arm_answer: str


@dataclass(frozen=True)
class CodingView:
    """One evaluation on the page. `more_pairs` are as many as were left out."""

    suite: str
    facts: tuple[tuple[str, str], ...]
    problems: tuple[str, ...]
    warnings: tuple[str, ...]
    rows: tuple[ArmView, ...]
    pairs: tuple[Pair, ...]
    more_pairs: int
    noise: str


def coding_view(summary: EvalSummary) -> CodingView:
    """What a page shows of an evaluation."""
    pairs = [
        _pair(row.arm.label, item)
        for row in summary.rows
        if row.paired is not None
        for item in row.paired.discordant
    ]
    return CodingView(
        suite=summary.suite,
        facts=_facts(summary),
        problems=summary.problems,
        warnings=summary.warnings,
        rows=tuple(_arm(row) for row in summary.rows),
        pairs=tuple(pairs[:SHOWN_TASKS]),
        more_pairs=max(0, len(pairs) - SHOWN_TASKS),
        noise=_noise(summary.noise),
    )


def coding_text(summary: EvalSummary) -> str:
    """The evaluation as lines for a terminal."""
    view = coding_view(summary)
    lines = [f"{view.suite}: " + "; ".join(value for _, value in view.facts[1:4])]
    lines += [f"NOT VALID: {problem}" for problem in view.problems]
    lines += [f"warning: {warning}" for warning in view.warnings]
    for row in view.rows:
        lines += ["", row.arm]
        lines += [
            f"  {column.title}: {value.why_missing or f'{value.text} ({value.note})'}".replace(
                " ()", ""
            )
            for column, value in zip(COLUMNS, row.values, strict=True)
            if value.why_missing != _BASELINE
        ]
        lines += [f"  Outcomes: {row.outcomes}", f"  Extraction: {row.methods}"]
        lines.append(f"  {row.evidence}")
    if view.noise:
        lines += ["", view.noise]
    for pair in view.pairs:
        lines.append(
            f"{pair.task}: {pair.baseline_outcome} with ar, {pair.arm_outcome} with {pair.arm}"
        )
    return "\n".join(lines)


def _facts(summary: EvalSummary) -> tuple[tuple[str, str], ...]:
    server = summary.provenance.get("server") or {}
    versions = summary.provenance.get("versions") or {}
    machine = {
        "Processor": summary.provenance.get("cpu"),
        "Server's device": server.get("device"),
        "Torch, transformers": _both(server.get("torch"), server.get("transformers")),
        "ddtree": versions.get("ddtree"),
        "Run": summary.provenance.get("created"),
    }
    return (
        ("Suite", f"{summary.suite}, sha256 {summary.suite_sha256}"),
        ("Tasks", _tasks(summary)),
        ("Prompting", f"{summary.prompting}, {summary.sampling}"),
        ("Limit", f"{summary.max_tokens:,} tokens"),
        ("Model", summary.model),
        ("Sandbox", summary.sandbox),
        ("Self-check", summary.selfcheck),
        ("Extraction", f"version {summary.extractor}"),
        *((name, str(value)) for name, value in machine.items() if value),
    )


def _both(a: object, b: object) -> str:
    return f"{a}, {b}" if a and b else ""


def _tasks(summary: EvalSummary) -> str:
    tasks = max((row.tasks for row in summary.rows), default=0)
    return f"{count(tasks, 'task')}, {count(summary.samples, 'answer')} to each"


def _arm(row: EvalRow) -> ArmView:
    return ArmView(
        row.arm.label,
        (_passed(row), *_against(row.paired), *_speeds(row)),
        _outcomes(row),
        _counts(row.methods)
        + (f"; {row.lenient_passed} would pass leniently" if _lenient(row) else ""),
        row.evidence,
    )


def _lenient(row: EvalRow) -> bool:
    return row.lenient_passed != row.passed


def _passed(row: EvalRow) -> Shown:
    rate = row.pass_at[1]
    return Shown(f"{100 * rate:.1f} %", f"{_points(row.interval)}, {row.passed} of {row.samples}")


def _outcomes(row: EvalRow) -> str:
    """What became of the answers; pass@k before it, where there are samples for it."""
    more = [f"pass@{k} {100 * value:.1f} %" for k, value in row.pass_at.items() if k != 1]
    return "; ".join([*more, _counts(row.outcomes)])


def _points(interval: Interval) -> str:
    return f"{100 * interval.low:.1f} to {100 * interval.high:.1f}"


def _against(found: PairedResult | None) -> tuple[Shown, ...]:
    if found is None:
        return tuple(missing(_BASELINE) for _ in COLUMNS[1:7])
    interval = "no interval" if found.interval is None else _points(found.interval)
    excluded = max(found.excluded_loss, 0.0)
    return (
        Shown(f"{100 * found.difference:+.1f}", interval),
        Shown(f"{100 * excluded:.1f}", "95 %, one-sided"),
        Shown(
            f"{found.only_baseline} lost, {found.only_arm} won",
            f"{found.both} pass with both",
        ),
        number(found.mcnemar_p, 3, ""),
        Shown(f"{found.identical:,} of {found.compared:,}"),
        missing(_NOT_SCORED)
        if found.grade is None
        else Shown(GRADE_WORDS[found.grade], badge=found.grade),
    )


def _speeds(row: EvalRow) -> tuple[Shown, ...]:
    base = row.paired is None
    drafts = row.arm.method != "ar"
    return (
        percent(row.length_share, 0, ""),
        number(row.tokens_per_s, 1, "never were all requests busy at once"),
        missing(_BASELINE) if base else _ratio(row.speedup),
        number(row.acceptance_length, 2, "not reported")
        if drafts
        else missing("ar drafts nothing"),
    )


def _ratio(speedup: float | None) -> Shown:
    shown = times(speedup, None, "no block to compare")
    # A mean over the evaluation's blocks: the benchmark's cells are where intervals come from.
    return shown if shown.why_missing else Shown(shown.text)


def _counts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{name.replace('_', ' ')} {n}" for name, n in counts.items())


def _noise(found: PairedResult | None) -> str:
    if found is None:
        return ""
    return (
        f"Noise: the baseline run twice gave {found.identical} of {found.compared} identical "
        f"outputs; {found.only_baseline} tasks passed the first time alone and {found.only_arm} "
        f"the second, a difference of {fixed(100 * found.difference, 1)} points without any "
        f"drafter.{_own_grade(found)}"
    )


def _own_grade(found: PairedResult) -> str:
    """How the baseline's second run is graded, by the measure of the arms."""
    return (
        "" if found.grade is None else f" By the measure of the arms: {GRADE_WORDS[found.grade]}."
    )


def _pair(arm: str, item: Discordant) -> Pair:
    return Pair(
        arm,
        item.task,
        item.baseline_outcome.replace("_", " "),
        item.arm_outcome.replace("_", " "),
        _end(item.baseline_answer),
        _end(item.arm_answer),
    )


def _end(text: str) -> str:
    if len(text) <= SHOWN_CHARS:
        return text
    return f"[{len(text) - SHOWN_CHARS:,} characters before]\n{text[-SHOWN_CHARS:]}"
