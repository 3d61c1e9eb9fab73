"""What a finished run says, cell by cell: computed by `bench`, drawn by `report`, kept as JSON.

Every number here is derived from the run folder's ledger and request records; nothing is
measured while a summary is made.
"""

import dataclasses
import json
import math
from dataclasses import dataclass, field
from typing import Any, Literal

from ddtree.records.arms import Arm
from ddtree.records.settings import Setting

SCHEMA_VERSION = 3

Grade = Literal["baseline", "exact", "near-ties", "not-lossless", "unclassified"]
CONTROL_BAND = 0.02
"""How far from 1 the control's ratio may be before the run says that the baseline is off."""

TIE_BAND = 0.02
"""Arms whose speed-ups are within this share of the best's count as tied."""

CellState = Literal["planned", "running", "ok", "invalid", "failed", "quarantined"]
StatsSource = Literal["server", "counters", "estimate"]
"""Who counted rounds: the server by request, its counters over a block, or the client's guess."""


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
    `tie_excess` exact ties are, and as many outputs count as bugs. `reproduced` tokens lay beyond
    what the control explains until the target alone was seen to choose them.
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
    reproduced: int = 0


@dataclass(frozen=True)
class Spread:
    """Quantiles of one metric over `count` requests; None where so many can't bound one.

    Each is an order statistic that needs enough requests for a 95 % upper bound to exist:
    59 for `p95`, 299 for `p99`.
    """

    count: int
    p10: float | None
    p50: float | None
    p90: float | None
    p95: float | None
    p99: float | None


@dataclass(frozen=True)
class TreeUse:
    """What the nodes of an arm's drafts were good for; a chain is a tree of one branch.

    `accepted_ranks[r]` is the share of accepted nodes that were the drafter's candidate of rank r
    at their depth. `rescued` is the share of rounds whose accepted path left the top-1 chain,
    `chain_length` the acceptance length that the top-1 part of the accepted paths alone would
    have had. `node_use` is accepted over verified nodes. `gain_by_node[n]` is the share of rounds
    that accepted the n-th node in best-first order: 1 + its sum over n < b is the acceptance
    length that trees cut to b nodes would have had in these rounds, so it is also the marginal
    gain of a node more.
    """

    accepted_ranks: tuple[float, ...]
    rescued: float
    chain_length: float
    node_use: float
    gain_by_node: tuple[float, ...]


@dataclass(frozen=True)
class CellSummary:
    """One arm at one context length, concurrency, temperature and rate of arrival.

    Speed-ups are against the named baseline in the same blocks on the same prompts: the geometric
    mean of per-prompt decode ratios at concurrency 1, the ratio of system throughputs above.
    `accepted_by_depth[d - 1]` is the share of rounds that accepted at least d draft tokens.
    `stage_seconds` is seconds per round by stage (draft, build, layout, verify, accept, commit,
    host), `round_s` their sum; both None where the server reports none.

    The speed-up is `acceptance_gain` (acceptance length over the baseline's, which is 1) over
    `round_cost` (seconds of a round over seconds of a baseline step), but for what lies outside
    rounds. `ratio_deciles` are p10, p20, ... p90 of the per-prompt decode ratios, empty where the
    prompts are too few. `flags` are what a reader should know and what makes nothing invalid.
    `acceptance_interval` takes prompts as clusters. `speedup_p` is two-sided, of a speed-up of 1;
    None with its interval.
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
    rate: float = 0.0
    end_to_end_interval: Interval | None = None
    ttft: Spread | None = None
    tpot: Spread | None = None
    end_to_end: Spread | None = None
    acceptance_source: StatsSource | None = None
    acceptance_gain: float | None = None
    round_cost: float | None = None
    tree: TreeUse | None = None
    ratio_deciles: tuple[float, ...] = ()
    achieved_concurrency: float | None = None
    loop_lag_s: float | None = None
    cached_tokens: int | None = None
    flags: tuple[str, ...] = ()
    acceptance_interval: Interval | None = None
    speedup_p: float | None = None

    @property
    def setting(self) -> Setting:
        """Where it was measured."""
        return Setting(self.context, self.concurrency, self.temperature, self.rate)

    @property
    def place(self) -> str:
        """`ddtree(8,4) at ` and the setting's name."""
        return f"{self.arm.label} at {self.setting.name}"

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
    rate: float = 0.0

    @property
    def is_off(self) -> bool:
        """Whether the ratio is no number or further from 1 than CONTROL_BAND."""
        return not math.isfinite(self.ratio) or abs(self.ratio - 1) > CONTROL_BAND

    @property
    def setting(self) -> Setting:
        """Where it was measured."""
        return Setting(self.context, self.concurrency, self.temperature, self.rate)

    @property
    def place(self) -> str:
        """`ar at ` and the setting's name."""
        return f"{Arm('ar').label} at {self.setting.name}"

    @property
    def differing(self) -> int:
        """Outputs that differ beyond near-ties."""
        return self.outputs - self.identical - self.near_ties


