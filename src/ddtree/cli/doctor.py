"""`ddtree doctor`: what this machine and installation can do, what is missing, how to get it."""

import json
import os
from typing import Annotated

import typer

from ddtree.cli import machine_checks, model_checks, sglang_checks
from ddtree.cli.checks import Check, as_json_object
from ddtree.cli.paths import cache_dir


def doctor(
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Report versions, hardware, caches, sandbox and models; exit 1 if something required is
    missing.
    """
    checks = collect()
    if as_json:
        typer.echo(json.dumps(as_json_object(checks), indent=2))
    else:
        for line in _lines(checks):
            typer.echo(line)
    if any(check.status == "missing" for check in checks):
        raise typer.Exit(1)


def collect() -> list[Check]:
    """Every check in the order in which they are shown.

    Those that need torch or transformers are left out, and that is said, while either is missing.
    """
    cache = cache_dir()
    packages = machine_checks.packages()
    checks = [
        machine_checks.python(),
        *packages,
        machine_checks.cpu_features(),
        machine_checks.omp_waiting(os.environ),
        model_checks.cache_folder(cache),
        machine_checks.sandbox(),
        sglang_checks.sglang(),
    ]
    if any(check.status == "missing" for check in packages):
        value = "cores, cuda and models not checked: the packages above come first"
        return [*checks, Check("models", "missing", value)]
    return [
        *checks,
        machine_checks.cores(),
        machine_checks.cuda(),
        *model_checks.zoo_entries(cache),
    ]


def _lines(checks: list[Check]) -> list[str]:
    width = max(len(check.name) for check in checks)
    lines = []
    for check in checks:
        lines.append(f"{check.status:<8}{check.name:<{width}}  {check.value}")
        if check.advice is not None:
            lines.append(f"{'':<8}{'':<{width}}  -> {check.advice}")
    return lines
