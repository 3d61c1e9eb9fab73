"""A coding evaluation as a page of its own."""

from pathlib import Path

from ddtree.records.evals import EVAL_FILE, EvalSummary
from ddtree.report.coding import COLUMNS as CODING_COLUMNS
from ddtree.report.coding import coding_view
from ddtree.report.contents import TITLES, Entry
from ddtree.report.embed import plain_data
from ddtree.report.frame import render, write_page


def write_coding_page(summary: EvalSummary, path: Path) -> None:
    """Write the page of `summary` to `path`, whole or not at all; ConfigError where it can't be."""
    write_page(render_coding(summary), path)


def render_coding(summary: EvalSummary) -> str:
    """The page as text. Every string of `summary` is escaped."""
    return render(
        "coding_page.html",
        title=f"Coding evaluation: {summary.suite}",
        model=summary.model,
        contents={"coding": Entry("coding", TITLES["coding"], 1)},
        coding=(coding_view(summary),),
        coding_columns=CODING_COLUMNS,
        place_columns=(),
        data=plain_data(summary),
        data_file=EVAL_FILE,
    )
