"""`ddtree verify`'s report for people."""

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ddtree.verify.report import VerifyReport


def table(report: "VerifyReport") -> str:
    """The report for people: a line per row, the controls and tests, the verdict last."""
    lines: list[str] = []
    head = ("sampling", "arm", "at once", "identical", "near-ties", "edges", "suspects", "bugs")
    rows: list[tuple[str, ...]] = [(*head, "largest gap", "accept. length", "grade")]
    for result in report.results:
        for row in result.rows:
            found = row.losslessness
            gap, length = found.largest_gap_ulps, row.acceptance_length
            rows.append(
                (
                    result.sampling.label,
                    row.arm.label,
                    str(row.concurrency),
                    f"{found.identical}/{found.outputs}",
                    *map(
                        str,
                        (
                            found.near_ties - found.filter_edges,
                            found.filter_edges,
                            found.suspects,
                            found.bugs,
                        ),
                    ),
                    "-" if gap is None else f"{gap:.2g} ULP" if math.isfinite(gap) else "inf",
                    "-" if length is None else f"{length:.2f}",
                    row.verdict,
                )
            )
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for cells in rows:
        lines.append("  ".join(c.ljust(w) for c, w in zip(cells, widths, strict=True)).rstrip())
    return "\n".join([*lines, "", *_evidence(report), report.headline])


def _evidence(report: "VerifyReport") -> list[str]:
    """Controls, distribution tests, likely causes."""
    from ddtree.verify.law import FALSE_ALARM

    lines = []
    for result in report.results:
        label, control, law = result.sampling.label, result.control, result.law
        if control is not None:
            lines.append(
                f"control, {label}: no drafter, 1 row against {control.rows}: {control.flips} of "
                f"{control.positions} tokens change, margins move by up to "
                f"{control.quantile:.2g} logits ({control.largest_gap_ulps:.2g} bf16 ULP)"
            )
        if law is not None:
            lines.append(
                f"distribution, {label}: {'passed' if law.passed else 'FAILED'}, D = "
                f"{law.distance:.3f} over {law.positions} tokens (a D of {law.detectable:.3f} "
                f"fails; a correct sampler fails with a chance of at most {FALSE_ALARM:g})"
            )
        for row in result.rows:
            if row.signature is not None:
                lines.append(f"cause, {label}, {row.arm.label}: {row.signature.hint}")
            lines += [f"{found.verdict}, {label}, {row.arm.label}: {found}" for found in row.worst]
    return [*lines, *(f"cause: {hint}" for hint in report.hints)]
