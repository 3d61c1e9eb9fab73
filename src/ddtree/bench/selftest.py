"""Can the harness be believed? Its own client, loop, log and metrics against a known truth.

Each case runs `run_part`, as a benchmark does, against the mock server in a process of its own
(`selftest_server`), which records what it sent and when. What the harness made of it is compared
with that: speeds within BIAS_LIMIT, counts exactly.
"""

import asyncio
import contextlib
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from ddtree.bench.part import Part, Recorder, ServerCrashError, run_part
from ddtree.bench.plan import Group
from ddtree.bench.selftest_cases import CASE_NAMES, SILENCE_S, Plan, plan_case
from ddtree.bench.selftest_truth import Truth
from ddtree.bench.spec import BenchSpec
from ddtree.bench.spec_file import parse_spec
from ddtree.bench.watch import OTHERS_LIMIT, cpu_reader
from ddtree.bench.workload import Prompt
from ddtree.endpoint.calls import Deadlines
from ddtree.endpoint.client import ServerClient
from ddtree.endpoint.stream import error_class
from ddtree.errors import EndpointError
from ddtree.records import metrics
from ddtree.records.arms import Arm
from ddtree.records.files import RequestLog, read_requests
from ddtree.records.ledger import CellIdentity, Ledger
from ddtree.records.requests import RequestRecord
from ddtree.records.settings import Setting

BIAS_LIMIT = 0.01
PROMPT_TOKENS = 64
_ARM = Arm("ddtree", 4, 2)
_START_S = 30.0
_SPEC = """
model: mock
dtype: float32
contexts: [{context}]
concurrencies: [{concurrency}]
deadlines: {{first_token_s: 30, silence_s: {silence}, request_s: 300, part_s: 600}}
"""


@dataclass(frozen=True)
class Row:
    """A metric as it was sent and as it was measured.

    `bias` is the relative error of a speed, None for a count, which must be exact.
    """

    metric: str
    truth: float
    measured: float
    bias: float | None

    @property
    def is_right(self) -> bool:
        """Within the limit, or equal."""
        return self.truth == self.measured if self.bias is None else abs(self.bias) <= BIAS_LIMIT


@dataclass(frozen=True)
class CaseResult:
    """One case. `notes` are what may have disturbed it; `loop_lag_p99_s` is the client's, and
    `client_cpu` its CPU seconds over wall clock seconds.
    """

    name: str
    about: str
    requests: int
    seconds: float
    client_cpu: float
    loop_lag_p99_s: float | None
    rows: tuple[Row, ...]
    notes: tuple[str, ...]

    @property
    def is_right(self) -> bool:
        """Whether every metric is."""
        return all(row.is_right for row in self.rows)


async def run_selftest(
    concurrency: int,
    seconds: float,
    names: Sequence[str] = CASE_NAMES,
    told: Callable[[CaseResult], None] = lambda _: None,
) -> tuple[CaseResult, ...]:
    """Run the cases one after the other; `told` hears of each.

    Cases that compare speeds take `seconds` each, the others as long as their requests do.
    EndpointError when a server can't be started.
    """
    results = []
    for name in names:
        with tempfile.TemporaryDirectory(prefix="ddtree-selftest-") as folder:
            result = await _run_case(plan_case(name, concurrency, seconds), Path(folder))
        told(result)
        results.append(result)
    return tuple(results)


async def _run_case(plan: Plan, folder: Path) -> CaseResult:
    spec = parse_spec(
        _SPEC.format(context=PROMPT_TOKENS, concurrency=plan.concurrency, silence=SILENCE_S),
        "self-test",
    )
    path = folder / "truth.json"
    with (
        Ledger.open(folder / "ledger.sqlite", spec.hash) as ledger,
        RequestLog(folder / "requests.jsonl") as log,
    ):
        async with _server(plan, path) as server:
            recorder = Recorder(spec, ledger, log, _Silent(), cpu_reader(lambda: (server.pid,)))
            cell = ledger.add_cell(_identity(plan, spec))
            wall, cpu = time.monotonic(), time.process_time()
            crashed = await _measure(_part(plan, cell), server, recorder)
            wall, cpu = time.monotonic() - wall, time.process_time() - cpu
        (block,) = ledger.blocks(cell)
    records, truth = read_requests(folder / "requests.jsonl"), Truth.read(path)
    rows = [*_counts(plan, records, truth), *_crash_row(plan, crashed)]
    if plan.case.speed:
        rows += _speeds(plan, records, truth)
    return CaseResult(
        plan.case.name,
        plan.case.about,
        len(plan.max_tokens),
        wall,
        cpu / wall,
        block.extra.get("loop_lag_p99_s"),
        tuple(rows),
        tuple(_notes(block.extra.get("others_cpu_share"))),
    )


async def _measure(part: Part, server: "_Reached", recorder: Recorder) -> bool:
    """Run the part; whether the server was found dead."""
    try:
        await run_part(part, server, recorder)
    except ServerCrashError:
        return True
    return False


