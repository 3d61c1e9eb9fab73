"""Run B against run A, cell by cell: how much faster, and does anything else differ?

Two runs were not interleaved, so an interval of their speeds knows nothing of how the machine
itself changed in between. The ratio of their speed-ups, each over its own run's `ar` in the same
blocks, takes that out; where the two ratios disagree, the machine or the baseline changed.
"""

import dataclasses
import json
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ddtree.bench.compare_ratios import Ratio, is_paired, speed_ratio, speedup_ratio
from ddtree.bench.compare_runs import ComparedRun, Place, check_comparable, read_side
from ddtree.errors import ConfigError
from ddtree.records.arms import Arm
from ddtree.records.settings import Setting

_WIDTHS = (48, 26, 26)


@dataclass(frozen=True)
class CellComparison:
    """A cell that both runs hold. `paired` when its ratios are of the same prompts, block by block;
    else the prompts differ, or a side has no requests on file (then there is no interval either).

    `speed` compares decode speeds (system throughputs above concurrency 1), `speedup` speed-ups
    over each run's own baseline. Both None where a side is not valid.
    """

    arm: Arm
    setting: Setting
    paired: bool
    speed: Ratio | None
    speedup: Ratio | None
    acceptance: tuple[float | None, float | None]
    grades: tuple[str, str]
    states: tuple[str, str]

    @property
    def notes(self) -> tuple[str, ...]:
        """Changes that are no matter of degree."""
        pairs = (("grade", self.grades), ("state", self.states))
        return tuple(f"{name}: {a}, then {b}" for name, (a, b) in pairs if a != b)


@dataclass(frozen=True)
class Comparison:
    """Two runs; `differences` are those that were allowed, `only_a` and `only_b` count cells."""

    a: str
    b: str
    cells: tuple[CellComparison, ...]
    only_a: int
    only_b: int
    differences: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """Plain values, as for JSON."""
        return {
            "a": self.a,
            "b": self.b,
            "cells": [
                dataclasses.asdict(cell)
                | {"arm": cell.arm.to_request(), "label": cell.arm.label, "notes": cell.notes}
                for cell in self.cells
            ],
            "only_a": self.only_a,
            "only_b": self.only_b,
            "differences": self.differences,
        }

    def to_json(self) -> str:
        """Indented."""
        return json.dumps(self.to_dict(), indent=1)


def compare(a: Path, b: Path, allow: Collection[str] = ()) -> Comparison:
    """Each path is a run folder or a `summary.json`.

    ConfigError names what differs and makes a comparison meaningless, and where no cell is in both.
    """
    sides = (read_side(a), read_side(b))
    differences = check_comparable(*sides, allow)
    places = [side.places for side in sides]
    common = [place for place in places[0] if place in places[1]]
    if not common:
        raise ConfigError(f"{a} and {b} share no cell: no arm at the same setting is in both")
    return Comparison(
        a=sides[0].name,
        b=sides[1].name,
        cells=tuple(_compare(place, *sides) for place in common),
        only_a=len(places[0]) - len(common),
        only_b=len(places[1]) - len(common),
        differences=differences,
    )


def comparison_text(found: Comparison) -> str:
    """For a terminal: a line for each cell, then what there is to know."""
    lines = [f"A = {found.a}", f"B = {found.b}", ""]
    lines.append(_columns("cell", "speed, B over A", "speed-up, B over A"))
    for cell in found.cells:
        place = f"{cell.arm.label} at {cell.setting.name}"
        line = _columns(place, _text(cell.speed), _text(cell.speedup), "; ".join(cell.notes))
        lines.append(line)
    unpaired = sum(not cell.paired for cell in found.cells)
    if unpaired:
        lines.append(
            f"{unpaired} of {len(found.cells)} cells are unpaired: the prompts differ, or a side "
            "is a summary without its requests"
        )
    if found.only_a or found.only_b:
        lines.append(f"{found.only_a} cells are in A alone, {found.only_b} in B alone")
    lines += [f"differs: {text}" for text in found.differences]
    return "\n".join(lines)


def _columns(*texts: str) -> str:
    widths = (*_WIDTHS, 0)
    cells = (text.ljust(width - 2) for text, width in zip(texts, widths, strict=False))
    return "  ".join(cells).rstrip()


def _text(ratio: Ratio | None) -> str:
    if ratio is None:
        return "none"
    if ratio.interval is None:
        return f"{ratio.value:.3f} (no interval)"
    mark = " *" if ratio.is_changed else ""
    return f"{ratio.value:.3f} ({ratio.interval.low:.3f} to {ratio.interval.high:.3f}){mark}"


def _compare(place: Place, a: ComparedRun, b: ComparedRun) -> CellComparison:
    cells = (a.places[place], b.places[place])
    valid = all(cell.state == "ok" for cell in cells)
    return CellComparison(
        arm=place[0],
        setting=place[1],
        paired=is_paired(place, a, b),
        speed=speed_ratio(place, a, b) if valid else None,
        speedup=speedup_ratio(place, a, b) if valid else None,
        acceptance=(cells[0].acceptance_length, cells[1].acceptance_length),
        grades=(cells[0].losslessness.grade, cells[1].losslessness.grade),
        states=(cells[0].state, cells[1].state),
    )
