"""Which arm to ship: the fastest that is proven lossless, the smallest of those that tie.

Only cells that are `ok` and whose outputs are exact, or exact up to near-ties, are candidates. One
wins with an interval wholly above 1 that survives Holm's correction over its setting's candidates:
of many arms none better than `ar`, one in twenty would have such an interval by chance. Screened
cells are no part of this. Temperatures and rates are settings like contexts and concurrencies.
"""

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from ddtree.records.arms import Arm
from ddtree.records.settings import Setting
from ddtree.records.statistics import holm
from ddtree.records.summary import TIE_BAND, CellSummary, Choice, Losslessness, Verdict

N_TOO_SMALL = "n too small"


def is_candidate(cell: CellSummary) -> bool:
    """Whether a speculative arm's cell may be recommended at all."""
    if cell.arm.method == "ar" or cell.state != "ok":
        return False
    speed = cell.speedup
    return cell.is_lossless and speed is not None and math.isfinite(speed) and speed > 0


def winners(group: Iterable[CellSummary]) -> list[CellSummary]:
    """Of one setting's cells the candidates that are faster than `ar` with confidence."""
    known = [(cell, cell.speedup_p) for cell in group if is_candidate(cell)]
    tested = [(cell, p) for cell, p in known if p is not None]
    fallen = holm([p for _, p in tested])
    return [cell for (cell, _), sure in zip(tested, fallen, strict=True) if sure and cell.is_win]


def recommend(cells: Sequence[CellSummary], twins: Sequence[CellSummary] = ()) -> Verdict:
    """The verdict over all settings of the cells.

    `twins` are cells under the name of another arm that is the same there: an arm that is measured
    in part by such names can be the one for everything, but no setting's choice counts them.
    """
    groups: dict[Setting, list[CellSummary]] = defaultdict(list)
    for cell in cells:
        groups[cell.setting].append(cell)
    chosen = [_choose(groups[setting]) for setting in sorted(groups)]
    choices = tuple(choice for choice in chosen if choice is not None)
    arm_cells = _overall(_joined(groups, twins))
    arm = arm_cells[0].arm if arm_cells else None
    return Verdict(
        arm=arm,
        headline=_headline(arm_cells, choices, groups),
        speedup=_mean(arm_cells) if arm_cells else None,
        choices=choices,
        warnings=(*_cell_warnings(cells), *_choice_warnings(arm_cells, groups)),
    )


def _joined(
    groups: Mapping[Setting, Sequence[CellSummary]], twins: Sequence[CellSummary]
) -> dict[Setting, list[CellSummary]]:
    joined = {setting: list(group) for setting, group in groups.items()}
    for twin in twins:
        joined[twin.setting].append(twin)
    return joined


def _has_baseline(group: Iterable[CellSummary]) -> bool:
    """Whether there is an `ar` cell to be faster than, whose tokens are its own choices."""
    return any(
        cell.arm.method == "ar"
        and cell.state == "ok"
        and not (cell.losslessness.bugs or cell.losslessness.suspects)
        for cell in group
    )


def _choose(group: Sequence[CellSummary]) -> Choice | None:
    """The arm for one setting; None without a valid baseline to be faster than."""
    if not _has_baseline(group):
        return None
    setting = group[0].setting
    candidates = [cell for cell in group if is_candidate(cell)]
    faster = winners(candidates)
    if not faster:
        baseline = next(c.arm for c in group if c.arm.method == "ar" and c.state == "ok")
        return _choice(setting, baseline, 1.0, _why_baseline(candidates))
    best = _fastest(faster)
    tied = [cell for cell in faster if _speedup(cell) >= _speedup(best) * (1 - TIE_BAND)]
    pick = min(tied, key=lambda cell: cell.arm.size)
    reason = f"fastest of {len(candidates)} lossless arms"
    if pick is not best:
        reason = f"within {TIE_BAND:.0%} of {best.arm.label} ({_speedup(best):.2f}x), and smaller"
    return _choice(setting, pick.arm, _speedup(pick), reason)


def _choice(setting: Setting, arm: Arm, speedup: float, reason: str) -> Choice:
    return Choice(
        setting.context,
        setting.concurrency,
        setting.temperature,
        arm,
        speedup,
        reason,
        setting.rate,
    )


def _why_baseline(candidates: Sequence[CellSummary]) -> str:
    if not candidates:
        return "no other arm is valid and lossless here"
    best = _fastest(candidates)
    text = f"the best is {best.arm.label} at {_speedup(best):.2f}x"
    if best.speedup_interval is not None:
        text += f" ({best.speedup_interval.low:.2f} to {best.speedup_interval.high:.2f})"
    else:
        text += f", {N_TOO_SMALL} for an interval"
    if best.is_win:
        text += f", not surer than the best of {len(candidates)} equal arms would be by chance"
    return f"no lossless arm is faster with confidence; {text}"


