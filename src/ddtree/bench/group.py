"""All arms at one context, concurrency and temperature: warm-up, calibration, then block by block.

In a block every arm runs the same prompts, one arm after the other, forth in one block and back
in the next. The block is the unit of pairing: what voids one arm's part voids the block for all,
and a block cut off by a crash of the client is run anew as a whole. Noise on the machine may void
a block MAX_ATTEMPTS times; crashes of the server are counted apart, by arm.

Each arm's output is capped by the natural length of the baseline's for that prompt, plus one token
where the baseline stopped by itself (up to the spec's limit), so that an arm which runs past the
stop shows. Arms that run
after `ar` in the block are sent with that cap. One that ran before it, and whose own output went
on for longer, is run again with the cap, within the block; its first attempt is void.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from ddtree.bench.load import closed_loop
from ddtree.bench.part import (
    Part,
    PartResult,
    Recorder,
    ServerCrashError,
    check_server,
    run_part,
    warmup_requests,
)
from ddtree.bench.plan import Group, arm_order, part_work, request_sampling
from ddtree.bench.session import Connection
from ddtree.bench.watch import others_reason, step_s
from ddtree.endpoint.calls import CompletionRequest
from ddtree.records.arms import Arm
from ddtree.records.metrics import system_tokens_per_s
from ddtree.records.requests import RequestRecord
from ddtree.records.summary import CellState

BASELINE = Arm("ar")
MAX_ATTEMPTS = 3
MAX_CRASHES = 2
OVERRUN = "ran past the end of the baseline's output; run again with its length as the limit"
CUT_OFF = "the run was cut off during this block"


Attempt = tuple[str, int, int]
OnFile = Mapping[Attempt, Sequence[RequestRecord]]


class GroupRun:
    """`cells[arm]` is the ledger's key. An arm whose cell is quarantined takes no more part.

    `on_file` has the requests of an earlier start by (cell, block, attempt).
    """

    def __init__(
        self,
        group: Group,
        cells: Mapping[Arm, str],
        server: Connection,
        recorder: Recorder,
        on_file: OnFile,
    ) -> None:
        self.group = group
        self.cells = cells
        self.server = server
        self.recorder = recorder
        self._on_file = on_file
        out = {row.key for row in recorder.ledger.cells() if row.state == "quarantined"}
        self._live = tuple(arm for arm, key in cells.items() if key not in out)
        self._running = BASELINE
        self._crashes: Counter[Arm] = Counter()
        self._calibration_s: float | None = None

    async def run(self) -> bool:
        """Run what is missing and set the cells' states; False when all was on file."""
        missing = [b for b in range(len(self.group.blocks)) if not self._is_done(b)]
        self._count_off(len(self.group.blocks) - len(missing), "on file")
        if missing:
            self._set_cells("running")
        reason = await self._prepare() if missing else None
        if reason is not None:
            return self._give_up(reason, len(missing))
        for place, block in enumerate(missing):
            reason = await self._block(block)
            if reason is not None:
                return self._give_up(f"block {block}: {reason}", len(missing) - place - 1)
        self._set_cells("ok")
        return bool(missing)

    def _give_up(self, reason: str, blocks: int) -> bool:
        """Mark all cells; `blocks` are those not run."""
        state: CellState = "invalid" if BASELINE in self._live else "failed"
        self._set_cells(state, reason)
        self._count_off(blocks, state)
        return True

    async def _block(self, block: int) -> str | None:
        """Run a block until it is valid; the reason when it can't be."""
        noisy = 0
        while True:
            self._void(block, self._live, CUT_OFF)
            try:
                reason = await self._attempt(block)
                noisy += 1
            except ServerCrashError as error:
                self._void(
                    block, self._live, f"the server stopped while running {self._running.label}"
                )
                reason = await self._crashed(error)
                if BASELINE in self._live:
                    reason = await self._warm_up() or reason
            if reason is None or BASELINE not in self._live or noisy == MAX_ATTEMPTS:
                return reason
            self.recorder.progress.note(f"{self.group.name}, block {block}: {reason}")

    async def _attempt(self, block: int) -> str | None:
        """Every arm once; the reason when that is void."""
        order = arm_order(self._live, block)
        done: dict[Arm, PartResult] = {}
        for arm in order:
            self._running = arm
            caps = self._caps(done[BASELINE].records if BASELINE in done else ())
            done[arm] = await self._part(arm, block, caps)
            reason = done[arm].invalid
            if reason is not None:
                self._void(block, self._live, reason)
                return reason
        caps = self._caps(done[BASELINE].records)
        for arm in [arm for arm in order if _overran(done[arm].records, caps)]:
            self._running = arm
            self._void(block, (arm,), OVERRUN)
            reason = (await self._part(arm, block, caps)).invalid
            if reason is not None:
                self._void(block, self._live, reason)
                return reason
        return None

    async def _part(self, arm: Arm, block: int, caps: Mapping[str, int]) -> PartResult:
        part = Part(self.cells[arm], arm, self.group, block, caps, self._calibration_s)
        result = await run_part(part, self.server, self.recorder)
        speed = system_tokens_per_s(result.records, self.group.concurrency)
        work = part_work(self.recorder.spec, self.group)
        self.recorder.progress.advance(part.label, work, speed)
        return result

    async def _crashed(self, error: ServerCrashError) -> str:
        """Start the server again; an arm that has brought it down twice is quarantined.

        The baseline fails instead, and with it the group.
        """
        arm = self._running
        self._crashes[arm] += 1
        reason = f"the server stopped while running {arm.label}: {error}"
        if self._crashes[arm] >= MAX_CRASHES:
            state: CellState = "failed" if arm == BASELINE else "quarantined"
            self.recorder.ledger.set_cell_state(self.cells[arm], state, reason)
            self._live = tuple(a for a in self._live if a != arm)
        await self.server.restart()
        return reason

    async def _prepare(self) -> str | None:
        """Warm up and calibrate; the reason when nothing can be measured here."""
        reason = await self._warm_up()
        while reason is None and self._calibration_s is None:
            try:
                self._calibration_s = await self._calibrate()
            except ServerCrashError as error:
                crash = await self._crashed(error)
                self.recorder.progress.note(f"calibration: {crash}")
                reason = await self._warm_up() if BASELINE in self._live else crash
                continue
            if self._calibration_s is None:
                reason = (
                    f"no calibration of the ar step: none of {len(self.group.calibration)} tries "
                    "gave an ar request of two chunks; see the server's log"
                )
        return reason

    async def _warm_up(self) -> str | None:
        """Run every live arm once, untimed; the reason when the baseline is out."""
        waiting = list(self._live)
        while waiting:
            self._running = waiting.pop(0)
            try:
                requests = warmup_requests(self.recorder.spec, self.group, self._running)
                records = await self._unrecorded(requests)
            except ServerCrashError as error:
                reason = await self._crashed(error)
                self.recorder.progress.note(f"warm-up: {reason}")
                if BASELINE not in self._live:
                    return reason
                # A fresh server is cold for every arm.
                waiting = list(self._live)
                continue
            errors = [record.error for record in records if record.error is not None]
            if errors:
                self.recorder.progress.note(f"warm-up of {self._running.label}: {errors[0]}")
        return None

    async def _calibrate(self) -> float | None:
        """The baseline's step on a quiet machine: up to three tries, the smallest."""
        self._running = BASELINE
        tokens = self.recorder.spec.calibration_tokens
        steps = []
        for prompts in self.group.calibration:
            requests = [
                CompletionRequest(
                    prompt.token_ids,
                    tokens,
                    BASELINE,
                    ignore_eos=True,
                    sampling=request_sampling(self.recorder.spec, self.group, prompt.id),
                )
                for prompt in prompts
            ]
            before = self.recorder.reader()
            records = await self._unrecorded(requests)
            step = step_s(records)
            if step is not None:
                steps.append(step)
                if others_reason(self.recorder.share_since(before)) is None:
                    break
        return min(steps, default=None)

    async def _unrecorded(self, requests: Sequence[CompletionRequest]) -> tuple[RequestRecord, ...]:
        async def send(request: CompletionRequest) -> RequestRecord:
            return await self.server.client.stream_completion(request)

        async def drop(_: RequestRecord) -> None: ...

        records = await closed_loop(requests, self.group.concurrency, send, drop)
        await check_server(self.server, records)
        return records

    def _is_done(self, block: int) -> bool:
        """Whether every live arm's part is on file, ok, and within the baseline's length."""
        kept = []
        for arm in self._live:
            row = self.recorder.ledger.last_attempt(self.cells[arm], block)
            if row is None or row.state != "ok":
                return False
            kept.append(self._on_file.get((row.cell, row.index, row.attempt), ()))
        if BASELINE not in self._live:
            return True
        # The client may have been killed between a part and its repetition with the cap.
        caps = self._caps(kept[self._live.index(BASELINE)])
        return not any(_overran(records, caps) for records in kept)

    def _void(self, block: int, arms: Iterable[Arm], reason: str) -> None:
        """Mark what is ok in this block as invalid."""
        for arm in arms:
            row = self.recorder.ledger.last_attempt(self.cells[arm], block)
            if row is not None and row.state == "ok":
                self.recorder.ledger.finish_block(self.cells[arm], block, "invalid", reason)

    def _caps(self, baseline: Iterable[RequestRecord]) -> dict[str, int]:
        """Tokens an arm may generate by prompt, where the baseline finished."""
        limit = self.recorder.spec.max_tokens
        return {
            r.prompt_id: min(limit, len(r.token_ids) + (r.finish_reason == "stop"))
            for r in baseline
            if r.error is None
        }

    def _set_cells(self, state: CellState, reason: str | None = None) -> None:
        for arm in self._live:
            self.recorder.ledger.set_cell_state(self.cells[arm], state, reason)

    def _count_off(self, blocks: int, why: str) -> None:
        work = part_work(self.recorder.spec, self.group) * len(self.cells) * blocks
        if work:
            self.recorder.progress.advance(f"{self.group.name}: {why}", work, None)


def _overran(records: Iterable[RequestRecord], caps: Mapping[str, int]) -> bool:
    return any(
        record.error is None
        and len(record.token_ids) > caps.get(record.prompt_id, len(record.token_ids))
        for record in records
    )
