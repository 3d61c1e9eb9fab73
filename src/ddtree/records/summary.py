"""What a finished run says, cell by cell: computed by `bench`, drawn by `report`, kept as JSON.

Every number here is derived from the run folder's ledger and request records; nothing is
measured while a summary is made.
"""

import dataclasses
import json
import math
from dataclasses import dataclass, field
from typing import Any, Literal

from ddtree.errors import ConfigError
from ddtree.records.arms import Arm

SCHEMA_VERSION = 2

Grade = Literal["baseline", "exact", "near-ties", "not-lossless", "unclassified"]
CONTROL_BAND = 0.02
"""How far from 1 the control's ratio may be before the run says that the baseline is off."""

CellState = Literal["planned", "running", "ok", "invalid", "failed", "quarantined"]


def setting_name(context: int, concurrency: int, temperature: float) -> str:
    """`context 60, concurrency 1`, and the temperature unless greedy."""
    text = f"context {context}, concurrency {concurrency}"
    return text if temperature == 0 else f"{text}, temperature {temperature:g}"


def place_of(arm: Arm, context: int, concurrency: int, temperature: float) -> str:
    """A cell's name in messages; see `CellSummary.place`."""
    return f"{arm.label} at {setting_name(context, concurrency, temperature)}"


@dataclass(frozen=True)
class Interval:
    """A two-sided confidence interval at `level`."""

    low: float
    high: float
    level: float = 0.95


@dataclass(frozen=True)
class Losslessness:
    """How an arm's outputs compare with the baseline's, token by token.

    A divergence is a near-tie when the baseline's own one-row scores put both tokens within
    rounding of each other, a suspect when the gap is larger than the control explains, a bug
    beyond that. `filter_edges` of the near-ties are tokens that rounding moved across the edge of
    a sampling filter. The control scores the same prefixes without a drafter, one row against
    `control_rows` rows: what the target's arithmetic alone moves. Gaps are in bf16 ULPs. Of the
    `tokens` that were compared `near_tie_tokens` are near-ties by themselves; `near_tie_excess` of
    them are more than the control's flips explain, and as many outputs count as suspects;
    `tie_excess` exact ties are, and as many outputs count as bugs.
    """

    grade: Grade
    outputs: int
    identical: int
    near_ties: int = 0
    suspects: int = 0
    bugs: int = 0
    largest_gap_ulps: float | None = None
    control_rows: int | None = None
    control_positions: int = 0
    control_flips: int = 0
    control_largest_gap_ulps: float | None = None
    tokens: int = 0
    near_tie_tokens: int = 0
    near_tie_excess: int = 0
    filter_edges: int = 0
    tie_excess: int = 0


@dataclass(frozen=True)
class CellSummary:
    """One arm at one context length, concurrency and temperature.

    Speed-ups are against the named baseline in the same blocks on the same prompts: the geometric
    mean of per-prompt decode ratios at concurrency 1, the ratio of system throughputs above.
    `accepted_by_depth[d - 1]` is the share of rounds that accepted at least d draft tokens.
    `stage_seconds` is seconds per round by stage (draft, build, layout, verify, accept, commit,
    host), `round_s` their sum; both None where the server reports none.
    """

    arm: Arm
    context: int
    concurrency: int
    temperature: float
    state: CellState
    reason: str | None
    requests: int
    failed_requests: int
    speedup: float | None
    speedup_interval: Interval | None
    speedup_vs_chain: float | None
    speedup_vs_chain_interval: Interval | None
    end_to_end_speedup: float | None
    decode_tokens_per_s: float | None
    system_tokens_per_s: float | None
    ttft_s: float | None
    tpot_s: float | None
    acceptance_length: float | None
    accepted_by_depth: tuple[float, ...]
    stage_seconds: dict[str, float] | None
    round_s: float | None
    losslessness: Losslessness

    @property
    def place(self) -> str:
        """`ddtree(8,4) at context 60, concurrency 1`, and the temperature unless greedy."""
        return place_of(self.arm, self.context, self.concurrency, self.temperature)

    @property
    def is_lossless(self) -> bool:
        """Whether outputs were compared and all are identical or explained by near-ties."""
        found = self.losslessness
        clean = found.grade in ("exact", "near-ties") and not (found.bugs or found.suspects)
        return clean and found.outputs > 0

    @property
    def is_win(self) -> bool:
        """Whether a valid, lossless cell is faster than the baseline with its whole interval.

        Without an interval (n too small) nothing is won, however high the ratio.
        """
        if self.state != "ok" or not self.is_lossless or self.speedup_interval is None:
            return False
        speed = self.speedup
        faster = speed is not None and math.isfinite(speed) and speed > 1
        return faster and self.speedup_interval.low > 1


