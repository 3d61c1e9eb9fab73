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

Mix = Callable[[float, Tensor, Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]


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
    """loss: a scalar. gradient: of the loss, by `drafted` [N, D, E]. agreement: [D] share of
    positions where the drafter's best token is the target's."""

    loss: Tensor
    gradient: Tensor
    agreement: Tensor


def loss_of(
    objective: Objective,
    head: Callable[[Tensor], Tensor],
    drafted: Tensor,
    true: Tensor,
    tokens: Tensor,
    mix: Mix | None = None,
) -> Learned:
    """drafted, true: hidden states [N, D, E] of the drafter and of the target for the same
    positions; tokens: [N, D] that came there; `mix` is `mixed`, or that as torch.compile gives
    it."""
    mix = mix or mixed
    depths = tokens.shape[1]
    weights = objective.weights(depths).to(drafted.device).expand_as(tokens).flatten() / len(tokens)
    rows = drafted.detach().flatten(0, 1), true.flatten(0, 1), tokens.flatten(), weights
    losses, grads, hits = [], [], []
    for part in zip(*(torch.split(row, objective.rows_at_once) for row in rows), strict=True):
        # Logits of a whole step would not fit: each part's gradient is made while they are there.
        leaf = part[0].clone().requires_grad_()
        with torch.enable_grad():
            scores = head(leaf)
            with torch.no_grad():
                teacher = head(part[1])
            loss, hit = mix(objective.kl, scores, teacher, *part[2:])
        losses.append(loss.detach())
        grads += torch.autograd.grad(loss, leaf)
        hits.append(hit)
    agreement = torch.cat(hits).view(-1, depths).float().mean(0)
    return Learned(torch.stack(losses).sum(), torch.cat(grads).view_as(drafted), agreement)


def mixed(
    kl: float, scores: Tensor, teacher: Tensor, tokens: Tensor, weights: Tensor
) -> tuple[Tensor, Tensor]:
    """The weighted loss of rows of logits [n, V], and whether their best tokens are the same."""
    scores, teacher = scores.float(), teacher.float()
    wanted, found = teacher.log_softmax(-1), scores.log_softmax(-1)
    divergence = (wanted.exp() * (wanted - found)).sum(-1)
    surprise = cross_entropy(scores, tokens, reduction="none")
    value = (weights * (kl * divergence + (1 - kl) * surprise)).sum()
    return value, scores.argmax(-1) == teacher.argmax(-1)
