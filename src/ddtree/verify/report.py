"""What the procedure found, as values, as JSON, and as one line."""

import dataclasses
from dataclasses import dataclass
from typing import Any, Literal

from ddtree.records.arms import Arm
from ddtree.records.sampling import Sampling
from ddtree.records.summary import Losslessness
from ddtree.verify.classify import EXPLAINED
from ddtree.verify.control import ControlResult
from ddtree.verify.law import FALSE_ALARM, LawResult
from ddtree.verify.signature import LocatedFinding, Signature

Verdict = Literal["exact", "near-ties", "not-lossless", "unclassified"]

EXIT_STATUS: dict[Verdict, int] = {
    "exact": 0,
    "near-ties": 0,
    "not-lossless": 3,
    "unclassified": 4,
}
"""1 and 2 are taken: what could not run, and what could not be parsed."""

_SHOWN = 3
_SEVERITY: tuple[Verdict, ...] = ("exact", "near-ties", "unclassified", "not-lossless")


@dataclass(frozen=True)
class Row:
    """An arm at a concurrency against the baseline; `ar` alone, which is the baseline, against its
    own scores. `findings`: every token that is not the reference's choice."""

    arm: Arm
    concurrency: int
    losslessness: Losslessness
    acceptance_length: float | None
    signature: Signature | None
    findings: tuple[LocatedFinding, ...]

    @property
    def worst(self) -> tuple[LocatedFinding, ...]:
        """The first findings that rounding doesn't explain, a few of them."""
        return tuple(f for f in self.findings if f.verdict not in EXPLAINED)[:_SHOWN]

    @property
    def verdict(self) -> Verdict:
        """The grade; no row is taken on trust."""
        grade = self.losslessness.grade
        assert grade != "baseline"  # for the type checker
        return grade


@dataclass(frozen=True)
class SamplingResult:
    """All rows of one way of sampling, beside its control; `law` for sampled text only. `scored`:
    whether there were scores to judge by."""

    sampling: Sampling
    control: ControlResult | None
    rows: tuple[Row, ...]
    law: LawResult | None
    scored: bool = True

    @property
    def verdict(self) -> Verdict:
        """The worst row's; text of another distribution is not lossless either."""
        if self.law is not None and not self.law.passed:
            return "not-lossless"
        return worst([row.verdict for row in self.rows])


@dataclass(frozen=True)
class VerifyReport:
    """The run's answer; `rows` is the width of the control's passes."""

    dtype: str
    rows: int
    results: tuple[SamplingResult, ...]

    @property
    def verdict(self) -> Verdict:
        """The worst result's."""
        return worst([result.verdict for result in self.results])

    @property
    def exit_status(self) -> int:
        """0 for lossless, 3 for not lossless, 4 for unclassified."""
        return EXIT_STATUS[self.verdict]

    @property
    def headline(self) -> str:
        """The verdict in one line."""
        rows = [row for result in self.results for row in result.rows]
        outputs = sum(row.losslessness.outputs for row in rows)
        if self.verdict == "exact":
            hidden = not all(result.scored for result in self.results)
            note = "; without scores a fault that all arms share would not show" if hidden else ""
            return f"lossless: exact ({outputs} outputs{note})"
        if self.verdict == "near-ties":
            return f"lossless up to near-ties ({self._near_ties(rows)})"
        if self.verdict == "unclassified":
            identical = sum(row.losslessness.identical for row in rows)
            return (
                f"unclassified: {outputs - identical} of {outputs} outputs differ, and the server "
                "gives no scores by which to judge them"
            )
        return f"NOT lossless ({'; '.join(self._faults())})"

    @property
    def hints(self) -> tuple[str, ...]:
        """What the rows at fault have in common."""
        bad = [
            (result.sampling, row)
            for result in self.results
            for row in result.rows
            if row.verdict == "not-lossless"
        ]
        if not bad:
            return ()
        everything = [row for result in self.results for row in result.rows]
        found = []
        greedy = any(result.sampling.temperature == 0 for result in self.results)
        if greedy and all(sampling.temperature > 0 for sampling, _ in bad):
            found.append("only sampled outputs differ: the draw, its filters or its seed")
        alone = any(row.concurrency == 1 and row.arm.method != "ar" for row in everything)
        if alone and all(row.concurrency > 1 for _, row in bad):
            found.append("only in batches: rows of different requests are mixed")
        return tuple(found)

    def _near_ties(self, rows: list[Row]) -> str:
        found = [row.losslessness for row in rows]
        tokens = sum(f.near_tie_tokens for f in found)
        gap = max((f.largest_gap_ulps or 0.0 for f in found), default=0.0)
        controls = [result.control for result in self.results if result.control is not None]
        flips = sum(control.flips for control in controls)
        positions = sum(control.positions for control in controls)
        compared = sum(f.tokens for f in found)
        return (
            f"{tokens} of {compared} tokens, largest gap {gap:.2g} bf16 ULP; the control without a "
            f"drafter: {flips} of {positions}"
        )

    def _faults(self) -> list[str]:
        parts = []
        for result in self.results:
            for row in result.rows:
                found = row.losslessness
                if row.verdict == "not-lossless":
                    parts.append(
                        f"{row.arm.label}, {result.sampling.label}, {row.concurrency} at once: "
                        f"{found.bugs} bugs and {found.suspects} suspects in {found.outputs}"
                    )
            if result.law is not None and not result.law.passed:
                parts.append(
                    f"{result.sampling.label}: text is not distributed as the target's (odds "
                    f"{result.law.odds:.1g}, limit {FALSE_ALARM:g})"
                )
        return parts

    def to_dict(self) -> dict[str, Any]:
        """Everything, for JSON."""
        return {
            "verdict": self.verdict,
            "headline": self.headline,
            "hints": self.hints,
            "exit_status": self.exit_status,
            "false_alarm_odds_of_the_distribution_test": FALSE_ALARM,
            **dataclasses.asdict(self),
        }


def worst(verdicts: list[Verdict]) -> Verdict:
    """The gravest of verdicts; nothing compared is unclassified."""
    return max(verdicts, key=_SEVERITY.index, default="unclassified")
