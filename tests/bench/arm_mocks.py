"""Mock servers by arm behind the runner's `ArmBackend`, and small groups to run on them."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mock_backend import MockHandle, Notes, quiet, spec_of, watch_log

from ddtree.bench import arm_servers
from ddtree.bench.part import Recorder
from ddtree.bench.plan import Group
from ddtree.bench.spec import BenchSpec
from ddtree.bench.watch import Reader
from ddtree.bench.workload import Prompt
from ddtree.endpoint.config import EndpointConfig
from ddtree.endpoint.mock import MockRequest, MockServer
from ddtree.endpoint.mock_script import MockScript
from ddtree.endpoint.mock_talk import MockTalk
from ddtree.errors import EndpointError
from ddtree.records.arms import Arm
from ddtree.records.files import RequestLog, read_requests
from ddtree.records.ledger import BlockRow, CellIdentity, CellRow, Ledger
from ddtree.records.requests import RequestRecord
from ddtree.records.settings import Setting

AR, CHAIN, TREE = Arm("ar"), Arm("chain"), Arm("ddtree", 4, 2)
MAX_TOKENS, WARM_TOKENS, CALIBRATION_TOKENS = 12, 2, 4


def arm_spec(**changes: Any) -> BenchSpec:
    """Two blocks of one prompt, three arms, SGLang."""
    defaults = {
        "endpoint": EndpointConfig("sglang"),
        "arms": (AR, CHAIN, TREE),
        "dtype": "bfloat16",
        "drafter": "d",
        "warmup_context": 60,
    }
    return spec_of(**(defaults | changes))


def make_prompt(name: str, length: int) -> Prompt:
    ids = tuple(1 + (hash_of(name) + i) % 40_000 for i in range(length))
    return Prompt(name, ids, name)


def hash_of(name: str) -> int:
    return sum(ord(letter) * 31**i for i, letter in enumerate(name))


def group_of(spec: BenchSpec, context: int = 60, blocks: int = 2) -> Group:
    setting = Setting(context, 1)
    taken = tuple((make_prompt(f"{context}-{b}", context),) for b in range(blocks))
    warmup = (make_prompt(f"{context}-warm", context),)
    calibration = ((make_prompt(f"{context}-cal", context),),)
    return Group(setting, spec.arms, taken, warmup, calibration)


def reported(arm: Arm) -> dict[str, Any]:
    """What an SGLang server launched for the arm says of itself."""
    info: dict[str, Any] = {"model_path": "mock", "dtype": "bfloat16", "version": "0.5.15"}
    if arm.method == "ar":
        return info | {"speculative_algorithm": None}
    return info | {
        "speculative_algorithm": "DFLASH" if arm.method == "chain" else "DDTREE",
        "speculative_draft_model_path": "d",
        "speculative_num_draft_tokens": 8 if arm.budget is None else arm.budget + 1,
        "internal_states": [{"ddtree": {"budget": arm.budget, "topk": arm.topk}}],
        "speculative_draft_window_size": arm.draft_window,
    }


@dataclass
class MockArms:
    """Starts a mock for an arm. `fails` says, by the arm and how often it was started before,
    whether a start fails; `dies_at` kills a server as a request comes."""

    spec: BenchSpec
    script: MockScript = field(default_factory=MockScript)
    fails: Callable[[Arm, int], bool] = lambda arm, before: False
    dies_at: Callable[[MockRequest], bool] | None = None
    reported: Callable[[Arm], dict[str, Any]] = reported
    prefix_cache: bool = False
    started: list[tuple[Arm, MockHandle]] = field(default_factory=list)
    tried: list[Arm] = field(default_factory=list)
    running: int = 0
    most_running: int = 0

    async def start_arm(self, arm: Arm) -> MockHandle:
        before = self.tried.count(arm)
        self.tried.append(arm)
        if self.fails(arm, before):
            raise EndpointError(f"no memory for {arm.label}")
        kind = self.spec.endpoint.kind
        talk = MockTalk(kind, method=arm.method, reported=self.reported(arm))
        server = MockServer(self.script, talk=talk, prefix_cache=self.prefix_cache)
        handle = _Counted(await server.__aenter__(), owner=self)
        self.running += 1
        self.most_running = max(self.most_running, self.running)
        self.started.append((arm, handle))
        if self.dies_at is not None:
            watch_log(handle, self.dies_at)
        return handle

    @property
    def arms(self) -> list[str]:
        """Labels in the order of the starts that succeeded."""
        return [arm.label for arm, _ in self.started]

    @property
    def measured(self) -> list[tuple[str, tuple[int, ...]]]:
        """(method, prompt) of each measured request, in the order of the servers' starts."""
        entries = [entry for _, handle in self.started for entry in handle.server.log]
        return [(e.method, e.prompt) for e in entries if e.max_tokens == MAX_TOKENS]


@dataclass
class _Counted(MockHandle):
    owner: MockArms | None = None

    async def stop(self) -> None:
        await super().stop()
        if self.owner is not None:
            self.owner.running -= 1


def identity(group: Group, arm: Arm) -> CellIdentity:
    return CellIdentity(
        *(arm, group.context, group.concurrency, 0.0, MAX_TOKENS, "p", "m", "d", "bfloat16", "1")
    )


async def measure(
    folder: Path,
    spec: BenchSpec,
    groups: list[Group],
    backend: Any,
    notes: Notes | None = None,
    reader: Reader | None = None,
) -> tuple[Group, ...]:
    """Run the groups in a folder, as the runner does; those in which anything ran."""
    notes = notes or Notes()
    log_path = folder / "requests.jsonl"
    with Ledger.open(folder / "ledger.sqlite", "hash") as ledger, RequestLog(log_path) as log:
        recorder = Recorder(spec, ledger, log, notes, reader or quiet(lambda: ()))
        on_file: dict[tuple[str, int, int], list[RequestRecord]] = {}
        for record in read_requests(log_path):
            on_file.setdefault((record.cell, record.block, record.attempt), []).append(record)
        planned = [
            (group, {arm: ledger.add_cell(identity(group, arm)) for arm in group.arms})
            for group in groups
        ]
        async with arm_servers.ArmServers(backend, spec, notes.note) as servers:
            return await arm_servers.run_groups(planned, servers, recorder, on_file)


@contextmanager
def ledger_in(folder: Path) -> Iterator[Ledger]:
    with Ledger.read(folder / "ledger.sqlite") as ledger:
        yield ledger


def states(folder: Path) -> dict[tuple[str, int], str]:
    """State of each cell by arm label and context."""
    with ledger_in(folder) as ledger:
        return {(row.arm.label, row.context): row.state for row in ledger.cells()}


def row_of(folder: Path, arm: Arm, context: int = 60) -> CellRow:
    with ledger_in(folder) as ledger:
        (row,) = [r for r in ledger.cells() if (r.arm, r.context) == (arm, context)]
        return row


def blocks_of(folder: Path, arm: Arm, context: int = 60) -> list[BlockRow]:
    key = row_of(folder, arm, context).key
    with ledger_in(folder) as ledger:
        return list(ledger.blocks(key))
