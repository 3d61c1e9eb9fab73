"""A run's summary as one HTML file that needs nothing else and asks no network for anything.

A small script sorts and filters its tables and saves its data; without it the page is complete.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ddtree.records.evals import EvalSummary
from ddtree.records.summary import TIE_BAND, RunSummary
from ddtree.report.background import METRICS, facts, spec_text
from ddtree.report.causes import cause_table, tree_table
from ddtree.report.coding import COLUMNS, coding_view
from ddtree.report.contents import contents
from ddtree.report.crossover import MARKS, cross_maps
from ddtree.report.curves import (
    acceptance_charts,
    acceptance_lengths,
    speed_charts,
)
from ddtree.report.embed import page_data
from ddtree.report.frame import render, write_page
from ddtree.report.grid import detail_note, place_columns
from ddtree.report.heatmap import heat_maps
from ddtree.report.nodes import node_charts
from ddtree.report.pareto import pareto_fronts
from ddtree.report.run import Run, arrange
from ddtree.report.selection import selection
from ddtree.report.series import assign, legend
from ddtree.report.spreads import decile_table, observed_table, quantile_table
from ddtree.report.stages import stage_tables
from ddtree.report.tables import cell_table, control_rows, grade_table
from ddtree.report.verdict import verdict_view
from ddtree.report.windows import window_charts


def write_report(summary: RunSummary, path: Path, evals: Sequence[EvalSummary] = ()) -> None:
    """Write the report of `summary` to `path`, whole or not at all, with coding evaluations in it.

    The folder is made if need be. Raises ConfigError where two cells claim the same arm and
    setting, and where the file can't be written.
    """
    write_page(render_report(summary, evals), path)


def render_report(summary: RunSummary, evals: Sequence[EvalSummary] = ()) -> str:
    """The page as text. Every string of `summary` and `evals` is escaped."""
    run = arrange(summary)
    return render(
        "template.html",
        title=summary.title,
        model=summary.model,
        data=page_data(summary),
        data_file="summary.json",
        coding=tuple(coding_view(found) for found in evals),
        coding_columns=COLUMNS,
        **_charts(run, has_coding=bool(evals)),
        **_tables(run),
    )


def _charts(run: Run, *, has_coding: bool) -> dict[str, Any]:
    looks = assign(run)
    cross, windows, chosen = cross_maps(run), window_charts(run, looks), selection(run)
    present = {
        "crossover": bool(cross),
        "windows": bool(windows.charts.charts),
        "selection": bool(chosen.parts),
        "coding": has_coding,
    }
    return {
        "contents": contents({name for name, there in present.items() if there}),
        "cross": cross,
        "marks": MARKS,
        "tie_band": TIE_BAND,
        "heat": heat_maps(run),
        "legend": legend(looks),
        "draft_legend": legend({arm: x for arm, x in looks.items() if arm.method != "ar"}),
        "speed": speed_charts(run, looks),
        "fronts": pareto_fronts(run, looks),
        "windows": windows,
        "acceptance": acceptance_charts(run, looks),
        "nodes": node_charts(run, looks),
        "selection": chosen,
    }


def _tables(run: Run) -> dict[str, Any]:
    summary = run.summary
    return {
        "run": run,
        "summary": summary,
        "place_columns": place_columns(run),
        "verdict": verdict_view(run),
        "lengths": acceptance_lengths(run),
        "trees": tree_table(run),
        "stages": stage_tables(run),
        "causes": cause_table(run),
        "grades": grade_table(run),
        "controls": control_rows(run),
        "cells": cell_table(run),
        "detail_note": detail_note(run),
        "details": (quantile_table(run), decile_table(run), observed_table(run)),
        "metrics": METRICS,
        "facts": facts(summary.provenance),
        "spec": spec_text(summary.spec),
    }
