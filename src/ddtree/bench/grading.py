"""After the timed part: every output beside the baseline's, differences scored by the server."""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ddtree.bench.drafter_control import SIDES
from ddtree.bench.group import BASELINE
from ddtree.bench.pairing import CellData, gather, pairs
from ddtree.bench.part import Progress
from ddtree.bench.plan import Group, request_sampling
from ddtree.bench.session import Connection
from ddtree.bench.spec import BenchSpec
from ddtree.errors import DDTreeError, EndpointError
from ddtree.records.arms import Arm
from ddtree.records.ledger import Ledger
from ddtree.records.requests import RequestRecord
from ddtree.records.sampling import Sampling
from ddtree.records.summary import Losslessness
from ddtree.verify.control import ControlResult, run_control
from ddtree.verify.endpoint_source import EndpointSource
from ddtree.verify.grade import (
    OutputGrade,
    baseline_grade,
    grade_baseline_output,
    grade_cell,
)
from ddtree.verify.outputs import Output
from ddtree.verify.scoring import CachedScorer, Position

Cells = Mapping[tuple[int, Arm], str]


@dataclass(frozen=True)
class _ServerScorer:
    """The scorer of whatever server runs now: it may be started again in between."""

    server: Connection

    async def score(
        self, token_ids: Sequence[int], score_from: int, rows: int, sampling: Sampling
    ) -> Sequence[Position]:
        source = EndpointSource(self.server.client)
        return await source.score(token_ids, score_from, rows, sampling)


def is_open(grade: Losslessness | None) -> bool:
    """Whether a cell is still to be graded: never done, or some difference was not scored."""
    return grade is None or (grade.grade == "unclassified" and grade.outputs > 0)


