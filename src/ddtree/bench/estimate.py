"""How long a run will take, before it starts: from a pace, assumed or measured by another run."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from ddtree.bench.cells import Grid
from ddtree.bench.spec import OWN_LENGTH, BenchSpec
from ddtree.records.settings import Setting
from ddtree.records.summary import CellSummary

# Warm-up beside its own requests, grading and the control, as a share of the measured parts.
_GRADING_SHARE = 0.15
_OWN_LENGTH_GUESS = 256


@dataclass(frozen=True)
class Pace:
    """Speed of a server: prompt tokens per second, a baseline step at concurrency 1, and how much
    a step grows with each further slot, as a share. `launch_s` is one start until ready.

    The defaults are SmolLM2-135M's on two CPU cores.
    """

    prefill_tokens_per_s: float = 500.0
    step_s: float = 0.045
    slot_share: float = 0.12
    launch_s: float = 20.0
    source: str = "assumed: SmolLM2-135M on two CPU cores"

    def step_at(self, concurrency: int) -> float:
        """Seconds of a step with so many slots busy."""
        return self.step_s * (1 + self.slot_share * (concurrency - 1))


@dataclass(frozen=True)
class SettingEstimate:
    """What one setting costs: `arms` of it, `requests` of all arms together."""

    setting: Setting
    arms: int
    blocks: int
    requests: int
    seconds: float


@dataclass(frozen=True)
class Estimate:
    """A whole run, every cell measured; `launches` of servers, theirs in `seconds` as well."""

    settings: tuple[SettingEstimate, ...]
    launches: int
    pace: Pace

    @property
    def seconds(self) -> float:
        """All of it."""
        work = sum(setting.seconds for setting in self.settings)
        return work * (1 + _GRADING_SHARE) + self.launches * self.pace.launch_s

    @property
    def requests(self) -> int:
        """Measured requests."""
        return sum(setting.requests for setting in self.settings)

    @property
    def cells(self) -> int:
        """Cells that will run."""
        return sum(setting.arms for setting in self.settings)


def estimate(spec: BenchSpec, grid: Grid, pace: Pace, *, launch_per_arm: bool) -> Estimate:
    """Every arm at the baseline's pace: what speculation saves is not counted on.

    `launch_per_arm` where a server serves one arm only.
    """
    settings = tuple(
        _setting(spec, setting, len(arms), pace) for setting, arms in grid.arms.items()
    )
    launches = 1
    if launch_per_arm:
        blocks = max((s.blocks for s in settings), default=0)
        launches = blocks * len({arm for arms in grid.arms.values() for arm in arms})
    return Estimate(settings, launches + spec.control, pace)


def part_seconds(spec: BenchSpec, setting: Setting, pace: Pace) -> float:
    """One arm in one block: prompts one after the other, then steps of all slots together."""
    size = spec.block_prompts(setting.concurrency)
    context = _OWN_LENGTH_GUESS if setting.context == OWN_LENGTH else setting.context
    if setting.rate:
        size = max(size, 1)
        return size / setting.rate + spec.max_tokens * pace.step_at(setting.concurrency)
    waves = size / setting.concurrency
    steps = spec.max_tokens * waves * pace.step_at(setting.concurrency)
    return size * context / pace.prefill_tokens_per_s + steps


def pace_of(cells: Sequence[CellSummary], source: str) -> Pace:
    """The pace that a run's baselines show; what they don't show stays as assumed."""
    usable = [c for c in cells if c.arm.method == "ar" and c.state == "ok"]
    rates = [c.context / c.ttft_s for c in usable if c.ttft_s and c.concurrency == 1]
    steps = {c.concurrency: c.round_s or c.tpot_s for c in usable if c.round_s or c.tpot_s}
    step = steps.get(min(steps, default=1)) or Pace.step_s
    shares = [(s / step - 1) / (n - 1) for n, s in steps.items() if n > 1 and s]
    return Pace(
        prefill_tokens_per_s=median(rates) if rates else Pace.prefill_tokens_per_s,
        step_s=step,
        slot_share=max(0.0, median(shares)) if shares else Pace.slot_share,
        source=source,
    )


def _setting(spec: BenchSpec, setting: Setting, arms: int, pace: Pace) -> SettingEstimate:
    blocks = spec.block_count(setting.concurrency)
    size = spec.block_prompts(setting.concurrency)
    part = part_seconds(spec, setting, pace)
    # Once per arm to warm up, and the baseline's calibration: a wave of prompts.
    extra = (arms + setting.concurrency) * part / max(size, 1)
    return SettingEstimate(
        setting, arms, blocks, arms * blocks * size, arms * blocks * part + extra
    )
