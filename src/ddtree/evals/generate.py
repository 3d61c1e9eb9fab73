"""The timed part: every arm answers every task, block by block, and every answer goes on file.

A block is a run of tasks that each arm answers in turn, forth in one block and back in the next, so
that a drift of the machine hits all alike. Grading comes later: it would take the server's CPU.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from ddtree.endpoint.calls import Chat, Prompt, RequestLabel
from ddtree.endpoint.client import ServerClient
from ddtree.endpoint.load import closed_loop
from ddtree.errors import ConfigError, EndpointError
from ddtree.evals.extract.thinking import FAMILIES
from ddtree.evals.prompting import prompt_of, request_of
from ddtree.evals.spec import BASELINE, EvalSpec
from ddtree.evals.tasks import Task
from ddtree.records.arms import Arm
from ddtree.records.files import RequestLog, read_requests
from ddtree.records.requests import RequestRecord

REQUESTS_FILE = "requests.jsonl"
ATTEMPTS = 2
"""How often a request that fails is sent before the evaluation goes on without it."""
# Tasks of a block by slot: enough that slots are busy together most of the time.
_WAVES = 4
WARM_TOKENS = 32
"""What a slot generates on a fresh server before anything counts."""


class Holder(Protocol):
    """A server's client."""

    @property
    def client(self) -> ServerClient: ...


class Servers(Protocol):
    """Where an arm's requests go. `alone` where an arm's server ends when another's starts."""

    @property
    def alone(self) -> bool: ...

    async def of(self, arm: Arm) -> Holder:
        """The server that decodes with this arm; EndpointError without one."""
        ...

    async def revive(self, arm: Arm) -> None:
        """The arm's server is dead: have a fresh one from now on."""
        ...


class Progress(Protocol):
    """Where an evaluation tells how far it is; work counts answers."""

    def total(self, work: float) -> None: ...

    def advance(self, label: str, work: float, tokens_per_s: float | None) -> None: ...

    def note(self, text: str) -> None: ...


@dataclass(frozen=True)
class Side:
    """An arm's run; `again` is the baseline's second."""

    arm: Arm
    again: bool = False

    @property
    def cell(self) -> str:
        """Its name in the log."""
        return f"{self.arm.label}, again" if self.again else self.arm.label


@dataclass(frozen=True)
class _Answer:
    """One answer to get, and how often it was tried; from 1 on where others of its block are on
    file, since it does not run beside them."""

    task: Task
    sample: int
    attempt: int = 0


def sides_of(spec: EvalSpec) -> tuple[Side, ...]:
    """The arms, and the baseline once more where its own noise is to be measured."""
    again = (Side(BASELINE, again=True),) if spec.noise else ()
    return (*(Side(arm) for arm in spec.arms), *again)


def answers_of(folder: Path, side: Side) -> dict[tuple[str, int], RequestRecord]:
    """Finished answers on file by task and sample."""
    found = {}
    for record in read_requests(folder / REQUESTS_FILE):
        if record.cell == side.cell and record.error is None:
            task, _, sample = record.prompt_id.rpartition("#")
            found[task, int(sample)] = record
    return found


def asked_of(folder: Path, side: Side) -> list[RequestRecord]:
    """Its requests on file in the order they ended, failures included."""
    return [r for r in read_requests(folder / REQUESTS_FILE) if r.cell == side.cell]


