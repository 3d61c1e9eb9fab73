"""Whether the drafter's probabilities mean what they say, depth by depth, on text of the target.

A tree spends its nodes by these probabilities: where they are too sure, or too timid, nodes go to
the wrong depth.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ddtree.models.drafter import Drafter
from ddtree.models.target import Target
from training.blocks import Attention, Places, draft
from training.corpus import batch_of
from training.plans import CausalPlan
from training.writing import Written

BINS = 10


@dataclass(frozen=True)
class Curve:
    """Sums over drafted positions by depth and by bin of the drafter's highest probability, [D,
    BINS]: count; said, that probability; meant, the target's probability of the same token; best,
    how often it is the target's best token."""

    count: Tensor
    said: Tensor
    meant: Tensor
    best: Tensor

    def rows(self) -> list[list[dict[str, float]]]:
        """By depth, means of the bins that hold anything."""
        tables = torch.stack([self.said, self.meant, self.best]) / self.count.clamp(min=1)
        return [
            [
                dict(zip(("said", "meant", "best"), tables[:, depth, place].tolist(), strict=True))
                | {"count": int(self.count[depth, place])}
                for place in range(BINS)
                if self.count[depth, place]
            ]
            for depth in range(self.count.shape[0])
        ]

    def error(self) -> list[float]:
        """By depth, the mean difference of what was said and what was meant, over all bins."""
        gap = (self.said - self.meant).abs().sum(1) / self.count.sum(1)
        return [float(value) for value in gap]


def curve_of(
    target: Target,
    network: Drafter,
    corpus: Written,
    size: tuple[int, int, int],
    attention_of: Callable[[Places], Attention],
    window: int,
) -> Curve:
    """size = (batches, B, A): over so many batches of sequences, with A anchors each."""
    batches, sequences, anchors = size
    depths = network.config.block_size - 1
    sums = torch.zeros(4, depths, BINS, dtype=torch.float64)
    for step in range(batches):
        batch = batch_of(corpus, step, (sequences, anchors), depths + 1, seed=0)
        ids, places = batch.ids.to(target.device), batch.anchors.to(target.device)
        positions = torch.arange(ids.shape[1], device=ids.device).expand_as(ids)
        with torch.no_grad():
            hidden, features = target.forward(ids, positions, CausalPlan(), features=True)
            assert features is not None
            where = Places(places, ids.shape[1], depths + 1, window)
            drafted = draft(network, target.embed, ids, features, where, attention_of(where))
            for depth in range(depths):
                before = (places + depth)[:, :, None].expand(-1, -1, hidden.shape[-1])
                true = target.head(hidden.gather(1, before)).float().softmax(-1)
                sums[:, depth] += _binned(target.head(drafted[:, :, depth]).float(), true)
    return Curve(*sums)


def _binned(scores: Tensor, true: Tensor) -> Tensor:
    """[4, BINS] sums of logits and the target's probabilities, both [B, A, V]."""
    said, token = scores.softmax(-1).flatten(0, 1).max(-1)
    meant = true.flatten(0, 1).gather(1, token[:, None])[:, 0]
    best = true.flatten(0, 1).argmax(-1) == token
    place = (said * BINS).long().clamp(max=BINS - 1)
    values: list[Any] = [torch.ones_like(said), said, meant, best]
    return torch.stack(
        [torch.bincount(place, value.double(), minlength=BINS).cpu() for value in values]
    )
