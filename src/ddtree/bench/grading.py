"""After the timed part: every output beside the baseline's, differences scored by the server."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ddtree.bench.group import BASELINE
from ddtree.bench.pairing import CellData, gather, pairs
from ddtree.bench.part import Progress
from ddtree.bench.plan import Group
from ddtree.bench.spec import BenchSpec
from ddtree.endpoint.client import ServerClient
from ddtree.errors import EndpointError
from ddtree.records.arms import Arm
from ddtree.records.ledger import Ledger
from ddtree.records.requests import RequestRecord
from ddtree.verify.control import ControlResult, run_control
from ddtree.verify.grade import baseline_grade, grade_cell
from ddtree.verify.outputs import Output
from ddtree.verify.scoring import CachedScorer, Position

Cells = Mapping[tuple[int, Arm], str]


@dataclass(frozen=True)
class EndpointScorer:
    """The server's scoring call as `verify` wants it."""

    client: ServerClient

    async def score(
        self, token_ids: Sequence[int], score_from: int, rows: int
    ) -> tuple[Position, ...]:
        """Positions score_from.. of the text."""
        scores = await self.client.score(tuple(token_ids), score_from, rows)
        return tuple(Position(s.token_id, s.token_logit, s.top_ids, s.top_logits) for s in scores)


class Grading:
    """Grades every cell of a run; `cells[g, arm]` is the key of group g's cell."""

    def __init__(
        self, spec: BenchSpec, ledger: Ledger, requests: Sequence[RequestRecord], progress: Progress
    ) -> None:
        self.spec = spec
        self.ledger = ledger
        self.progress = progress
        self._by_cell: dict[str, list[RequestRecord]] = {}
        for record in requests:
            self._by_cell.setdefault(record.cell, []).append(record)
        self._rows = {row.key: row for row in ledger.cells()}
        self._limits: dict[tuple[str, int, int, str], int] = {}
        for block in ledger.blocks():
            for prompt, limit in block.extra.get("max_tokens", {}).items():
                self._limits[block.cell, block.index, block.attempt, prompt] = limit

    async def run(
        self, groups: Mapping[int, Group], cells: Cells, client: ServerClient, block_size: int
    ) -> None:
        """Grade and record. A server without logits leaves differing outputs unclassified."""
        if not groups:
            return
        scorer = await self._scorer(client, next(iter(groups.values())))
        rows = max(block_size, *((arm.budget or 0) + 1 for arm in self.spec.arms))
        controls: dict[int, ControlResult | None] = {}
        for g, group in groups.items():
            baseline = self._data(cells[g, BASELINE])
            outputs = self._outputs(group, list(baseline.finished))
            if scorer is not None and not controls.get(group.context) and outputs:
                self.progress.note(f"grading: control at context {group.context}")
                some = outputs[: self.spec.control_outputs]
                controls[group.context] = await run_control(some, scorer, rows, self.spec.dtype)
            self.ledger.set_grade(cells[g, BASELINE], baseline_grade(len(outputs)))
            for arm in self.spec.arms[1:]:
                await self._grade(
                    group, (cells[g, arm], baseline), scorer, controls.get(group.context)
                )

    async def _grade(
        self,
        group: Group,
        sides: tuple[str, CellData],
        scorer: CachedScorer | None,
        control: ControlResult | None,
    ) -> None:
        key, baseline = sides
        both = [pair for block in pairs(self._data(key).blocks, baseline.blocks) for pair in block]
        mine = self._outputs(group, [pair[0] for pair in both])
        base = self._outputs(group, [pair[1] for pair in both])
        found = await grade_cell(
            list(zip(base, mine, strict=True)), scorer, self.spec.dtype, control
        )
        self.ledger.set_grade(key, found)
        label = self._rows[key].arm.label
        self.progress.note(
            f"grading: {label} at {group.name}: {found.grade}, "
            f"{found.identical} of {found.outputs} identical"
        )

    async def _scorer(self, client: ServerClient, group: Group) -> CachedScorer | None:
        probe = group.blocks[0][0].token_ids
        try:
            await client.score(probe, len(probe) - 1)
        except EndpointError as error:
            self.progress.note(f"grading: the server can't score, differences stay open: {error}")
            return None
        return CachedScorer(EndpointScorer(client))

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
            )
            for r in records
        ]
