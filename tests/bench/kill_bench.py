"""A run of 40 cells in processes of its own, and somebody who kills them.

As a script it is those processes: `kill_bench.py serve` the mock server, which ends with its
standard input; `kill_bench.py run FOLDER` the client, which starts such servers.
"""

import asyncio
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal
from unittest.mock import patch

from mock_backend import MockBackend, Notes, bench, quiet, run, spec_of

from ddtree.bench.run import RunSetup, run_bench
from ddtree.bench.spec import BenchSpec
from ddtree.endpoint.mock import MockServer
from ddtree.endpoint.mock_script import MockScript
from ddtree.errors import EndpointError
from ddtree.records import provenance
from ddtree.records.arms import Arm
from ddtree.records.files import read_requests
from ddtree.records.ledger import Ledger
from ddtree.records.summary import RunSummary
from ddtree.records.summary_json import read_summary

Kind = Literal["client", "server", "both"]
KINDS: tuple[Kind, ...] = ("client", "server", "both")
ARMS = (Arm("ar"), Arm("chain"), Arm("ddtree", 4, 2), Arm("ddtree", 8, 2), Arm("ddtree", 8, 4))
SCRIPT = MockScript(round_s=dict.fromkeys(("ar", "chain", "ddtree"), 0.001))
LOG, PID = "requests.jsonl", "server.pid"
_LIMIT_S = 120.0


def spec() -> BenchSpec:
    """Five arms, two contexts, two concurrencies, two temperatures: 40 cells, 80 requests."""
    return spec_of(
        arms=ARMS,
        contexts=(60, 70),
        concurrencies=(1, 2),
        temperatures=(0.0, 0.7),
        prompts=2,
        waves=1,
        max_tokens=8,
        warmup_context=60,
    )


@dataclass(frozen=True)
class Outcome:
    """What a run must come to, however often it was killed: no times, everything else."""

    cells: tuple[object, ...]
    keys: frozenset[str]
    outputs: frozenset[tuple[str, str, tuple[int, ...]]]


def undisturbed(folder: Path) -> Outcome:
    """The same run in this process, on a mock in this process, killed by nobody."""
    with _fixed_source():
        return outcome(folder, bench(folder, spec(), MockBackend([SCRIPT])))


def outcome(folder: Path, summary: RunSummary) -> Outcome:
    """From a finished run's folder."""
    with Ledger.read(folder / "ledger.sqlite") as ledger:
        keys = frozenset(row.key for row in ledger.cells())
        counted = {(b.cell, b.index, b.attempt) for b in ledger.blocks() if b.state == "ok"}
    kept = [r for r in read_requests(folder / LOG) if (r.cell, r.block, r.attempt) in counted]
    outputs = [(r.cell, r.prompt_id, r.token_ids) for r in kept]
    assert len(set(outputs)) == len(outputs), "a request is counted twice"
    cells = tuple(
        (c.arm, c.setting, c.state, c.reason, c.requests, c.failed_requests, c.losslessness)
        for c in summary.cells
    )
    return Outcome(cells, keys, frozenset(outputs))


@dataclass
class Killer:
    """Runs the client on `folder` and kills by a plan that follows from `seed`."""

    folder: Path
    seed: int
    done: list[Kind] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._draw = random.Random(self.seed)

    def run(self, kinds: Sequence[Kind]) -> Outcome:
        """Kill once for each kind, then let it finish.

        AssertionError when a line of the log that was whole at a kill is not there afterwards.
        """
        waiting = list(kinds)
        while waiting:
            with self._client() as client:
                self._kill(client, waiting.pop(0))
                # An arm under which the server dies twice in one start is quarantined.
                if waiting and client.poll() is None:
                    self._kill(client, "client" if waiting[0] == "server" else waiting.pop(0))
        with self._client() as client:
            assert client.wait(_LIMIT_S) == 0
        summary = read_summary((self.folder / "summary.json").read_text())
        return outcome(self.folder, summary)

    def lines(self) -> list[bytes]:
        """The log's whole lines."""
        path = self.folder / LOG
        return path.read_bytes().split(b"\n")[:-1] if path.exists() else []

    def _kill(self, client: subprocess.Popen[bytes], kind: Kind) -> None:
        """At a random moment, which is a number of requests and some milliseconds."""
        goal = len(self.lines()) + self._draw.randint(1, 12)
        end = time.monotonic() + _LIMIT_S
        while len(self.lines()) < goal and client.poll() is None:
            assert time.monotonic() < end, "the run stands still"
            time.sleep(0.002)
        time.sleep(self._draw.uniform(0.0, 0.03))
        if client.poll() is not None:
            return
        before = self.lines()
        if kind in ("server", "both"):
            # Between its death and the next one's start the file names a server that is gone.
            with suppress(ProcessLookupError):
                os.kill(int((self.folder / PID).read_text()), signal.SIGKILL)
        if kind in ("client", "both"):
            client.kill()
            client.wait()
        self.done.append(kind)
        assert self.lines()[: len(before)] == before, "a finished request is lost"

    @contextmanager
    def _client(self) -> Iterator[subprocess.Popen[bytes]]:
        command = [sys.executable, __file__, "run", str(self.folder)]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        with subprocess.Popen(command, env=environment) as client:
            try:
                yield client
            finally:
                client.kill()


@dataclass
class _Server:
    """A mock's process."""

    process: subprocess.Popen[bytes]
    url: str

    @property
    def pids(self) -> tuple[int, ...]:
        return (self.process.pid,)

    def check_alive(self) -> None:
        status = self.process.poll()
        if status is not None:
            raise EndpointError(f"the server exited with status {status}")

    async def stop(self) -> None:
        self.process.kill()
        self.process.communicate()


@dataclass(frozen=True)
class _Backend:
    """Starts mocks as processes and leaves the last one's id in the folder."""

    folder: Path

    async def start(self, *, drafter: bool) -> _Server:
        process = subprocess.Popen(
            [sys.executable, __file__, "serve"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        assert process.stdout is not None
        url = process.stdout.readline().decode().strip()
        (self.folder / PID).write_text(str(process.pid))
        return _Server(process, url)


async def _serve() -> None:
    async with MockServer(SCRIPT) as server:
        sys.stdout.write(server.url + "\n")
        sys.stdout.flush()
        await asyncio.to_thread(sys.stdin.read)


def main(arguments: list[str]) -> None:
    """One of the two processes."""
    if arguments[0] == "serve":
        asyncio.run(_serve())
        return
    folder = Path(arguments[1])
    setup = RunSetup(folder, _Backend(folder), Notes(), make_reader=quiet)
    with _fixed_source():
        run(run_bench(spec(), setup), _LIMIT_S)


def _fixed_source() -> AbstractContextManager[object]:
    """An edit of the source between two starts must not be what tells runs apart."""
    return patch.object(provenance, "source_sha256", lambda: "as it is")


if __name__ == "__main__":
    main(sys.argv[1:])
