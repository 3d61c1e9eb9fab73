"""A whole run: spec to a folder of records. Killed at any instant, it goes on where it was.

What is on file counts: a block that is `ok` under the same cell key is not run again, and a cell's
key changes with anything that could change its result.
"""

import dataclasses
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from ddtree.bench.arm_servers import ArmBackend, ArmServers
from ddtree.bench.cells import grid_of
from ddtree.bench.drafter_control import SIDES, ControlRun
from ddtree.bench.grading import Grading, is_open
from ddtree.bench.group import BASELINE
from ddtree.bench.matrix import Matrix, cell_identity
from ddtree.bench.pairing import Blocks, gather
from ddtree.bench.part import Progress, Recorder
from ddtree.bench.plan import Group, make_plan, part_work
from ddtree.bench.session import (
    Backend,
    Connection,
    ServerIdentity,
    check_fits,
    identify,
)
from ddtree.bench.spec import BenchSpec, ChatFormat, differences
from ddtree.bench.spec_file import load_spec
from ddtree.bench.summarise import (
    LEDGER_FILE,
    PROVENANCE_FILE,
    REQUESTS_FILE,
    SPEC_FILE,
    TUNING_FILE,
    control_of,
    write_summary,
)
from ddtree.bench.tasks import LoadHumanEval, kinds_of
from ddtree.bench.tuned import Tuning, TuningBook
from ddtree.bench.watch import Reader, cpu_reader
from ddtree.bench.workload import PromptSource
from ddtree.errors import ConfigError
from ddtree.records import provenance
from ddtree.records.files import RequestLog, read_requests, write_atomic
from ddtree.records.ledger import Ledger, cell_key
from ddtree.records.provenance import Provenance
from ddtree.records.summary import Control, RunSummary


def _no_humaneval() -> Sequence[str]:
    raise ConfigError("workload humaneval: no source of its prompts was given")


MakeReader = Callable[[Callable[[], Iterable[int]]], Reader]
Fleet = Connection | ArmServers


