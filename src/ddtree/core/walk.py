"""The target's own tokens along a tree: one draw for each row the walk visits.

The walk starts at the root, draws the target's next token given the row's path and goes down to
the child that holds it, if there is one. Every token it draws is a draw from the target's
distribution given true predecessors, so what it emits is distributed as the target's text,
whatever the tree holds. Rows it doesn't visit are not processed.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from ddtree.core.edits import LogitEdits
from ddtree.core.sampling import SamplingRules, best_token, sample
from ddtree.core.tree import DraftTree

UNVISITED = -1


@dataclass(frozen=True)
class Choices:
    """The target's token at each row, [B, M] int64; UNVISITED where nobody asked.

    invalid: [B, M] bool, rows with NaN or +inf logits. barred: [B, M] bool, rows where the
    request's own bans left no token.
    """

    tokens: Tensor
    invalid: Tensor
    barred: Tensor


def greedy_choices(logits: Tensor) -> Choices:
    """The argmax of all rows of logits [B, M, V], the lowest id among equals.

    In float32: the same values as bfloat16 ones, and several times faster on a CPU.
    """
    best = widened(logits).max(-1)
    invalid = best.values.isnan() | (best.values == torch.inf)
    return Choices(best.indices, invalid, torch.zeros_like(invalid))


def walk_choices(
    tree: DraftTree,
    logits: Tensor,
    rules: SamplingRules,
    edits: LogitEdits | None,
    positions: Tensor,
) -> Choices:
    """Choices at the rows that the walk visits, of logits [B, M, V].

    positions: [B] int64 absolute positions of the roots; a token drawn at depth d has position
    root + d + 1, which keys its noise. Reads back, once a level, which requests go on.
    """
    batch, width = logits.shape[:2]
    tokens = torch.full((batch, width), UNVISITED, device=logits.device)
    invalid = torch.zeros((batch, width), dtype=torch.bool, device=logits.device)
    barred = invalid.clone()
    going = torch.arange(batch, device=logits.device)
    rows = torch.zeros_like(going)
    live = tree.live()
    for depth in range(tree.max_depth + 1):
        raw = widened(logits[going, rows])
        edited = raw if edits is None else edits.apply(raw)
        drawn = _choose(edited, rules, positions + depth + 1)
        largest = raw.amax(-1)
        tokens[going, rows] = drawn
        invalid[going, rows] = largest.isnan() | (largest == torch.inf)
        barred[going, rows] = edited.amax(-1) == -torch.inf
        fits = live[going] & (tree.parents[going] == rows[:, None])
        fits &= tree.tokens[going] == drawn[:, None]
        further = fits.any(-1).nonzero()[:, 0]
        if not len(further):
            break
        going, rows = going[further], fits[further].int().argmax(-1) + 1
        rules, positions = rules.take(further), positions[further]
        if edits is not None:
            edits = edits.take(further).advance(drawn[further])
    return Choices(tokens, invalid, barred)


def _choose(logits: Tensor, rules: SamplingRules, positions: Tensor) -> Tensor:
    """One token for each row of logits [n, V]: drawn, or the best where temperature is 0."""
    drawn = rules.temperatures > 0
    if bool(drawn.all()):
        return sample(logits, rules, positions)
    tokens = best_token(logits)
    if bool(drawn.any()):
        some = drawn.nonzero()[:, 0]
        tokens[some] = sample(logits[some], rules.take(some), positions[some])
    return tokens


def widened(logits: Tensor) -> Tensor:
    """float64 as it is, else float32."""
    return logits if logits.dtype is torch.float64 else logits.float()
