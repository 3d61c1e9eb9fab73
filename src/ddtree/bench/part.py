"""One arm's share of one block: its requests alone on the server, recorded and judged."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from ddtree.bench.load import closed_loop
from ddtree.bench.plan import Group
from ddtree.bench.session import Connection
from ddtree.bench.spec import BenchSpec
from ddtree.bench.watch import (
    Reader,
    median_step_s,
    others_reason,
    share_between,
    step_reason,
)
from ddtree.bench.workload import Prompt
from ddtree.endpoint.calls import CompletionRequest, RequestLabel
from ddtree.endpoint.stream import error_class
from ddtree.errors import EndpointError
from ddtree.records.arms import Arm
from ddtree.records.files import RequestLog
from ddtree.records.ledger import Ledger
from ddtree.records.requests import RequestRecord
from ddtree.records.summary import CellState

_NO_PROGRESS = ("connect", "timeout_first_token", "timeout_silence", "timeout_total")


class Progress(Protocol):
    """Where a run tells how far it is; work is in the units of `plan.part_work`."""

    def total(self, work: float) -> None:
        """All the work there is."""
        ...

    def advance(self, label: str, work: float, tokens_per_s: float | None) -> None:
        """A part is done."""
        ...

    def note(self, text: str) -> None:
        """Something worth a line."""
        ...


class ServerCrashError(EndpointError):
    """The server died or stopped making progress during a part."""


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
    """Where parts are kept and how the machine is watched."""

    spec: BenchSpec
    ledger: Ledger
    log: RequestLog
    progress: Progress
    reader: Reader


async def run_part(part: Part, server: Connection, recorder: Recorder) -> PartResult:
    """Send the block's prompts with this arm, keep every request, judge the time it took.

    Each request is on disk as it finishes, the block's row once all have. ServerCrashError when
    the server died or when every request ran into a deadline; the block is then `failed`.
    """
    prompts = part.group.blocks[part.block]
    limits = {p.id: part.caps.get(p.id, recorder.spec.max_tokens) for p in prompts}
    attempt = recorder.ledger.start_block(part.cell, part.block)

    async def send(prompt: Prompt) -> RequestRecord:
        label = RequestLabel(part.cell, attempt, part.block, prompt.id)
        request = CompletionRequest(
            prompt.token_ids, limits[prompt.id], part.arm, recorder.spec.ignore_eos
        )
        return await server.client.stream_completion(request, label)

    async def keep(record: RequestRecord) -> None:
        # In a thread: the disk's time must not delay the stamps of streams still running.
        await asyncio.to_thread(recorder.log.append, (record,))

    before = recorder.reader()
    records = await closed_loop(prompts, part.group.concurrency, send, keep)
    share = share_between(before, recorder.reader())
    _check_server(part, server, recorder, records)
    step = median_step_s(records) if part.arm.method == "ar" else None
    invalid = others_reason(share) or step_reason(step, part.calibration_s)
    extra = {
        "others_cpu_share": share.others,
        "step_s": step,
        "calibration_s": part.calibration_s,
        "max_tokens": limits,
    }
    state: CellState = "invalid" if invalid else "ok"
    recorder.ledger.finish_block(part.cell, part.block, state, invalid, extra)
    return PartResult(records, invalid)


def _check_server(
    part: Part, server: Connection, recorder: Recorder, records: tuple[RequestRecord, ...]
) -> None:
    try:
        server.check_alive()
    except EndpointError as error:
        recorder.ledger.finish_block(part.cell, part.block, "failed", "server_crash")
        raise ServerCrashError(str(error)) from None
    if all(r.error is not None and error_class(r.error) in _NO_PROGRESS for r in records):
        recorder.ledger.finish_block(part.cell, part.block, "failed", "no_progress")
        raise ServerCrashError(f"no request of {part.label} made progress: {records[0].error}")
