"""Candidates ranked by the chance to be the target's draw, given the drafter's logits and the
noise that the draw will use.

The target's token at a position is argmax(log p + g), and g, keyed by (seed, position, token id),
is known before anything is drafted. With q the drafter's probabilities the chance that token v is
that draw is modelled by a multinomial regression,

    P(v) = exp(s_v) / (sum over u of exp(s_u) + R),    s_v = a log q_v + b g_v,

whose sum runs over a pool of tokens; R = exp(c) (1 - sum over u of q_u)^a stands for all others.
If the models' logits over T differ by Gumbel noise of scale s, then a = 1 / (s T) and
b = 1 / s exactly. What a tree holds changes no token of the output, so a poor fit costs
acceptance and nothing else.
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad

from ddtree.core.candidates import Candidates, ordered_places, top_candidates
from ddtree.core.noise import approximate_gumbel

# Tokens whose noise is looked at: of the ids that are equal modulo POOL the most probable one. A
# maximum finds them, where the POOL most probable take a partial sort, several times as long on a
# CPU; the drafter's r-th token is missing with a chance of (r - 1) / POOL. A small pool won't do:
# at temperature 1 many draws are tokens that the drafter ranks in the hundreds and the noise lifts.
POOL = 1024


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
    """Candidates of logits [B, D, V], K = min(topk, V): of the coupling's rows the pool's best by
    P with log P as their log-probability, ties to the lower id; of all others `top_candidates`'s,
    bit for bit. `invalid` and `at_once` as there.
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
    """Tokens, log-probabilities and flags of the coupling's rows."""
    values = logits.index_select(0, coupling.rows).float()
    vocab = values.shape[-1]
    keep = min(topk, vocab)
    total = values.logsumexp(-1)
    invalid = (total.isnan() | (total == torch.inf)).any(-1)
    size = POOL * -(-keep // POOL)
    # Below 0 throughout, as `_best_of_classes` needs it.
    lowered = values - (total + 1)[..., None]
    if vocab % size:
        lowered = pad(lowered, (0, -vocab % size), value=-torch.inf)
    tokens = _best_of_classes(lowered, size)
    log_q = lowered.gather(-1, tokens) + 1
    dead = (log_q == -torch.inf) | log_q.isnan() | invalid[:, None, None]
    found = draw_log_probs(log_q.masked_fill(dead, -torch.inf), tokens, coupling)
    best = ordered_places(found, tokens, keep)
    return tokens.gather(-1, best).clamp(max=vocab - 1), found.gather(-1, best), invalid


def _best_of_classes(values: Tensor, size: int) -> Tensor:
    """Of float32 values [n, D, rows * size], all below 0, the best id of each class modulo `size`,
    [n, D, size]; the lowest among values that differ in their last few bits only.

    The bits of negative floats, read as integers, fall as the values rise. The row takes the place
    of the last ones, so that one minimum finds value and row.
    """
    rows = values.shape[-1] // size
    mask = (1 << (rows - 1).bit_length()) - 1
    numbers = torch.arange(rows, dtype=torch.int32, device=values.device)[:, None]
    keys = values.view(torch.int32).view(*values.shape[:-1], rows, size) & ~mask
    best = keys.bitwise_or_(numbers).amin(-2) & mask
    return best.long() * size + torch.arange(size, device=values.device)
