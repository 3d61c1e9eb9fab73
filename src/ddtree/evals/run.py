"""One evaluation from its specification to its summary: check, generate, then grade."""

import asyncio
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path

from ddtree.endpoint.client import ServerClient
from ddtree.endpoint.loop import run as run_on_loop
from ddtree.errors import ConfigError, EndpointError
from ddtree.evals.generate import Generation, Progress, Servers, prompts_of
from ddtree.evals.lossless import grade_outputs
from ddtree.evals.selfcheck import Runner, SelfCheck, selfcheck, with_expected
from ddtree.evals.spec import BASELINE, EvalSpec, claim
from ddtree.evals.summarise import PROVENANCE_FILE, Grader, write_eval
from ddtree.evals.tasks import Task
from ddtree.records.evals import EvalSummary
from ddtree.records.provenance import Provenance, keep


@dataclass(frozen=True)
class Bench:
    """Where programs run: `run` runs jobs in the sandbox that `sandbox` describes in one line."""

    run: Runner
    sandbox: str


@dataclass(frozen=True)
class Place:
    """`folder` keeps everything, where it comes from included; `progress` hears of it."""

    folder: Path
    progress: Progress
    provenance: Provenance


def run_eval(
    spec: EvalSpec,
    tasks: Sequence[Task],
    servers: AbstractAsyncContextManager[Servers],
    bench: Bench,
    place: Place,
) -> EvalSummary:
    """Answers that are not in the folder yet are asked for, then all are graded.

    ConfigError where the folder holds another evaluation, or the self-check is not clean: nothing
    is generated then. EndpointError when no server can be had.
    """
    claim(place.folder, spec)
    known, checked = check(tasks, bench)
    place.progress.note(f"self-check: {checked.line}")
    if not checked.ok:
        raise ConfigError(f"the self-check is not clean, nothing was run: {checked.line}")
    run_on_loop(_generate(spec, known, servers, place))
    return write_eval(place.folder, spec, known, Grader(bench.run, bench.sandbox, checked))


def regrade(spec: EvalSpec, tasks: Sequence[Task], bench: Bench, folder: Path) -> EvalSummary:
    """The summary of the answers on file, extracted and run anew."""
    known, checked = check(tasks, bench)
    return write_eval(folder, spec, known, Grader(bench.run, bench.sandbox, checked))


def check(tasks: Sequence[Task], bench: Bench) -> tuple[Sequence[Task], SelfCheck]:
    """The tasks with all expected results known, and what the self-check says of them."""
    known = with_expected(tasks, bench.run)
    return known, selfcheck(known, bench.run)


async def _generate(
    spec: EvalSpec,
    tasks: Sequence[Task],
    holder: AbstractAsyncContextManager[Servers],
    place: Place,
) -> None:
    """Outputs are compared while the servers still run, since it is they who score them."""
    async with holder as servers:
        client = await _client(servers)
        entry = place.provenance.to_dict() | {"server": await _info(client)}
        await asyncio.to_thread(keep, place.folder / PROVENANCE_FILE, entry)
        prompts = await prompts_of(spec, tasks, client)
        generation = Generation(spec, place.folder, servers, place.progress, prompts)
        await generation.run(tasks)
        client = await _client(servers)
        await grade_outputs(spec, place.folder, client, prompts, place.progress)


async def _client(servers: Servers) -> ServerClient:
    return (await servers.of(BASELINE)).client


async def _info(client: ServerClient) -> dict[str, object] | None:
    """What the server says of itself; None from one that doesn't."""
    try:
        return await client.server_info()
    except EndpointError:
        return None
