"""Which cells a spec asks for: the grid, less what it excludes, what can't fit, what is equal."""

import dataclasses
from dataclasses import dataclass

from ddtree.bench.spec import OWN_LENGTH, BenchSpec
from ddtree.records.arms import FULL_WINDOW, Arm
from ddtree.records.settings import Setting
from ddtree.records.summary import Skip


@dataclass(frozen=True)
class Grid:
    """`arms[setting]` are those to run, the baseline first; `skips` are the spec's other cells.

    Settings whose baseline doesn't fit are not among the keys.
    """

    arms: dict[Setting, tuple[Arm, ...]]
    skips: tuple[Skip, ...]

    @property
    def settings(self) -> tuple[Setting, ...]:
        """In the order they run."""
        return tuple(self.arms)


def grid_of(spec: BenchSpec) -> Grid:
    """All cells of a spec, sorted into those to run and those to skip."""
    arms: dict[Setting, tuple[Arm, ...]] = {}
    skips: list[Skip] = []
    for setting in spec.settings:
        kept: dict[Arm, Arm] = {}
        for arm in spec.arms:
            skip = _skip(spec, arm, setting, kept)
            if skip is None:
                kept[canonical(arm, spec, setting)] = arm
            else:
                skips.append(skip)
        if Arm("ar") in kept:
            arms[setting] = tuple(kept.values())
    return Grid(arms, tuple(skips))


def canonical(arm: Arm, spec: BenchSpec, setting: Setting) -> Arm:
    """The arm that stands for all which draft the same trees at a setting.

    A tree of `budget` nodes never needs a candidate beyond rank budget - 1, since better siblings
    come first; and a window as long as the longest context is the full one.
    """
    changes: dict[str, int | str] = {}
    if arm.budget is not None and arm.topk is not None and arm.topk > arm.budget:
        changes["topk"] = arm.budget
    longest = setting.context + spec.max_tokens
    window = arm.draft_window
    if setting.context != OWN_LENGTH and isinstance(window, int) and window >= longest:
        changes["draft_window"] = FULL_WINDOW
    return dataclasses.replace(arm, **changes)  # type: ignore[arg-type]


def kv_tokens_of(arm: Arm, spec: BenchSpec, setting: Setting) -> int:
    """Tokens of KV cache a cell needs at most: prompts, outputs and one round's rows of all
    slots."""
    return setting.concurrency * (setting.context + spec.max_tokens + (arm.budget or 0) + 1)


def dominated(arm: Arm, setting: Setting, failed: tuple[Arm, Setting]) -> bool:
    """Whether a cell asks for no less than one that brought the server down."""
    other, place = failed
    return (
        arm.method == other.method
        and (arm.budget or 0) >= (other.budget or 0)
        and setting.context >= place.context
        and setting.concurrency >= place.concurrency
    )


def _skip(spec: BenchSpec, arm: Arm, setting: Setting, kept: dict[Arm, Arm]) -> Skip | None:
    if spec.excluded(arm, setting):
        return Skip(arm, setting, "excluded by the specification")
    needed = kv_tokens_of(arm, spec, setting)
    if spec.kv_tokens is not None and needed > spec.kv_tokens:
        reason = f"needs {needed} tokens of KV cache, kv_tokens is {spec.kv_tokens}"
        return Skip(arm, setting, reason)
    same = kept.get(canonical(arm, spec, setting))
    if same is not None:
        return Skip(arm, setting, f"drafts the same trees as {same.label} there", same)
    return None
