"""One arm's share of one block: its requests alone on the server, recorded and judged."""

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

from ddtree.bench.gates import Observed, judge
from ddtree.bench.part_load import Loaded, PartLoad
from ddtree.bench.plan import Group, request_sampling
from ddtree.bench.spec import BenchSpec
from ddtree.bench.watch import (
    CpuReading,
    CpuShare,
    Reader,
    others_reason,
    share_between,
    step_reason,
    step_s,
)
from ddtree.endpoint.calls import CompletionRequest, RequestLabel
from ddtree.endpoint.client import ServerClient
from ddtree.endpoint.load import TIMEOUT_CELL
from ddtree.endpoint.stream import error_class
from ddtree.errors import EndpointError
from ddtree.records.arms import Arm
from ddtree.records.files import RequestLog
from ddtree.records.ledger import Ledger
from ddtree.records.requests import RequestRecord
from ddtree.records.summary import CellState

# A server that dies breaks its streams first and is gone, to those who ask, a moment later.
_BREAKS = ("connect", "broken_stream")
_DYING_S = 1.0
_POLL_S = 0.05
_NO_PROGRESS = (
    *("connect", "timeout_first_token", "timeout_silence", "timeout_total"),
    TIMEOUT_CELL,
)


class Reached(Protocol):
    """A server with its client."""

    @property
    def client(self) -> ServerClient:
        """EndpointError when there is none."""
        ...

    def check_alive(self) -> None:
        """EndpointError once the server has died."""
        ...


class Progress(Protocol):
    """Where a run tells how far it is; work is in the units of `plan.part_work`."""

    def total(self, work: float) -> None:
        """All the work there is from here on; 0 while nobody can tell."""
        ...

    def advance(self, label: str, work: float, tokens_per_s: float | None) -> None:
        """A part is done."""
        ...

    def note(self, text: str) -> None:
        """Something worth a line."""
        ...


class ServerCrashError(EndpointError):
    """The server died (`kind` server_crash) or stopped making progress (no_progress)."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


@dataclass(frozen=True)
class Part:
    """A cell's block to run: `caps` limits single prompts below the spec's max_tokens."""

    cell: str
    arm: Arm
    group: Group
    block: int
    caps: Mapping[str, int] = field(default_factory=dict)
    calibration_s: float | None = None

    @property
    def label(self) -> str:
        """How progress calls it."""
        return f"{self.arm.label} at {self.group.name}, block {self.block}"


@dataclass(frozen=True)
class PartResult:
    """The part's requests in the order of the block's prompts; why it is void, or None."""

    records: tuple[RequestRecord, ...]
    invalid: str | None


@dataclass(frozen=True)
class Recorder:
    """Where parts are kept and how the machine is watched.

    `threads` and `block_size` are the server's, None where it doesn't say.
    """

    spec: BenchSpec
    ledger: Ledger
    log: RequestLog
    progress: Progress
    reader: Reader
    threads: int | None = None
    block_size: int | None = None

    def share_since(self, before: CpuReading) -> CpuShare:
        """What other processes took since a reading."""
        return share_between(before, self.reader(), self.threads)


def warmup_requests(spec: BenchSpec, group: Group, arm: Arm) -> tuple[CompletionRequest, ...]:
    """What warms an arm up for its group: the group's warm-up prompts, sampled as it samples."""
    return tuple(
        CompletionRequest(
            prompt.token_ids,
            spec.warmup_tokens,
            arm,
            ignore_eos=True,
            sampling=request_sampling(spec, group, prompt.id),
        )
        for prompt in group.warmup
    )


async def run_part(part: Part, server: Reached, recorder: Recorder) -> PartResult:
    """Send the block's prompts with this arm, keep every request, judge the time it took.

    Each request is on disk as it finishes, the block's row once all have. ServerCrashError when
    the server died or when every request ran into a deadline; the block is then `failed`.
    """
    limits = {
        p.id: part.caps.get(p.id, recorder.spec.max_tokens) for p in part.group.blocks[part.block]
    }
    attempt = recorder.ledger.start_block(part.cell, part.block)
    before = recorder.reader()
    load = await PartLoad(
        spec=recorder.spec,
        group=part.group,
        arm=part.arm,
        label=RequestLabel(part.cell, attempt, part.block),
        limits=limits,
        sampling=partial(request_sampling, recorder.spec, part.group),
        client=server.client,
        log=recorder.log,
        lead_in=recorder.spec.lead_in,
    ).run()
    share = recorder.share_since(before)
    try:
        await check_server(server, load.records)
    except ServerCrashError as error:
        recorder.ledger.finish_block(part.cell, part.block, "failed", error.kind)
        raise
    findings = judge(_observed(part, load, recorder))
    step = step_s(load.records) if part.arm.method == "ar" else None
    invalid = others_reason(share) or findings.invalid or step_reason(step, part.calibration_s)
    extra = {
        "others_cpu_share": share.others,
        "step_s": step,
        "calibration_s": part.calibration_s,
        "max_tokens": limits,
        "loop_lag_p99_s": None if load.lag is None else load.lag.p99_s,
        "achieved_concurrency": load.occupancy.mean,
        "peak_in_flight": load.occupancy.peak,
        "flags": list(findings.flags),
    }
    state: CellState = "invalid" if invalid else "ok"
    recorder.ledger.finish_block(part.cell, part.block, state, invalid, extra)
    return PartResult(load.records, invalid)


def _observed(part: Part, load: Loaded, recorder: Recorder) -> Observed:
    closed = recorder.spec.arrivals == "closed"
    return Observed(
        arm=part.arm,
        records=load.records,
        planned={p.id: len(p.token_ids) for p in part.group.blocks[part.block]},
        concurrency=part.group.setting.concurrency if closed else None,
        occupancy=load.occupancy,
        lag=load.lag,
        block_size=recorder.block_size,
    )


async def check_server(server: Reached, records: Sequence[RequestRecord]) -> None:
    """ServerCrashError when the server died under these requests or let none make progress.

    After a broken stream the server is watched for a second before it counts as alive.
    """
    classes = [error_class(record.error) for record in records if record.error is not None]
    end = time.monotonic() + (_DYING_S if set(classes) & set(_BREAKS) else 0.0)
    while True:
        try:
            server.check_alive()
        except EndpointError as error:
            raise ServerCrashError("server_crash", str(error)) from None
        if time.monotonic() >= end:
            break
        await asyncio.sleep(_POLL_S)
    if len(classes) == len(records) and set(classes) <= set(_NO_PROGRESS):
        raise ServerCrashError("no_progress", f"no request made progress: {records[0].error}")
