"""What speaks for or against a run as a whole, counted and named."""

from dataclasses import dataclass

from ddtree.records.summary import CONTROL_BAND, CellSummary, Control
from ddtree.report.contents import TITLES
from ddtree.report.numbers import count, fixed
from ddtree.report.run import Run, barred, setting_of

LISTED = 6
"""As many details as a check names; the rest stand in their own section."""


@dataclass(frozen=True)
class Check:
    """One standing of the run: `passed` is None where nothing could be checked."""

    name: str
    passed: bool | None
    text: str
    details: tuple[str, ...] = ()


def checks(run: Run) -> tuple[Check, ...]:
    """Validity, losslessness, control, requests: in this order."""
    return (_valid_check(run), _lossless_check(run), _control_check(run), _request_check(run))


def _valid_check(run: Run) -> Check:
    cells = run.summary.cells
    bad = [c for c in cells if c.state != "ok"]
    details = _unnamed(run, bad)
    text = f"{len(cells) - len(bad)} of {count(len(cells), 'cell')} valid"
    return Check("Validity", not bad if cells else None, text, _listed(details, "cells"))


def _lossless_check(run: Run) -> Check:
    judged = [
        c for c in run.summary.cells if c.state == "ok" and c.losslessness.grade != "baseline"
    ]
    bad = [c for c in judged if barred(c)]
    text = f"{len(judged) - len(bad)} of {count(len(judged), 'compared cell')} lossless"
    if not judged:
        return Check("Losslessness", None, "no valid cell to compare with the baseline")
    details = _unnamed(run, bad)
    return Check("Losslessness", not bad, text, _listed(details, "losslessness"))


def _control_check(run: Run) -> Check:
    controls = run.summary.controls
    if not controls:
        return Check("Control", None, "not measured: ar without a drafter is missing")
    off = [c for c in controls if c.is_off or c.differing]
    text = (
        f"{len(controls) - len(off)} of {len(controls)} within {100 * CONTROL_BAND:g} % of ar "
        "without a drafter, same outputs"
    )
    details = [f"{run.where(setting_of(c))}: {_control_fault(c)}" for c in off]
    return Check("Control", not off, text, _listed(details, "control"))


def _control_fault(control: Control) -> str:
    faults = [fixed(control.ratio, 3)] if control.is_off else []
    if control.differing:
        faults.append(f"{control.differing} of {count(control.outputs, 'output')} differ")
    return ", ".join(faults)


def _request_check(run: Run) -> Check:
    total = sum(c.requests for c in run.summary.cells)
    failed = sum(c.failed_requests for c in run.summary.cells)
    details = [
        f"{c.place}: {c.failed_requests} failed" for c in run.summary.cells if c.failed_requests
    ]
    text = f"{count(total, 'request')}, {failed:,} failed"
    return Check("Requests", failed == 0 if total else None, text, _listed(details, "cells"))


def _unnamed(run: Run, cells: list[CellSummary]) -> list[str]:
    """Cells with their faults, but for those that a warning of the run names already."""
    warnings = run.summary.verdict.warnings
    return [
        f"{c.place}: {barred(c)}"
        for c in cells
        if not any(line.startswith(f"{c.place}:") for line in warnings)
    ]


def _listed(details: list[str], section: str) -> tuple[str, ...]:
    if len(details) <= LISTED:
        return tuple(details)
    return (
        *details[: LISTED - 1],
        f"and {len(details) - LISTED + 1} more, under {TITLES[section]}",
    )