@dataclass(frozen=True)
class RunSetup:
    """What a run needs beside its spec. `backend` has the kind of servers that the spec names: one
    for all arms, or one for each. `command` and `environment` go into the provenance.

    `load_humaneval` gives the prompts of the workload of that name.
    """

    folder: Path
    backend: Backend | ArmBackend
    progress: Progress
    command: Sequence[str] = ()
    environment: Mapping[str, str] = dataclasses.field(default_factory=dict)
    make_reader: MakeReader = cpu_reader
    load_humaneval: LoadHumanEval = _no_humaneval


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
        self._servers: list[Fleet] = []
        self.recorder = Recorder(
            spec,
            ledger,
            log,
            setup.progress,
            setup.make_reader(lambda: [pid for s in self._servers for pid in s.pids]),
        )

    async def run(self) -> None:
        async with self._fleet() as fleet:
            main = await fleet.of(BASELINE)
            info = await main.client.server_info()
            check_fits(self.spec, info)
            code = self._keep_provenance(info)
            self.recorder = dataclasses.replace(
                self.recorder, threads=info.get("threads"), block_size=info.get("block_size")
            )
            self._note_windows(info)
            grid, source = grid_of(self.spec), self._source(main, info)
            plan = await make_plan(self.spec, grid, source)
            # A budgeted run learns its work as it narrows the grid.
            self.setup.progress.total(0.0)
            matrix = self._matrix(fleet, identify(self.spec, info, code))
            book = TuningBook(self.setup.folder / TUNING_FILE)
            book.set_skips(grid.skips)
            groups = plan.groups
            if self.spec.budget_minutes is not None:
                groups = await Tuning(matrix, source, book).narrow(plan.groups)
            self._tell_work(groups, plan.control)
            ran = await matrix.run(groups, plan.sentinel)
            if plan.control is not None:
                await self._control(plan.control, matrix, code)
            main = await fleet.of(BASELINE)
            await self._grade(groups, ran, matrix, main, int(info.get("block_size") or 1))
            if plan.control is not None:
                await self._grading().grade_drafter_control(plan.control, main)

    async def _grade(
        self,
        groups: Sequence[Group],
        ran: Sequence[Group],
        matrix: Matrix,
        server: Connection,
        block_size: int,
    ) -> None:
        """Grade the groups in which something ran, and those whose grades are missing or open."""
        grades = self.ledger.grades()
        cells = {
            (g, a): key for g, group in enumerate(groups) for a, key in matrix.cells(group).items()
        }
        ungraded = {
            g: group
            for g, group in enumerate(groups)
            if group in ran or any(is_open(grades.get(cells[g, arm])) for arm in group.arms)
        }
        await self._grading().run(ungraded, cells, server, block_size)

    def _grading(self) -> Grading:
        requests = read_requests(self.setup.folder / REQUESTS_FILE)
        return Grading(self.spec, self.ledger, requests, self.setup.progress)

    def _matrix(self, fleet: Fleet, identity: ServerIdentity) -> Matrix:
        path = self.setup.folder / REQUESTS_FILE
        return Matrix(self.spec, self.recorder, fleet, identity, path)

    def _note_windows(self, info: dict[str, Any]) -> None:
        if any(arm.draft_window is not None for arm in self.spec.arms):
            self.setup.progress.note(
                f"arms that name no draft window get the server's: {info.get('draft_window')}"
            )

    @asynccontextmanager
    async def _fleet(self) -> AsyncIterator[Fleet]:
        """One server for all arms, or servers by arm."""
        if not self.spec.endpoint.arm_is_launch:
            async with self._server(drafter=True) as server:
                yield server
            return
        backend = cast("ArmBackend", self.setup.backend)
        async with ArmServers(backend, self.spec, self.setup.progress.note) as servers:
            self._servers.append(servers)
            yield servers
            self._servers.remove(servers)

    @asynccontextmanager
    async def _server(self, *, drafter: bool) -> AsyncIterator[Connection]:
        what = "server" if drafter else "server without a drafter"
        self.setup.progress.note(f"starting the {what}")
        backend = cast("Backend", self.setup.backend)
        async with Connection(backend, self.spec, drafter=drafter) as connection:
            self._servers.append(connection)
            yield connection
            self._servers.remove(connection)

    def _source(self, main: Connection, info: dict[str, Any]) -> PromptSource:
        async def tokenize(text: str) -> tuple[int, ...]:
            return await main.client.tokenize(text)

        around = info.get("chat_format")
        chat = None if around is None else ChatFormat(*around)
        kinds = kinds_of(self.spec, self.setup.load_humaneval, chat)
        return PromptSource(tokenize, kinds, self.spec.seed)

    def _tell_work(self, groups: Sequence[Group], control: Group | None) -> None:
        runs = [(group, len(group.arms)) for group in groups]
        if control is not None:
            runs.append((control, len(SIDES)))
        work = sum(part_work(self.spec, g) * arms * len(g.blocks) for g, arms in runs)
        self.setup.progress.total(work)

    async def _control(self, group: Group, matrix: Matrix, code: Provenance) -> None:
        first = cell_identity(self.spec, group, BASELINE, matrix.identity)
        first = dataclasses.replace(first, role="control-with-drafter")
        if self._is_control_done(cell_key(first), group):
            return
        async with self._server(drafter=False) as other:
            info = await other.client.server_info()
            second = cell_identity(self.spec, group, BASELINE, identify(self.spec, info, code))
            second = dataclasses.replace(second, role="control-without-drafter")
            keys = [self.ledger.add_cell(identity) for identity in (first, second)]
            cells = dict(zip(SIDES, keys, strict=True))
            main = await matrix.servers.of(BASELINE)
            servers = dict(zip(SIDES, (main, other), strict=True))
            valid = await ControlRun(group, cells, servers, self.recorder).run()
        if not valid:
            self.setup.progress.note("the control without a drafter is invalid; see the ledger")
            return
        blocks = [self._blocks(key) for key in keys]
        try:
            control = control_of(group.setting, blocks[0], blocks[1], self.spec.seed)
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
        now = provenance.collect(
            self.setup.command, {"spec": self.spec.seed}, self.setup.environment
        )
        provenance.keep(self.setup.folder / PROVENANCE_FILE, now.to_dict() | {"server": info})
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
