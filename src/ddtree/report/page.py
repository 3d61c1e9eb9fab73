"""A run's summary as one HTML file that needs nothing else: no network, no script."""

from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined

from ddtree import __version__
from ddtree.errors import ConfigError
from ddtree.records.files import write_atomic
from ddtree.records.summary import RunSummary
from ddtree.report.background import METRICS, facts, spec_text
from ddtree.report.curves import acceptance_charts, acceptance_lengths, speed_charts
from ddtree.report.heatmap import heat_maps
from ddtree.report.numbers import Footnotes
from ddtree.report.run import arrange
from ddtree.report.series import assign, legend
from ddtree.report.stages import stage_tables
from ddtree.report.tables import cell_groups, control_rows, grade_groups
from ddtree.report.verdict import verdict_view


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
    looks = assign(run)
    environment = Environment(
        loader=PackageLoader("ddtree", "report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template("template.html").render(
        footnotes=Footnotes,
        run=run,
        summary=summary,
        made_by=__version__,
        verdict=verdict_view(run),
        heat=heat_maps(run),
        legend=legend(looks),
        draft_legend=legend({arm: look for arm, look in looks.items() if arm.method != "ar"}),
        speed=speed_charts(run, looks),
        acceptance=acceptance_charts(run, looks),
        lengths=acceptance_lengths(run),
        stages=stage_tables(run),
        grades=grade_groups(run),
        controls=control_rows(run),
        cells=cell_groups(run),
        metrics=METRICS,
        facts=facts(summary.provenance),
        spec=spec_text(summary.spec),
    )
