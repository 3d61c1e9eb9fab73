"""What the drafter learns: the target's distribution at each position of a block, and its token.

KL(target || drafter) teaches the order and the spread of probabilities, which trees are built
from; cross-entropy to the token that came teaches the path that is followed. A position matters
only if all before it were accepted, so weights decay with depth.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy
from torch.utils.checkpoint import checkpoint


@dataclass(frozen=True)
class Objective:
    """kl: the share of KL, cross-entropy has the rest. decay: exp(-(depth - 1) / decay) weighs a
    depth. rows_at_once: positions whose logits are held together."""

    kl: float = 0.7
    decay: float = 4.0
    rows_at_once: int = 4096

    def weights(self, depths: int) -> Tensor:
        """[depths], summing to 1."""
        raw = torch.exp(-torch.arange(depths) / self.decay)
        return raw / raw.sum()


@dataclass(frozen=True)
class Learned:
    """loss: a scalar with its gradient. agreement: [D] share of positions where the drafter's best
    token is the target's."""

    loss: Tensor
    agreement: Tensor


def loss_of(
    objective: Objective,
    head: Callable[[Tensor], Tensor],
    drafted: Tensor,
    true: Tensor,
    tokens: Tensor,
) -> Learned:
    """drafted, true: hidden states [N, D, E] of the drafter and of the target for the same
    positions; tokens: [N, D] that came there."""
    depths = tokens.shape[1]
    weights = objective.weights(depths).to(drafted.device).expand_as(tokens).flatten()
    total, hits = drafted.new_zeros((), dtype=torch.float32), []
    rows = drafted.flatten(0, 1), true.flatten(0, 1), tokens.flatten(), weights
    for part in zip(*(torch.split(row, objective.rows_at_once) for row in rows), strict=True):
        # Logits of a whole step would not fit: each part's are made again for its gradient.
        loss, hit = checkpoint(_part, objective, head, *part, use_reentrant=False)
        total = total + loss
        hits.append(hit)
    agreement = torch.cat(hits).view(-1, depths).float().mean(0)
    return Learned(total / len(tokens), agreement)


def _part(
    objective: Objective,
    head: Callable[[Tensor], Tensor],
    drafted: Tensor,
    true: Tensor,
    tokens: Tensor,
    weights: Tensor,
) -> tuple[Tensor, Tensor]:
    scores = head(drafted).float()
    with torch.no_grad():
        teacher = head(true).float()
        wanted = teacher.log_softmax(-1)
    found = scores.log_softmax(-1)
    divergence = (wanted.exp() * (wanted - found)).sum(-1)
    surprise = cross_entropy(scores, tokens, reduction="none")
    mixed = objective.kl * divergence + (1 - objective.kl) * surprise
    return (weights * mixed).sum(), scores.argmax(-1) == teacher.argmax(-1)
