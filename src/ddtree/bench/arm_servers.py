"""Kinds whose arm is a launch: servers by arm, one at a time or all where they run already.

With launches the outer loop is the server session: in each block every arm's server is started in
turn, forth in one block and back in the next, and every group runs its part of that block on it, so
that a block of a group holds all arms once, minutes apart. Since the baseline may come last,
outputs are not limited to its length; how many differ in length is noted with the block.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Protocol, Self

from ddtree.bench.arm_backend import check_resolved
from ddtree.bench.group import GroupRun
from ddtree.bench.group_parts import (
    BASELINE,
    CUT_OFF,
    MAX_ATTEMPTS,
    MAX_CRASHES,
    GroupParts,
    OnFile,
)
from ddtree.bench.part import Recorder, ServerCrashError
from ddtree.bench.plan import Group, arm_order
from ddtree.bench.session import Connection, Server
from ddtree.bench.spec import BenchSpec
from ddtree.endpoint.gpu import memory_used_mib, wait_for_floor
from ddtree.errors import EndpointError
from ddtree.records.arms import Arm

Cells = Mapping[Arm, str]


class ArmBackend(Protocol):
    """Has a server for each arm."""

    async def start_arm(self, arm: Arm) -> Server:
        """A server that has generated; EndpointError when there is none."""
        ...


@dataclass(frozen=True)
class _OneArm:
    """An arm's servers as a `Connection` starts them; a drafter is the arm's affair."""

    backend: ArmBackend
    arm: Arm

    async def start(self, *, drafter: bool) -> Server:
        return await self.backend.start_arm(self.arm)


class ArmServers:
    """The servers of a run, by arm. Use as an async context manager.

    A launched server is ended before another arm's starts; servers that run already stay open all
    at once. Each is asked what it runs, and one that runs something else than its arm is none.
    """

    def __init__(self, backend: ArmBackend, spec: BenchSpec, note: Callable[[str], None]) -> None:
        self._backend = backend
        self._spec = spec
        self._note = note
        self._open: dict[Arm, Connection] = {}
        self._floor = memory_used_mib() if spec.endpoint.launches else None

    @property
    def alone(self) -> bool:
        """Whether an arm's server ends when another's starts."""
        return self._spec.endpoint.launches

    @property
    def pids(self) -> tuple[int, ...]:
        """The processes of all that run."""
        return tuple(pid for server in self._open.values() for pid in server.pids)

    async def of(self, arm: Arm) -> Connection:
        """The arm's server, started if need be. EndpointError when it can't be had."""
        if arm not in self._open:
            if self.alone:
                await self.close()
                await wait_for_floor(self._floor)
            server = Connection(_OneArm(self._backend, arm), self._spec)
            self._open[arm] = await server.__aenter__()
            try:
                await check_resolved(self._spec, arm, server.client, self._note)
            except BaseException:
                await self.revive(arm)
                raise
        return self._open[arm]

    async def revive(self, arm: Arm) -> None:
        """End an arm's server, if it runs: whoever needs it next starts a fresh one."""
        server = self._open.pop(arm, None)
        if server is not None:
            await server.__aexit__(None, None, None)

    async def close(self) -> None:
        """End all that run."""
        for arm in list(self._open):
            await self.revive(arm)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()


async def run_groups(
    groups: Sequence[tuple[Group, Cells]],
    servers: ArmServers,
    recorder: Recorder,
    on_file: OnFile,
) -> tuple[Group, ...]:
    """Run what is missing of each group, whose cells are planned; those in which anything ran."""
    if servers.alone:
        runs = [_Run(GroupParts(group, cells, recorder, on_file)) for group, cells in groups]
        return await _Sessions(runs, servers, recorder).run()
    ran = []
    for group, cells in groups:
        if await GroupRun(group, cells, servers, recorder, on_file).run():
            ran.append(group)
    return tuple(ran)


@dataclass
class _Run:
    """A group on its way through the sessions."""

    parts: GroupParts
    missing: list[int] = field(default_factory=list)
    noisy: Counter[int] = field(default_factory=Counter)
    over: bool = False
    # In which start of an arm's server the group was warmed up.
    warm: Connection | None = None
    lengths: dict[Arm, dict[str, int]] = field(default_factory=dict)

    def is_due(self, block: int) -> bool:
        return not self.over and block in self.missing and not self.parts.is_done(block)


