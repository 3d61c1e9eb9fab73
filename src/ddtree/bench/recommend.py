"""Which arm to ship: the fastest that is proven lossless, the smallest of those that tie.

Only cells that are `ok` and whose outputs are exact, or exact up to near-ties, are candidates.
Greedy cells alone are judged.
"""

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from ddtree.records.arms import METHODS, Arm
from ddtree.records.ledger import CellRow
from ddtree.records.summary import CellSummary, Choice, Verdict

TIE_BAND = 0.02

Setting = tuple[int, int]


def arm_size(arm: Arm) -> tuple[int, int, int, float]:
    """Sorts arms small to large: ar, chain, then trees by budget, topk and draft window.

    The checkpoint's own window sorts before any given one, "full" last.
    """
    window = math.inf if arm.draft_window == "full" else float(arm.draft_window or 0)
    return METHODS.index(arm.method), arm.budget or 0, arm.topk or 0, window


def place(cell: CellSummary | CellRow) -> str:
    """`ddtree(8,4) at context 60, concurrency 1`."""
    return f"{cell.arm.label} at context {cell.context}, concurrency {cell.concurrency}"


def is_candidate(cell: CellSummary) -> bool:
    """Whether a speculative arm's cell may be recommended at all."""
    if cell.arm.method == "ar" or cell.temperature != 0 or cell.state != "ok":
        return False
    speed = cell.speedup
    return is_lossless(cell) and speed is not None and math.isfinite(speed) and speed > 0


def is_lossless(cell: CellSummary) -> bool:
    """Whether outputs were compared and all are identical or explained by near-ties."""
    grade = cell.losslessness
    clean = grade.grade in ("exact", "near-ties") and not (grade.bugs or grade.suspects)
    return clean and grade.outputs > 0


def beats_baseline(cell: CellSummary) -> bool:
    """Faster than `ar`, with the whole interval where there is one."""
    if cell.speedup is None or not cell.speedup > 1:
        return False
    return cell.speedup_interval is None or cell.speedup_interval.low > 1


def recommend(cells: Sequence[CellSummary]) -> Verdict:
    """The verdict over all (context, concurrency) settings of the cells."""
    groups: dict[Setting, list[CellSummary]] = defaultdict(list)
    for cell in cells:
        if cell.temperature == 0:
            groups[cell.context, cell.concurrency].append(cell)
    chosen = [_choose(groups[setting]) for setting in sorted(groups)]
    choices = tuple(choice for choice in chosen if choice is not None)
    arm_cells = _overall(groups)
    arm = arm_cells[0].arm if arm_cells else None
    return Verdict(
        arm=arm,
        headline=_headline(arm_cells, choices, groups),
        speedup=_mean(arm_cells) if arm_cells else None,
        choices=choices,
        warnings=(*_cell_warnings(cells), *_choice_warnings(choices, arm_cells, groups)),
    )


def _has_baseline(group: Iterable[CellSummary]) -> bool:
    return any(cell.arm.method == "ar" and cell.state == "ok" for cell in group)


def _choose(group: Sequence[CellSummary]) -> Choice | None:
    """The arm for one setting; None without a valid baseline to be faster than."""
    if not _has_baseline(group):
        return None
    context, concurrency = group[0].context, group[0].concurrency
    candidates = [cell for cell in group if is_candidate(cell)]
    faster = [cell for cell in candidates if beats_baseline(cell)]
    if not faster:
        baseline = next(c.arm for c in group if c.arm.method == "ar" and c.state == "ok")
        return Choice(context, concurrency, baseline, 1.0, _why_baseline(candidates))
    best = max(faster, key=_speedup)
    tied = [cell for cell in faster if _speedup(cell) >= _speedup(best) * (1 - TIE_BAND)]
    pick = min(tied, key=lambda cell: arm_size(cell.arm))
    reason = f"fastest of {len(candidates)} lossless arms"
    if pick is not best:
        reason = f"within {TIE_BAND:.0%} of {best.arm.label} ({_speedup(best):.2f}x), and smaller"
    return Choice(context, concurrency, pick.arm, _speedup(pick), reason)


def _why_baseline(candidates: Sequence[CellSummary]) -> str:
    if not candidates:
        return "no other arm is valid and lossless here"
    best = max(candidates, key=_speedup)
    text = f"no lossless arm is faster; the best is {best.arm.label} at {_speedup(best):.2f}x"
    if best.speedup_interval is not None:
        text += f" ({best.speedup_interval.low:.2f} to {best.speedup_interval.high:.2f})"
    return text


