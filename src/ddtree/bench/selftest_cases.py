"""What the self-test's mock server does, case by case: speeds known to the token, faults by count.

At concurrency C every case sends C / STEP_S events a second, 2,500 at 64.
"""

import random
from dataclasses import dataclass, field, replace

from ddtree.endpoint.mock_script import MockFaults, MockScript

STEP_S = 0.0256
PREFILL_S = 0.5
SILENCE_S = 2.0
"""The client's deadline between chunks."""
_DRIFT = 0.3
_SHORT, _LONG = 6, 24
_FAULT_AT = 12
_ARM = "ddtree"


@dataclass(frozen=True)
class Case:
    """One script. With `speed` its speeds are compared, otherwise its counts alone.

    `failures` are the classes in which the requests that the server spoils must end. The server
    slows down by `drift` over the case, and exits in the middle with `crash`.
    """

    name: str
    about: str
    script: MockScript
    speed: bool = True
    failures: tuple[str, ...] = ()
    drift: float = 0.0
    crash: bool = False
    per_round: int = field(default=1)


CASES: tuple[Case, ...] = (
    Case("steady", "one token a chunk", MockScript()),
    Case("four", "four tokens a chunk", MockScript(), per_round=4),
    Case("first8", "a first chunk of eight, then one a chunk", MockScript(first_chunk_rounds=7)),
    Case("drift", f"steps grow by {_DRIFT:.0%} over the case", MockScript(), drift=_DRIFT),
    Case(
        "refused",
        "a quarter of the requests get a 429",
        MockScript(faults=MockFaults(refuse_share=0.25)),
        speed=False,
        failures=("http_429",),
    ),
    Case(
        "in_band",
        "a quarter of the streams hold an error and no token",
        MockScript(faults=MockFaults(error_share=0.25)),
        speed=False,
        failures=("in_band",),
    ),
    Case(
        "broken",
        "connections drop in the middle of the longer answers",
        MockScript(faults=MockFaults(cut_after_chunks=_FAULT_AT)),
        speed=False,
        failures=("broken_stream",),
    ),
    Case(
        "silent",
        "the longer answers fall silent for ever",
        MockScript(faults=MockFaults(stall_after_chunks=_FAULT_AT)),
        speed=False,
        failures=("timeout_silence",),
    ),
    Case(
        "crash",
        "the server's process exits under its requests",
        MockScript(),
        speed=False,
        failures=("broken_stream", "connect"),
        crash=True,
    ),
)

CASE_NAMES = tuple(case.name for case in CASES)

COSTS: tuple[Case, ...] = (
    Case("stream", "one answer a slot, as long as the case", MockScript()),
    Case("batch", "the same, and all slots decode in step", MockScript(in_step=True)),
)
"""No part of the self-test: what the client costs without starting requests."""


@dataclass(frozen=True)
class Plan:
    """A case at one concurrency: the script in full and each request's max_tokens."""

    case: Case
    concurrency: int
    seconds: float
    script: MockScript
    max_tokens: tuple[int, ...]

    @property
    def crash_at(self) -> int | None:
        """Number of the request that the server exits in, counted from 1."""
        return 2 * len(self.max_tokens) // 3 if self.case.crash else None


def plan_case(name: str, concurrency: int, seconds: float) -> Plan:
    """The case of that name, to run for about `seconds` if it compares speeds.

    Lengths are drawn, always the same, so that slots come free at different times.
    """
    (case,) = [case for case in (*CASES, *COSTS) if case.name == name]
    draw = random.Random(concurrency)
    if case in COSTS:
        rounds = [max(1, round(seconds / STEP_S))] * concurrency
    elif case.speed:
        mean = min(100.0, max(6.0, seconds / 8 / STEP_S))
        count = max(2 * concurrency, round(concurrency * seconds / (PREFILL_S + mean * STEP_S)))
        rounds = [round(mean * draw.uniform(0.6, 1.4)) for _ in range(count)]
    else:
        # Half of the answers end before a fault in their middle comes to it.
        rounds = [_LONG if i % 2 else _SHORT for i in range(3 * concurrency)]
    script = replace(
        case.script,
        prefill_s=PREFILL_S if case.speed else 0.0,
        accepted={_ARM: (case.per_round - 1,)},
        round_s={_ARM: STEP_S},
        # A stream that fell silent keeps its slot for ever.
        slots=len(rounds),
    )
    lengths = tuple(1 + n * case.per_round + case.script.first_chunk_rounds for n in rounds)
    return Plan(case, concurrency, seconds, script, lengths)