class _Sessions:
    def __init__(self, runs: Sequence[_Run], servers: ArmServers, recorder: Recorder) -> None:
        self._runs = runs
        self._servers = servers
        self._recorder = recorder

    async def run(self) -> tuple[Group, ...]:
        for run in self._runs:
            run.missing = run.parts.begin()
        for block in range(max((len(r.parts.group.blocks) for r in self._runs), default=0)):
            while due := [run for run in self._runs if run.is_due(block)]:
                await self._pass(block, due)
        for run in self._runs:
            if not run.over:
                run.parts.set_cells("ok")
        return tuple(run.parts.group for run in self._runs if run.missing)

    async def _pass(self, block: int, due: Sequence[_Run]) -> None:
        """Every arm's server once, every group that is due on it once."""
        for run in due:
            run.parts.void(block, run.parts.live, CUT_OFF)
            run.lengths = {}
        waiting = list(due)
        arms = tuple(dict.fromkeys(arm for run in due for arm in run.parts.live))
        for arm in arm_order(arms, block):
            for run in list(waiting):
                # A server that can't be started puts its arm out of the groups behind, too.
                if arm in run.parts.live and not await self._turn(run, arm, block):
                    waiting.remove(run)
            waiting = [run for run in waiting if not run.over]
        for run in waiting:
            _note_lengths(run, block)

    async def _turn(self, run: _Run, arm: Arm, block: int) -> bool:
        """One group's part on one arm's server; whether the block is still good."""
        parts = run.parts
        try:
            server = await self._server(arm, block)
            if server is None:
                return not run.over
            reason = await self._prepare(run, arm, server)
            if reason is not None:
                self._end(run, block, reason)
                return False
            result = await parts.run(server, arm, block, {})
        except ServerCrashError as error:
            await self._servers.revive(arm)
            reason = parts.crashed(arm, error)
            parts.void(block, parts.live, f"the server stopped while running {arm.label}")
        else:
            run.lengths[arm] = {
                r.prompt_id: sum(r.chunk_tokens) for r in result.records if r.error is None
            }
            if result.invalid is None:
                return True
            reason = result.invalid
            run.noisy[block] += 1
            parts.void(block, parts.live, reason)
        self._recorder.progress.note(f"{parts.group.name}, block {block}: {reason}")
        if not parts.has_baseline or run.noisy[block] >= MAX_ATTEMPTS:
            self._end(run, block, reason)
        return False

    async def _server(self, arm: Arm, block: int) -> Connection | None:
        """The arm's server, tried twice; then the arm is out of every group."""
        problem: EndpointError | None = None
        for _ in range(MAX_CRASHES):
            try:
                return await self._servers.of(arm)
            except EndpointError as error:
                problem = error
                self._recorder.progress.note(f"no server for {arm.label}: {error}")
        for run in [r for r in self._runs if not r.over and arm in r.parts.live]:
            reason = run.parts.crashed(arm, problem or EndpointError("not tried"), MAX_CRASHES)
            if not run.parts.has_baseline:
                self._end(run, block, reason)
        return None

    async def _prepare(self, run: _Run, arm: Arm, server: Connection) -> str | None:
        if run.warm is not server:
            await run.parts.warm_up(server, arm)
            run.warm = server
        if arm == BASELINE and not run.parts.calibrated:
            return await run.parts.calibrate(server)
        return None

    def _end(self, run: _Run, block: int, reason: str) -> None:
        """Nothing more of this group."""
        run.over = True
        left = len([other for other in run.missing if other > block])
        run.parts.give_up(f"block {block}: {reason}", left)


def _note_lengths(run: _Run, block: int) -> None:
    """Say with each arm's block how many outputs are not as long as the baseline's."""
    baseline = run.lengths.get(BASELINE, {})
    for arm, lengths in run.lengths.items():
        both = [prompt for prompt in lengths if prompt in baseline]
        differing = sum(lengths[prompt] != baseline[prompt] for prompt in both)
        run.parts.annotate(arm, block, length_mismatches=differing)
