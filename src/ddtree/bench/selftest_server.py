"""The self-test's server, a process of its own: the mock, and at its end the truth on file.

It runs until its standard input closes, so it outlives no client. Arguments: the case, the
concurrency, the seconds, the file for the truth. It prints its URL once it listens.
"""

import asyncio
import os
import sys
from dataclasses import replace
from pathlib import Path

from ddtree.bench.selftest_cases import Plan, plan_case
from ddtree.bench.selftest_truth import Sent, Truth
from ddtree.endpoint.mock import MockRequest, MockServer

_DRIFT_TICK_S = 0.1


class _Log(list[MockRequest]):
    """The mock's log; writes the truth and ends the process when a given request comes."""

    def __init__(self, server: MockServer, crash_at: int | None, path: Path) -> None:
        super().__init__()
        self._server = server
        self._crash_at = crash_at
        self._path = path

    def append(self, entry: MockRequest) -> None:
        super().append(entry)
        if len(self) == self._crash_at:
            truth_of(self._server).write(self._path)
            os._exit(3)


def truth_of(server: MockServer) -> Truth:
    """What the mock has logged so far; a prompt's first token is its number."""
    sent = tuple(
        Sent(
            entry.prompt[0],
            entry.started_s,
            tuple(entry.chunk_times_s),
            tuple(entry.chunk_tokens),
            entry.ended_s is not None,
        )
        for entry in server.log
    )
    return Truth(sent, server.peak_in_flight)


async def serve(plan: Plan, path: Path) -> None:
    """Serve a case until standard input closes."""
    async with MockServer(plan.script) as server:
        server.log = _Log(server, plan.crash_at, path)
        drifting = asyncio.create_task(_drift(plan, server))
        sys.stdout.write(server.url + "\n")
        sys.stdout.flush()
        await asyncio.to_thread(sys.stdin.read)
        drifting.cancel()
        truth_of(server).write(path)


async def _drift(plan: Plan, server: MockServer) -> None:
    """Let the steps of requests to come grow evenly from the first request on."""
    clock = asyncio.get_running_loop().time
    start: float | None = None
    while plan.case.drift:
        await asyncio.sleep(_DRIFT_TICK_S)
        start = clock() if start is None and server.log else start
        if start is not None:
            grown = 1 + plan.case.drift * min(1.0, (clock() - start) / plan.seconds)
            round_s = {arm: s * grown for arm, s in plan.script.round_s.items()}
            server.script = replace(plan.script, round_s=round_s)


def main(arguments: list[str]) -> None:
    """Serve as the arguments say."""
    name, concurrency, seconds, path = arguments
    asyncio.run(serve(plan_case(name, int(concurrency), float(seconds)), Path(path)))


if __name__ == "__main__":
    main(sys.argv[1:])
