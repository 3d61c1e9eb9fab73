"""Small evaluations: specifications, tasks, answers on file, and mocks that give answers."""

import asyncio
import contextlib
import dataclasses
from collections.abc import AsyncIterator, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from ddtree.endpoint.calls import Deadlines, Prompt
from ddtree.endpoint.client import ServerClient
from ddtree.endpoint.mock import MockServer
from ddtree.endpoint.mock_script import MockScript
from ddtree.endpoint.mock_talk import MockTalk
from ddtree.evals import generate
from ddtree.evals import spec as specification
from ddtree.evals.tasks import AssertTests, Task
from ddtree.records.arms import Arm
from ddtree.records.files import RequestLog, read_requests
from ddtree.records.requests import RequestRecord
from ddtree.records.sampling import Sampling
from support.streams import record as request_record

T = TypeVar("T")
AR, CHAIN, TREE = Arm("ar"), Arm("chain"), Arm("ddtree", 8, 4)
WARM = Sampling(temperature=0.9)
QUICK = Deadlines(first_token_s=5, silence_s=5, request_s=10)

RIGHT = "def add{0}(x):\n    return x + {0}\n"
WRONG = "def add{0}(x):\n    return x - {0} - 1\n"


def spec_of(**changes: Any) -> specification.EvalSpec:
    """Greedy chat of two arms, but for the changes."""
    plain = specification.EvalSpec(
        suite="small",
        suite_sha256="0" * 64,
        model="mock",
        dtype="float32",
        arms=(AR, TREE),
        prompting="chat",
        thinking=None,
        template=(),
        sampling=Sampling(),
        samples=1,
        max_tokens=12,
        concurrency=1,
        limit=None,
        noise=False,
        seed=7,
    )
    return dataclasses.replace(plain, **changes)


def task(number: int, **changes: Any) -> Task:
    """To add `number`."""
    plain = Task(
        id=f"add#{number}",
        prompt=f'def add{number}(x):\n    """x and {number} more."""\n',
        entry_point=f"add{number}",
        tests=AssertTests(f"assert add{number}(1) == {number + 1}\nassert add{number}(5) > 5\n"),
        prompt_is_code=True,
        reference=RIGHT.format(number),
    )
    return dataclasses.replace(plain, **changes)


def tasks(count: int) -> list[Task]:
    return [task(number) for number in range(1, count + 1)]


def fenced(program: str) -> str:
    return f"Here:\n\n```python\n{program}```\n"


def right(number: int) -> str:
    return fenced(RIGHT.format(number))


def wrong(number: int) -> str:
    return fenced(WRONG.format(number))


def reply(cell: str, number: int, text: str | None, sample: int = 0, **fields: Any) -> Any:
    """What a server without token ids left of an answer to task `number`."""
    name = f"add#{number}#{sample}"
    plain = {"counted": "usage", "finish_reason": "stop", "text": text, "cell": cell}
    return request_record(name, **{**plain, **fields})


def by_key(*records: RequestRecord) -> dict[tuple[str, int], RequestRecord]:
    found = {}
    for record in records:
        name, _, sample = record.prompt_id.rpartition("#")
        found[name, int(sample)] = record
    return found


def keep(folder: Path, records: Iterable[RequestRecord]) -> Path:
    """Append to the folder's log."""
    folder.mkdir(parents=True, exist_ok=True)
    with RequestLog(folder / generate.REQUESTS_FILE) as log:
        log.append(records)
    return folder


def log_of(folder: Path) -> tuple[RequestRecord, ...]:
    return read_requests(folder / generate.REQUESTS_FILE)


def run(work: Coroutine[Any, Any, T]) -> T:
    return asyncio.run(asyncio.wait_for(work, 20))


@contextlib.asynccontextmanager
async def mock(
    script: MockScript | None = None, talk: MockTalk | None = None
) -> AsyncIterator[tuple[MockServer, ServerClient]]:
    """A mock and its client."""
    talk = talk or MockTalk()
    async with (
        MockServer(script, talk=talk) as server,
        ServerClient(server.url, deadlines=QUICK, kind=talk.kind) as client,
    ):
        yield server, client


@dataclass
class Held:
    client: ServerClient


@dataclass
class OneServer:
    """All arms go to one server; `spare` takes its place when it is revived."""

    client: ServerClient
    spare: ServerClient | None = None
    revived: list[Arm] = field(default_factory=list)

    @property
    def alone(self) -> bool:
        return False

    async def of(self, arm: Arm) -> Held:
        return Held(self.client)

    async def revive(self, arm: Arm) -> None:
        self.revived.append(arm)
        self.client = self.spare or self.client


@dataclass
class Notes:
    """Progress that remembers."""

    work: float = 0.0
    done: float = 0.0
    labels: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def total(self, work: float) -> None:
        self.work = work

    def advance(self, label: str, work: float, tokens_per_s: float | None) -> None:
        self.labels.append(label)
        self.done += work

    def note(self, text: str) -> None:
        self.notes.append(text)


def ids_of(some: Sequence[Task]) -> dict[str, Prompt]:
    """A prompt of its own for each task, in token ids."""
    return {item.id: (5, 6, 100 + place) for place, item in enumerate(some)}


@dataclass
class Asked:
    """An evaluation's timed part against a mock: what came of it, and what was asked for."""

    folder: Path
    server: MockServer
    servers: OneServer
    notes: Notes


def ask(
    folder: Path,
    spec: specification.EvalSpec,
    some: Sequence[Task],
    script: MockScript | None = None,
    prompts: Mapping[str, Prompt] | None = None,
    *,
    warm_up: bool = False,
) -> Asked:
    """Run the timed part against a fresh mock."""

    async def work() -> Asked:
        async with mock(script) as (server, client):
            asked = Asked(folder, server, OneServer(client), Notes())
            sent = ids_of(some) if prompts is None else prompts
            timed = generate.Generation(spec, folder, asked.servers, asked.notes, sent)
            if not warm_up:
                timed.warm |= dict.fromkeys(spec.arms, client)
            await timed.run(some)
            return asked

    folder.mkdir(parents=True, exist_ok=True)
    return run(work())
