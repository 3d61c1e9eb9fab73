"""A run told in advance: settings, arms, launches, time, and what is left out and why."""

import dataclasses
import json
from collections import Counter
from dataclasses import dataclass
from typing import Any

from ddtree.bench.cells import Grid
from ddtree.bench.estimate import Estimate
from ddtree.bench.narrowing import BASELINES, probe_arms
from ddtree.bench.spec import BenchSpec


@dataclass(frozen=True)
class Outline:
    """What `bench plan` prints. `probe_cells` is None where every cell is measured."""

    spec: BenchSpec
    grid: Grid
    estimate: Estimate
    probe_cells: int | None

    def to_json(self) -> str:
        """Everything as JSON; seconds, not minutes."""
        found = self.estimate
        data: dict[str, Any] = {
            "title": self.spec.title,
            "cells": found.cells,
            "requests": found.requests,
            "launches": found.launches,
            "seconds_of_every_cell": found.seconds,
            "budget_minutes": self.spec.budget_minutes,
            "pace": dataclasses.asdict(found.pace),
            "settings": [dataclasses.asdict(setting) for setting in found.settings],
            "arms": {
                setting.name: [arm.label for arm in arms]
                for setting, arms in self.grid.arms.items()
            },
            "skips": [
                {"arm": s.arm.label, "setting": s.setting.name, "reason": s.reason}
                for s in self.grid.skips
            ],
        }
        return json.dumps(data, indent=1)

    def to_text(self) -> str:
        """For a terminal."""
        return "\n".join([*self._head(), "", *self._settings(), "", *self._skips(), *self._tail()])

    def _head(self) -> list[str]:
        found, pace = self.estimate, self.estimate.pace
        return [
            self.spec.title,
            f"{found.cells} cells at {len(found.settings)} settings, {found.requests} requests, "
            f"{found.launches} server starts",
            f"every cell: about {_minutes(found.seconds)} at the baseline's pace",
            f"pace ({pace.source}): {pace.prefill_tokens_per_s:.0f} prompt tokens/s, "
            f"{pace.step_s * 1e3:.0f} ms a step, {pace.slot_share:.0%} more a slot",
        ]

    def _settings(self) -> list[str]:
        rows = [("setting", "arms", "blocks", "requests", "time")]
        rows += [
            (s.setting.name, str(s.arms), str(s.blocks), str(s.requests), _minutes(s.seconds))
            for s in self.estimate.settings
        ]
        widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
        return [
            "  ".join(
                cell.ljust(width) if column == 0 else cell.rjust(width)
                for column, (cell, width) in enumerate(zip(row, widths, strict=True))
            )
            for row in rows
        ]

    def _skips(self) -> list[str]:
        if not self.grid.skips:
            return []
        reasons = Counter(
            f"{skip.setting.name}: {skip.reason.split(' than ')[0]}"
            if skip.same_as is None
            else f"{skip.setting.name}: same trees as an arm that runs"
            for skip in self.grid.skips
        )
        lines = [f"  {count:4d}  {reason}" for reason, count in reasons.items()]
        return [f"{len(self.grid.skips)} cells are left out:", *lines, ""]

    def _tail(self) -> list[str]:
        minutes = self.spec.budget_minutes
        if minutes is None:
            return ["every cell is measured; --budget-minutes N narrows them down"]
        tuning = self.spec.tuning
        predicted = (
            f"replays the baseline's outputs for every arm, tries the {tuning.candidates} best"
            if tuning.predict
            else "tries every arm"
        )
        return [
            f"in {minutes:g} minutes: probes {self.probe_cells} cells, {predicted} by halving "
            f"({tuning.prompts} prompts, then {tuning.growth} times as many), and measures ar, "
            f"chain and {tuning.finalists} finalists a setting on prompts of their own"
        ]


def outline(spec: BenchSpec, grid: Grid, estimate: Estimate) -> Outline:
    """Put a plan together."""
    probes = None
    if spec.budget_minutes is not None:
        probes = sum(
            len({arm for arm in arms if arm in probe_arms(arms) or arm.method in BASELINES})
            for arms in grid.arms.values()
        )
    return Outline(spec, grid, estimate, probes)


def _minutes(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
