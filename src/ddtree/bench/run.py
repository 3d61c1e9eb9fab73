"""A whole run: spec to a folder of records. Killed at any instant, it goes on where it was.

What is on file counts: a block that is `ok` under the same cell key is not run again, and a cell's
key changes with anything that could change its result.
"""

import dataclasses
import json
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ddtree.bench.drafter_control import SIDES, ControlRun
from ddtree.bench.grading import Cells, Grading, is_open
from ddtree.bench.group import Attempt, GroupRun
from ddtree.bench.pairing import Blocks, gather
from ddtree.bench.part import Progress, Recorder
from ddtree.bench.plan import Group, RunPlan, make_plan, part_work
from ddtree.bench.session import (
    Backend,
    Connection,
    ServerIdentity,
    check_fits,
    identify,
)
from ddtree.bench.spec import BenchSpec, differences, load_spec
from ddtree.bench.summarise import (
    LEDGER_FILE,
    PROVENANCE_FILE,
    REQUESTS_FILE,
    SPEC_FILE,
    control_of,
    write_summary,
)
from ddtree.bench.watch import Reader, cpu_reader
from ddtree.bench.workload import PromptSource, prompts_sha256
from ddtree.errors import ConfigError
from ddtree.records import provenance
from ddtree.records.arms import Arm
from ddtree.records.files import RequestLog, read_requests, write_atomic
from ddtree.records.ledger import CellIdentity, Ledger, cell_key
from ddtree.records.provenance import Provenance
from ddtree.records.requests import RequestRecord
from ddtree.records.summary import Control, RunSummary

MakeReader = Callable[[Callable[[], Iterable[int]]], Reader]


@dataclass(frozen=True)
class RunSetup:
    """What a run needs beside its spec. `command` and `environment` go into the provenance."""

    folder: Path
    backend: Backend
    progress: Progress
    command: Sequence[str] = ()
    environment: Mapping[str, str] = dataclasses.field(default_factory=dict)
    make_reader: MakeReader = cpu_reader


async def run_bench(spec: BenchSpec, setup: RunSetup, *, resume: bool = True) -> RunSummary:
    """Run the matrix, grade it, write `summary.json`.

    ConfigError when the folder holds a run of another spec, or any run without `resume`;
    EndpointError when no server can be started.
    """
    folder = setup.folder
    _claim(folder, spec, resume)
    with (
        Ledger.open(folder / LEDGER_FILE, spec.hash) as ledger,
        RequestLog(folder / REQUESTS_FILE) as log,
    ):
        await _Run(spec, setup, ledger, log).run()
    return write_summary(folder)


