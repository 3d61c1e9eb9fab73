"""A run's summary as one HTML file that needs nothing else and asks no network for anything.

A small script sorts and filters its tables and saves its data; without it the page is complete.
"""

import base64
import hashlib
from importlib.resources import files
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from ddtree import __version__
from ddtree.errors import ConfigError
from ddtree.records.files import write_atomic
from ddtree.records.summary import TIE_BAND, RunSummary
from ddtree.report.background import METRICS, facts, spec_text
from ddtree.report.causes import cause_table, tree_table
from ddtree.report.contents import contents
from ddtree.report.crossover import MARKS, cross_maps
from ddtree.report.curves import (
    acceptance_charts,
    acceptance_lengths,
    speed_charts,
)
from ddtree.report.embed import page_data
from ddtree.report.grid import detail_note, place_columns
from ddtree.report.heatmap import heat_maps
from ddtree.report.nodes import node_charts
from ddtree.report.numbers import Footnotes
from ddtree.report.pareto import pareto_fronts
from ddtree.report.run import Run, arrange
from ddtree.report.selection import selection
from ddtree.report.series import assign, legend
from ddtree.report.spreads import decile_table, observed_table, quantile_table
from ddtree.report.stages import stage_tables
from ddtree.report.tables import cell_table, control_rows, grade_table
from ddtree.report.verdict import verdict_view
from ddtree.report.windows import window_charts


def write_report(summary: RunSummary, path: Path) -> None:
    """Write the report of `summary` to `path`, whole or not at all.

    The folder is made if need be. Raises ConfigError where two cells claim the same arm and
    setting, and where the file can't be written.
    """
    page = render_report(summary)
    try:
        write_atomic(path, page)
    except OSError as error:
        raise ConfigError(
            f"{path}: the report can't be written ({error}); expected a writable folder"
        ) from error


def render_report(summary: RunSummary) -> str:
    """The page as text. Every string of `summary` is escaped."""
    run = arrange(summary)
    environment = Environment(
        loader=PackageLoader("ddtree", "report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template("template.html").render(
        footnotes=Footnotes,
        made_by=__version__,
        data=page_data(summary),
        **_script(),
        **_charts(run),
        **_tables(run),
    )


def _script() -> dict[str, str]:
    """The page's script, and the hash by which its security policy lets that script alone run."""
    script = (files("ddtree.report") / "page.js").read_text(encoding="utf-8")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return {"script": script, "script_hash": f"sha256-{digest}"}


def _charts(run: Run) -> dict[str, Any]:
    looks = assign(run)
    cross, windows, chosen = cross_maps(run), window_charts(run, looks), selection(run)
    present = {"crossover": cross, "windows": windows.charts.charts, "selection": chosen.parts}
    return {
        "contents": contents({name for name, parts in present.items() if parts}),
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
