"""Losslessness, the control and every cell's numbers, as rows of text."""

from dataclasses import dataclass, replace

from ddtree.records.summary import CONTROL_BAND, CellSummary, Control
from ddtree.report.grid import Column, Table, ordered, place_of, row_of
from ddtree.report.numbers import N_TOO_SMALL, Shown, bounds, milliseconds, missing, number, times
from ddtree.report.run import Run, barred, barred_word, setting_of

GRADE_WORDS = {
    "baseline": "baseline",
    "exact": "exact",
    "near-ties": "near-ties",
    "not-lossless": "not lossless",
    "unclassified": "unclassified",
}

GRADE_COLUMNS = (
    Column("Grade", text=True),
    Column("Outputs"),
    Column("Identical"),
    Column("Near-ties"),
    Column("Suspects"),
    Column("Bugs"),
    Column("Largest gap, ULP"),
    Column("Control's gap, ULP"),
    Column("Control's flips"),
    Column("Rows at once"),
)

CELL_COLUMNS = (
    Column("State", text=True),
    Column("Requests"),
    Column("Speed-up"),
    Column("Against chain"),
    Column("End-to-end speed-up"),
    Column("One user, tokens/s"),
    Column("System, tokens/s"),
    Column("First token, ms"),
    Column("Per output token, ms"),
    Column("Acceptance length"),
    Column("Round, ms"),
)


@dataclass(frozen=True)
class ControlRow:
    """`ar` with the drafter loaded over `ar` without, at one setting.

    `identical` is of the outputs that both gave; `off` where the ratio or an output is amiss.
    """

    place: tuple[str, ...]
    ratio: Shown
    interval: Shown
    requests: int
    identical: Shown
    off: bool
    standing: str


def grade_table(run: Run) -> Table:
    """Losslessness of every cell: counts of outputs, the largest gap beside the control's."""
    rows = tuple(row_of(run, cell, _grades(cell)) for cell in ordered(run))
    return Table("grades", "Losslessness by cell", GRADE_COLUMNS, rows)


def _grades(cell: CellSummary) -> tuple[Shown, ...]:
    found = cell.losslessness
    compared = found.grade != "baseline"
    counts = (found.outputs, found.identical, found.near_ties, found.suspects, found.bugs)
    reason = "no output differs" if compared else "the baseline is not compared with itself"
    if found.outputs == 0:
        reason = "no output to compare"
    no_control = missing("no control scored")
    flips = Shown(f"{found.control_flips:,} of {found.control_positions:,}")
    scored = found.control_positions > 0
    return (
        Shown(GRADE_WORDS[found.grade], badge=found.grade),
        *(Shown(f"{value:,}") for value in counts),
        number(found.largest_gap_ulps, 2, reason),
        number(found.control_largest_gap_ulps, 2, no_control.why_missing),
        flips if scored else no_control,
        number(found.control_rows if scored else None, 0, no_control.why_missing),
    )


def control_rows(run: Run) -> tuple[ControlRow, ...]:
    """The control at each setting that it was measured at."""
    controls = sorted(run.summary.controls, key=setting_of)
    return tuple(_control_row(run, control) for control in controls)


def _control_row(run: Run, control: Control) -> ControlRow:
    interval = control.ratio_interval
    shown = missing(N_TOO_SMALL)
    if interval is not None:
        shown = Shown(f"{interval.low:.3f}–{interval.high:.3f}")
    return ControlRow(
        place=place_of(run, setting_of(control)),
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


def cell_table(run: Run) -> Table:
    """Every cell that may rank, or would if it could count."""
    rows = tuple(row_of(run, cell, cell_values(run, cell, ranks=True)) for cell in ordered(run))
    return Table("all-cells", "Every cell", CELL_COLUMNS, rows)


def cell_values(run: Run, cell: CellSummary, ranks: bool) -> tuple[Shown, ...]:
    """One cell's numbers for CELL_COLUMNS; a win stands out where the cell `ranks`."""
    unfit = barred(cell)
    unknown = unfit or "not reported"
    is_baseline = cell.arm == run.baseline
    speedup = times(cell.speedup, cell.speedup_interval, unfit or "no pairs to compare")
    if is_baseline and not unfit:
        speedup = Shown("1.00×", "baseline")
    elif unfit and not speedup.why_missing:
        speedup = replace(speedup, note="does not count")
    elif ranks and cell.is_win:
        speedup = replace(speedup, badge="win")
    drafts = "ar drafts nothing" if cell.arm.method == "ar" else unknown
    no_chain = "" if cell.speedup_vs_chain is not None else _chain_reason(run, cell)
    one_chunk = unfit or "every answer fitted in one chunk"
    failed = f"{cell.failed_requests:,} failed" if cell.failed_requests else ""
    return (
        Shown(barred_word(cell) or cell.state, unfit.partition(": ")[2]),
        Shown(f"{cell.requests:,}", failed),
        speedup,
        times(cell.speedup_vs_chain, cell.speedup_vs_chain_interval, no_chain),
        _end_to_end(cell, "the baseline" if is_baseline else unknown),
        number(cell.decode_tokens_per_s, 1, one_chunk),
        number(cell.system_tokens_per_s, 1, unfit or "never were all requests busy at once"),
        milliseconds(cell.ttft_s, 1, unknown),
        milliseconds(cell.tpot_s, 2, one_chunk),
        _acceptance(cell, drafts),
        milliseconds(cell.round_s, 2, unknown),
    )


def _chain_reason(run: Run, cell: CellSummary) -> str:
    if cell.arm.method != "ddtree":
        return "ar drafts nothing" if cell.arm.method == "ar" else "the chain itself"
    chains = [c for c in run.at(cell.setting) if c.arm.method == "chain"]
    if not chains:
        return "no chain at this setting"
    return barred(cell) or barred(chains[0]) or "no pairs to compare"


def _end_to_end(cell: CellSummary, reason: str) -> Shown:
    """The ratio with its interval; no remark where a run keeps none."""
    shown = times(cell.end_to_end_speedup, cell.end_to_end_interval, reason)
    return shown if cell.end_to_end_interval is not None else replace(shown, note="")


def _acceptance(cell: CellSummary, reason: str) -> Shown:
    """Acceptance length with its interval, marked where the client had to guess the rounds."""
    shown = number(cell.acceptance_length, 2, reason)
    if shown.why_missing:
        return shown
    notes = [] if cell.acceptance_interval is None else [bounds(cell.acceptance_interval)]
    notes += ["estimate"] if cell.acceptance_source == "estimate" else []
    return replace(shown, note=", ".join(notes))
