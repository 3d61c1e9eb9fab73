"""From graded samples to an arm's row, and to an arm against the baseline."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ddtree.errors import ConfigError
from ddtree.evals.extract.answer import Method
from ddtree.evals.extract.mix import method_shift
from ddtree.evals.outcomes import OUTCOMES, Outcome
from ddtree.evals.statistics import (
    cluster_interval,
    excluded_loss,
    mcnemar,
    mean_pass_at,
    paired_difference,
    wilson,
)
from ddtree.records.arms import Arm
from ddtree.records.evals import Discordant, EvalRow, PairedResult

PASS_AT = (1, 2, 5, 10, 50, 100)
"""The k of pass@k, as far as there are samples."""


@dataclass(frozen=True)
class GradedSample:
    """One answer and what came of it; `sample` counts a task's answers from 0.

    `method`, `flags` and `missing` are extraction's. `lenient_passed` means that it passes as it
    is or under the lenient reading. `text` is the raw answer, `token_ids` its tokens where the
    server gave them. `detail` and `seconds` are the sandbox's; the rest is extraction's, as in
    `Answer`.
    """

    task: str
    sample: int
    outcome: Outcome
    lenient_passed: bool
    method: Method
    flags: tuple[str, ...]
    missing: str | None
    text: str
    token_ids: tuple[int, ...] | None
    finish_reason: str | None
    detail: str = ""
    seconds: float = 0.0
    blocks: int = 0
    block: int | None = None
    thinking_chars: int = 0
    code_sha256: str | None = None

    @property
    def passed(self) -> bool:
        """Whether every test passed."""
        return self.outcome == "passed"

    @property
    def graded(self) -> bool:
        """False where the sandbox failed: that says nothing about the answer."""
        return self.outcome != "sandbox_error"


@dataclass(frozen=True)
class Speeds:
    """What the same requests say about speed; None where nobody measured it."""

    tokens_per_s: float | None = None
    speedup: float | None = None
    acceptance_length: float | None = None


def row(
    arm: Arm,
    samples: Sequence[GradedSample],
    seed: int,
    *,
    speeds: Speeds | None = None,
    against: PairedResult | None = None,
) -> EvalRow:
    """An arm's row. `against` is its comparison with the baseline, None for the baseline itself.

    Samples that the sandbox failed on are in `outcomes` and in no rate. ConfigError without a
    graded sample.
    """
    counts = _counts(samples)
    if not counts:
        raise ConfigError(f"{arm.label}: no sample was graded, expected at least one")
    speed = speeds or Speeds()
    outcomes = Counter(sample.outcome for sample in samples)
    at_limit = sum(sample.finish_reason == "length" for sample in samples)
    pass_at = {k: mean_pass_at(counts, k) for k in PASS_AT}
    single = all(n == 1 for n, _ in counts)
    return EvalRow(
        arm=arm,
        tasks=len(counts),
        samples=len(samples),
        passed=outcomes["passed"],
        pass_at={k: value for k, value in pass_at.items() if value is not None},
        interval=(
            wilson(outcomes["passed"], len(counts))
            if single
            else cluster_interval([c / n for n, c in counts], seed)
        ),
        outcomes={name: outcomes[name] for name in OUTCOMES if outcomes[name]},
        methods=methods_of(samples),
        lenient_passed=sum(sample.lenient_passed for sample in samples),
        length_share=at_limit / len(samples),
        tokens_per_s=speed.tokens_per_s,
        speedup=speed.speedup,
        acceptance_length=speed.acceptance_length,
        paired=against,
    )


def paired(
    baseline: Sequence[GradedSample],
    arm: Sequence[GradedSample],
    seed: int,
    grade: str | None = None,
) -> PairedResult:
    """An arm against the baseline, on the same samples of the same tasks.

    Pairs that the sandbox failed on count as outputs, in no rate. `grade` is the losslessness
    grade of the differing outputs, as whoever scored them found it. ConfigError where the two
    differ in tasks or samples, and where no pair was graded.
    """
    pairs = _pairs(baseline, arm)
    graded = [pair for pair in pairs if all(sample.graded for sample in pair)]
    if not graded:
        raise ConfigError("no sample was graded for both, expected at least one")
    firsts = _firsts(graded)
    passing = Counter((base.passed, other.passed) for base, other in firsts)
    losses, gains = passing[True, False], passing[False, True]
    rates = _rates([base for base, _ in graded]), _rates([other for _, other in graded])
    difference, interval = paired_difference(*rates, seed)
    return PairedResult(
        both=passing[True, True],
        only_baseline=losses,
        only_arm=gains,
        neither=passing[False, False],
        mcnemar_p=mcnemar(losses, gains),
        difference=difference,
        interval=interval,
        excluded_loss=excluded_loss(losses, gains, len(firsts)),
        identical=sum(_same_output(*pair) for pair in pairs),
        compared=len(pairs),
        grade=grade,
        method_shift=method_shift(methods_of(baseline), methods_of(arm)),
        discordant=tuple(_discordant(*pair) for pair in firsts if _differ(*pair)),
    )


def methods_of(samples: Sequence[GradedSample]) -> Mapping[str, int]:
    """How many samples were extracted how, by method, with what was missing where it was."""
    counts = Counter(
        sample.method if sample.missing is None else f"{sample.method}, {sample.missing}"
        for sample in samples
    )
    return dict(counts)


def evidence(row: EvalRow) -> str:
    """Which of the two says more about this arm's answers: its outputs or its pass rate."""
    found = row.paired
    if found is None:
        return "The baseline: what others are compared with."
    tests = (
        f"pass@1 alone excludes a loss of more than {100 * max(found.excluded_loss, 0):.1f} points "
        "(95 %, one-sided) and can't see a smaller one"
    )
    same = f"{found.identical} of {found.compared} outputs are identical"
    if found.identical == found.compared:
        return (
            f"All {found.compared} outputs are identical. That is the stronger evidence, since no "
            f"test could tell them apart; {tests}."
        )
    if found.grade in ("exact", "near-ties"):
        return (
            f"{same} and the others differ by near-ties alone, token by token. That is the "
            f"stronger evidence; {tests}."
        )
    if found.grade == "not-lossless":
        return (
            f"{same} and others are not lossless. That is the stronger evidence, whatever passes: "
            f"tests miss most wrong tokens; {tests}."
        )
    return (
        f"{same} and nothing could score the others, so that the tests are the evidence: {tests}."
    )


