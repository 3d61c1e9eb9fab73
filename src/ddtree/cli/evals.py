"""`ddtree eval`: does the code that a configuration writes still pass its tests?"""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ddtree.cli.eval_given import (
    AllowUnsafeOption,
    ArmsOption,
    DataOption,
    SandboxOption,
    SinceOption,
    SuiteOption,
    UntilOption,
    WorkersOption,
    opened_bench,
    read_tasks,
    variables_of,
)
from ddtree.cli.options import API_KEY_VARIABLE, DEFAULT_MODEL, DrafterOption, ModelOption, expand
from ddtree.cli.paths import cache_dir
from ddtree.errors import ConfigError

if TYPE_CHECKING:
    from ddtree.bench.spec import BenchSpec
    from ddtree.evals.spec import EvalSpec
    from ddtree.records.evals import EvalSummary

REPORT_FILE = "report.html"

FolderArgument = Annotated[Path, typer.Argument(help="Folder of an evaluation.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]

app = typer.Typer(
    help="Coding evaluation: pass rates beside speed, answers run in a sandbox.",
    no_args_is_help=True,
)


@app.command("suites")
def list_suites() -> None:
    """Say which problem sets are known by name, and which of them are on this machine."""
    from ddtree.evals.suites.fetch import SuiteFiles
    from ddtree.evals.suites.sources import SOURCES

    files = SuiteFiles(cache_dir())
    for source in SOURCES:
        state = "present" if files.path(source.name).is_file() else "absent"
        typer.echo(f"{source.name}  {state}  {source.tasks} tasks  {source.licence}")
        typer.echo(f"  {source.description}")
        typer.echo(f"  {source.address}, {source.digest_words}")


@app.command()
def fetch(
    suite: Annotated[str, typer.Argument(help="A name from `ddtree eval suites`.")],
) -> None:
    """Fetch a problem set's data file into the cache and check its digest; prints its path."""
    from ddtree.cli.eval_given import fetch_bytes
    from ddtree.evals.suites.fetch import SuiteFiles

    files = SuiteFiles(cache_dir(), fetch_bytes)
    typer.echo(files.read(suite).words, err=True)
    typer.echo(str(files.path(suite)))


@app.command()
def selfcheck(
    suite: SuiteOption = "humaneval",
    data: DataOption = None,
    since: SinceOption = None,
    until: UntilOption = None,
    sandbox: SandboxOption = None,
    allow_unsafe_exec: AllowUnsafeOption = False,
    workers: WorkersOption = None,
) -> None:
    """Run every reference solution and programs that don't solve the task: exits 1 unless all of
    the first pass and all of the second fail.
    """
    from ddtree.evals.run import check

    found = read_tasks(suite, data, (since, until))
    typer.echo(found.words, err=True)
    with opened_bench(sandbox, allow_unsafe_exec, workers) as bench:
        typer.echo(f"sandbox: {bench.sandbox}", err=True)
        _, checked = check(found.tasks, bench)
    typer.echo(f"{suite}: {checked.line}")
    for finding in (*checked.failed, *checked.survivors, *checked.errors):
        typer.echo(f"  {finding.words}")
    if not checked.ok:
        raise typer.Exit(1)


@app.command()
def run(
    out: Annotated[Path, typer.Option(help="Folder of the evaluation, made if need be.")],
    spec: Annotated[
        Path | None,
        typer.Argument(
            help="Benchmark specification whose model, endpoint, arms and deadlines are taken.",
            show_default=False,
        ),
    ] = None,
    suite: SuiteOption = "humaneval",
    data: DataOption = None,
    since: SinceOption = None,
    until: UntilOption = None,
    limit: Annotated[int | None, typer.Option(min=1, help="The first tasks only.")] = None,
    model: ModelOption = DEFAULT_MODEL,
    drafter: DrafterOption = None,
    dtype: Annotated[str, typer.Option(help="float32 or bfloat16.")] = "bfloat16",
    url: Annotated[
        str | None, typer.Option(help="A running server, instead of one that is started here.")
    ] = None,
    kind: Annotated[str, typer.Option(help="For --url: ddtree, sglang, vllm or openai.")] = (
        "ddtree"
    ),
    served_model: Annotated[
        str | None, typer.Option(help="For --url: the model's name in requests.")
    ] = None,
    arm: ArmsOption = None,
    prompting: Annotated[str, typer.Option(help="chat or completion.")] = "chat",
    thinking: Annotated[
        bool | None,
        typer.Option(
            "--thinking/--no-thinking",
            help="The chat template's enable_thinking. Default: left to the model.",
        ),
    ] = None,
    template: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=JSON", help="A variable of the chat template; repeatable."),
    ] = None,
    temperature: Annotated[float, typer.Option(help="0 is greedy.")] = 0.0,
    top_p: Annotated[float, typer.Option(help="For --temperature above 0.")] = 1.0,
    top_k: Annotated[int, typer.Option(help="For --temperature above 0; 0 keeps all.")] = 0,
    min_p: Annotated[float, typer.Option(help="For --temperature above 0.")] = 0.0,
    samples: Annotated[int, typer.Option(min=1, help="Answers to each task.")] = 1,
    max_tokens: Annotated[int, typer.Option(min=1, help="Tokens of an answer.")] = 1024,
    concurrency: Annotated[int, typer.Option(min=1, help="Requests in flight.")] = 4,
    noise: Annotated[bool, typer.Option("--noise", help="Run the baseline twice.")] = False,
    seed: Annotated[int, typer.Option(min=0, help="Of samples and intervals.")] = 0,
    threads: Annotated[
        int | None, typer.Option(min=1, help="CPU threads of a server. Default: physical cores.")
    ] = None,
    sandbox: SandboxOption = None,
    allow_unsafe_exec: AllowUnsafeOption = False,
    workers: WorkersOption = None,
) -> None:
    """Let every arm answer every task, then run the answers' tests; the same command goes on with
    what was stopped.
    """
    from ddtree.cli.eval_given import bench_spec
    from ddtree.evals.spec import EvalSpec
    from ddtree.records.sampling import Sampling

    found = read_tasks(suite, data, (since, until), limit)
    endpoint = {"url": url, "kind": kind, "model": served_model} if url else {}
    served = bench_spec(
        spec,
        {"model": model, "drafter": expand(drafter), "dtype": dtype, "endpoint": endpoint},
        arm,
        concurrency,
        max_tokens,
    )
    asked = EvalSpec(
        suite=suite,
        suite_sha256=found.sha256,
        model=served.model,
        dtype=served.dtype,
        arms=served.arms,
        prompting=prompting,  # type: ignore[arg-type]
        thinking=thinking,
        template=variables_of(template),
        sampling=Sampling(temperature, top_p, top_k, min_p),
        samples=samples,
        max_tokens=max_tokens,
        concurrency=concurrency,
        limit=limit,
        noise=noise,
        seed=seed,
        since=since,
        until=until,
    )
    with opened_bench(sandbox, allow_unsafe_exec, workers) as bench:
        summary = _run(asked, served, found.tasks, bench, (out, threads))
    _finish(summary, out)


@app.command()
def rescore(
    folder: FolderArgument,
    data: DataOption = None,
    sandbox: SandboxOption = None,
    allow_unsafe_exec: AllowUnsafeOption = False,
    workers: WorkersOption = None,
) -> None:
    """Extract and grade the answers on file anew; asks no server for anything."""
    from ddtree.evals.run import regrade
    from ddtree.evals.spec import read_spec

    spec = read_spec(folder)
    found = read_tasks(spec.suite, data, (spec.since, spec.until), spec.limit)
    if found.sha256 != spec.suite_sha256:
        raise ConfigError(
            f"suite {spec.suite}: the file's sha256 is {found.sha256}, the answers are to one with "
            f"{spec.suite_sha256}; give that with --data"
        )
    with opened_bench(sandbox, allow_unsafe_exec, workers) as bench:
        summary = regrade(spec, found.tasks, bench, folder)
    _finish(summary, folder)


@app.command()
def report(folder: FolderArgument, as_json: JsonOption = False) -> None:
    """Print an evaluation's table and write its page anew."""
    from ddtree.records.evals import EVAL_FILE, read_eval

    summary = read_eval(folder / EVAL_FILE)
    if as_json:
        typer.echo(summary.to_json(), nl=False)
        return
    _finish(summary, folder)


def _run(
    asked: "EvalSpec", served: "BenchSpec", tasks: Any, bench: Any, given: tuple[Path, int | None]
) -> "EvalSummary":
    from ddtree.cli.bench import server_settings
    from ddtree.cli.bench_progress import BenchProgress
    from ddtree.cli.eval_given import servers_of
    from ddtree.evals.run import Place, run_eval
    from ddtree.records.provenance import collect

    out, threads = given
    settings = server_settings(threads)
    # A key would be asked of the harness, too.
    own = {name: value for name, value in os.environ.items() if name != API_KEY_VARIABLE}
    with BenchProgress() as progress, _stoppable(progress, out):
        progress.note(f"sandbox: {bench.sandbox}")
        place = Place(out, progress, collect(tuple(sys.argv), {"eval": asked.seed}, settings))
        servers = servers_of(served, out, {**own, **settings}, progress.note)
        return run_eval(asked, tasks, servers, bench, place)


@contextmanager
def _stoppable(progress: Any, out: Path) -> Iterator[None]:
    try:
        yield
    except KeyboardInterrupt:
        progress.note(f"stopped; the same command goes on from {out}")
        raise typer.Exit(130) from None


def _finish(summary: "EvalSummary", folder: Path) -> None:
    from ddtree.report.coding import coding_text
    from ddtree.report.coding_page import write_coding_page

    path = folder / REPORT_FILE
    write_coding_page(summary, path)
    typer.echo(coding_text(summary))
    typer.echo(str(path.resolve()))
    if summary.problems:
        typer.echo("error: the evaluation is not valid; the problems are above", err=True)
        raise typer.Exit(1)
