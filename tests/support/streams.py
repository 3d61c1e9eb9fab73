"""Requests on a virtual clock: a server that works prompts off one by one and then decodes."""

import asyncio
from dataclasses import dataclass, field
from typing import Any

from ddtree.records.requests import RequestRecord


def record(name: str, **fields: Any) -> RequestRecord:
    """A request that finished with nothing, but for the given fields."""
    return RequestRecord(
        **{
            "cell": "c",
            "attempt": 0,
            "block": 0,
            "prompt_id": name,
            "sent_s": 0.0,
            "chunk_times_s": (),
            "chunk_tokens": (),
            "end_s": None,
            "prompt_tokens": None,
            "completion_tokens": None,
            "finish_reason": None,
            "token_ids": (),
            "error": None,
            "stats": None,
            **fields,
        }
    )


@dataclass
class PromptQueue:
    """`prefill_s` for each prompt, one after the other, then `step_s` for each token."""

    prefill_s: float
    step_s: float
    in_flight: int = 0
    peak: int = 0
    _turn: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def send(self, job: tuple[str, int]) -> RequestRecord:
        """Job: name and number of tokens."""
        clock = asyncio.get_running_loop().time
        sent, times = clock(), []
        self.in_flight += 1
        self.peak = max(self.peak, self.in_flight)
        async with self._turn:
            await asyncio.sleep(self.prefill_s)
        for token in range(job[1]):
            await asyncio.sleep(self.step_s if token else 0.0)
            times.append(clock())
        self.in_flight -= 1
        return record(
            job[0],
            sent_s=sent,
            chunk_times_s=tuple(times),
            chunk_tokens=(1,) * len(times),
            end_s=times[-1],
            completion_tokens=len(times),
        )


async def drop(_: RequestRecord) -> None:
    """A writer that keeps nothing."""
