"""The target's tokens at the rows of a tree, by each request's own sampling parameters.

Sampled requests draw with noise keyed by (seed, absolute position, token id), as the embedded
engine does, so a seed gives the same tokens whatever the tree holds. Filters keep what SGLang's
own sampler keeps: top_p counts mass over the whole vocabulary, not over what top_k left.
"""

import zlib
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ddtree.core.accept import accept
from ddtree.core.sampling import SamplingRules, sample_unread
from ddtree.core.walk import walk_choices, widened
from ddtree.sglang_plugin.rounds import Planted, Start

# Logits drawn from together: their noise takes several times as many bytes as they do.
ENTRIES_AT_ONCE = 1 << 24


@dataclass(frozen=True)
class Drawing:
    """How the requests of a batch draw, [B] tensors as SGLang keeps them.

    greedy: all take the best token. filtered: any has a top_k or top_p. bias: [B, V] added to the
    logits of each row, or None.
    """

    greedy: bool
    filtered: bool
    temperatures: Tensor
    top_k: Tensor
    top_p: Tensor
    min_p: Tensor
    seeds: Sequence[int]
    bias: Tensor | None

    @property
    def plain(self) -> bool:
        """Whether choices are the argmax of the logits as they are."""
        return self.greedy and self.bias is None


def request_seed(given: int | None, name: str) -> int:
    """The seed of a request: its own, or one made of its name, which is unique."""
    if given is not None:
        return int(given)
    data = name.encode()
    return zlib.crc32(data) << 31 | zlib.crc32(data[::-1]) >> 1


def choose(planted: Planted, logits: Tensor, start: Start, drawing: Drawing | None) -> Tensor:
    """The target's token [B, N] at each row of logits [B * N, V] that acceptance may look at.

    Greedy requests take what SGLang's sampler takes without speculation, torch's argmax.
    """
    batch, rows = planted.rows.ids.shape
    if drawing is None or drawing.plain:
        return logits.argmax(-1).view(batch, rows)
    grid = logits.view(batch, rows, -1)
    if drawing.bias is not None:
        grid = grid + drawing.bias[:, None]
    if drawing.greedy:
        return grid.argmax(-1)
    rules = rules_of(drawing, logits.device)
    if not drawing.filtered:
        return draw_all(planted, grid, rules, filtered=False)[0]
    tokens, sure = draw_all(planted, grid, rules, filtered=True)
    if bool(is_sure(planted, tokens, sure).all()):
        return tokens
    return walk_choices(planted.tree, grid, rules, None, start.lengths).tokens


def rules_of(drawing: Drawing, device: torch.device) -> SamplingRules:
    """The batch's rules, sent without waiting for the GPU."""
    seeds = torch.tensor(drawing.seeds, dtype=torch.int64)
    if device.type == "cuda":
        seeds = seeds.pin_memory().to(device, non_blocking=True)
    return SamplingRules(
        seeds,
        drawing.temperatures.flatten().double(),
        drawing.top_k.long(),
        drawing.top_p.double(),
        drawing.min_p.double(),
        joint=True,
    )


def draw_all(
    planted: Planted, grid: Tensor, rules: SamplingRules, *, filtered: bool
) -> tuple[Tensor, Tensor]:
    """Tokens [B, N] drawn at every row of logits [B, N, V], and [B, N] bool where that is sure.

    Also at rows that no walk visits: that costs a GPU less than waiting for the walk.
    """
    batch, rows, vocabulary = grid.shape
    requests = torch.arange(batch, device=grid.device).repeat_interleave(rows)
    positions = planted.rows.positions.flatten() + 1
    step = max(1, ENTRIES_AT_ONCE // vocabulary)
    parts = [
        sample_unread(
            widened(part), rules.take(requests[place : place + step]), at, filtered=filtered
        )
        for place, part, at in zip(
            range(0, batch * rows, step),
            torch.split(grid.flatten(0, 1), step),
            torch.split(positions, step),
            strict=True,
        )
    ]
    tokens, sure = (torch.cat(found).view(batch, rows) for found in zip(*parts, strict=True))
    return tokens, sure


def is_sure(planted: Planted, tokens: Tensor, sure: Tensor) -> Tensor:
    """[B] bool: whether the walk along tokens [B, N] meets rows alone that are sure [B, N]."""
    taken = accept(planted.tree, planted.rows, tokens)
    places = torch.arange(taken.rows.shape[1], device=tokens.device)
    beyond = places > taken.num_accepted[:, None]
    return (sure.gather(1, taken.rows.clamp(max=sure.shape[1] - 1)) | beyond).all(1)
