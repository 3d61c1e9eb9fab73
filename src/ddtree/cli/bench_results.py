"""`ddtree bench compare`, `recommend` and `export`: what to do with a run that is there."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from ddtree.errors import ConfigError

if TYPE_CHECKING:
    from ddtree.records.summary import RunSummary

RunArgument = Annotated[Path, typer.Argument(help="Run folder, or a summary.json.")]
JsonOption = Annotated[bool, typer.Option("--json", help="JSON instead of text.")]


def compare(
    a: Annotated[Path, typer.Argument(help="Run folder, or a summary.json: the reference.")],
    b: Annotated[Path, typer.Argument(help="The run that is held against it.")],
    allow: Annotated[
        list[str] | None,
        typer.Option(
            metavar="hardware|drafter|endpoint|versions|server",
            help="What may differ, repeatable: else runs that differ in it are refused.",
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Ratios of run B to run A for every cell that both hold, with intervals."""
    from ddtree.bench.compare import compare as compare_runs
    from ddtree.bench.compare import comparison_text

    found = compare_runs(a, b, allow or ())
    typer.echo(found.to_json() if as_json else comparison_text(found))


def recommend(
    run: RunArgument,
    schedule: Annotated[
        Path | None,
        typer.Option(help="Write the choices there, as `ddtree serve --schedule` takes them."),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """The configuration to ship at each setting, how sure that is, and how to start it."""
    from ddtree.bench.advice import advice_dict, advice_text, advise, schedule_of
    from ddtree.records.files import write_atomic

    summary = _summary(run)
    advice = advise(summary)
    if schedule is not None:
        write_atomic(schedule, schedule_of(summary).to_json())
    if as_json:
        typer.echo(json.dumps(advice_dict(summary, advice), indent=1))
        return
    typer.echo(advice_text(summary, advice))
    for warning in summary.verdict.warnings:
        typer.echo(f"warning: {warning}", err=True)
    left_out = sum(1 for choice in summary.verdict.choices if choice.rate)
    if schedule is not None and left_out:
        typer.echo(f"{left_out} choices at an arrival rate are not in {schedule}", err=True)


def export(
    run: RunArgument,
    form: Annotated[
        Literal["csv", "json", "markdown"], typer.Option("--format", help="What to write.")
    ] = "csv",
    what: Annotated[
        Literal["cells", "requests"], typer.Option(help="A row for each of them.")
    ] = "cells",
    out: Annotated[
        Path | None, typer.Option(help="File to write. Default: standard output.")
    ] = None,
) -> None:
    """Every number of a run as a table; docs/bench-results.md names the columns."""
    from ddtree.records.files import write_atomic

    text = _exported(run, form, what)
    if out is None:
        typer.echo(text, nl=False)
    else:
        write_atomic(out, text)


def _summary(path: Path) -> "RunSummary":
    from ddtree.bench.compare_runs import load_summary
    from ddtree.bench.summarise import summarise

    return summarise(path) if path.is_dir() else load_summary(path)


def _exported(run: Path, form: str, what: str) -> str:
    from ddtree.bench.export import cell_rows, cells_markdown, request_rows, to_csv, to_json

    if what == "requests":
        if form == "markdown":
            raise ConfigError("--format markdown: holds cells alone; use csv or json for requests")
        if not run.is_dir():
            raise ConfigError(f"{run}: requests are in a run's folder; give that")
        rows = request_rows(run)
    else:
        summary = _summary(run)
        if form == "markdown":
            return cells_markdown(summary)
        rows = cell_rows(summary)
    return to_csv(rows) if form == "csv" else to_json(rows)
