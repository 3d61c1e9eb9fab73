"""`ddtree bench selftest`: how far off the harness itself is, before anything is rented."""

import dataclasses
import json as json_module
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from ddtree.bench.selftest import CaseResult, Row


def selftest(
    concurrency: Annotated[int, typer.Option(min=1, help="Requests in flight.")] = 64,
    seconds: Annotated[
        float, typer.Option(min=0.1, help="Length of each case that compares speeds.")
    ] = 20.0,
    case: Annotated[
        list[str] | None, typer.Option(help="One case alone; may be given again.")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Measure a mock server that knows the truth; exits 1 when a bias exceeds 1 % or a count is
    wrong.
    """
    from ddtree.bench.selftest import run_selftest
    from ddtree.bench.selftest_cases import CASE_NAMES
    from ddtree.endpoint.loop import run
    from ddtree.errors import ConfigError

    for name in case or ():
        if name not in CASE_NAMES:
            raise ConfigError(f"--case {name!r}: unknown; there are {', '.join(CASE_NAMES)}")

    def told(result: "CaseResult") -> None:
        typer.echo(f"{result.name}: {'ok' if result.is_right else 'WRONG'}", err=True)

    results = run(run_selftest(concurrency, seconds, case or CASE_NAMES, told))
    right = all(result.is_right for result in results)
    if json:
        typer.echo(json_module.dumps(_data(results, right), indent=1))
    else:
        typer.echo("\n".join(line for result in results for line in _lines(result)))
        typer.echo(f"self-test: {'passed' if right else 'FAILED'}")
    if not right:
        raise typer.Exit(1)


def _data(results: "tuple[CaseResult, ...]", right: bool) -> dict[str, object]:
    cases = []
    for result in results:
        data = dataclasses.asdict(result)
        data["rows"] = [{**dataclasses.asdict(r), "is_right": r.is_right} for r in result.rows]
        cases.append(data)
    return {"passed": right, "cases": cases}


def _lines(result: "CaseResult") -> list[str]:
    lag = result.loop_lag_p99_s
    late = "unknown" if lag is None else f"{lag * 1e3:.1f} ms"
    return [
        f"{result.name}: {result.about} ({result.requests} requests, {result.seconds:.1f} s, "
        f"client {result.client_cpu:.0%} of a core, loop lag p99 {late})",
        *(f"  note: {note}" for note in result.notes),
        f"  {'':<36}{'sent':>12}{'measured':>12}{'bias':>10}",
        *(_line(row) for row in result.rows),
    ]


def _line(row: "Row") -> str:
    mark = "" if row.is_right else "  WRONG"
    if row.bias is None:
        return f"  {row.metric:<36}{row.truth:>12.0f}{row.measured:>12.0f}{'':>10}{mark}"
    return f"  {row.metric:<36}{row.truth:>12.2f}{row.measured:>12.2f}{row.bias:>+10.2%}{mark}"