class _Run:
    def __init__(self, spec: BenchSpec, setup: RunSetup, ledger: Ledger, log: RequestLog) -> None:
        self.spec = spec
        self.setup = setup
        self.ledger = ledger
        self._servers: list[Connection] = []
        self.recorder = Recorder(
            spec,
            ledger,
            log,
            setup.progress,
            setup.make_reader(lambda: [pid for s in self._servers for pid in s.pids]),
        )

    async def run(self) -> None:
        async with self._server(drafter=True) as main:
            info = await main.client.server_info()
            check_fits(self.spec, info)
            code = self._keep_provenance(info)
            self.recorder = dataclasses.replace(self.recorder, threads=info.get("threads"))
            self._note_windows(info)
            plan = await self._plan(main)
            identity = identify(info, code)
            cells = {
                (g, arm): self.ledger.add_cell(self._identity(group, arm, identity))
                for g, group in enumerate(plan.groups)
                for arm in self.spec.arms
            }
            ungraded = await self._groups(plan, cells, main)
            if plan.control is not None:
                await self._control(plan.control, main, identity, code)
            requests = read_requests(self.setup.folder / REQUESTS_FILE)
            grading = Grading(self.spec, self.ledger, requests, self.setup.progress)
            block_size = int(info.get("block_size") or 1)
            await grading.run(ungraded, cells, main, block_size)
            if plan.control is not None:
                await grading.grade_drafter_control(plan.control, main)

    async def _groups(self, plan: RunPlan, cells: Cells, main: Connection) -> dict[int, Group]:
        """Run every group; those whose grades are missing or open."""
        on_file: dict[Attempt, list[RequestRecord]] = defaultdict(list)
        for record in read_requests(self.setup.folder / REQUESTS_FILE):
            on_file[record.cell, record.block, record.attempt].append(record)
        ungraded = {}
        for g, group in enumerate(plan.groups):
            mine = {arm: cells[g, arm] for arm in self.spec.arms}
            ran = await GroupRun(group, mine, main, self.recorder, on_file).run()
            grades = self.ledger.grades()
            if ran or any(is_open(grades.get(key)) for key in mine.values()):
                ungraded[g] = group
        return ungraded

    def _note_windows(self, info: dict[str, Any]) -> None:
        if any(arm.draft_window is not None for arm in self.spec.arms):
            self.setup.progress.note(
                f"arms that name no draft window get the server's: {info.get('draft_window')}"
            )

    @asynccontextmanager
    async def _server(self, *, drafter: bool) -> AsyncIterator[Connection]:
        what = "server" if drafter else "server without a drafter"
        self.setup.progress.note(f"starting the {what}")
        async with Connection(self.setup.backend, self.spec, drafter=drafter) as connection:
            self._servers.append(connection)
            yield connection
            self._servers.remove(connection)

    async def _plan(self, main: Connection) -> RunPlan:
        async def tokenize(text: str) -> tuple[int, ...]:
            return await main.client.tokenize(text)

        source = PromptSource(tokenize, self.spec.workload, self.spec.seed)
        plan = await make_plan(self.spec, source)
        parts = [(group, len(self.spec.arms)) for group in plan.groups]
        parts += [(plan.control, len(SIDES))] if plan.control is not None else []
        work = sum(part_work(self.spec, g) * arms * len(g.blocks) for g, arms in parts)
        self.setup.progress.total(work)
        return plan

    def _identity(self, group: Group, arm: Arm, server: ServerIdentity) -> CellIdentity:
        # Requests' seeds follow from the spec's and from the prompts.
        sampling = self.spec.sampling(group.temperature).with_seed(self.spec.seed)
        return CellIdentity(
            arm=arm,
            context=group.context,
            concurrency=group.concurrency,
            temperature=group.temperature,
            max_tokens=self.spec.max_tokens,
            prompts_sha256=prompts_sha256(group.prompts),
            model_sha256=server.model_sha256,
            drafter_sha256=server.drafter_sha256,
            dtype=self.spec.dtype,
            server_version=server.version,
            settings=(
                *server.settings,
                ("ignore_eos", str(self.spec.ignore_eos)),
                ("sampling", json.dumps(sampling.to_request())),
            ),
        )

    async def _control(
        self, group: Group, main: Connection, with_drafter: ServerIdentity, code: Provenance
    ) -> None:
        first = dataclasses.replace(
            self._identity(group, Arm("ar"), with_drafter), role="control-with-drafter"
        )
        if self._is_control_done(cell_key(first), group):
            return
        async with self._server(drafter=False) as other:
            info = await other.client.server_info()
            second = dataclasses.replace(
                self._identity(group, Arm("ar"), identify(info, code)),
                role="control-without-drafter",
            )
            identities: tuple[CellIdentity, ...] = (first, second)
            keys = [self.ledger.add_cell(identity) for identity in identities]
            cells = dict(zip(SIDES, keys, strict=True))
            servers = dict(zip(SIDES, (main, other), strict=True))
            valid = await ControlRun(group, cells, servers, self.recorder).run()
        if not valid:
            self.setup.progress.note("the control without a drafter is invalid; see the ledger")
            return
        blocks = [self._blocks(key) for key in keys]
        setting = (group.context, group.concurrency, group.temperature)
        try:
            control = control_of(setting, blocks[0], blocks[1], self.spec.seed)
        except ConfigError as error:
            # Every request failed: the cells are worth keeping, the ratio doesn't exist.
            for key in keys:
                self.ledger.set_cell_state(key, "invalid", str(error))
            self.setup.progress.note(str(error))
            return
        self.ledger.set_control(control)
        self.setup.progress.note(_control_text(control))

    def _is_control_done(self, key: str, group: Group) -> bool:
        setting = (group.context, group.concurrency)
        noted = any((c.context, c.concurrency) == setting for c in self.ledger.controls())
        return noted and any(r.key == key and r.state == "ok" for r in self.ledger.cells())

    def _blocks(self, key: str) -> Blocks:
        records = read_requests(self.setup.folder / REQUESTS_FILE)
        row = next(row for row in self.ledger.cells() if row.key == key)
        mine = [record for record in records if record.cell == key]
        return gather(row, self.ledger.blocks(key), mine).blocks

    def _keep_provenance(self, info: dict[str, Any]) -> Provenance:
        """The first start's provenance stays; each resumption adds its own."""
        path = self.setup.folder / PROVENANCE_FILE
        now = provenance.collect(
            self.setup.command, {"spec": self.spec.seed}, self.setup.environment
        )
        entry = now.to_dict() | {"server": info}
        if path.exists():
            first = json.loads(path.read_text())
            first.setdefault("resumed", []).append(entry)
            entry = first
        write_atomic(path, json.dumps(entry, indent=1) + "\n")
        return now


def _control_text(control: Control) -> str:
    interval = control.ratio_interval
    sure = "no interval" if interval is None else f"{interval.low:.3f} to {interval.high:.3f}"
    return (
        f"control: {control.place} runs at {control.ratio:.3f} ({sure}) times its speed on a "
        f"server without a drafter; {control.identical} of {control.outputs} outputs identical"
    )


def _claim(folder: Path, spec: BenchSpec, resume: bool) -> None:
    path = folder / SPEC_FILE
    if not path.exists():
        if (folder / LEDGER_FILE).exists():
            raise ConfigError(f"{folder}: has a ledger but no {SPEC_FILE}; use another folder")
        write_atomic(path, spec.to_yaml())
        return
    changed = differences(load_spec(path), spec)
    if changed:
        raise ConfigError(
            f"{folder}: holds a run of another spec ({'; '.join(changed)}); use another folder"
        )
    if not resume:
        raise ConfigError(f"{folder}: holds a run already; use --resume or another folder")
