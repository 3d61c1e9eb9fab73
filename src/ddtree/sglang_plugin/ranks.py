"""A rank for each token of an answer, in `meta_info["ddtree_ranks"]`.

The rank of a drafted token is its place among its depth's candidates (0 for the best); the bonus
of a round, and the tokens of a prompt pass, have none (-1). Off unless DDTREE_RANKS=1.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ddtree.core.tree import DraftTree
from ddtree.sglang_plugin.rounds import Settled

KEY = "ddtree_ranks"
NO_RANK = -1


class TokenValues(list[int]):
    """SGLang appends what a step gives and cuts the list as it cuts tokens: a step's values have
    to become one entry a token."""

    def append(self, values: Any) -> None:
        """Add the values of a step's tokens."""
        self.extend(values)


class StepRanks:
    """The ranks of a batch's round, read when the scheduler reads the round's tokens."""

    def __init__(self, ranks: Tensor, counts: Tensor) -> None:
        self._ranks = ranks.to("cpu", non_blocking=True)
        self._counts = counts.to("cpu", non_blocking=True)

    def __getitem__(self, index: int) -> list[int]:
        """One request's, one for each token of the round."""
        return [int(rank) for rank in self._ranks[index, : int(self._counts[index])]]


def accepted_ranks(tree: DraftTree, settled: Settled) -> Tensor:
    """[B, A] int64: the rank of each accepted token, NO_RANK for the bonus and beyond."""
    by_row = torch.nn.functional.pad(tree.ranks, (1, 1), value=NO_RANK)
    following = torch.nn.functional.pad(settled.path, (0, 1), value=by_row.shape[1] - 1)[:, 1:]
    drafted = torch.arange(settled.path.shape[1], device=tree.ranks.device)
    ranks = by_row.gather(1, following)
    return torch.where(drafted < settled.counts[:, None] - 1, ranks, NO_RANK)


def attach_ranks(reqs: Sequence[Any], result: Any, tree: DraftTree, settled: Settled) -> None:
    """Have the scheduler keep the ranks of this round's tokens."""
    for req in reqs:
        if req.customized_info is None:
            # Tokens so far came out of a prompt pass.
            req.customized_info = {KEY: TokenValues([NO_RANK] * max(len(req.output_ids), 1))}
    result.logits_output.customized_info = {
        KEY: StepRanks(accepted_ranks(tree, settled), settled.counts)
    }
