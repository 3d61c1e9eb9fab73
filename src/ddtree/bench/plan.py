"""What a run will do: which prompts in which block, in which order the arms take a block."""

import hashlib
from dataclasses import dataclass

from ddtree.bench.cells import Grid
from ddtree.bench.spec import BenchSpec
from ddtree.bench.workload import Prompt, PromptSource
from ddtree.records.arms import Arm
from ddtree.records.ledger import Role
from ddtree.records.sampling import Sampling
from ddtree.records.settings import Setting

CALIBRATION_TRIES = 3
# Fewer than three blocks give no interval.
_CONTROL_BLOCKS = 3
_BASELINE = Arm("ar")


@dataclass(frozen=True)
class Group:
    """All arms at one setting, the baseline first: they share blocks, prompts and fate.

    `warmup` and each of `calibration` hold one prompt per slot; no prompt is measured as well.
    """

    setting: Setting
    arms: tuple[Arm, ...]
    blocks: tuple[tuple[Prompt, ...], ...]
    warmup: tuple[Prompt, ...]
    calibration: tuple[tuple[Prompt, ...], ...]
    role: Role = "arm"

    @property
    def context(self) -> int:
        """Prompt tokens, or OWN_LENGTH."""
        return self.setting.context

    @property
    def concurrency(self) -> int:
        """Requests in flight, or slots in an open loop."""
        return self.setting.concurrency

    @property
    def temperature(self) -> float:
        """0 is greedy."""
        return self.setting.temperature

    @property
    def name(self) -> str:
        """How messages call it."""
        return self.setting.name

    @property
    def prompts(self) -> tuple[Prompt, ...]:
        """The measured prompts."""
        return tuple(prompt for block in self.blocks for prompt in block)


@dataclass(frozen=True)
class RunPlan:
    """The groups in the order they run; `control` is the drafter control's, `sentinel` the one
    that is run again and again, if asked for."""

    groups: tuple[Group, ...]
    control: Group | None
    sentinel: Group | None = None


async def make_plan(spec: BenchSpec, grid: Grid, source: PromptSource) -> RunPlan:
    """Draw the prompts of all cells, always in the same order."""
    groups = [
        await make_group(spec, source, setting, arms, spec.block_count(setting.concurrency))
        for setting, arms in grid.arms.items()
    ]
    control = sentinel = None
    if spec.control and grid.arms:
        setting = grid.settings[0]
        count = max(_CONTROL_BLOCKS, spec.block_count(setting.concurrency))
        control = await make_group(spec, source, setting, (_BASELINE,), count)
    if spec.sentinel_every and grid.arms:
        setting = grid.settings[len(grid.settings) // 2]
        sentinel = await make_group(spec, source, setting, (_BASELINE,), 1, role="sentinel")
    return RunPlan(tuple(groups), control, sentinel)


async def make_group(
    spec: BenchSpec,
    source: PromptSource,
    setting: Setting,
    arms: tuple[Arm, ...],
    blocks: int,
    *,
    role: Role = "arm",
) -> Group:
    """One group with prompts of its own."""
    size = spec.block_prompts(setting.concurrency)
    context = setting.context
    warmup = await source.take(spec.warmup_context or context, setting.concurrency)
    calibration = [
        await source.take(context, setting.concurrency) for _ in range(CALIBRATION_TRIES)
    ]
    taken = [await source.take(context, size) for _ in range(blocks)]
    return Group(setting, arms, tuple(taken), warmup, tuple(calibration), role)


def request_sampling(spec: BenchSpec, group: Group, prompt_id: str) -> Sampling:
    """How a prompt's requests sample, seed included.

    The seed follows from the spec's seed and the prompt's id alone: every arm, repetition and
    server gets the same, and grading finds it again.
    """
    digest = hashlib.sha256(f"{spec.seed}:{prompt_id}".encode()).digest()
    return spec.sampling(group.temperature).with_seed(int.from_bytes(digest[:4], "big"))


def arm_order(arms: tuple[Arm, ...], block: int) -> tuple[Arm, ...]:
    """The arms' order in a block: each pair of blocks runs it forth and back (ABBA).

    From pair to pair the order is rotated, so no arm keeps a place between two others; a drift
    of the machine hits every arm alike over a pair.
    """
    pair, back = divmod(block, 2)
    # A stride near the golden section visits distant places first.
    turn = pair * max(1, round(len(arms) * 0.382)) % len(arms)
    turned = arms[turn:] + arms[:turn]
    return turned[::-1] if back else turned


def part_work(spec: BenchSpec, group: Group) -> float:
    """Relative cost of one arm in one block: prompt tokens, and steps at 20 tokens each."""
    size = spec.block_prompts(group.concurrency)
    return size * group.context + 20.0 * spec.max_tokens * size / group.concurrency
