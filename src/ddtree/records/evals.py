"""What a coding evaluation leaves for its report: `eval.json`."""

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from ddtree.errors import ConfigError
from ddtree.records.arms import Arm
from ddtree.records.summary import Interval

EVAL_FILE = "eval.json"
SCHEMA = 1


@dataclass(frozen=True)
class Discordant:
    """A task on which an arm and the baseline differ in passing; answers as raw text."""

    task: str
    baseline_outcome: str
    arm_outcome: str
    baseline_answer: str
    arm_answer: str


@dataclass(frozen=True)
class PairedResult:
    """An arm against the baseline on the same tasks and samples; differences are arm - baseline,
    as shares of 1.

    `both`, `only_baseline`, `only_arm`, `neither` count tasks by their first samples. `mcnemar_p`
    is exact and two-sided. `difference` is the difference in pass@1 with `interval` from a
    bootstrap over tasks. `excluded_loss` is the one-sided 95 % bound: a loss of more than so much
    is excluded.
    `identical` of `compared` outputs are the same token for token (text where no ids came). `grade`
    is the losslessness grade of the differing outputs, None where nothing could score them.
    `method_shift` says how the mix of extraction methods moved, None where it did not.
    """

    both: int
    only_baseline: int
    only_arm: int
    neither: int
    mcnemar_p: float
    difference: float
    interval: Interval | None
    excluded_loss: float
    identical: int
    compared: int
    grade: str | None
    method_shift: str | None
    discordant: tuple[Discordant, ...]


@dataclass(frozen=True)
class EvalRow:
    """One arm. `pass_at` maps k to pass@k, only where every task has k samples.

    `interval` is Wilson's at one sample a task, else a bootstrap over tasks. `outcomes` and
    `methods` count samples. `lenient_passed` counts those that pass under a lenient reading as
    well. `length_share` is the share of outputs that ended at the limit. Speeds come from the same
    requests: `tokens_per_s` of the system, `acceptance_length` as defined for rounds. `evidence`
    says in words which of pass rate and outputs is the stronger.
    """

    arm: Arm
    tasks: int
    samples: int
    passed: int
    pass_at: Mapping[int, float]
    interval: Interval
    outcomes: Mapping[str, int]
    methods: Mapping[str, int]
    lenient_passed: int
    length_share: float
    tokens_per_s: float | None
    speedup: float | None
    acceptance_length: float | None
    paired: PairedResult | None
    evidence: str = ""


@dataclass(frozen=True)
class EvalSummary:
    """The whole evaluation. `problems` are reasons why it is not valid, empty for one that is;
    `warnings` should be known besides.

    `noise` is the baseline run a second time against itself: what differs without any drafter.
    `provenance` is of the run, as its folder keeps it; empty where that has none.
    """

    suite: str
    suite_sha256: str
    model: str
    prompting: str
    sampling: str
    samples: int
    max_tokens: int
    extractor: str
    sandbox: str
    selfcheck: str
    rows: tuple[EvalRow, ...]
    noise: PairedResult | None
    problems: tuple[str, ...]
    provenance: Mapping[str, Any]
    warnings: tuple[str, ...] = ()

    def to_json(self) -> str:
        """With the schema's number; `read_eval` is the inverse."""
        return json.dumps({"schema": SCHEMA} | dataclasses.asdict(self), indent=1) + "\n"

    @classmethod
    def from_json(cls, text: str) -> Self:
        """ConfigError on another schema."""
        data = json.loads(text)
        schema = data.pop("schema", None)
        if schema != SCHEMA:
            raise ConfigError(f"evaluation: schema {schema}, expected {SCHEMA}; grade it anew")
        data["rows"] = tuple(_row(row) for row in data["rows"])
        data["noise"] = _paired(data["noise"])
        data["problems"] = tuple(data["problems"])
        data["warnings"] = tuple(data["warnings"])
        return cls(**data)


def read_eval(path: Path) -> EvalSummary:
    """The summary in a file; ConfigError where there is none that can be read."""
    try:
        return EvalSummary.from_json(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise ConfigError(f"{path}: no evaluation can be read there ({error})") from None


def _row(data: dict[str, Any]) -> EvalRow:
    data["arm"] = Arm(**data["arm"])
    data["pass_at"] = {int(k): value for k, value in data["pass_at"].items()}
    data["interval"] = Interval(**data["interval"])
    data["paired"] = _paired(data["paired"])
    return EvalRow(**data)


def _paired(data: dict[str, Any] | None) -> PairedResult | None:
    if data is None:
        return None
    if data["interval"] is not None:
        data["interval"] = Interval(**data["interval"])
    data["discordant"] = tuple(Discordant(**item) for item in data["discordant"])
    return PairedResult(**data)
