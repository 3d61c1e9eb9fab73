"""One part over HTTP: a block of prompts on a mock server, with a ledger and a log of its own."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from mock_backend import Notes, quiet, run, spec_of
from run_folders import identity

from ddtree.bench.part import Part, PartResult, Recorder, run_part
from ddtree.bench.plan import Group
from ddtree.bench.spec import BenchSpec
from ddtree.bench.workload import Prompt
from ddtree.endpoint.calls import Deadlines
from ddtree.endpoint.client import ServerClient
from ddtree.endpoint.mock import MockServer
from ddtree.endpoint.mock_script import MockScript
from ddtree.records.arms import Arm
from ddtree.records.files import RequestLog, read_requests
from ddtree.records.ledger import BlockRow, Ledger
from ddtree.records.requests import RequestRecord
from ddtree.records.settings import Setting

TREE = Arm("ddtree", 4, 2)


@dataclass(frozen=True)
class Ran:
    """What a part left: its result, its block, the log, and the server that saw it."""

    result: PartResult
    block: BlockRow
    logged: tuple[RequestRecord, ...]
    server: MockServer


@dataclass(frozen=True)
class Reached:
    client: ServerClient

    def check_alive(self) -> None: ...


def prompts(count: int, first: int = 0) -> tuple[Prompt, ...]:
    return tuple(
        Prompt(f"p{i}", (1 + i, *range(1, 60)), str(i)) for i in range(first, first + count)
    )


def run_one(
    folder: Path,
    script: MockScript,
    count: int,
    setting: Setting | None = None,
    spec: BenchSpec | None = None,
    **recorder: Any,
) -> Ran:
    """`count` prompts as one block at `setting`, with the tree of budget 4."""
    setting, spec = setting or Setting(60, 1), spec or spec_of()
    group = Group(setting, (TREE,), (prompts(count),), prompts(setting.concurrency, 900), ())

    async def work() -> Ran:
        with (
            Ledger.open(folder / "ledger.sqlite", "hash") as ledger,
            RequestLog(folder / "requests.jsonl") as log,
        ):
            cell = ledger.add_cell(replace(identity(TREE), concurrency=setting.concurrency))
            keeper = Recorder(spec, ledger, log, Notes(), quiet(lambda: ()), **recorder)
            limits = Deadlines(30.0, 30.0, 60.0)
            async with (
                MockServer(script) as server,
                ServerClient(server.url, deadlines=limits) as client,
            ):
                result = await run_part(Part(cell, TREE, group, 0), Reached(client), keeper)
            (block,) = ledger.blocks(cell)
        return Ran(result, block, read_requests(folder / "requests.jsonl"), server)

    return run(work(), 120)
