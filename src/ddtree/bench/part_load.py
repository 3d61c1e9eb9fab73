"""A part's requests, sent as its setting wants them to arrive, each kept as it finishes."""

import asyncio
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from ddtree.bench.lag import Lag, LagProbe
from ddtree.bench.plan import Group
from ddtree.bench.spec import BenchSpec
from ddtree.bench.workload import Prompt
from ddtree.endpoint.calls import CompletionRequest, RequestLabel
from ddtree.endpoint.client import ServerClient
from ddtree.endpoint.load import (
    TIMEOUT_CELL,
    Deadline,
    InFlight,
    LoadOptions,
    Occupancy,
    arrival_times,
    closed_loop,
    open_loop,
)
from ddtree.records.arms import Arm
from ddtree.records.files import RequestLog
from ddtree.records.requests import RequestRecord
from ddtree.records.sampling import Sampling


@dataclass(frozen=True)
class Loaded:
    """A part's requests in the order of its prompts, and how the client ran meanwhile."""

    records: tuple[RequestRecord, ...]
    occupancy: Occupancy
    lag: Lag | None


@dataclass(frozen=True)
class PartLoad:
    """One arm on one block of a group. `label` is a request's but for its prompt; `limits` has
    each prompt's max_tokens, `sampling` tells by prompt id how its request samples.

    `lead_in` fills the slots of a closed loop with warm-up prompts of staggered lengths first.
    """

    spec: BenchSpec
    group: Group
    arm: Arm
    label: RequestLabel
    limits: Mapping[str, int]
    sampling: Callable[[str], Sampling]
    client: ServerClient
    log: RequestLog
    lead_in: bool = False

    async def run(self) -> Loaded:
        """Send them all and wait until they are on disk, at most the spec's `part_s` seconds."""
        setting, arrivals = self.group.setting, self.spec.arrivals
        jobs = [
            _Job(prompt, self.limits[prompt.id], replace(self.label, prompt_id=prompt.id))
            for prompt in self.group.blocks[self.label.block]
        ]
        in_flight, asked = InFlight(), None
        deadline = Deadline(self.spec.deadlines.part_s, self._cut)
        async with LagProbe() as probe:
            if arrivals == "closed":
                asked = setting.concurrency
                options = LoadOptions(deadline, self._lead(), in_flight)
                records = await closed_loop(jobs, asked, self._send, self._keep, options)
            else:
                # Every arm meets the block's prompts at the same times.
                seed = self.spec.seed * 10_007 + self.label.block
                times = arrival_times(len(jobs), setting.rate, seed, arrivals)
                options = LoadOptions(deadline, in_flight=in_flight)
                records = await open_loop(jobs, times, self._send, self._keep, options)
        return Loaded(records, in_flight.occupancy(asked), probe.lag)

    def _lead(self) -> tuple["_Job", ...]:
        """A job for each slot, the first short and the last long, so that slots come free apart."""
        slots = self.group.warmup
        if not self.lead_in or len(slots) == 1:
            return ()
        whole = self.spec.max_tokens
        return tuple(
            _Job(prompt, max(1, whole * (place + 1) // len(slots)), RequestLabel())
            for place, prompt in enumerate(slots)
        )

    async def _send(self, job: "_Job") -> RequestRecord:
        request = CompletionRequest(
            job.prompt.token_ids,
            job.max_tokens,
            self.arm,
            self.spec.ignore_eos,
            self.sampling(job.prompt.id),
        )
        return await self.client.stream_completion(request, job.label)

    async def _keep(self, record: RequestRecord) -> None:
        # In a thread: the disk's time must not delay the stamps of streams still running.
        await asyncio.to_thread(self.log.append, (record,))

    def _cut(self, job: "_Job", sent_s: float) -> RequestRecord:
        return RequestRecord(
            cell=job.label.cell,
            attempt=job.label.attempt,
            block=job.label.block,
            prompt_id=job.label.prompt_id,
            sent_s=sent_s,
            chunk_times_s=(),
            chunk_tokens=(),
            end_s=time.monotonic(),
            prompt_tokens=None,
            completion_tokens=None,
            finish_reason=None,
            token_ids=(),
            error=f"{TIMEOUT_CELL}: the part was not done in {self.spec.deadlines.part_s:g} s",
            stats=None,
        )


@dataclass(frozen=True)
class _Job:
    """A request to send; `label` is empty for one that leads in."""

    prompt: Prompt
    max_tokens: int
    label: RequestLabel
