"""What a run will do: which prompts in which block, in which order the arms take a block."""

import hashlib
from dataclasses import dataclass
from itertools import product

from ddtree.bench.spec import BenchSpec
from ddtree.bench.workload import Prompt, PromptSource
from ddtree.records.arms import Arm
from ddtree.records.sampling import Sampling
from ddtree.records.summary import setting_name

CALIBRATION_TRIES = 3
# Fewer than three blocks give no interval.
_CONTROL_BLOCKS = 3


@dataclass(frozen=True)
class Group:
    """All arms at one context, concurrency and temperature: they share blocks, prompts and fate.

    `warmup` and each of `calibration` hold one prompt per slot; no prompt is measured as well.
    """

    context: int
    concurrency: int
    temperature: float
    blocks: tuple[tuple[Prompt, ...], ...]
    warmup: tuple[Prompt, ...]
    calibration: tuple[tuple[Prompt, ...], ...]

    @property
    def name(self) -> str:
        """How messages call it."""
        return setting_name(self.context, self.concurrency, self.temperature)

    @property
    def prompts(self) -> tuple[Prompt, ...]:
        """The measured prompts."""
        return tuple(prompt for block in self.blocks for prompt in block)


@dataclass(frozen=True)
class RunPlan:
    """The groups in the order they run; `control` is the drafter control's, if asked for."""

    groups: tuple[Group, ...]
    control: Group | None


async def make_plan(spec: BenchSpec, source: PromptSource) -> RunPlan:
    """Draw all prompts of a run, always in the same order."""
    groups = []
    for temperature, context, concurrency in product(
        spec.temperatures, spec.contexts, spec.concurrencies
    ):
        count = spec.block_count(concurrency)
        groups.append(await _group(spec, source, (context, concurrency, temperature), count))
    control = None
    if spec.control:
        setting = (spec.contexts[0], spec.concurrencies[0], spec.temperatures[0])
        count = max(_CONTROL_BLOCKS, spec.block_count(setting[1]))
        control = await _group(spec, source, setting, count)
    return RunPlan(tuple(groups), control)


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


async def _group(
    spec: BenchSpec, source: PromptSource, setting: tuple[int, int, float], count: int
) -> Group:
    context, concurrency, temperature = setting
    size = spec.block_prompts(concurrency)
    warmup = await source.take(spec.warmup_context or context, concurrency)
    calibration = [await source.take(context, concurrency) for _ in range(CALIBRATION_TRIES)]
    blocks = [await source.take(context, size) for _ in range(count)]
    return Group(context, concurrency, temperature, tuple(blocks), warmup, tuple(calibration))
