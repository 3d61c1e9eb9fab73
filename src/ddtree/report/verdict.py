"""What the page says first: the arm to ship, why, where, and what speaks against it."""

from dataclasses import dataclass

from ddtree.records.arms import Arm
from ddtree.records.summary import CellSummary, Choice, Interval
from ddtree.report.checks import Check, checks
from ddtree.report.grid import place_of
from ddtree.report.numbers import (
    DASH,
    N_TOO_SMALL,
    Shown,
    bounds,
    count,
    fixed,
    is_number,
    missing,
    number,
    times,
)
from ddtree.report.run import Run, arm_meaning, barred, ratio, setting_of


@dataclass(frozen=True)
class ChoiceRow:
    """One line of the choice table. `withdrawn` is the reason an unfit choice is not shown."""

    place: tuple[str, ...]
    arm: str
    withdrawn: str
    speedup: Shown
    vs_chain: Shown
    decode: Shown
    acceptance: Shown
    grade: str
    reason: str


@dataclass(frozen=True)
class VerdictView:
    """The first section. `arm` is empty where nothing is recommended."""

    headline: str
    arm: str
    meaning: str
    speedup: Shown
    against: str
    why: str
    choices: tuple[ChoiceRow, ...]
    checks: tuple[Check, ...]
    warnings: tuple[str, ...]


def verdict_view(run: Run) -> VerdictView:
    """Lay out the verdict, withdrawing what rests on a cell not valid, not lossless or no win."""
    verdict = run.summary.verdict
    choices = tuple(_choice_row(run, choice) for choice in run.summary.verdict.choices)
    withdrawn = "" if verdict.arm is None else _unfit(run, verdict.arm, run.of(verdict.arm))
    headline, arm = verdict.headline, verdict.arm
    if arm is not None and withdrawn:
        headline = f"No arm is recommended: the run names {arm.label}, but {withdrawn}."
        arm = None
    return VerdictView(
        headline=headline,
        arm="" if arm is None else arm.label,
        meaning="" if arm is None else arm_meaning(arm),
        speedup=number(verdict.speedup, 2, "the run gives no overall number"),
        against="" if arm is None else _against(run, arm),
        why=_why_none(run) if arm is None else _why(run, arm),
        choices=choices,
        checks=checks(run),
        warnings=verdict.warnings,
    )


def _unfit(run: Run, arm: Arm, cells: tuple[CellSummary, ...]) -> str:
    if arm == run.baseline or arm.method == "ar":
        return ""
    if not cells:
        return "no cell measured it"
    bad = [cell for cell in cells if barred(cell)]
    if bad:
        return f"{bad[0].place} is {barred(bad[0])}"
    return "" if any(cell.is_win for cell in cells) else _no_win(cells)


def _no_win(cells: tuple[CellSummary, ...]) -> str:
    if any(cell.speedup_interval is None for cell in cells):
        return f"it is not faster with confidence, {N_TOO_SMALL}"
    return "it is not faster with confidence"


def _against(run: Run, arm: Arm) -> str:
    cells = sorted(
        (c for c in run.of(arm) if is_number(c.speedup)), key=lambda cell: cell.speedup or 0.0
    )
    text = f"against {run.baseline.label}"
    if not cells:
        return text
    if len(cells) == 1:
        interval = cells[0].speedup_interval
        shown = N_TOO_SMALL if interval is None else f"{_level(interval)} {bounds(interval)}"
        return f"{text}; {shown}"
    ends = (("lowest", cells[0]), ("highest", cells[-1]))
    return f"{text}, geometric mean over {len(cells)} settings; " + "; ".join(
        f"{name} {_with_interval(c)} at {run.where(setting_of(c))}" for name, c in ends
    )


def _level(interval: Interval) -> str:
    return f"{100 * interval.level:g} % interval"


def _with_interval(cell: CellSummary) -> str:
    text = ratio(cell.speedup or 0.0)
    interval = cell.speedup_interval
    return f"{text} ({N_TOO_SMALL if interval is None else bounds(interval)})"


def _why(run: Run, arm: Arm) -> str:
    """Speed-up taken apart: tokens per round over the cost of a round in baseline steps.

    Only at concurrency 1, where the speed-up is one request's: above, a round serves many.
    """
    pairs = [
        (c.acceptance_length, c.acceptance_length / c.speedup)
        for c in run.of(arm)
        if c.concurrency == 1
        and c.acceptance_length is not None
        and c.speedup is not None
        and is_number(c.acceptance_length)
        and is_number(c.speedup)
        and c.speedup > 0
    ]
    if arm.method == "ar" or not pairs:
        return ""
    return (
        f"At concurrency 1 a round yields {_span([tokens for tokens, _ in pairs])} tokens and "
        f"takes the time of {_span([steps for _, steps in pairs])} steps of {run.baseline.label} "
        "(acceptance length over speed-up)."
    )


def _span(values: list[float]) -> str:
    low, high = fixed(min(values), 2), fixed(max(values), 2)
    return low if low == high else f"{low}{DASH}{high}"


def _why_none(run: Run) -> str:
    speculative = [c for c in run.summary.cells if c.arm.method != "ar"]
    if not speculative:
        return "The run holds no speculative arm."
    fit = [c for c in speculative if not barred(c) and is_number(c.speedup)]
    unfit = sum(1 for c in speculative if barred(c))
    parts = []
    if unfit:
        total = count(len(speculative), "speculative cell")
        parts.append(f"{unfit} of {total} cannot count.")
    if fit:
        # A gain that is sure says more than a larger ratio that is not.
        best = max(fit, key=lambda cell: (cell.is_win, cell.speedup or 0.0))
        gain = "" if best.is_win else ", no gain"
        parts.append(f"The best valid, lossless cell: {best.place}, {_with_interval(best)}{gain}.")
    else:
        parts.append("No speculative cell is valid, lossless and compared with the baseline.")
    return " ".join(parts)


def _choice_row(run: Run, choice: Choice) -> ChoiceRow:
    cell = run.cells.get((setting_of(choice), choice.arm))
    withdrawn = _unfit(run, choice.arm, () if cell is None else (cell,))
    none = missing("no cell for this choice")
    return ChoiceRow(
        place=place_of(run, setting_of(choice)),
        arm=choice.arm.label,
        withdrawn=withdrawn,
        speedup=Shown("1.00×", "baseline")
        if choice.arm == run.baseline
        else times(choice.speedup, cell.speedup_interval if cell else None, "no number"),
        vs_chain=_against_chain(cell) if cell else none,
        decode=number(cell.decode_tokens_per_s, 1, "not reported") if cell else none,
        acceptance=number(cell.acceptance_length, 2, _no_rounds(cell)) if cell else none,
        grade="" if cell is None else cell.losslessness.grade,
        reason=choice.reason,
    )


def _against_chain(cell: CellSummary) -> Shown:
    reason = {"ar": "ar drafts nothing", "chain": "the chain itself"}.get(
        cell.arm.method, "no pairs to compare"
    )
    return times(cell.speedup_vs_chain, cell.speedup_vs_chain_interval, reason)


def _no_rounds(cell: CellSummary) -> str:
    return "ar drafts nothing" if cell.arm.method == "ar" else "not reported"
