"""What a benchmark is to measure, as one frozen value with every setting resolved."""

import dataclasses
import hashlib
import json
from dataclasses import dataclass
from itertools import product
from typing import Any, Literal

import yaml

from ddtree.endpoint.config import EndpointConfig
from ddtree.records.arms import Arm
from ddtree.records.sampling import Sampling
from ddtree.records.settings import Setting

Arrivals = Literal["closed", "poisson", "constant"]
Dtype = Literal["float32", "bfloat16"]

OWN_LENGTH = 0
"""As a context: prompts of a file as they are, whatever their length."""

_LISTS = ("contexts", "concurrencies", "temperatures", "rates")


@dataclass(frozen=True)
class DeadlineSpec:
    """Seconds: to the first token, between chunks with tokens, per request, for one arm's share of
    one block, to readiness.
    """

    first_token_s: float
    silence_s: float
    request_s: float
    part_s: float
    ready_s: float


@dataclass(frozen=True)
class ChatFormat:
    """What stands around a user's turn, special tokens included, for the workload `chat`."""

    before: str
    after: str


@dataclass(frozen=True)
class Exclusion:
    """Cells that are left out: those that have one of the values at each of the keys.

    Keys: method, budget, topk, draft_window, context, concurrency, temperature, rate.
    """

    matches: tuple[tuple[str, tuple[Any, ...]], ...]

    def covers(self, arm: Arm, setting: Setting) -> bool:
        """Whether the cell is left out."""
        cell = {**dataclasses.asdict(arm), **dataclasses.asdict(setting)}
        return all(cell[key] in values for key, values in self.matches)

    def to_dict(self) -> dict[str, list[Any]]:
        """As in a file."""
        return {key: list(values) for key, values in self.matches}


@dataclass(frozen=True)
class TuningSpec:
    """How a run with a time budget narrows the grid down.

    `candidates` arms a setting at most are run after the prediction, on `prompts` prompts each in
    the first rung and `growth` times as many in each next one; of a rung's arms one in `growth`
    goes on, until `finalists` are left. These are measured like any cell, on prompts of their own.
    `predict` False skips the replay, and every arm enters the first rung.
    """

    candidates: int
    prompts: int
    growth: int
    finalists: int
    predict: bool


@dataclass(frozen=True)
class BenchSpec:
    """What to run. `arms` starts with `ar`, the baseline, and holds `chain`; no arm twice.

    `top_p`, `top_k` and `min_p` filter what is sampled at the temperatures above 0.

    `model` and `drafter` are what `ddtree serve` takes; `drafter` None is the model's own.
    `endpoint` says which kind of server decodes, launched here or reached by URL.

    At concurrency 1 a block is one prompt, above it `concurrency * waves` prompts. Each cell has
    as many blocks as hold `prompts` prompts, and at least `blocks`. `arrivals` other than closed
    make requests arrive at each of `rates` a second, with slots for each of the concurrencies.
    `warmup_context` None warms each arm at the cell's own context until its pace is steady, a
    number once at that context. `lead_in` fills the slots with unmeasured prompts before each
    part, so that no measured request starts in a burst. `control_outputs` is how many baseline
    outputs per context and temperature the grading's control scores. `ignore_eos` True is a kernel
    test: lengths are equal and outputs may loop. `reuse_prompts` lets settings share prompts where
    a workload has too few. `budget_minutes` None measures every cell; a number narrows them down
    (`tuning`). Every `sentinel_every` settings the baseline is measured at one fixed setting; 0 is
    never. `kv_tokens` is how many tokens the KV cache holds: cells that need more are left out.
    """

    title: str
    model: str
    drafter: str | None
    dtype: Dtype
    endpoint: EndpointConfig
    arms: tuple[Arm, ...]
    exclude: tuple[Exclusion, ...]
    contexts: tuple[int, ...]
    concurrencies: tuple[int, ...]
    temperatures: tuple[float, ...]
    arrivals: Arrivals
    rates: tuple[float, ...]
    top_p: float
    top_k: int
    min_p: float
    prompts: int
    blocks: int
    waves: int
    max_tokens: int
    workload: str
    chat: ChatFormat | None
    reuse_prompts: bool
    lead_in: bool
    warmup_context: int | None
    warmup_tokens: int
    calibration_tokens: int
    deadlines: DeadlineSpec
    control: bool
    control_outputs: int
    ignore_eos: bool
    budget_minutes: float | None
    tuning: TuningSpec
    sentinel_every: int
    kv_tokens: int | None
    seed: int

    @property
    def settings(self) -> tuple[Setting, ...]:
        """Every setting, in the order they run: by temperature, rate, context, concurrency."""
        return tuple(
            Setting(context, concurrency, temperature, rate)
            for temperature, rate, context, concurrency in product(
                self.temperatures, self.rates or (0.0,), self.contexts, self.concurrencies
            )
        )

    def excluded(self, arm: Arm, setting: Setting) -> bool:
        """Whether the file leaves the cell out."""
        return any(exclusion.covers(arm, setting) for exclusion in self.exclude)

    def block_prompts(self, concurrency: int) -> int:
        """Prompts in one block."""
        return 1 if concurrency == 1 else concurrency * self.waves

    def block_count(self, concurrency: int) -> int:
        """Blocks of one cell."""
        size = self.block_prompts(concurrency)
        return max(self.blocks, -(-self.prompts // size))

    def calibration_length(self, concurrency: int) -> int:
        """Tokens that a calibrating request generates.

        Slots fill one by one as prompts are read, so above one slot a short output would end
        before all of them decode: its steps would be cheaper than those it is held against.
        """
        if concurrency == 1:
            return self.calibration_tokens
        return max(self.calibration_tokens, self.max_tokens)

    def sampling(self, temperature: float) -> Sampling:
        """How requests at one of the temperatures sample, each with a seed of its own besides."""
        if temperature == 0:
            return Sampling()
        return Sampling(temperature, self.top_p, self.top_k, self.min_p)

    def to_dict(self) -> dict[str, Any]:
        """Every setting as resolved, in the file's own form: loading it gives this spec back."""
        fields = dataclasses.asdict(self)
        fields["endpoint"] = self.endpoint.to_dict()
        fields["arms"] = [arm.to_request() for arm in self.arms]
        fields["exclude"] = [exclusion.to_dict() for exclusion in self.exclude]
        for name in _LISTS:
            fields[name] = list(fields[name])
        if OWN_LENGTH in self.contexts:
            fields["contexts"] = ["own" if c == OWN_LENGTH else c for c in self.contexts]
        return fields

    def to_yaml(self) -> str:
        """`to_dict` as YAML, keys in the order of the fields."""
        return yaml.safe_dump(self.to_dict(), sort_keys=False)

    @property
    def hash(self) -> str:
        """sha256 of the resolved specification."""
        return hashlib.sha256(json.dumps(self.to_dict(), sort_keys=True).encode()).hexdigest()


def differences(old: BenchSpec, new: BenchSpec) -> tuple[str, ...]:
    """`key: old value, now new value` for each setting that differs."""
    before, after = old.to_dict(), new.to_dict()
    return tuple(
        f"{key}: {before[key]!r}, now {after[key]!r}" for key in after if before[key] != after[key]
    )
