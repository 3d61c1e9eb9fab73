"""What an engine has room for: its configuration held against target and drafter."""

from dataclasses import dataclass

from ddtree.engine.params import EngineConfig
from ddtree.errors import ConfigError
from ddtree.models.drafter_config import DrafterConfig


@dataclass(frozen=True)
class Sizes:
    """max_context: tokens of a request, prompt and output. widest_round: rows of the widest round
    one can ask for. cells: tokens the target's cache holds. ring: committed tokens per slot the
    drafter's cache holds, 0 without a drafter."""

    max_context: int
    widest_round: int
    cells: int
    ring: int

    @property
    def longest(self) -> int:
        """Cells of the longest request, a round's rows behind its last token included."""
        return self.max_context + self.widest_round


def resolve_sizes(max_positions: int, drafter: DrafterConfig | None, config: EngineConfig) -> Sizes:
    """`max_positions` is the target's limit; ConfigError names what asks for too much."""
    # A chain is as wide as the block.
    widest = max(config.max_budget + 1, 0 if drafter is None else drafter.block_size)
    context = _context(max_positions, widest, config)
    most = config.slots * (context + widest)
    cells = most if config.cache_tokens is None else min(config.cache_tokens, most)
    ring = 0 if drafter is None else drafter.resolve_window(config.draft_window, context).ring
    return Sizes(context, widest, cells, ring)


def _context(limit: int, widest: int, config: EngineConfig) -> int:
    wanted = limit if config.max_context is None else config.max_context
    if wanted > limit:
        raise ConfigError(f"max_context: got {wanted}, the target's limit is {limit}")
    if config.cache_tokens is None:
        return wanted
    room = config.cache_tokens - widest
    if room < 2:
        raise ConfigError(
            f"cache_tokens: got {config.cache_tokens}, expected at least {widest + 2}: 2 more than "
            "the rows of the widest round; raise it or lower max_budget"
        )
    return min(wanted, room)