class Grading:
    """Grades every cell of a run; `cells[g, arm]` is the key of group g's cell."""

    def __init__(
        self, spec: BenchSpec, ledger: Ledger, requests: Sequence[RequestRecord], progress: Progress
    ) -> None:
        self.spec = spec
        self.ledger = ledger
        self.progress = progress
        self._scorer: CachedScorer | None = None
        self._by_cell: dict[str, list[RequestRecord]] = {}
        for record in requests:
            self._by_cell.setdefault(record.cell, []).append(record)
        self._rows = {row.key: row for row in ledger.cells()}
        self._limits: dict[tuple[str, int, int, str], int] = {}
        for block in ledger.blocks():
            for prompt, limit in block.extra.get("max_tokens", {}).items():
                self._limits[block.cell, block.index, block.attempt, prompt] = limit

    async def run(
        self, groups: Mapping[int, Group], cells: Cells, server: Connection, block_size: int
    ) -> None:
        """Grade and record. What can't be scored leaves differing outputs unclassified.

        A dead server is started again; an error costs one cell its grade and is noted.
        """
        if not groups:
            return
        await self._connect(server, next(iter(groups.values())))
        rows = max(block_size, *((arm.budget or 0) + 1 for arm in self.spec.arms))
        controls: dict[tuple[int, float], ControlResult | None] = {}
        for g, group in groups.items():
            baseline = self._data(cells[g, BASELINE])
            outputs = self._outputs(group, list(baseline.finished))
            place = (group.context, group.temperature)
            if not controls.get(place) and outputs:
                how = f", temperature {group.temperature:g}" if group.temperature else ""
                self.progress.note(f"grading: control at context {group.context}{how}")
                some = outputs[: self.spec.control_outputs]
                controls[place] = await self._control(some, rows, server)
            own = await self._own_grades(outputs, controls.get(place), server)
            self.ledger.set_grade(cells[g, BASELINE], baseline_grade(len(outputs), own))
            for arm in group.arms[1:]:
                sides = (cells[g, arm], baseline)
                await self._grade(group, sides, server, controls.get(place))

    async def grade_drafter_control(self, group: Group, server: Connection) -> None:
        """Say of the drafter control's outputs that differ how many do by near-ties alone."""
        setting = (group.context, group.concurrency)
        found = [c for c in self.ledger.controls() if (c.context, c.concurrency) == setting]
        if not found or found[0].identical == found[0].outputs:
            return
        rows = [r for r in self._rows.values() if (r.context, r.concurrency) == setting]
        # Where a side was measured again, the newest row counts.
        newest = {row.role: self._data(row.key) for row in rows if row.role in SIDES}
        outputs = self._pairs(
            group, newest["control-with-drafter"], newest["control-without-drafter"]
        )
        await self._connect(server, group)
        try:
            graded = await grade_cell(outputs, self._scorer, self.spec.dtype)
        except DDTreeError as error:
            self.progress.note(f"grading: drafter control: differences stay open: {error}")
            return
        self.ledger.set_control(dataclasses.replace(found[0], near_ties=graded.near_ties))
        self.progress.note(
            f"grading: drafter control: {graded.identical} of {graded.outputs} identical, "
            f"{graded.near_ties} near-ties"
        )

    async def _control(
        self, outputs: Sequence[Output], rows: int, server: Connection
    ) -> ControlResult | None:
        if self._scorer is None:
            return None
        try:
            return await run_control(outputs, self._scorer, rows, self.spec.dtype)
        except DDTreeError as error:
            self.progress.note(f"grading: no control: {error}")
            await self._revive(server)
            return None

    async def _own_grades(
        self, outputs: Sequence[Output], control: ControlResult | None, server: Connection
    ) -> list[OutputGrade]:
        """Some baseline outputs held against their own scores: what is wrong with all arms alike
        shows nowhere else."""
        if self._scorer is None:
            return []
        some = outputs[: self.spec.control_outputs]
        dtype = self.spec.dtype
        try:
            return [await grade_baseline_output(o, self._scorer, dtype, control) for o in some]
        except DDTreeError as error:
            self.progress.note(f"grading: the baseline's own scores stay unchecked: {error}")
            await self._revive(server)
            return []

    async def _grade(
        self,
        group: Group,
        sides: tuple[str, CellData],
        server: Connection,
        control: ControlResult | None,
    ) -> None:
        key, baseline = sides
        outputs = self._pairs(group, self._data(key), baseline)
        where = f"{self._rows[key].arm.label} at {group.name}"
        try:
            found = await grade_cell(outputs, self._scorer, self.spec.dtype, control)
        except DDTreeError as error:
            self.progress.note(f"grading: {where}: differences stay open: {error}")
            await self._revive(server)
            found = await grade_cell(outputs, None, self.spec.dtype, control)
        self.ledger.set_grade(key, found)
        self.progress.note(
            f"grading: {where}: {found.grade}, {found.identical} of {found.outputs} identical"
        )

    async def _connect(self, server: Connection, group: Group) -> None:
        """Have a scorer, if the server lives and can score."""
        self._scorer = CachedScorer(_ServerScorer(server))
        await self._revive(server)
        probe = group.blocks[0][0].token_ids
        try:
            await server.client.score((*probe, probe[-1]), len(probe))
        except EndpointError as error:
            self.progress.note(f"grading: the server can't score, differences stay open: {error}")
            self._scorer = None

    async def _revive(self, server: Connection) -> None:
        """Start the server again if it has died; where that fails too, scoring ends."""
        try:
            server.check_alive()
            return
        except EndpointError as error:
            self.progress.note(f"grading: starting the server again: {error}")
        try:
            await server.restart()
        except EndpointError as error:
            self.progress.note(f"grading: no server, differences stay open: {error}")
            self._scorer = None

    def _pairs(
        self, group: Group, arm: CellData, baseline: CellData
    ) -> list[tuple[Output, Output]]:
        """(baseline's, arm's) output of each prompt that both finished."""
        both = [pair for block in pairs(arm.blocks, baseline.blocks) for pair in block]
        mine = self._outputs(group, [pair[0] for pair in both])
        base = self._outputs(group, [pair[1] for pair in both])
        return list(zip(base, mine, strict=True))

    def _data(self, key: str) -> CellData:
        records = self._by_cell.get(key, [])
        return gather(self._rows[key], self.ledger.blocks(key), records)

    def _outputs(self, group: Group, records: Sequence[RequestRecord]) -> list[Output]:
        prompts = {prompt.id: prompt.token_ids for prompt in group.prompts}
        return [
            Output(
                prompts[r.prompt_id],
                r.token_ids,
                r.finish_reason,
                self._limits[r.cell, r.block, r.attempt, r.prompt_id],
                request_sampling(self.spec, group, r.prompt_id),
            )
            for r in records
        ]
