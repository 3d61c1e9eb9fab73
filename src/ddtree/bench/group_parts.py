"""One group's parts: warm-up, calibration, an arm's block, and what voids or bars them.

The rules are the same whether arms take turns on one server (`ddtree.bench.group`) or each has its
own (`ddtree.bench.arm_servers`): what voids one arm's part voids the block for all, and an arm that
has brought its server down MAX_CRASHES times is quarantined, with the baseline the whole group.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

from ddtree.bench.part import (
    Part,
    PartResult,
    Recorder,
    check_server,
    run_part,
    warmup_requests,
)
from ddtree.bench.plan import Group, part_work, request_sampling
from ddtree.bench.session import Connection
from ddtree.bench.warmup import MAX_BATCHES, warm_up
from ddtree.bench.watch import others_reason, step_s
from ddtree.endpoint.calls import CompletionRequest
from ddtree.endpoint.kinds.counters import Counters, counter_stats
from ddtree.endpoint.load import closed_loop
from ddtree.errors import EndpointError
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


class Servers(Protocol):
    """Where an arm's requests go."""

    async def of(self, arm: Arm) -> Connection:
        """The connection to a server that decodes with this arm; EndpointError without one."""
        ...

    async def revive(self, arm: Arm) -> None:
        """The arm's server is dead: have a fresh one from now on. EndpointError where none can
        be had and nothing else can be run either."""
        ...