@dataclass(frozen=True)
class Control:
    """`ar` on a server without a drafter, beside `ar` on the server under test.

    `ratio` is decode speed with the drafter loaded over decode speed without: 1 means that the
    baseline pays nothing for a drafter it doesn't use. `outputs` counts the prompts that both
    servers finished, `identical` those with the same token ids, `near_ties` those that differ only
    by near-ties; 0 outputs where none were compared.
    """

    context: int
    concurrency: int
    ratio: float
    ratio_interval: Interval | None
    requests: int
    outputs: int = 0
    identical: int = 0
    near_ties: int = 0
    temperature: float = 0.0

    @property
    def is_off(self) -> bool:
        """Whether the ratio is no number or further from 1 than CONTROL_BAND."""
        return not math.isfinite(self.ratio) or abs(self.ratio - 1) > CONTROL_BAND

    @property
    def place(self) -> str:
        """`ar at context 60, concurrency 1`, and the temperature unless greedy."""
        return place_of(Arm("ar"), self.context, self.concurrency, self.temperature)

    @property
    def differing(self) -> int:
        """Outputs that differ beyond near-ties."""
        return self.outputs - self.identical - self.near_ties


@dataclass(frozen=True)
class Choice:
    """What to ship at one context length, concurrency and temperature, and why."""

    context: int
    concurrency: int
    temperature: float
    arm: Arm
    speedup: float
    reason: str


@dataclass(frozen=True)
class Verdict:
    """The run's answer. `arm` is None when no speculative arm may be recommended."""

    arm: Arm | None
    headline: str
    speedup: float | None
    choices: tuple[Choice, ...]
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True)
class RunSummary:
    """A whole run, ready to be drawn."""

    title: str
    created: str
    model: str
    dtype: str
    verdict: Verdict
    cells: tuple[CellSummary, ...]
    controls: tuple[Control, ...]
    spec: dict[str, Any]
    provenance: dict[str, Any]
    schema_version: int = field(default=SCHEMA_VERSION)

    def to_json(self) -> str:
        """Indented JSON; `from_json` reads it back."""
        return json.dumps(dataclasses.asdict(self), indent=1)

    @classmethod
    def from_json(cls, text: str) -> "RunSummary":
        """Read `to_json`'s output; ConfigError on another schema version."""
        data = json.loads(text)
        if data.get("schema_version") != SCHEMA_VERSION:
            raise ConfigError(
                f"summary: schema_version {data.get('schema_version')!r}, expected "
                f"{SCHEMA_VERSION}; make the report again with the version that wrote the run"
            )
        data["verdict"] = _verdict(data["verdict"])
        data["cells"] = tuple(_cell(cell) for cell in data["cells"])
        data["controls"] = tuple(
            Control(**{**c, "ratio_interval": _interval(c["ratio_interval"])})
            for c in data["controls"]
        )
        return cls(**data)


def _interval(data: dict[str, Any] | None) -> Interval | None:
    return None if data is None else Interval(**data)


def _cell(data: dict[str, Any]) -> CellSummary:
    return CellSummary(
        **{
            **data,
            "arm": Arm(**data["arm"]),
            "speedup_interval": _interval(data["speedup_interval"]),
            "speedup_vs_chain_interval": _interval(data["speedup_vs_chain_interval"]),
            "accepted_by_depth": tuple(data["accepted_by_depth"]),
            "losslessness": Losslessness(**data["losslessness"]),
        }
    )


def _verdict(data: dict[str, Any]) -> Verdict:
    return Verdict(
        **{
            **data,
            "arm": None if data["arm"] is None else Arm(**data["arm"]),
            "choices": tuple(Choice(**{**c, "arm": Arm(**c["arm"])}) for c in data["choices"]),
            "warnings": tuple(data["warnings"]),
        }
    )
