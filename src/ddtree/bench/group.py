"""All arms at one context and concurrency: warm-up, calibration, then block by block.

In a block every arm runs the same prompts, one arm after the other, forth in one block and back
in the next. The block is the unit of pairing: what voids one arm's part voids the block for all,
and a block cut off by a crash of the client is run anew as a whole.

Each arm's output is capped by the natural length of the baseline's for that prompt, plus one token
where the baseline stopped by itself, so that an arm which runs past the stop shows. Arms that run
after `ar` in the block are sent with that cap. One that ran before it, and whose own output went
on for longer, is run again with the cap, within the block; its first attempt is void.
"""

from collections import Counter
from collections.abc import Iterable, Mapping

from ddtree.bench.load import closed_loop
from ddtree.bench.part import Part, PartResult, Recorder, ServerCrashError, run_part
from ddtree.bench.plan import Group, arm_order, part_work
from ddtree.bench.session import Connection
from ddtree.bench.watch import median_step_s, others_reason, share_between
from ddtree.bench.workload import Prompt
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


class GroupRun:
    """`cells[arm]` is the ledger's key. An arm whose cell is quarantined takes no more part."""

    def __init__(
        self, group: Group, cells: Mapping[Arm, str], server: Connection, recorder: Recorder
    ) -> None:
        self.group = group
        self.cells = cells
        self.server = server
        self.recorder = recorder
        self._live = tuple(cells)
        self._running = BASELINE
        self._crashes: Counter[Arm] = Counter()
        self._calibration_s: float | None = None

    async def run(self) -> bool:
        """Run what is missing and set the cells' states; False when all was on file."""
        missing = [b for b in range(len(self.group.blocks)) if not self._is_done(b)]
        self._count_off(len(self.group.blocks) - len(missing), "on file")
        if missing:
            self._set_cells("running")
            await self._prepare()
        for block in missing:
            reason = await self._block(block)
            if reason is not None:
                state: CellState = "invalid" if BASELINE in self._live else "failed"
                self._set_cells(state, f"block {block}: {reason}")
                self._count_off(len(missing) - missing.index(block) - 1, state)
                return True
        self._set_cells("ok")
        return bool(missing)

    async def _block(self, block: int) -> str | None:
        """Run a block until it is valid; the reason when it can't be."""
        reason: str | None = None
        for _ in range(MAX_ATTEMPTS):
            self._void(block, self._live, CUT_OFF)
            try:
                reason = await self._attempt(block)
            except ServerCrashError as error:
                reason = await self._after_crash(block, error)
            if reason is None or BASELINE not in self._live:
                return reason
            self.recorder.progress.note(f"{self.group.name}, block {block}: {reason}")
        return reason

    async def _attempt(self, block: int) -> str | None:
        """Every arm once; the reason when that is void."""
        order = arm_order(self._live, block)
        done: dict[Arm, PartResult] = {}
        for arm in order:
            self._running = arm
            caps = _caps(done.get(BASELINE))
            done[arm] = await self._part(arm, block, caps)
            reason = done[arm].invalid
            if reason is not None:
                self._void(block, self._live, reason)
                return reason
        caps = _caps(done.get(BASELINE))
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

    async def _after_crash(self, block: int, error: ServerCrashError) -> str | None:
        """Start the server again; an arm that has brought it down twice is quarantined."""
        arm = self._running
        self._crashes[arm] += 1
        reason = f"the server stopped while running {arm.label}: {error}"
        self._void(block, self._live, f"the server stopped while running {arm.label}")
        if self._crashes[arm] >= MAX_CRASHES:
            state: CellState = "failed" if arm == BASELINE else "quarantined"
            self.recorder.ledger.set_cell_state(self.cells[arm], state, reason)
            self._live = tuple(a for a in self._live if a != arm)
        await self.server.restart()
        await self._warm_up(self._live)
        return reason

    async def _prepare(self) -> None:
        await self._warm_up(self._live)
        if self._calibration_s is None:
            self._calibration_s = await self._calibrate()

    async def _warm_up(self, arms: Iterable[Arm]) -> None:
        for arm in arms:
            records = await self._unrecorded(
                self.group.warmup, self.recorder.spec.warmup_tokens, arm
            )
            for record in records:
                if record.error is not None:
                    self.recorder.progress.note(f"warm-up of {arm.label}: {record.error}")
                    break

    async def _calibrate(self) -> float | None:
        """The baseline's step on a quiet machine: up to three tries, the smallest median."""
        steps = []
        for prompts in self.group.calibration:
            before = self.recorder.reader()
            tokens = self.recorder.spec.calibration_tokens
            records = await self._unrecorded(prompts, tokens, BASELINE)
            step = median_step_s(records)
            if step is not None:
                steps.append(step)
                if others_reason(share_between(before, self.recorder.reader())) is None:
                    break
        if not steps:
            self.recorder.progress.note(f"{self.group.name}: no calibration of the ar step")
        return min(steps, default=None)

    async def _unrecorded(
        self, prompts: tuple[Prompt, ...], max_tokens: int, arm: Arm
    ) -> tuple[RequestRecord, ...]:
        async def send(prompt: Prompt) -> RequestRecord:
            request = CompletionRequest(prompt.token_ids, max_tokens, arm, ignore_eos=True)
            return await self.server.client.stream_completion(request)

        async def drop(_: RequestRecord) -> None: ...

        return await closed_loop(prompts, self.group.concurrency, send, drop)

    def _is_done(self, block: int) -> bool:
        last = [self.recorder.ledger.last_attempt(key, block) for key in self.cells.values()]
        return all(row is not None and row.state == "ok" for row in last)

    def _void(self, block: int, arms: Iterable[Arm], reason: str) -> None:
        """Mark what is ok in this block as invalid."""
        for arm in arms:
            row = self.recorder.ledger.last_attempt(self.cells[arm], block)
            if row is not None and row.state == "ok":
                self.recorder.ledger.finish_block(self.cells[arm], block, "invalid", reason)

    def _set_cells(self, state: CellState, reason: str | None = None) -> None:
        for arm in self._live:
            self.recorder.ledger.set_cell_state(self.cells[arm], state, reason)

    def _count_off(self, blocks: int, why: str) -> None:
        work = part_work(self.recorder.spec, self.group) * len(self.cells) * blocks
        if work:
            self.recorder.progress.advance(f"{self.group.name}: {why}", work, None)


def _caps(baseline: PartResult | None) -> dict[str, int]:
    """Tokens an arm may generate by prompt, where the baseline finished."""
    records = baseline.records if baseline is not None else ()
    return {
        r.prompt_id: len(r.token_ids) + (r.finish_reason == "stop")
        for r in records
        if r.error is None
    }


def _overran(records: Iterable[RequestRecord], caps: Mapping[str, int]) -> bool:
    return any(
        record.error is None
        and len(record.token_ids) > caps.get(record.prompt_id, len(record.token_ids))
        for record in records
    )
