"""A mock server behind the runner's `Backend`, and readings of a machine that is ours."""

import asyncio
import itertools
from collections.abc import Callable, Coroutine, Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

from ddtree.bench.run import RunSetup, run_bench
from ddtree.bench.spec import BenchSpec
from ddtree.bench.spec_file import parse_spec
from ddtree.bench.watch import CpuReading, Reader
from ddtree.endpoint.mock import MockRequest, MockServer
from ddtree.endpoint.mock_script import MockScript
from ddtree.errors import EndpointError
from ddtree.records.arms import Arm
from ddtree.records.ledger import BlockRow, CellRow, Ledger
from ddtree.records.summary import CellSummary, RunSummary

T = TypeVar("T")

SPEC = """
title: Test
model: mock
dtype: float32
arms: [{method: ddtree, budget: 4, topk: 2}]
contexts: [60]
concurrencies: [1]
prompts: 4
blocks: 1
max_tokens: 12
control: false
warmup_tokens: 2
calibration_tokens: 4
"""


def spec_of(**changes: Any) -> BenchSpec:
    return replace(parse_spec(SPEC, "test"), **changes)


@dataclass
class MockHandle:
    """One running mock."""

    server: MockServer
    dead: str | None = None

    @property
    def url(self) -> str:
        return self.server.url

    @property
    def pids(self) -> tuple[int, ...]:
        return ()

    def check_alive(self) -> None:
        if self.dead is not None:
            raise EndpointError(self.dead)

    async def stop(self) -> None:
        await self.server.__aexit__(None, None, None)


@dataclass
class MockBackend:
    """Starts mocks; `scripts` are used one start after the other, the last one for ever."""

    scripts: list[MockScript] = field(default_factory=lambda: [MockScript()])
    started: list[tuple[bool, MockHandle]] = field(default_factory=list)
    dies_at: Callable[[MockRequest], bool] | None = None

    async def start(self, *, drafter: bool) -> MockHandle:
        script = self.scripts[min(len(self.started), len(self.scripts) - 1)]
        handle = MockHandle(await MockServer(script).__aenter__())
        self.started.append((drafter, handle))
        if self.dies_at is not None:
            watch_log(handle, self.dies_at)
        return handle

    @property
    def log(self) -> list[MockRequest]:
        return [entry for _, handle in self.started for entry in handle.server.log]


def watch_log(handle: MockHandle, dies_at: Callable[[MockRequest], bool]) -> None:
    """Let the handle count as dead once a request of the given kind has come."""

    class Log(list[MockRequest]):
        def append(self, entry: MockRequest) -> None:
            super().append(entry)
            if dies_at(entry):
                handle.dead = "killed by the test"

    handle.server.log = Log()


@dataclass
class Notes:
    """Progress that remembers."""

    work: float = 0.0
    done: float = 0.0
    parts: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def total(self, work: float) -> None:
        self.work = work

    def advance(self, label: str, work: float, tokens_per_s: float | None) -> None:
        self.parts.append(label)
        self.done += work

    def note(self, text: str) -> None:
        self.notes.append(text)


def quiet(_: Callable[[], Iterable[int]]) -> Reader:
    """Every second, two cores did nothing but our work."""
    ticks = itertools.count()
    return lambda: reading(next(ticks))


def reading(second: float, others_s: float = 0.0) -> CpuReading:
    return CpuReading(at_s=second, busy_s=second + others_s, own_s=second, cores=2)


def hog_in(intervals: set[int]) -> Callable[[Callable[[], Iterable[int]]], Reader]:
    """In the given intervals between two readings (0 is the first), others take one core of two.

    Intervals count pairs of readings, one pair for each calibration try and part.
    """

    def make(_: Callable[[], Iterable[int]]) -> Reader:
        ticks, others = itertools.count(), [0.0]

        def read() -> CpuReading:
            tick = next(ticks)
            if tick % 2 and tick // 2 in intervals:
                others[0] += 1.0
            return reading(tick, others[0])

        return read

    return make


def run(work: Coroutine[Any, Any, T], seconds: float = 30) -> T:
    return asyncio.run(asyncio.wait_for(work, seconds))


def bench(
    folder: Path,
    spec: BenchSpec | None = None,
    backend: MockBackend | None = None,
    progress: Notes | None = None,
    make_reader: Callable[[Callable[[], Iterable[int]]], Reader] = quiet,
    *,
    resume: bool = True,
) -> RunSummary:
    setup = RunSetup(folder, backend or MockBackend(), progress or Notes(), make_reader=make_reader)
    return run(run_bench(spec or spec_of(), setup, resume=resume))


def ledger_of(folder: Path) -> tuple[dict[str, CellRow], dict[str, list[BlockRow]]]:
    """Cells and their blocks by arm label, control cells by role."""
    with Ledger.read(folder / "ledger.sqlite") as ledger:
        names = {
            row.key: row.arm.label if row.role == "arm" else row.role for row in ledger.cells()
        }
        cells = {names[row.key]: row for row in ledger.cells()}
        blocks = {name: list(ledger.blocks(key)) for key, name in names.items()}
    return cells, blocks


def cell(summary: RunSummary, arm: Arm, concurrency: int = 1) -> CellSummary:
    (found,) = [c for c in summary.cells if c.arm == arm and c.concurrency == concurrency]
    return found


def measured(backend: MockBackend, spec: BenchSpec) -> list[MockRequest]:
    """Requests of blocks: warm-up and calibration ask for other numbers of tokens."""
    other = (spec.warmup_tokens, spec.calibration_tokens)
    return [entry for entry in backend.log if entry.max_tokens not in other]