def _overall(groups: Mapping[Setting, Sequence[CellSummary]]) -> tuple[CellSummary, ...]:
    """The cells, by setting, of the one arm for everything; empty when there is none.

    It wins on the whole, the geometric mean of its intervals' lower ends being above 1, and at one
    setting at least by itself.
    """
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
    certain = {id(cell) for group in groups.values() for cell in winners(group)}
    faster = [arm for arm in everywhere if _wins(arm) and any(id(c) in certain for c in arm)]
    if not faster:
        return ()
    best = max(map(_mean, faster))
    tied = [arm for arm in faster if _mean(arm) >= best * (1 - TIE_BAND)]
    return min(tied, key=lambda arm: arm[0].arm.size)


def _speedup(cell: CellSummary) -> float:
    return cell.speedup or math.nan


def _fastest(cells: Iterable[CellSummary]) -> CellSummary:
    """Of equals the smallest, in whatever order they come."""
    return min(cells, key=lambda cell: (-_speedup(cell), cell.arm.size))


def _mean(cells: Sequence[CellSummary]) -> float:
    return math.exp(sum(math.log(_speedup(cell)) for cell in cells) / len(cells))


def _mean_low(cells: Sequence[CellSummary]) -> float:
    """Geometric mean of the intervals' lower ends; 0 where one has no interval."""
    lows = [0.0 if c.speedup_interval is None else c.speedup_interval.low for c in cells]
    return math.prod(max(low, 0.0) for low in lows) ** (1 / len(lows))


def _wins(cells: Sequence[CellSummary]) -> bool:
    """Faster on the whole with confidence."""
    return _mean(cells) > 1 and _mean_low(cells) > 1


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
            f"Choose by setting: no one arm is valid, lossless and faster with confidence over "
            f"all {settings} settings, but {_some_have(len(faster))} one that is, up to "
            f"{best.speedup:.2f}x with {best.arm.label}."
        )
    candidates = [cell for group in groups.values() for cell in group if is_candidate(cell)]
    small = any(_speedup(cell) > 1 and cell.speedup_interval is None for cell in candidates)
    return (
        f"Ship ar: no arm is lossless and faster with confidence at any of {settings} settings"
        f"{f' ({N_TOO_SMALL} for intervals)' if small else ''}."
    )


def _proof(cells: Sequence[CellSummary]) -> str:
    outputs = sum(cell.losslessness.outputs for cell in cells)
    identical = sum(cell.losslessness.identical for cell in cells)
    ties = sum(cell.losslessness.near_ties for cell in cells)
    if ties:
        return f"{identical} of {outputs} outputs identical to ar's, {ties} up to near-ties"
    return f"all {outputs} outputs identical to ar's"


def _excess(grade: Losslessness) -> str:
    if not grade.near_tie_excess:
        return ""
    return (
        f"; {grade.near_tie_tokens} near-ties in {grade.tokens} tokens where the control has "
        f"{grade.control_flips} flips in {grade.control_positions}"
    )


def _cell_warnings(cells: Sequence[CellSummary]) -> list[str]:
    warnings = []
    for cell in cells:
        grade = cell.losslessness
        if cell.state != "ok":
            warnings.append(f"{cell.place}: {cell.state} ({cell.reason or 'no reason given'})")
        elif grade.grade == "not-lossless":
            warnings.append(
                f"{cell.place}: NOT lossless, {grade.bugs} bugs and {grade.suspects} suspects in "
                f"{grade.outputs} outputs{_excess(grade)}"
            )
        elif grade.grade == "baseline" and (grade.bugs or grade.suspects):
            warnings.append(
                f"{cell.place}: {grade.bugs} bugs and {grade.suspects} suspects against the "
                "baseline's own scores, so no arm can be judged by it"
            )
        elif grade.grade == "unclassified":
            warnings.append(f"{cell.place}: losslessness not established, so not recommended")
    return warnings


def _choice_warnings(
    arm_cells: Sequence[CellSummary],
    groups: Mapping[Setting, Sequence[CellSummary]],
) -> list[str]:
    warnings = [
        f"{cell.place}: {N_TOO_SMALL} for an interval, so no win"
        for group in groups.values()
        for cell in group
        if is_candidate(cell) and cell.speedup_interval is None
    ]
    warnings += [
        f"{cell.place}: not faster than ar there with confidence ({_speedup(cell):.2f}x)"
        for cell in arm_cells
        if not cell.is_win
    ]
    warnings += [
        f"{setting.name}: no valid ar cell, so no choice"
        for setting in sorted(groups)
        if not _has_baseline(groups[setting])
    ]
    return warnings


def _some_have(settings: int) -> str:
    return "1 of them has" if settings == 1 else f"{settings} of them have"