def _overall(groups: Mapping[Setting, Sequence[CellSummary]]) -> tuple[CellSummary, ...]:
    """The cells, by setting, of the one arm for everything; empty when there is none."""
    by_arm: dict[Arm, dict[Setting, CellSummary]] = defaultdict(dict)
    for setting, group in groups.items():
        if _has_baseline(group):
            for cell in group:
                if is_candidate(cell):
                    by_arm[cell.arm][setting] = cell
    everywhere = [
        tuple(found[setting] for setting in sorted(groups))
        for found in by_arm.values()
        if len(found) == len(groups)
    ]
    faster = [arm for arm in everywhere if _mean(arm) > 1 and any(map(beats_baseline, arm))]
    if not faster:
        return ()
    best = max(map(_mean, faster))
    tied = [arm for arm in faster if _mean(arm) >= best * (1 - TIE_BAND)]
    return min(tied, key=lambda arm: arm_size(arm[0].arm))


def _speedup(cell: CellSummary) -> float:
    return cell.speedup or math.nan


def _mean(cells: Sequence[CellSummary]) -> float:
    return math.exp(sum(math.log(_speedup(cell)) for cell in cells) / len(cells))


def _headline(
    arm_cells: Sequence[CellSummary],
    choices: Sequence[Choice],
    groups: Mapping[Setting, Sequence[CellSummary]],
) -> str:
    settings = len(groups)
    if arm_cells:
        speeds = [_speedup(cell) for cell in arm_cells]
        spread = f"; {min(speeds):.2f}x to {max(speeds):.2f}x" if settings > 1 else ""
        over = f"geometric mean over {settings} settings" if settings > 1 else "one setting"
        return (
            f"Ship {arm_cells[0].arm.label}: {_mean(arm_cells):.2f}x the speed of ar "
            f"({over}{spread}), {_proof(arm_cells)}."
        )
    if not choices:
        return f"No recommendation: none of {settings} settings has a valid ar baseline."
    faster = [choice for choice in choices if choice.arm.method != "ar"]
    if faster:
        best = max(faster, key=lambda choice: choice.speedup)
        return (
            f"Choose by setting: no one arm is valid, lossless and faster over all {settings} "
            f"settings, but {len(faster)} of them have one that is, up to {best.speedup:.2f}x "
            f"with {best.arm.label}."
        )
    return f"Ship ar: no arm is lossless and faster at any of {settings} settings."


def _proof(cells: Sequence[CellSummary]) -> str:
    outputs = sum(cell.losslessness.outputs for cell in cells)
    identical = sum(cell.losslessness.identical for cell in cells)
    ties = sum(cell.losslessness.near_ties for cell in cells)
    if ties:
        return f"{identical} of {outputs} outputs identical to ar's, {ties} up to near-ties"
    return f"all {outputs} outputs identical to ar's"


def _cell_warnings(cells: Sequence[CellSummary]) -> list[str]:
    warnings = []
    for cell in cells:
        grade = cell.losslessness
        if cell.state != "ok":
            warnings.append(f"{place(cell)}: {cell.state} ({cell.reason or 'no reason given'})")
        elif grade.grade == "not-lossless":
            warnings.append(
                f"{place(cell)}: NOT lossless, {grade.bugs} bugs and {grade.suspects} suspects in "
                f"{grade.outputs} outputs"
            )
        elif grade.grade == "unclassified":
            warnings.append(f"{place(cell)}: losslessness not established, so not recommended")
        if cell.temperature != 0:
            warnings.append(f"{place(cell)}: temperature {cell.temperature} is not judged")
    return warnings


def _choice_warnings(
    choices: Sequence[Choice],
    arm_cells: Sequence[CellSummary],
    groups: Mapping[Setting, Sequence[CellSummary]],
) -> list[str]:
    warnings = []
    chosen = {(choice.context, choice.concurrency, choice.arm) for choice in choices}
    in_use = [
        cell
        for cell in (cell for group in groups.values() for cell in group)
        if (cell.context, cell.concurrency, cell.arm) in chosen or cell in arm_cells
    ]
    for cell in in_use:
        if cell.arm.method != "ar" and cell.speedup_interval is None:
            warnings.append(f"{place(cell)}: n too small for an interval")
    for cell in arm_cells:
        if not beats_baseline(cell):
            warnings.append(f"{place(cell)}: not faster than ar there ({_speedup(cell):.2f}x)")
    for context, concurrency in sorted(groups):
        if not _has_baseline(groups[context, concurrency]):
            warnings.append(
                f"context {context}, concurrency {concurrency}: no valid ar cell, so no choice"
            )
    return warnings
