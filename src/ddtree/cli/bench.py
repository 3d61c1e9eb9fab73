"""`ddtree bench`: measure a matrix of configurations over HTTP and say which one to ship."""

import dataclasses
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ddtree.cli.bench_results import compare, export, recommend
from ddtree.cli.bench_selftest import selftest
from ddtree.cli.options import API_KEY_VARIABLE, EagerOption
from ddtree.cli.paths import cache_dir
from ddtree.errors import ConfigError

if TYPE_CHECKING:
    from ddtree.bench.spec import BenchSpec
    from ddtree.records.summary import RunSummary

REPORT_FILE = "report.html"

SpecArgument = Annotated[
    Path | None, typer.Argument(help="Specification, a YAML file.", show_default=False)
]
PresetOption = Annotated[str | None, typer.Option(help="A shipped specification, such as demo.")]
BudgetOption = Annotated[
    float | None,
    typer.Option(
        min=0.1,
        help="Narrow the grid down to what these minutes allow. Default: the specification's, "
        "which may be none: every cell is measured.",
    ),
]

app = typer.Typer(
    help="Find the configuration to ship: every arm against `ar`, outputs checked.",
    no_args_is_help=True,
)


for _command in (selftest, compare, recommend, export):
    app.command()(_command)


@app.command()
def run(
    out: Annotated[Path, typer.Option(help="Run folder, made if need be.")],
    spec: SpecArgument = None,
    preset: PresetOption = None,
    resume: Annotated[
        bool, typer.Option("--resume/--no-resume", help="Go on with a run found in the folder.")
    ] = True,
    threads: Annotated[
        int | None, typer.Option(min=1, help="CPU threads of a server. Default: physical cores.")
    ] = None,
    budget_minutes: BudgetOption = None,
    eager: EagerOption = False,
    humaneval: Annotated[
        Path | None,
        typer.Option(help="HumanEval.jsonl.gz for the workload humaneval. Default: fetched."),
    ] = None,
) -> None:
    """Launch the server, run every cell, check every output, write the report."""
    from ddtree.bench.arm_backend import backend_for
    from ddtree.bench.run import RunSetup, run_bench
    from ddtree.cli.bench_progress import BenchProgress
    from ddtree.endpoint.loop import run as run_on_loop

    chosen = _choose(spec, preset, budget_minutes)
    if eager:
        chosen = without_graphs(chosen)
    settings = server_settings(threads)
    # A key would be asked of the harness, too.
    own = {name: value for name, value in os.environ.items() if name != API_KEY_VARIABLE}
    backend = backend_for(chosen, out, {**own, **settings})
    with BenchProgress() as progress:
        setup = RunSetup(
            out,
            backend,
            progress,
            tuple(sys.argv),
            settings,
            load_humaneval=lambda: _humaneval(humaneval),
        )
        try:
            summary = run_on_loop(run_bench(chosen, setup, resume=resume))
        except KeyboardInterrupt:
            progress.note(f"stopped; the same command goes on from {out}")
            raise typer.Exit(130) from None
    _finish(summary, out)


def without_graphs(spec: "BenchSpec") -> "BenchSpec":
    """With servers that replay no graphs; ConfigError where they aren't ours to start."""
    endpoint = spec.endpoint
    if endpoint.kind != "ddtree" or not endpoint.launches:
        raise ConfigError(
            "--eager: is for servers that this run starts with `ddtree serve`; give the server's "
            "own option where it is started"
        )
    options = dict.fromkeys((*endpoint.options, "--eager"))
    return dataclasses.replace(spec, endpoint=dataclasses.replace(endpoint, options=(*options,)))


@app.command()
def plan(
    spec: SpecArgument = None,
    preset: PresetOption = None,
    budget_minutes: BudgetOption = None,
    pace_from: Annotated[
        Path | None, typer.Option(help="Run folder whose baselines give the pace.")
    ] = None,
    prompt_rate: Annotated[
        float | None, typer.Option(min=1, help="Prompt tokens a second of the server.")
    ] = None,
    step_ms: Annotated[
        float | None, typer.Option(min=0.01, help="Milliseconds of a baseline step, one request.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="The plan as JSON.")] = False,
) -> None:
    """Say what a run would do and how long it would take; runs nothing."""
    from ddtree.bench.cells import grid_of
    from ddtree.bench.estimate import Pace, estimate, pace_of
    from ddtree.bench.outline import outline
    from ddtree.bench.summarise import summarise

    chosen = _choose(spec, preset, budget_minutes)
    pace = Pace() if pace_from is None else pace_of(summarise(pace_from).cells, str(pace_from))
    grid = grid_of(chosen)
    pace = dataclasses.replace(pace, **_given(prompt_rate, step_ms))
    per_arm = chosen.endpoint.arm_is_launch and chosen.endpoint.launches
    found = outline(chosen, grid, estimate(chosen, grid, pace, launch_per_arm=per_arm))
    typer.echo(found.to_json() if as_json else found.to_text())


@app.command()
def report(
    folder: Annotated[Path, typer.Argument(help="Run folder.")],
    coding: Annotated[
        list[Path] | None,
        typer.Option(
            "--eval",
            help="Folder of a coding evaluation that the page shows as well; repeatable. Those "
            "inside the run folder are found by themselves.",
        ),
    ] = None,
) -> None:
    """Compute the summary and the page anew from a run's records."""
    from ddtree.bench.summarise import write_summary

    _finish(write_summary(folder), folder, coding or ())


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


def _choose(
    spec: Path | None, preset_name: str | None, budget_minutes: float | None
) -> "BenchSpec":
    from ddtree.bench.spec_file import load_spec, preset

    if spec is not None and preset_name is None:
        chosen = load_spec(spec, os.environ)
    elif preset_name is not None and spec is None:
        chosen = preset(preset_name, os.environ)
    else:
        raise ConfigError("bench: give a specification file or --preset NAME, one of them")
    if budget_minutes is None:
        return chosen
    return dataclasses.replace(chosen, budget_minutes=budget_minutes)


def _given(prompt_rate: float | None, step_ms: float | None) -> dict[str, Any]:
    """Parts of a pace that the caller knows."""
    found: dict[str, Any] = {}
    if prompt_rate is not None:
        found["prefill_tokens_per_s"] = prompt_rate
    if step_ms is not None:
        found["step_s"] = step_ms / 1e3
    return found | ({"source": "as given"} if found else {})


def _humaneval(path: Path | None) -> tuple[str, ...]:
    from ddtree.models.datasets import humaneval_prompts

    return humaneval_prompts(cache_dir(), path)


def _finish(summary: "RunSummary", folder: Path, coding: Sequence[Path] = ()) -> None:
    from ddtree.records.evals import EVAL_FILE, read_eval
    from ddtree.report.page import write_report

    path = folder / REPORT_FILE
    inside = sorted(file.parent for file in folder.glob(f"*/{EVAL_FILE}"))
    found = dict.fromkeys(each.resolve() for each in (*inside, *coding))
    write_report(summary, path, [read_eval(each / EVAL_FILE) for each in found])
    typer.echo(summary.verdict.headline)
    for warning in summary.verdict.warnings:
        typer.echo(f"warning: {warning}", err=True)
    typer.echo(str(path.resolve()))
    if not any(cell.state == "ok" for cell in summary.cells):
        typer.echo("error: no cell is valid; the report says why", err=True)
        raise typer.Exit(1)
