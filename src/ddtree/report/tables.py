"""Losslessness, the control and every cell's numbers, as rows of text."""

from dataclasses import dataclass, replace

from ddtree.records.summary import CONTROL_BAND, CellSummary, Control
from ddtree.report.numbers import N_TOO_SMALL, Shown, milliseconds, missing, number, times
from ddtree.report.run import Run, Setting, barred, barred_word, setting_of

GRADE_WORDS = {
    "baseline": "baseline",
    "exact": "exact",
    "near-ties": "near-ties",
    "not-lossless": "not lossless",
    "unclassified": "unclassified",
}


@dataclass(frozen=True)
class GradeRow:
    """Losslessness of one cell: counts of outputs, then the largest gap beside the control's."""

    arm: str
    grade: str
    word: str
    counts: tuple[str, ...]
    gap: Shown
    control_gap: Shown
    control_flips: Shown
    control_rows: Shown


@dataclass(frozen=True)
class CellRow:
    """Every number of one cell, in the order of the table's columns."""

    arm: str
    state: str
    reason: str
    kind: str
    requests: Shown
    values: tuple[Shown, ...]


@dataclass(frozen=True)
class GradeGroup:
    """The cells of one setting."""

    title: str
    rows: tuple[GradeRow, ...]


@dataclass(frozen=True)
class CellGroup:
    """The cells of one setting."""

    title: str
    rows: tuple[CellRow, ...]


@dataclass(frozen=True)
class ControlRow:
    """`ar` with the drafter loaded over `ar` without, at one setting.

    `identical` is of the outputs that both gave; `off` where the ratio or an output is amiss.
    """

    setting: Setting
    ratio: Shown
    interval: Shown
    requests: int
    identical: Shown
    off: bool
    standing: str


def grade_groups(run: Run) -> tuple[GradeGroup, ...]:
    """Section 6."""
    return tuple(
        GradeGroup(run.label(s), tuple(_grade_row(cell) for cell in run.at(s)))
        for s in run.settings
    )


def _grade_row(cell: CellSummary) -> GradeRow:
    found = cell.losslessness
    compared = found.grade != "baseline"
    counts = (found.outputs, found.identical, found.near_ties, found.suspects, found.bugs)
    reason = "no output differs" if compared else "the baseline is not compared with itself"
    if found.outputs == 0:
        reason = "no output to compare"
    no_control = missing("no control scored")
    flips = Shown(f"{found.control_flips:,} of {found.control_positions:,}")
    scored = found.control_positions > 0
    return GradeRow(
        arm=cell.arm.label,
        grade=found.grade,
        word=GRADE_WORDS[found.grade],
        counts=tuple(f"{value:,}" for value in counts),
        gap=number(found.largest_gap_ulps, 2, reason),
        control_gap=number(found.control_largest_gap_ulps, 2, no_control.why_missing),
        control_flips=flips if scored else no_control,
        control_rows=number(found.control_rows if scored else None, 0, no_control.why_missing),
    )


def control_rows(run: Run) -> tuple[ControlRow, ...]:
    """Section 7."""
    ordered = sorted(run.summary.controls, key=setting_of)
    return tuple(_control_row(control) for control in ordered)


def _control_row(control: Control) -> ControlRow:
    interval = control.ratio_interval
    shown = missing(N_TOO_SMALL)
    if interval is not None:
        shown = Shown(f"{interval.low:.3f}–{interval.high:.3f}")
    return ControlRow(
        setting=setting_of(control),
        ratio=number(control.ratio, 3, "not measured"),
        interval=shown,
        requests=control.requests,
        identical=_control_outputs(control),
        off=control.is_off or control.differing > 0,
        standing=_standing(control),
    )


def _standing(control: Control) -> str:
    band = f"{100 * CONTROL_BAND:g} %"
    parts = [f"off by more than {band}" if control.is_off else f"within {band}"]
    if control.differing:
        parts.append(f"{control.differing:,} outputs differ")
    return ", ".join(parts)


def _control_outputs(control: Control) -> Shown:
    if not control.outputs:
        return missing("outputs not compared")
    near = f"{control.near_ties:,} near-ties" if control.near_ties else ""
    return Shown(f"{control.identical:,} of {control.outputs:,}", near)


def cell_groups(run: Run) -> tuple[CellGroup, ...]:
    """Section 8."""
    return tuple(
        CellGroup(run.label(s), tuple(_cell_row(run, s, cell) for cell in run.at(s)))
        for s in run.settings
    )


def _cell_row(run: Run, setting: Setting, cell: CellSummary) -> CellRow:
    unfit = barred(cell)
    unknown = unfit or "not reported"
    is_baseline = cell.arm == run.baseline
    speedup = times(cell.speedup, cell.speedup_interval, unfit or "no pairs to compare")
    if is_baseline and not unfit:
        speedup = Shown("1.00×", "baseline")
    elif unfit and not speedup.why_missing:
        speedup = replace(speedup, note="does not count")
    drafts = "ar drafts nothing" if cell.arm.method == "ar" else unknown
    windowless = unfit or "never were all requests busy at once"
    return CellRow(
        arm=cell.arm.label,
        state=barred_word(cell) or cell.state,
        reason=unfit.partition(": ")[2],
        kind="void" if unfit else "win" if cell.is_win else "plain",
        requests=Shown(
            f"{cell.requests:,}", f"{cell.failed_requests:,} failed" if cell.failed_requests else ""
        ),
        values=(
            speedup,
            times(
                cell.speedup_vs_chain,
                cell.speedup_vs_chain_interval,
                "ar drafts nothing"
                if cell.arm.method == "ar"
                else _chain_reason(run, setting, cell),
            ),
            times_alone(cell.end_to_end_speedup, "the baseline" if is_baseline else unknown),
            number(cell.decode_tokens_per_s, 1, unfit or "every answer fitted in one chunk"),
            number(cell.system_tokens_per_s, 1, windowless),
            milliseconds(cell.ttft_s, 1, unknown),
            milliseconds(cell.tpot_s, 2, unfit or "every answer fitted in one chunk"),
            number(cell.acceptance_length, 2, drafts),
            milliseconds(cell.round_s, 2, unknown),
        ),
    )


def _chain_reason(run: Run, setting: Setting, cell: CellSummary) -> str:
    if cell.arm.method == "chain":
        return "the chain itself"
    chains = [c for c in run.at(setting) if c.arm.method == "chain"]
    if not chains:
        return "no chain at this setting"
    return barred(cell) or barred(chains[0]) or "no pairs to compare"


def times_alone(value: float | None, reason: str) -> Shown:
    """A ratio that has no interval by its definition."""
    shown = number(value, 2, reason)
    return shown if shown.why_missing else Shown(f"{shown.text}×")
