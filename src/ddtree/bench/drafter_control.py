"""Does a loaded drafter slow the baseline down? `ar` on both servers, block by block, ABBA.

While one server works the other is idle and uses no CPU.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from ddtree.bench.group import CUT_OFF, MAX_ATTEMPTS
from ddtree.bench.part import Part, Recorder, run_part, warmup_requests
from ddtree.bench.plan import Group, part_work
from ddtree.bench.session import Connection
from ddtree.errors import EndpointError
from ddtree.records.arms import Arm
from ddtree.records.metrics import system_tokens_per_s
from ddtree.records.summary import CellState

Side = Literal["control-with-drafter", "control-without-drafter"]
SIDES: tuple[Side, ...] = ("control-with-drafter", "control-without-drafter")

_AR = Arm("ar")


@dataclass(frozen=True)
class ControlRun:
    """`cells` and `servers` by side."""

    group: Group
    cells: Mapping[Side, str]
    servers: Mapping[Side, Connection]
    recorder: Recorder

    async def run(self) -> bool:
        """Run what is missing and set the cells' states; True when every block is valid."""
        await self._warm_up()
        for block in range(len(self.group.blocks)):
            reason = await self._block(block)
            if reason is not None:
                self._finish("invalid", f"block {block}: {reason}")
                return False
        self._finish("ok", None)
        return True

    async def _warm_up(self) -> None:
        for side in SIDES:
            for request in warmup_requests(self.recorder.spec, self.group, _AR):
                record = await self.servers[side].client.stream_completion(request)
                if record.error is not None:
                    self.recorder.progress.note(f"warm-up of {side}: {record.error}")

    async def _block(self, block: int) -> str | None:
        if self._is_done(block):
            return None
        reason: str | None = None
        for _ in range(MAX_ATTEMPTS):
            self._void(block, CUT_OFF)
            try:
                reason = await self._attempt(block)
            except EndpointError as error:
                self._void(block, "a server stopped")
                return str(error)
            if reason is None:
                return None
            self._void(block, reason)
            self.recorder.progress.note(f"control, block {block}: {reason}")
        return reason

    async def _attempt(self, block: int) -> str | None:
        for side in SIDES[::-1] if block % 2 else SIDES:
            part = Part(self.cells[side], _AR, self.group, block)
            result = await run_part(part, self.servers[side], self.recorder)
            speed = system_tokens_per_s(result.records, self.group.concurrency)
            work = part_work(self.recorder.spec, self.group)
            self.recorder.progress.advance(f"{side}, block {block}", work, speed)
            if result.invalid is not None:
                return result.invalid
        return None

    def _is_done(self, block: int) -> bool:
        rows = [self.recorder.ledger.last_attempt(key, block) for key in self.cells.values()]
        return all(row is not None and row.state == "ok" for row in rows)

    def _void(self, block: int, reason: str) -> None:
        for key in self.cells.values():
            row = self.recorder.ledger.last_attempt(key, block)
            if row is not None and row.state == "ok":
                self.recorder.ledger.finish_block(key, block, "invalid", reason)

    def _finish(self, state: CellState, reason: str | None) -> None:
        for key in self.cells.values():
            self.recorder.ledger.set_cell_state(key, state, reason)
