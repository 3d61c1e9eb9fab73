"""Is an arm's output the baseline's? Exact, exact up to near-ties, or not lossless.

Greedy outputs have to be equal, and so have sampled ones of one seed where the server keys its
noise by seed, position and token.

Outputs that differ are scored whole, token by token, by one-row decoding of the target: after the
first difference each token is judged on the arm's own prefix, so that one tie hides no later
fault. What the arithmetic alone moves comes from a control without a drafter: the baseline's
prefixes, one row against `budget + 1` rows per pass. It bounds each gap and the rate of near-ties.
What lies beyond it is a suspect unless the target alone can be seen to choose the same token.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from ddtree.records.summary import Grade, Losslessness
from ddtree.verify.classify import EXPLAINED, Finding, judge
from ddtree.verify.control import ControlResult
from ddtree.verify.outputs import Comparison, Output, compare
from ddtree.verify.rate import near_tie_rate, tie_rate
from ddtree.verify.reproduce import reproduce
from ddtree.verify.scoring import Position, Scorer

OutputClass = Literal[
    "identical", "tie", "near-tie", "filter-edge", "suspect", "bug", "unclassified"
]

_SEVERITY: tuple[OutputClass, ...] = (
    "identical",
    "tie",
    "near-tie",
    "filter-edge",
    "unclassified",
    "suspect",
    "bug",
)


@dataclass(frozen=True)
class OutputGrade:
    """One output's class, the worst of its findings, and the findings in order.

    `tokens` counts the arm's tokens that were judged, all or none.
    """

    verdict: OutputClass
    comparison: Comparison
    findings: tuple[Finding, ...] = ()
    tokens: int = 0

    @property
    def near_ties(self) -> int:
        """Tokens of the arm that rounding explains: ties, near-ties, filter edges."""
        return sum(f.verdict in EXPLAINED and not f.of_baseline for f in self.findings)

    @property
    def ties(self) -> int:
        """Tokens of the arm whose score equals the choice's."""
        return sum(f.verdict == "tie" and not f.of_baseline for f in self.findings)


async def grade_output(
    baseline: Output,
    arm: Output,
    scorer: Scorer | None,
    dtype: str,
    control: ControlResult | None,
    eos_ids: frozenset[int] = frozenset(),
) -> OutputGrade:
    """Class one output. Without a scorer a difference is `unclassified`, unless its length is
    a fault by itself. An output that differs and goes on after one of `eos_ids` is a bug; leave
    them out where requests ignore them.
    """
    comparison = compare(baseline, arm, eos_ids)
    if comparison.identical:
        return OutputGrade("identical", comparison, tokens=len(arm.token_ids))
    if comparison.fault is not None:
        return OutputGrade("bug", comparison)
    if scorer is None or comparison.first_divergence is None:
        return OutputGrade("unclassified", comparison)
    positions = await scorer.score(arm.prompt + arm.token_ids, len(arm.prompt), 1, arm.sampling)
    if not all(position.has_scores for position in positions):
        return OutputGrade("unclassified", comparison)
    tolerance = control.tolerance if control else 0.0
    findings = _findings(positions, tolerance, dtype)
    first = comparison.first_divergence
    other = baseline.token_ids[first]
    if other != positions[first].choice.token_id:
        # Both outputs left the reference here, or the baseline alone did.
        findings.append(judge(first, positions[first], other, tolerance, dtype, baseline=True))
    findings.sort(key=lambda finding: finding.index)
    findings = await reproduce(findings, arm, scorer)
    return OutputGrade(_worst(findings), comparison, tuple(findings), len(arm.token_ids))


async def grade_baseline_output(
    baseline: Output, scorer: Scorer, dtype: str, control: ControlResult | None
) -> OutputGrade:
    """Class the baseline's own output by one-row scoring of it, which repeats its arithmetic: what
    is wrong with every arm alike shows here."""
    text = baseline.prompt + baseline.token_ids
    positions = await scorer.score(text, len(baseline.prompt), 1, baseline.sampling)
    same = Comparison(True, None, None)
    if not all(position.has_scores for position in positions):
        return OutputGrade("unclassified", same)
    findings = _findings(positions, control.tolerance if control else 0.0, dtype)
    findings = await reproduce(findings, baseline, scorer)
    return OutputGrade(_worst(findings), same, tuple(findings), len(baseline.token_ids))


