"""The runner that an engine's configuration asks for."""

from collections.abc import Callable
from dataclasses import dataclass

import torch

from ddtree.engine.drafting import Drafting
from ddtree.engine.fixed.drafting import FixedDrafting, Network, PlainNetwork
from ddtree.engine.fixed.launches import Launches
from ddtree.engine.fixed.parts import Parts
from ddtree.engine.fixed.round import FixedRound, Kind, Models
from ddtree.engine.fixed.runner import FixedRunner
from ddtree.engine.fixed.state import SlotState
from ddtree.engine.fixed.torch_parts import TorchParts
from ddtree.engine.params import Rounds
from ddtree.engine.plan import Decoder
from ddtree.engine.pool import KVPool
from ddtree.engine.probe import probe_target
from ddtree.engine.sizes import Sizes
from ddtree.errors import ConfigError
from ddtree.models.drafter import Drafter
from ddtree.models.target import Target


@dataclass(frozen=True)
class Means:
    """What rounds are made of on a device: the models' passes, and the parts between them."""

    decoder: Decoder
    network: Network | None
    parts_of: Callable[[Kind], Parts]


@dataclass(frozen=True)
class Room:
    """Keys of `slots` requests; the cells of `pool` from `sizes.cells` on are nobody's."""

    pool: KVPool
    sizes: Sizes
    slots: int


def rounds_for(target: Target, asked: Rounds) -> Rounds:
    """How rounds run; ConfigError for graphs where there are none."""
    kernels = has_kernels(target)
    if asked == "graphs" and target.device.type != "cuda":
        raise ConfigError(f"rounds: got graphs, which need a GPU; the device is {target.device}")
    return ("graphs" if kernels else "ragged") if asked == "auto" else asked


def has_kernels(target: Target) -> bool:
    """Kernels are for GPUs, and don't compute in float64."""
    return target.device.type == "cuda" and target.dtype != torch.float64


def fixed_runner(
    target: Target, drafting: Drafting | None, room: Room, means: Means, graphs: bool
) -> FixedRunner:
    """Rounds of a fixed shape."""
    sizes, depth = room.sizes, _depth(drafting)
    state = SlotState(room.slots, depth, sizes.cells, target.shape.vocab_size, target.device)

    def round_of(kind: Kind) -> FixedRound:
        parts, fixed = means.parts_of(kind), None
        if drafting is not None and means.network is not None:
            fixed = FixedDrafting(drafting, means.network, parts)
        return FixedRound(
            Models(means.decoder, fixed, room.pool, sizes.longest), state, parts, kind
        )

    return FixedRunner(
        state, drafting, Launches(round_of, sizes.widest_round - 1, room.slots, graphs=graphs)
    )


def means_for(target: Target, drafting: Drafting | None) -> Means:
    """Kernels where there are some, plain torch elsewhere."""
    drafter, depth = None if drafting is None else drafting.drafter, _depth(drafting)
    if has_kernels(target):
        return kernels_for(target, drafter, depth, 3 * _multiprocessors(target.device))
    network = None if drafter is None else PlainNetwork(drafter)
    return Means(
        target, network, lambda kind: TorchParts(kind.budget, kind.topk, depth, target.device)
    )


def kernels_for(target: Target, drafter: Drafter | None, depth: int, programs: int) -> Means:
    """Kernels that give a device about `programs` programs at once; lean layers where the target
    has such."""
    # Triton comes with torch for GPUs alone.
    from ddtree.engine.fixed.triton_parts import TritonParts
    from ddtree.engine.kernels.attention import TreeAttention
    from ddtree.engine.kernels.growth import digits_fit
    from ddtree.engine.lean.models import LeanDrafter, LeanTarget, refusal

    attention = TreeAttention(target.device)
    decoder: Decoder = target
    if refusal(target) is None:
        decoder = LeanTarget(target)
        probe_target(target, decoder)

    def parts_of(kind: Kind) -> Parts:
        slow = TorchParts(kind.budget, kind.topk, depth, target.device)
        grow = None if digits_fit(depth, kind.topk) else slow.grow
        return TritonParts(kind.budget, attention, programs, grow)

    return Means(decoder, None if drafter is None else LeanDrafter(drafter), parts_of)


def _depth(drafting: Drafting | None) -> int:
    return 1 if drafting is None else drafting.block - 1


def _multiprocessors(device: torch.device) -> int:
    count: int = torch.cuda.get_device_properties(device).multi_processor_count
    return count
