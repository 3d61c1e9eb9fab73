"""Groups on a server: their cells in the ledger, their runs, what came of them."""

import dataclasses
import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ddtree.bench.arm_servers import ArmServers, run_groups
from ddtree.bench.cells import dominated
from ddtree.bench.group import BASELINE, Attempt, GroupRun
from ddtree.bench.pairing import CellData, gather
from ddtree.bench.part import Part, Recorder, ServerCrashError, run_part
from ddtree.bench.plan import Group
from ddtree.bench.session import Connection, ServerIdentity
from ddtree.bench.spec import BenchSpec
from ddtree.bench.workload import prompts_sha256
from ddtree.records.arms import Arm
from ddtree.records.files import read_requests
from ddtree.records.ledger import CellIdentity
from ddtree.records.requests import RequestRecord
from ddtree.records.settings import Setting


@dataclass(frozen=True)
class Matrix:
    """Runs groups; `requests_path` is where the recorder's log writes."""

    spec: BenchSpec
    recorder: Recorder
    servers: Connection | ArmServers
    identity: ServerIdentity
    requests_path: Path

    def cells(self, group: Group) -> dict[Arm, str]:
        """Ledger keys of a group's cells, planned if they were not there."""
        return {
            arm: self.recorder.ledger.add_cell(cell_identity(self.spec, group, arm, self.identity))
            for arm in group.arms
        }

    async def run(
        self, groups: Sequence[Group], sentinel: Group | None = None
    ) -> tuple[Group, ...]:
        """Run what is missing of each group; those in which anything ran.

        Every `sentinel_every` groups, and at both ends, the sentinel is measured.
        """
        on_file = self.requests_by_attempt()
        planned = [(group, self.cells(group)) for group in groups]
        if isinstance(self.servers, ArmServers):
            for group, cells in planned:
                self._bar_dominated(group, cells)
            return await run_groups(planned, self.servers, self.recorder, on_file)
        ran = []
        every = self.spec.sentinel_every
        for number, (group, cells) in enumerate(planned):
            if sentinel is not None and number % every == 0:
                await self._measure(sentinel, number // every)
            self._bar_dominated(group, cells)
            if await GroupRun(group, cells, self.servers, self.recorder, on_file).run():
                ran.append(group)
        if sentinel is not None and groups:
            await self._measure(sentinel, (len(groups) - 1) // every + 1)
        return tuple(ran)

    def data(self, group: Group) -> dict[Arm, CellData]:
        """What the log and the ledger have of a group's cells."""
        keys = self.cells(group)
        wanted = {key: arm for arm, key in keys.items()}
        records: dict[Arm, list[RequestRecord]] = defaultdict(list)
        for record in read_requests(self.requests_path):
            if record.cell in wanted:
                records[wanted[record.cell]].append(record)
        rows = {row.key: row for row in self.recorder.ledger.cells() if row.key in wanted}
        return {
            arm: gather(rows[key], self.recorder.ledger.blocks(key), records[arm])
            for arm, key in keys.items()
        }

    def requests_by_attempt(self) -> Mapping[Attempt, Sequence[RequestRecord]]:
        """Every request on file by (cell, block, attempt)."""
        found: dict[Attempt, list[RequestRecord]] = defaultdict(list)
        for record in read_requests(self.requests_path):
            found[record.cell, record.block, record.attempt].append(record)
        return found

    def _bar_dominated(self, group: Group, cells: Mapping[Arm, str]) -> None:
        """Leave out what asks for no less than a cell that was quarantined."""
        failed: list[tuple[Arm, Setting]] = [
            (row.arm, row.setting)
            for row in self.recorder.ledger.cells()
            if row.state == "quarantined"
        ]
        for arm, key in cells.items():
            found = [f for f in failed if f[1] != group.setting]
            found = [f for f in found if arm != BASELINE and dominated(arm, group.setting, f)]
            if found:
                other, place = found[0]
                reason = f"asks for no less than {other.label} at {place.name}, which failed"
                self.recorder.ledger.set_cell_state(key, "quarantined", reason)
                self.recorder.progress.note(f"{arm.label} at {group.name} is left out: it {reason}")

    async def _measure(self, sentinel: Group, number: int) -> None:
        """The sentinel's prompts once more, as its block `number`."""
        repeated = dataclasses.replace(sentinel, blocks=sentinel.blocks * (number + 1))
        # The same prompts each time are the point; the cell is that of one block.
        key = self.cells(sentinel)[BASELINE]
        row = self.recorder.ledger.last_attempt(key, number)
        if row is not None and row.state == "ok":
            return
        try:
            server = await self.servers.of(BASELINE)
            await run_part(Part(key, BASELINE, repeated, number), server, self.recorder)
        except ServerCrashError as error:
            self.recorder.progress.note(f"sentinel: {error}")
            await self.servers.revive(BASELINE)


def cell_identity(spec: BenchSpec, group: Group, arm: Arm, server: ServerIdentity) -> CellIdentity:
    """What a cell's key is the hash of."""
    # Requests' seeds follow from the spec's and from the prompts.
    sampling = spec.sampling(group.temperature).with_seed(spec.seed)
    return CellIdentity(
        arm=arm,
        context=group.context,
        concurrency=group.concurrency,
        temperature=group.temperature,
        rate=group.setting.rate,
        max_tokens=spec.max_tokens,
        prompts_sha256=prompts_sha256(group.prompts),
        model_sha256=server.model_sha256,
        drafter_sha256=server.drafter_sha256,
        dtype=spec.dtype,
        server_version=server.version,
        role=group.role,
        settings=(
            *server.settings,
            ("ignore_eos", str(spec.ignore_eos)),
            ("arrivals", spec.arrivals),
            ("sampling", json.dumps(sampling.to_request())),
        ),
    )