def _speeds(plan: Plan, records: Sequence[RequestRecord], truth: Truth) -> Iterator[Row]:
    finished = [record for record in records if record.error is None]
    system = metrics.system_tokens_per_s(finished, plan.concurrency)
    yield _speed("tok/s", truth.tokens_per_s(plan.concurrency), system)
    yield _speed("TTFT ms", 1e3 * truth.ttft_s(), _median_ms(metrics.ttft_s, finished))
    yield _speed("tpot ms", 1e3 * truth.tpot_s(), _median_ms(metrics.tpot_s, finished))


def _median_ms(
    metric: Callable[[RequestRecord], float | None], records: Sequence[RequestRecord]
) -> float | None:
    values = [value for record in records if (value := metric(record)) is not None]
    return 1e3 * median(values) if values else None


def _speed(name: str, truth: float, measured: float | None) -> Row:
    # A metric that could not be had is as wrong as one can be.
    found = float("nan") if measured is None else measured
    return Row(name, truth, found, float("inf") if measured is None else found / truth - 1)


def _counts(plan: Plan, records: Sequence[RequestRecord], truth: Truth) -> Iterator[Row]:
    """Everything that must be equal; failures are what the server did not send to the end."""
    asked, ended = len(plan.max_tokens), truth.ended
    finished = [record for record in records if record.error is None]
    failed = Counter(error_class(r.error) for r in records if r.error is not None)
    expected = sum(failed[name] for name in plan.case.failures)
    yield Row("requests", asked, len(records), None)
    yield Row("finished", len(ended), len(finished), None)
    mixed = {str(s.number) for s in ended} ^ {record.prompt_id for record in finished}
    yield Row("finished, but not alike", 0, len(mixed), None)
    tokens = sum(sum(sent.chunk_tokens) for sent in ended)
    yield Row("tokens", tokens, sum(sum(r.chunk_tokens) for r in finished), None)
    chunks = sum(len(sent.chunk_tokens) for sent in ended)
    yield Row("chunks", chunks, sum(len(r.chunk_tokens) for r in finished), None)
    name = f"failed as {' or '.join(plan.case.failures) or 'anything'}"
    yield Row(name, asked - len(ended), expected, None)
    yield Row("failed otherwise", 0, failed.total() - expected, None)
    if plan.case.speed:
        yield Row("peak in flight", plan.concurrency, truth.peak_in_flight, None)


def _crash_row(plan: Plan, crashed: bool) -> Iterator[Row]:
    yield Row("server found dead", int(plan.case.crash), int(crashed), None)


def _notes(others: float | None) -> Iterator[str]:
    if others is not None and others > OTHERS_LIMIT:
        yield f"other processes took {others:.0%} of the CPU: biases are not the harness's alone"


def _part(plan: Plan, cell: str) -> Part:
    prompts = tuple(
        Prompt(str(number), (number, *range(1, PROMPT_TOKENS)), str(number))
        for number in range(len(plan.max_tokens))
    )
    setting = Setting(PROMPT_TOKENS, plan.concurrency)
    group = Group(setting, (_ARM,), (prompts,), (), ())
    caps = {p.id: limit for p, limit in zip(prompts, plan.max_tokens, strict=True)}
    return Part(cell, _ARM, group, 0, caps)


def _identity(plan: Plan, spec: BenchSpec) -> CellIdentity:
    return CellIdentity(
        arm=_ARM,
        context=PROMPT_TOKENS,
        concurrency=plan.concurrency,
        temperature=0.0,
        max_tokens=max(plan.max_tokens),
        prompts_sha256=plan.case.name,
        model_sha256="mock",
        drafter_sha256=None,
        dtype=spec.dtype,
        server_version="mock",
    )


@dataclass(frozen=True)
class _Reached:
    """The server process and the client to it."""

    process: asyncio.subprocess.Process
    client: ServerClient

    @property
    def pid(self) -> int:
        return self.process.pid

    def check_alive(self) -> None:
        if self.process.returncode is not None:
            raise EndpointError(f"the server exited with status {self.process.returncode}")


@asynccontextmanager
async def _server(plan: Plan, truth: Path) -> AsyncIterator[_Reached]:
    """The case's server while the block runs; after it the truth is on file."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "ddtree.bench.selftest_server"),
        *(plan.case.name, str(plan.concurrency), str(plan.seconds), str(truth)),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        line = await asyncio.wait_for(process.stdout.readline(), _START_S)
        if not line:
            raise EndpointError("the self-test's server did not start; its error is above")
        limits = Deadlines(first_token_s=30.0, silence_s=SILENCE_S, request_s=300.0)
        async with ServerClient(line.decode().strip(), deadlines=limits) as client:
            yield _Reached(process, client)
        process.stdin.close()
        await asyncio.wait_for(process.wait(), _START_S)
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()


class _Silent:
    """No progress to tell: a case is one part."""

    def total(self, work: float) -> None: ...

    def advance(self, label: str, work: float, tokens_per_s: float | None) -> None: ...

    def note(self, text: str) -> None: ...