def _findings(positions: Sequence[Position], tolerance: float, dtype: str) -> list[Finding]:
    """A finding for each token that is not the reference's choice given its own prefix."""
    return [
        judge(index, position, position.token_id, tolerance, dtype)
        for index, position in enumerate(positions)
        if position.token_id != position.choice.token_id
    ]


def _worst(findings: Sequence[Finding]) -> OutputClass:
    found: list[OutputClass] = [finding.verdict for finding in findings]
    return max(found, key=_SEVERITY.index, default="identical")


async def grade_cell(
    pairs: Sequence[tuple[Output, Output]],
    scorer: Scorer | None,
    dtype: str,
    control: ControlResult | None = None,
    eos_ids: frozenset[int] = frozenset(),
) -> Losslessness:
    """Grade an arm's cell over (baseline output, arm output) pairs of finished requests.

    `eos_ids` as for `grade_output`. Wrap the scorer in one `CachedScorer` for a whole run. No
    pairs: unclassified.
    """
    grades = [await grade_output(base, arm, scorer, dtype, control, eos_ids) for base, arm in pairs]
    return summarise_grades(grades, control)


def summarise_grades(grades: Sequence[OutputGrade], control: ControlResult | None) -> Losslessness:
    """A cell's losslessness from its outputs' grades; each output counts once, by its worst.

    Where the near-ties are more than the control explains, as many outputs as the excess become
    suspects: which of them is not known. Where exact ties are, they become bugs: equal scores
    went to another token than the lowest id.
    """
    tokens = sum(grade.tokens for grade in grades)
    rate = near_tie_rate(sum(grade.near_ties for grade in grades), tokens, control)
    ties = tie_rate(sum(grade.ties for grade in grades), tokens, control)
    verdicts = [grade.verdict for grade in grades]
    gaps = [finding.gap_ulps for grade in grades for finding in grade.findings]
    lenient = [grade for grade in grades if grade.verdict in EXPLAINED]
    tied = min(ties.excess, sum(grade.ties > 0 for grade in lenient))
    explained = len(lenient) - tied
    moved = min(rate.excess, explained)
    return Losslessness(
        grade="not-lossless" if rate.excess or ties.excess else _grade(verdicts),
        outputs=len(verdicts),
        identical=verdicts.count("identical"),
        near_ties=explained - moved,
        suspects=verdicts.count("suspect") + moved,
        bugs=verdicts.count("bug") + tied,
        largest_gap_ulps=max(gaps, default=None),
        control_rows=control.rows if control else None,
        control_positions=control.positions if control else 0,
        control_flips=control.flips if control else 0,
        control_largest_gap_ulps=control.largest_gap_ulps if control else None,
        tokens=rate.tokens,
        near_tie_tokens=rate.near_ties,
        near_tie_excess=rate.excess,
        reproduced=sum(f.reproduced for grade in grades for f in grade.findings),
        filter_edges=min(verdicts.count("filter-edge"), explained - moved),
        tie_excess=ties.excess,
    )


def baseline_grade(outputs: int, own: Sequence[OutputGrade] = ()) -> Losslessness:
    """The grade of the baseline's own cell; `own` are outputs held against their own scores."""
    verdicts = [grade.verdict for grade in own]
    return Losslessness(
        grade="baseline",
        outputs=outputs,
        identical=outputs,
        suspects=verdicts.count("suspect"),
        bugs=verdicts.count("bug"),
    )


def _grade(verdicts: Sequence[OutputClass]) -> Grade:
    if "bug" in verdicts or "suspect" in verdicts:
        return "not-lossless"
    if not verdicts or "unclassified" in verdicts:
        return "unclassified"
    return "exact" if set(verdicts) == {"identical"} else "near-ties"
