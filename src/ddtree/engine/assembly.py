"""The runner that an engine's configuration asks for."""

from collections.abc import Callable
from dataclasses import dataclass

import torch

from ddtree.engine.drafting import Drafting
from ddtree.engine.fixed.drafting import FixedDrafting, Network, PlainNetwork
from ddtree.engine.fixed.parts import Parts
from ddtree.engine.fixed.round import Decoder, FixedRound, Kind, Models
from ddtree.engine.fixed.runner import FixedRunner
from ddtree.engine.fixed.state import SlotState
from ddtree.engine.fixed.torch_parts import TorchParts
from ddtree.engine.params import EngineConfig
from ddtree.engine.pool import KVPool
from ddtree.engine.sizes import Sizes
from ddtree.models.drafter import Drafter
from ddtree.models.target import Target


@dataclass(frozen=True)
class Means:
    """What rounds are made of on a device: the models' passes, and the parts between them."""

    decoder: Decoder
    network: Network | None
    parts_of: Callable[[Kind], Parts]


def fixed_runner(
    target: Target, drafting: Drafting | None, pool: KVPool, sizes: Sizes, config: EngineConfig
) -> FixedRunner:
    """Rounds of a fixed shape over `pool`, whose cells from `sizes.cells` on are nobody's."""
    depth = 1 if drafting is None else drafting.block - 1
    state = SlotState(config.slots, depth, sizes.cells, target.shape.vocab_size, target.device)
    means = means_for(target, None if drafting is None else drafting.drafter, depth)

    def round_of(kind: Kind) -> FixedRound:
        parts, fixed = means.parts_of(kind), None
        if drafting is not None and means.network is not None:
            fixed = FixedDrafting(drafting, means.network, parts)
        return FixedRound(Models(means.decoder, fixed, pool, sizes.longest), state, parts, kind)

    return FixedRunner(state, drafting, round_of, graphs=config.rounds == "graphs")


def means_for(target: Target, drafter: Drafter | None, depth: int) -> Means:
    """Kernels on a GPU, but for float64, which they don't compute in; plain torch elsewhere."""
    if target.device.type == "cuda" and target.dtype != torch.float64:
        return kernels_for(target, drafter, 3 * _multiprocessors(target.device))
    network = None if drafter is None else PlainNetwork(drafter)
    return Means(
        target, network, lambda kind: TorchParts(kind.budget, kind.topk, depth, target.device)
    )


def kernels_for(target: Target, drafter: Drafter | None, programs: int) -> Means:
    """Kernels that give a device about `programs` programs at once; lean layers where the target
    has such."""
    # Triton comes with torch for GPUs alone.
    from ddtree.engine.fixed.triton_parts import TritonParts
    from ddtree.engine.kernels.attention import TreeAttention
    from ddtree.engine.lean.models import LeanDrafter, LeanTarget, refusal

    attention = TreeAttention(target.device)
    return Means(
        target if refusal(target) else LeanTarget(target),
        None if drafter is None else LeanDrafter(drafter),
        lambda kind: TritonParts(kind.budget, attention, programs),
    )


def _multiprocessors(device: torch.device) -> int:
    count: int = torch.cuda.get_device_properties(device).multi_processor_count
    return count