def blocks_of(
    spec: EvalSpec, tasks: Sequence[Task], *, alone: bool = False
) -> list[Sequence[Task]]:
    """Tasks in the order they are asked; two blocks where each costs the start of a server."""
    size = -(-len(tasks) // 2) if alone else _WAVES * spec.concurrency // spec.samples
    size = max(1, size)
    return [tasks[i : i + size] for i in range(0, len(tasks), size)]


class Generation:
    """`prompts` maps task ids to the prompts that are sent."""

    def __init__(
        self,
        spec: EvalSpec,
        folder: Path,
        servers: Servers,
        progress: Progress,
        prompts: Mapping[str, Prompt],
    ) -> None:
        self.spec = spec
        self.folder = folder
        self.servers = servers
        self.progress = progress
        self.prompts = prompts
        # Clients of servers that each arm has run on.
        self.warm: dict[Arm, ServerClient] = {}

    async def run(self, tasks: Sequence[Task]) -> None:
        """Get every answer that is not on file."""
        sides = sides_of(self.spec)
        done = {side: set(answers_of(self.folder, side)) for side in sides}
        self.progress.total(len(sides) * len(tasks) * self.spec.samples)
        with RequestLog(self.folder / REQUESTS_FILE) as log:
            for number, block in enumerate(blocks_of(self.spec, tasks, alone=self.servers.alone)):
                for side in sides[:: -1 if number % 2 else 1]:
                    wanted = [
                        _Answer(task, sample)
                        for task in block
                        for sample in range(self.spec.samples)
                        if (task.id, sample) not in done[side]
                    ]
                    on_file = len(block) * self.spec.samples - len(wanted)
                    if on_file:
                        self.progress.advance(f"{side.cell}: on file", on_file, None)
                        wanted = [replace(answer, attempt=1) for answer in wanted]
                    if wanted:
                        await self._part(side, number, wanted, log)

    async def _part(
        self, side: Side, block: int, answers: Sequence[_Answer], log: RequestLog
    ) -> None:
        """One side's answers of a block; failed ones are asked for again."""
        waiting, rate, last = list(answers), 0.0, answers[0].attempt + ATTEMPTS - 1
        while waiting:
            records = await self._send(side, block, waiting, log)
            rate = rate or _tokens_per_s(records)
            failed = [
                answer
                for answer, record in zip(waiting, records, strict=True)
                if record.error is not None
            ]
            for answer, record in zip(waiting, records, strict=True):
                if record.error is not None:
                    self.progress.note(f"{side.cell}, {answer.task.id}: {record.error}")
            waiting = [
                replace(answer, attempt=answer.attempt + 1)
                for answer in failed
                if answer.attempt < last
            ]
            if waiting:
                await self._revive(side, waiting)
        self.progress.advance(f"{side.cell}, block {block}", len(answers), rate)

    async def _send(
        self, side: Side, block: int, answers: Sequence[_Answer], log: RequestLog
    ) -> Sequence[RequestRecord]:
        client = (await self.servers.of(side.arm)).client
        if self.warm.get(side.arm) is not client:
            await self._warm_up(side.arm, client, answers)
            self.warm[side.arm] = client

        async def send(answer: _Answer) -> RequestRecord:
            request = request_of(
                self.spec, answer.task, self.prompts[answer.task.id], side.arm, answer.sample
            )
            name = f"{answer.task.id}#{answer.sample}"
            label = RequestLabel(side.cell, answer.attempt, block, name)
            return await client.stream_completion(request, label)

        async def finished(record: RequestRecord) -> None:
            log.append([record])

        return await closed_loop(answers, self.spec.concurrency, send, finished)

    async def _warm_up(self, arm: Arm, client: ServerClient, answers: Sequence[_Answer]) -> None:
        """All slots busy for a moment on a fresh server, whose first passes are slow; not kept."""
        some = [answer.task for answer in answers[: self.spec.concurrency]]

        async def send(task: Task) -> RequestRecord:
            request = request_of(self.spec, task, self.prompts[task.id], arm, sample=0)
            return await client.stream_completion(
                replace(request, max_tokens=min(WARM_TOKENS, self.spec.max_tokens))
            )

        await closed_loop(some, self.spec.concurrency, send, _forget)

    async def _revive(self, side: Side, failed: Sequence[_Answer]) -> None:
        """A fresh server where this one no longer answers; EndpointError without one."""
        client = (await self.servers.of(side.arm)).client
        try:
            await client.server_info()
        except EndpointError as error:
            self.progress.note(f"starting the server again for {len(failed)} answers: {error}")
            await self.servers.revive(side.arm)


async def _forget(record: RequestRecord) -> None:
    """A request that warms up says nothing."""


def _tokens_per_s(records: Sequence[RequestRecord]) -> float:
    """All tokens over the whole time, for the eye alone: filling and draining are in it."""
    ends = [record.end_s for record in records if record.end_s is not None]
    seconds = max(ends, default=0.0) - min((record.sent_s for record in records), default=0.0)
    tokens = sum(sum(record.chunk_tokens) for record in records)
    return tokens / seconds if ends and seconds > 0 else 0.0


async def prompts_of(
    spec: EvalSpec, tasks: Sequence[Task], client: ServerClient
) -> dict[str, Prompt]:
    """What is sent for each task.

    Token ids where the server says how it puts a turn into its template and there is nothing else
    to set in it: then outputs can be scored afterwards. The text, or the conversation, elsewhere.
    ConfigError where the template opens thinking and the specification leaves it open whether it
    should.
    """
    prompts: dict[str, Prompt] = {task.id: prompt_of(task, spec) for task in tasks}
    if client.dialect.kind != "ddtree":
        return prompts
    around = (await client.server_info()).get("chat_format")
    open_switch = spec.prompting == "chat" and spec.thinking is None
    if around is not None and open_switch and _opens_thinking(around[1]):
        raise ConfigError(
            f"thinking: the chat template ends in {around[1][-20:]!r}, so that answers begin in "
            "thinking; switch it on or off"
        )
    for name, prompt in prompts.items():
        if isinstance(prompt, str):
            prompts[name] = await client.tokenize(prompt)
        elif isinstance(prompt, Chat) and not prompt.template and around is not None:
            (turn,) = prompt.messages
            prompts[name] = await client.tokenize(around[0] + turn.content + around[1])
    return prompts


def _opens_thinking(after: str) -> bool:
    return after.rstrip().endswith(tuple(opening for opening, _ in FAMILIES))
