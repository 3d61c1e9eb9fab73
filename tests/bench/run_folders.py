"""Run folders with known truth, written by the same ledger and log that a run writes them with."""

import dataclasses
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import yaml

from ddtree.bench.summarise import LEDGER_FILE, PROVENANCE_FILE, REQUESTS_FILE, SPEC_FILE
from ddtree.records.arms import Arm
from ddtree.records.files import RequestLog
from ddtree.records.ledger import BlockState, CellIdentity, Ledger
from ddtree.records.requests import RequestRecord
from ddtree.records.summary import CellState, CellSummary, Losslessness, RunSummary

AR, CHAIN, TREE = Arm("ar"), Arm("chain"), Arm("ddtree", 8, 4)

SPEC = {"title": "a run", "model": "smollm2-135m", "dtype": "bfloat16", "seed": 1}


def identity(arm: Arm, context: int = 60, concurrency: int = 1, version: str = "1") -> CellIdentity:
    return CellIdentity(arm, context, concurrency, 0.0, 48, "p", "m", "d", "bfloat16", version)


@dataclass(frozen=True)
class Answer:
    """One request: `step` seconds a token after `ttft`, in chunks of `chunk` tokens.

    `more` are further fields of the record, `told` of its stats.
    """

    step: float
    chunk: int = 1
    tokens: int = 21
    ttft: float = 0.5
    sent: float = 0.0
    error: str | None = None
    first_id: int = 100
    stats: bool = True
    more: Mapping[str, object] = field(default_factory=dict)
    told: Mapping[str, object] = field(default_factory=dict)

    def record(self, cell: str, attempt: int, block: int, prompt: str) -> RequestRecord:
        sizes = [1] + [self.chunk] * ((self.tokens - 1) // self.chunk)
        times = [self.sent + self.ttft]
        for size in sizes[1:]:
            times.append(times[-1] + size * self.step)
        count, rounds = sum(sizes), len(sizes) - 1
        stats = {
            "completion_tokens": count,
            "rounds": rounds,
            "accepted_histogram": [0] * (self.chunk - 1) + [rounds],
            "cut_tokens": 0,
            "stage_seconds": {"verify": rounds * self.step, "host": rounds * 0.001},
            **self.told,
        }
        record = RequestRecord(
            cell=cell,
            attempt=attempt,
            block=block,
            prompt_id=prompt,
            sent_s=self.sent,
            chunk_times_s=tuple(times),
            chunk_tokens=tuple(sizes),
            end_s=times[-1],
            prompt_tokens=60,
            completion_tokens=count,
            finish_reason="length",
            token_ids=tuple(range(self.first_id, self.first_id + count)),
            error=self.error,
            stats=stats if self.stats else None,
        )
        return dataclasses.replace(record, **self.more)  # type: ignore[arg-type]


@dataclass
class RunFolder:
    """Adds cells to a folder. `path` is what `summarise` reads."""

    path: Path
    spec: dict[str, object] = field(default_factory=lambda: dict(SPEC))

    def __post_init__(self) -> None:
        self.path.mkdir(parents=True, exist_ok=True)
        (self.path / SPEC_FILE).write_text(yaml.safe_dump(self.spec))
        (self.path / PROVENANCE_FILE).write_text(json.dumps({"python": "3.11"}))
        self.ledger().close()

    def ledger(self) -> Ledger:
        return Ledger.open(self.path / LEDGER_FILE, "hash")

    def cell(
        self,
        who: Arm | CellIdentity,
        blocks: Iterable[Sequence[Answer]],
        *,
        state: CellState = "ok",
        grade: Losslessness | str | None = "exact",
        extra: Mapping[str, object] | None = None,
    ) -> str:
        """A cell whose blocks are all ok; prompt p of block b is `b.p`. `extra` is each block's."""
        identified = who if isinstance(who, CellIdentity) else identity(who)
        with self.ledger() as ledger:
            key = ledger.add_cell(identified)
            ledger.set_cell_state(key, state, None if state == "ok" else "a reason")
        blocks = list(blocks)
        for index, answers in enumerate(blocks):
            self.block(key, index, answers, extra=extra)
        count = sum(len(block) for block in blocks)
        if isinstance(grade, str):
            grade = Losslessness(grade, count, count)  # type: ignore[arg-type]
        if grade is not None and identified.arm.method != "ar":
            with self.ledger() as ledger:
                ledger.set_grade(key, grade)
        return key

    def block(
        self,
        key: str,
        index: int,
        answers: Sequence[Answer],
        state: BlockState = "ok",
        reason: str | None = None,
        extra: Mapping[str, object] | None = None,
    ) -> None:
        """One more attempt at a block."""
        with self.ledger() as ledger, RequestLog(self.path / REQUESTS_FILE) as log:
            attempt = ledger.start_block(key, index)
            log.append(
                answer.record(key, attempt, index, f"{index}.{p}")
                for p, answer in enumerate(answers)
            )
            ledger.finish_block(key, index, state, reason, extra)


# Four blocks of one prompt, whose own speeds differ a lot: only pairs see the ratio.
STEPS = (0.05, 0.1, 0.02, 0.08)


def answers(factor: float, **more: object) -> list[list[Answer]]:
    return [[Answer(step / factor, **more)] for step in STEPS]  # type: ignore[arg-type]


def find(summary: RunSummary, arm: Arm) -> CellSummary:
    (found,) = [cell for cell in summary.cells if cell.arm == arm]
    return found


def fill(folder: RunFolder) -> RunFolder:
    """The folder with a baseline, a chain 1.5 times and a tree 1.8 times as fast."""
    folder.cell(AR, answers(1.0))
    folder.cell(CHAIN, answers(1.5, chunk=2))
    folder.cell(TREE, answers(1.8, chunk=4))
    return folder