class GroupParts:
    """`cells[arm]` is the ledger's key. An arm whose cell is quarantined takes no more part.

    `on_file` has the requests of an earlier start by (cell, block, attempt).
    """

    def __init__(
        self, group: Group, cells: Mapping[Arm, str], recorder: Recorder, on_file: OnFile
    ) -> None:
        self.group = group
        self.cells = cells
        self.recorder = recorder
        out = {row.key for row in recorder.ledger.cells() if row.state == "quarantined"}
        self.live = tuple(arm for arm, key in cells.items() if key not in out)
        self.calibrated = False
        self._on_file = on_file
        self._crashes: Counter[Arm] = Counter()
        self._calibration_s: float | None = None

    @property
    def has_baseline(self) -> bool:
        """Whether there is still something to compare with."""
        return BASELINE in self.live

    def begin(self) -> list[int]:
        """The blocks to run, the group marked as running if there are any."""
        count = len(self.group.blocks)
        missing = [block for block in range(count) if not self.is_done(block)]
        self._count_off(count - len(missing), "on file")
        if missing:
            self.set_cells("running")
        return missing

    def give_up(self, reason: str, blocks: int) -> None:
        """Mark all cells; `blocks` are those not run."""
        state: CellState = "invalid" if self.has_baseline else "failed"
        self.set_cells(state, reason)
        self._count_off(blocks, state)

    async def run(
        self, server: Connection, arm: Arm, block: int, caps: Mapping[str, int]
    ) -> PartResult:
        """One arm's part on an empty cache, with the counters' account where the kind has them."""
        flag = await self._empty_cache(server)
        before = await self._counters(server)
        part = Part(self.cells[arm], arm, self.group, block, caps, self._calibration_s)
        result = await run_part(part, server, self.recorder)
        if flag is not None:
            self.annotate(arm, block, flags=[*self._flags(arm, block), flag])
        after = await self._counters(server)
        if before is not None and after is not None:
            self.annotate(arm, block, counters=counter_stats(before, after))
        speed = system_tokens_per_s(result.records, self.group.concurrency)
        work = part_work(self.recorder.spec, self.group)
        self.recorder.progress.advance(part.label, work, speed)
        return result

    async def warm_up(self, server: Connection, arm: Arm) -> None:
        """Run an arm at the group's shape, untimed. ServerCrashError when that ends its server."""
        spec = self.recorder.spec
        requests = warmup_requests(spec, self.group, arm)

        async def batch() -> tuple[RequestRecord, ...]:
            return await self._unrecorded(server, requests)

        done = await warm_up(batch, MAX_BATCHES if spec.warmup_context is None else 1)
        if done.note is not None:
            self.recorder.progress.note(f"warm-up of {arm.label}: {done.note}")

    async def calibrate(self, server: Connection) -> str | None:
        """Learn the baseline's step on a quiet machine: up to three tries, the smallest.

        The reason when there is none. ServerCrashError when the server ends.
        """
        tokens = self.recorder.spec.calibration_length(self.group.concurrency)
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
            step = step_s(await self._unrecorded(server, requests))
            if step is not None:
                steps.append(step)
                if others_reason(self.recorder.share_since(before)) is None:
                    break
        self._calibration_s = min(steps, default=None)
        self.calibrated = self._calibration_s is not None
        if self.calibrated:
            return None
        return (
            f"no calibration of the ar step: none of {len(self.group.calibration)} tries "
            "gave an ar request of two chunks; see the server's log"
        )

    def crashed(self, arm: Arm, error: EndpointError, count: int = 1) -> str:
        """Count `count` crashes of an arm's server; one crash too many quarantines the arm.

        The baseline fails instead. Answers what happened, in words.
        """
        self._crashes[arm] += count
        reason = f"the server stopped while running {arm.label}: {error}"
        if self._crashes[arm] >= MAX_CRASHES and arm in self.live:
            state: CellState = "failed" if arm == BASELINE else "quarantined"
            self.recorder.ledger.set_cell_state(self.cells[arm], state, reason)
            self.live = tuple(a for a in self.live if a != arm)
        return reason

    def is_done(self, block: int) -> bool:
        """Whether every live arm's part is on file, ok, and within the baseline's length."""
        kept = []
        for arm in self.live:
            row = self.recorder.ledger.last_attempt(self.cells[arm], block)
            if row is None or row.state != "ok":
                return False
            kept.append(self._on_file.get((row.cell, row.index, row.attempt), ()))
        if not self.has_baseline or "length_mismatches" in self._extra(BASELINE, block):
            return True
        # The client may have been killed between a part and its repetition with the cap.
        caps = self.caps(kept[self.live.index(BASELINE)])
        return not any(overran(records, caps) for records in kept)

    def void(self, block: int, arms: Iterable[Arm], reason: str) -> None:
        """Mark what is ok in this block as invalid."""
        for arm in arms:
            row = self.recorder.ledger.last_attempt(self.cells[arm], block)
            if row is not None and row.state == "ok":
                self.recorder.ledger.finish_block(self.cells[arm], block, "invalid", reason)

    def annotate(self, arm: Arm, block: int, **extra: object) -> None:
        """Add to what was observed during an arm's last attempt at a block."""
        row = self.recorder.ledger.last_attempt(self.cells[arm], block)
        if row is not None and row.state == "ok":
            self.recorder.ledger.finish_block(self.cells[arm], block, "ok", None, extra)

    def caps(self, baseline: Iterable[RequestRecord]) -> dict[str, int]:
        """Tokens an arm may generate by prompt, where the baseline finished."""
        limit = self.recorder.spec.max_tokens
        return {
            r.prompt_id: min(limit, sum(r.chunk_tokens) + (r.finish_reason == "stop"))
            for r in baseline
            if r.error is None
        }

    def set_cells(self, state: CellState, reason: str | None = None) -> None:
        """Set the state of every live arm's cell."""
        for arm in self.live:
            self.recorder.ledger.set_cell_state(self.cells[arm], state, reason)

    def _extra(self, arm: Arm, block: int) -> Mapping[str, object]:
        row = self.recorder.ledger.last_attempt(self.cells[arm], block)
        return {} if row is None else row.extra

    def _flags(self, arm: Arm, block: int) -> list[object]:
        flags = self._extra(arm, block).get("flags", [])
        return list(flags) if isinstance(flags, list) else []

    async def _empty_cache(self, server: Connection) -> str | None:
        """What to say of the part where the prefix cache could not be emptied."""
        try:
            emptied = await server.client.reset_cache()
        except EndpointError as error:
            return f"prefix cache not emptied: {error}"
        return None if emptied else "prefix cache not emptied: the endpoint has no route for it"

    async def _counters(self, server: Connection) -> Counters | None:
        try:
            return await server.client.read_counters()
        except EndpointError as error:
            self.recorder.progress.note(f"no counters: {error}")
            return None

    async def _unrecorded(
        self, server: Connection, requests: Sequence[CompletionRequest]
    ) -> tuple[RequestRecord, ...]:
        async def send(request: CompletionRequest) -> RequestRecord:
            return await server.client.stream_completion(request)

        async def drop(_: RequestRecord) -> None: ...

        records = await closed_loop(requests, self.group.concurrency, send, drop)
        await check_server(server, records)
        return records

    def _count_off(self, blocks: int, why: str) -> None:
        work = part_work(self.recorder.spec, self.group) * len(self.cells) * blocks
        if work:
            self.recorder.progress.advance(f"{self.group.name}: {why}", work, None)


def overran(records: Iterable[RequestRecord], caps: Mapping[str, int]) -> bool:
    """Whether an output is longer than the baseline's, for prompts that both finished."""
    return any(
        record.error is None
        and sum(record.chunk_tokens) > caps.get(record.prompt_id, sum(record.chunk_tokens))
        for record in records
    )