def _counts(samples: Sequence[GradedSample]) -> list[tuple[int, int]]:
    """(graded samples, passing ones) by task, in the order of first appearance."""
    total = Counter(sample.task for sample in samples if sample.graded)
    passing = Counter(sample.task for sample in samples if sample.passed)
    return [(n, passing[task]) for task, n in total.items()]


def _rates(samples: Sequence[GradedSample]) -> list[float]:
    return [c / n for n, c in _counts(samples)]


def _pairs(
    baseline: Sequence[GradedSample], arm: Sequence[GradedSample]
) -> list[tuple[GradedSample, GradedSample]]:
    """Pairs by task and sample, in the baseline's order."""
    sides = [{(sample.task, sample.sample): sample for sample in side} for side in (baseline, arm)]
    odd = sorted(sides[0].keys() ^ sides[1].keys())
    if odd or len(baseline) != len(sides[0]) or len(arm) != len(sides[1]):
        which = f"task {odd[0][0]!r}, sample {odd[0][1]}" if odd else "a sample comes twice"
        raise ConfigError(
            f"{len(arm)} samples against the baseline's {len(baseline)}: {which}; both must have "
            "answered the same samples of the same tasks"
        )
    return [(sample, sides[1][key]) for key, sample in sides[0].items()]


def _firsts(
    pairs: Sequence[tuple[GradedSample, GradedSample]],
) -> list[tuple[GradedSample, GradedSample]]:
    """The first pair of each task."""
    firsts: dict[str, tuple[GradedSample, GradedSample]] = {}
    for pair in sorted(pairs, key=lambda pair: pair[0].sample):
        firsts.setdefault(pair[0].task, pair)
    return [firsts[task] for task in dict.fromkeys(pair[0].task for pair in pairs)]


def _same_output(baseline: GradedSample, arm: GradedSample) -> bool:
    if baseline.token_ids is not None and arm.token_ids is not None:
        return baseline.token_ids == arm.token_ids
    return baseline.text == arm.text


def _differ(baseline: GradedSample, arm: GradedSample) -> bool:
    return baseline.passed != arm.passed


def _discordant(baseline: GradedSample, arm: GradedSample) -> Discordant:
    return Discordant(baseline.task, baseline.outcome, arm.outcome, baseline.text, arm.text)
