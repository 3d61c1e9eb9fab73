"""Candidates ranked by the chance to be the target's draw, given the drafter's logits and the
noise that the draw will use.

The target's token at a position is argmax(log p + g), and g, keyed by (seed, position, token id),
is known before anything is drafted. With q the drafter's probabilities the chance that token v is
that draw is modelled by a multinomial regression,

    P(v) = exp(s_v) / (sum over u of exp(s_u) + R),    s_v = a log q_v + b g_v,

whose sum runs over the POOL most probable tokens; R = exp(c) (1 - sum over u of q_u)^a stands for
all others. If the models' logits over T differ by Gumbel noise of scale s, then a = 1 / (s T) and
b = 1 / s exactly. What a tree holds changes no token of the output, so a poor fit costs
acceptance and nothing else.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from ddtree.core.candidates import Candidates, top_candidates
from ddtree.core.noise import approximate_gumbel

# Tokens whose noise is looked at. At temperature 1 a good part of the draws are tokens that the
# drafter ranks in the hundreds and the noise lifts: twice the pool still gains a little, and costs
# more on a CPU.
POOL = 512


@dataclass(frozen=True)
class Coupling:
    """The n requests of a batch whose candidates look at the noise.

    rows: [n] int64, ascending, their rows in the batch. seeds, roots: [n] int64, what keys their
    noise: the seed and the absolute position of the root; a token at depth d (from 1) has position
    root + d. log_q, noise, rest: [n, D] float32, the coefficients a (above 0), b (at least 0)
    and c of each depth.
    """

    rows: Tensor
    seeds: Tensor
    roots: Tensor
    log_q: Tensor
    noise: Tensor
    rest: Tensor

    def take(self, rows: slice) -> "Coupling":
        """Some of the n requests; `rows` still says where they are in the batch."""
        return Coupling(
            *(
                values[rows]
                for values in (
                    self.rows,
                    self.seeds,
                    self.roots,
                    self.log_q,
                    self.noise,
                    self.rest,
                )
            )
        )


def coupled_candidates(
    logits: Tensor, topk: int, coupling: Coupling, at_once: int | None = None
) -> Candidates:
    """Candidates of logits [B, D, V], K = min(topk, V): of the coupling's rows the best by P with
    log P as their log-probability, ties to the lower id; of all others `top_candidates`'s, bit for
    bit. `invalid` and `at_once` as there.
    """
    size = len(coupling.rows)
    step = at_once or max(size, 1)
    parts = [
        _coupled(logits, topk, coupling.take(slice(first, first + step)))
        for first in range(0, size, step)
    ]
    coupled = [torch.cat(columns) for columns in zip(*parts, strict=True)]
    if size == len(logits):
        return Candidates(*coupled)
    plain = top_candidates(logits, topk, at_once)
    return Candidates(
        *(
            columns.index_copy(0, coupling.rows, found)
            for columns, found in zip(
                (plain.tokens, plain.log_probs, plain.invalid), coupled, strict=True
            )
        )
    )


def draw_log_probs(log_q: Tensor, tokens: Tensor, coupling: Coupling) -> Tensor:
    """log P [n, D, P] of pools of tokens [n, D, P] int64 with log-probabilities log_q [n, D, P],
    at most 0; -inf where log_q is."""
    depths = torch.arange(1, log_q.shape[1] + 1, device=log_q.device)
    positions = (coupling.roots[:, None] + depths)[..., None]
    noise = approximate_gumbel(coupling.seeds[:, None, None], positions, tokens).float()
    scores = coupling.log_q[..., None] * log_q + coupling.noise[..., None] * noise
    missing = (1 - log_q.exp().sum(-1)).clamp(min=0.0)
    rest = coupling.log_q * missing.log() + coupling.rest
    total = torch.logaddexp(scores.logsumexp(-1), rest)
    # Rounding can lift a log-probability above 0, and -inf less -inf is no number.
    values = (scores - total[..., None]).clamp(max=0.0)
    return values.masked_fill(log_q == -torch.inf, -torch.inf)


def _coupled(logits: Tensor, topk: int, coupling: Coupling) -> tuple[Tensor, Tensor, Tensor]:
    """Tokens, log-probabilities and flags of the coupling's rows.

    Which of several tokens equal to the pool's last one are in the pool is topk's to say.
    """
    values = logits.index_select(0, coupling.rows).float()
    keep = min(topk, values.shape[-1])
    pool = values.topk(min(max(POOL, keep), values.shape[-1]), dim=-1, sorted=False)
    tokens, order = pool.indices.sort(-1)
    total = values.logsumexp(-1)
    invalid = (total.isnan() | (total == torch.inf)).any(-1)
    log_q = pool.values.gather(-1, order) - total[..., None]
    dead = (log_q == -torch.inf) | log_q.isnan() | invalid[:, None, None]
    found = draw_log_probs(log_q.masked_fill(dead, -torch.inf), tokens, coupling)
    # Ids ascend, so that a stable sort ranks equal values by id.
    ranked = torch.sort(found, dim=-1, descending=True, stable=True)
    best = ranked.indices[..., :keep]
    return tokens.gather(-1, best), ranked.values[..., :keep], invalid