@dataclass(frozen=True)
class Choice:
    """What to ship at one setting, and why."""

    context: int
    concurrency: int
    temperature: float
    arm: Arm
    speedup: float
    reason: str
    rate: float = 0.0

    @property
    def setting(self) -> Setting:
        """What it is for."""
        return Setting(self.context, self.concurrency, self.temperature, self.rate)


@dataclass(frozen=True)
class Verdict:
    """The run's answer. `arm` is None when no speculative arm may be recommended."""

    arm: Arm | None
    headline: str
    speedup: float | None
    choices: tuple[Choice, ...]
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True)
class Prediction:
    """What was foretold of an arm at a setting before it ran, or in its place.

    `acceptance_length` is replayed over outputs of the baseline; `round_s` is measured at the same
    budget, context and concurrency (interpolated between budgets that ran). `chosen` says whether
    the arm was then run, `reason` why or why not. What was then measured is in its cell.
    """

    arm: Arm
    setting: Setting
    acceptance_length: float
    round_s: float
    speedup: float
    chosen: bool
    reason: str


@dataclass(frozen=True)
class Skip:
    """A cell that is not run, and why; `same_as` is an arm whose cell has the same trees there."""

    arm: Arm
    setting: Setting
    reason: str
    same_as: Arm | None = None


@dataclass(frozen=True)
class Rung:
    """One round of successive halving at a setting: `arms` ran on `prompts` prompts each, and
    `kept` went on. `speedups` are in the order of `arms`, None where there was no ratio.
    """

    name: str
    setting: Setting
    prompts: int
    arms: tuple[Arm, ...]
    speedups: tuple[float | None, ...]
    kept: tuple[Arm, ...]


@dataclass(frozen=True)
class Sentinel:
    """The baseline at one fixed setting, measured again and again over a run.

    `ratio` is its decode speed over that of its first measurement; `place` counts the blocks of
    the run that were behind it, `at` is seconds since the epoch.
    """

    place: int
    at: float
    ratio: float


@dataclass(frozen=True)
class RunSummary:
    """A whole run, ready to be drawn.

    `cells` are measured on prompts of their own and may rank; `screened` are the cells of earlier
    rungs, whose winners are flattered by having been picked.
    """

    title: str
    created: str
    model: str
    dtype: str
    verdict: Verdict
    cells: tuple[CellSummary, ...]
    controls: tuple[Control, ...]
    spec: dict[str, Any]
    provenance: dict[str, Any]
    endpoint: str = "ddtree"
    screened: tuple[CellSummary, ...] = ()
    predictions: tuple[Prediction, ...] = ()
    rungs: tuple[Rung, ...] = ()
    skips: tuple[Skip, ...] = ()
    sentinels: tuple[Sentinel, ...] = ()
    schema_version: int = field(default=SCHEMA_VERSION)

    def to_json(self) -> str:
        """Indented JSON; `summary_json.read_summary` reads it back."""
        return json.dumps(dataclasses.asdict(self), indent=1)
