"""All arms at one setting, on servers that are all there: warm-up, calibration, block by block.

In a block every arm runs the same prompts, one arm after the other, forth in one block and back
in the next. The block is the unit of pairing: what voids one arm's part voids the block for all,
and a block cut off by a crash of the client is run anew as a whole. Noise on the machine may void
a block MAX_ATTEMPTS times; crashes of the server are counted apart, by arm.

Each arm's output is capped by the natural length of the baseline's for that prompt, plus one token
where the baseline stopped by itself (up to the spec's limit), so that an arm which runs past the
stop shows. Arms that run after `ar` in the block are sent with that cap. One that ran before it,
and whose own output went on for longer, is run again with the cap, within the block; its first
attempt is void.
"""

from collections.abc import Mapping

from ddtree.bench.group_parts import (
    BASELINE,
    CUT_OFF,
    MAX_ATTEMPTS,
    OVERRUN,
    Attempt,
    GroupParts,
    OnFile,
    Servers,
    overran,
)
from ddtree.bench.part import PartResult, Recorder, ServerCrashError
from ddtree.bench.plan import Group, arm_order
from ddtree.bench.session import Connection
from ddtree.errors import EndpointError
from ddtree.records.arms import Arm

__all__ = ["BASELINE", "CUT_OFF", "MAX_ATTEMPTS", "OVERRUN", "Attempt", "GroupRun", "OnFile"]


class GroupRun:
    """`cells` and `on_file` as in `GroupParts`; `servers` has each arm's, one for all at best."""

    def __init__(
        self,
        group: Group,
        cells: Mapping[Arm, str],
        servers: Servers,
        recorder: Recorder,
        on_file: OnFile,
    ) -> None:
        self.parts = GroupParts(group, cells, recorder, on_file)
        self.servers = servers
        self._running = BASELINE

    async def run(self) -> bool:
        """Run what is missing and set the cells' states; False when all was on file."""
        missing = self.parts.begin()
        reason = await self._prepare() if missing else None
        if reason is not None:
            self.parts.give_up(reason, len(missing))
            return True
        for place, block in enumerate(missing):
            reason = await self._block(block)
            if reason is not None:
                self.parts.give_up(f"block {block}: {reason}", len(missing) - place - 1)
                return True
        self.parts.set_cells("ok")
        return bool(missing)

    async def _block(self, block: int) -> str | None:
        """Run a block until it is valid; the reason when it can't be."""
        parts, noisy = self.parts, 0
        while True:
            parts.void(block, parts.live, CUT_OFF)
            try:
                reason = await self._attempt(block)
                noisy += 1
            except ServerCrashError as error:
                parts.void(
                    block, parts.live, f"the server stopped while running {self._running.label}"
                )
                reason = await self._crashed(error)
                if parts.has_baseline:
                    reason = await self._warm_up() or reason
            if reason is None or not parts.has_baseline or noisy == MAX_ATTEMPTS:
                return reason
            parts.recorder.progress.note(f"{parts.group.name}, block {block}: {reason}")

    async def _attempt(self, block: int) -> str | None:
        """Every arm once; the reason when that is void."""
        parts = self.parts
        order = arm_order(parts.live, block)
        done: dict[Arm, PartResult] = {}
        for arm in order:
            caps = parts.caps(done[BASELINE].records if BASELINE in done else ())
            done[arm] = await self._part(arm, block, caps)
            reason = done[arm].invalid
            if reason is not None:
                parts.void(block, parts.live, reason)
                return reason
        caps = parts.caps(done[BASELINE].records)
        for arm in [arm for arm in order if overran(done[arm].records, caps)]:
            parts.void(block, (arm,), OVERRUN)
            reason = (await self._part(arm, block, caps)).invalid
            if reason is not None:
                parts.void(block, parts.live, reason)
                return reason
        return None

    async def _part(self, arm: Arm, block: int, caps: Mapping[str, int]) -> PartResult:
        self._running = arm
        return await self.parts.run(await self._server(arm), arm, block, caps)

    async def _server(self, arm: Arm) -> Connection:
        try:
            return await self.servers.of(arm)
        except EndpointError as error:
            raise ServerCrashError("no_server", str(error)) from None

    async def _crashed(self, error: ServerCrashError) -> str:
        """Start the server again, the crash counted against the arm that ran."""
        reason = self.parts.crashed(self._running, error)
        await self.servers.revive(self._running)
        return reason

    async def _prepare(self) -> str | None:
        """Warm up and calibrate; the reason when nothing can be measured here."""
        reason = await self._warm_up()
        while reason is None and not self.parts.calibrated:
            self._running = BASELINE
            try:
                reason = await self.parts.calibrate(await self._server(BASELINE))
            except ServerCrashError as error:
                crash = await self._crashed(error)
                self.parts.recorder.progress.note(f"calibration: {crash}")
                reason = await self._warm_up() if self.parts.has_baseline else crash
        return reason

    async def _warm_up(self) -> str | None:
        """Run every live arm, untimed; the reason when the baseline is out."""
        waiting = list(self.parts.live)
        while waiting:
            self._running = waiting.pop(0)
            try:
                await self.parts.warm_up(await self._server(self._running), self._running)
            except ServerCrashError as error:
                reason = await self._crashed(error)
                self.parts.recorder.progress.note(f"warm-up: {reason}")
                if not self.parts.has_baseline:
                    return reason
                # A fresh server is cold for every arm.
                waiting = list(self.parts.live)
        return None
