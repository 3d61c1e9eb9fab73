"""`ddtree bench`: measure a matrix of configurations over HTTP and say which one to ship."""

import asyncio
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ddtree.cli.options import API_KEY_VARIABLE
from ddtree.errors import ConfigError

if TYPE_CHECKING:
    from ddtree.bench.spec import BenchSpec
    from ddtree.records.summary import RunSummary

REPORT_FILE = "report.html"

app = typer.Typer(
    help="Find the configuration to ship: every arm against `ar`, outputs checked.",
    no_args_is_help=True,
)


@app.command()
def run(
    out: Annotated[Path, typer.Option(help="Run folder, made if need be.")],
    spec: Annotated[
        Path | None, typer.Argument(help="Specification, a YAML file.", show_default=False)
    ] = None,
    preset: Annotated[
        str | None, typer.Option(help="A shipped specification, such as demo.")
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume/--no-resume", help="Go on with a run found in the folder.")
    ] = True,
    threads: Annotated[
        int | None, typer.Option(min=1, help="CPU threads of a server. Default: physical cores.")
    ] = None,
) -> None:
    """Launch the server, run every cell, check every output, write the report."""
    from ddtree.bench.run import RunSetup, run_bench
    from ddtree.bench.session import ServeBackend
    from ddtree.cli.bench_progress import BenchProgress

    chosen = _choose(spec, preset)
    settings = server_settings(threads)
    # A key would be asked of the harness, too.
    own = {name: value for name, value in os.environ.items() if name != API_KEY_VARIABLE}
    backend = ServeBackend(chosen, out, {**own, **settings})
    with BenchProgress() as progress:
        setup = RunSetup(out, backend, progress, tuple(sys.argv), settings)
        try:
            summary = asyncio.run(run_bench(chosen, setup, resume=resume))
        except KeyboardInterrupt:
            progress.note(f"stopped; the same command goes on from {out}")
            raise typer.Exit(130) from None
    _finish(summary, out)


@app.command()
def report(folder: Annotated[Path, typer.Argument(help="Run folder.")]) -> None:
    """Compute the summary and the page anew from a run's records."""
    from ddtree.bench.summarise import write_summary

    _finish(write_summary(folder), folder)


def server_settings(threads: int | None) -> dict[str, str]:
    """Environment of a measured server: passive OpenMP waiting, one thread per physical core.

    Threads that spin while they wait starve each other as soon as anything else runs, and slow
    one-row steps most.
    """
    count = str(threads or _physical_cores())
    return {"OMP_WAIT_POLICY": "passive", "GOMP_SPINCOUNT": "0", "OMP_NUM_THREADS": count}


def _physical_cores() -> int:
    import psutil

    affinity = getattr(os, "sched_getaffinity", None)
    usable = len(affinity(0)) if affinity is not None else os.cpu_count() or 1
    return min(usable, psutil.cpu_count(logical=False) or usable)


def _choose(spec: Path | None, preset_name: str | None) -> "BenchSpec":
    from ddtree.bench.spec import load_spec, preset

    if spec is not None and preset_name is None:
        return load_spec(spec)
    if preset_name is not None and spec is None:
        return preset(preset_name)
    raise ConfigError("bench run: give a specification file or --preset NAME, one of them")


def _finish(summary: "RunSummary", folder: Path) -> None:
    from ddtree.report.page import write_report

    path = folder / REPORT_FILE
    write_report(summary, path)
    typer.echo(summary.verdict.headline)
    for warning in summary.verdict.warnings:
        typer.echo(f"warning: {warning}", err=True)
    typer.echo(str(path.resolve()))
    if not any(cell.state == "ok" for cell in summary.cells):
        typer.echo("error: no cell is valid; the report says why", err=True)
        raise typer.Exit(1)
