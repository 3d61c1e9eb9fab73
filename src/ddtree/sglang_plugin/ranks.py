"""Where each token of an answer stood in its tree, in `meta_info["ddtree_ranks"]` and
`meta_info["ddtree_nodes"]`.

A drafted token's rank is its place among its depth's candidates (0 for the best), its node its
place in the tree in best-first order; the bonus of a round, and the tokens of a prompt pass, have
none (-1). Off unless DDTREE_RANKS=1.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from ddtree.core.tree import DraftTree
from ddtree.sglang_plugin.rounds import Settled

RANKS, NODES = "ddtree_ranks", "ddtree_nodes"
NO_PLACE = -1


class TokenValues(list[int]):
    """SGLang appends what a step gives and cuts the list as it cuts tokens: a step's values have
    to become one entry a token."""

    def append(self, values: Any) -> None:
        """Add the values of a step's tokens."""
        self.extend(values)


class StepPlaces:
    """The ranks or nodes of a batch's round, read when the scheduler reads the round's tokens."""

    def __init__(self, places: Tensor, counts: Tensor) -> None:
        self._places = places.to("cpu", non_blocking=True)
        self._counts = counts.to("cpu", non_blocking=True)

    def __getitem__(self, index: int) -> list[int]:
        """One request's, one for each token of the round."""
        return [int(place) for place in self._places[index, : int(self._counts[index])]]


def accepted_places(tree: DraftTree, settled: Settled) -> dict[str, Tensor]:
    """RANKS and NODES of each accepted token, [B, A] int64; NO_PLACE for the bonus and beyond."""
    drafted = torch.arange(settled.path.shape[1], device=tree.ranks.device)
    accepted = drafted < settled.counts[:, None] - 1
    following = pad(settled.path, (0, 1), value=tree.width + 1)[:, 1:]
    by_row = pad(tree.ranks, (1, 1), value=NO_PLACE)
    return {
        RANKS: torch.where(accepted, by_row.gather(1, following), NO_PLACE),
        NODES: torch.where(accepted, following - 1, NO_PLACE),
    }


def attach_places(reqs: Sequence[Any], result: Any, tree: DraftTree, settled: Settled) -> None:
    """Have the scheduler keep the ranks and nodes of this round's tokens."""
    for req in reqs:
        if req.customized_info is None:
            # Tokens so far came out of a prompt pass.
            before = [NO_PLACE] * max(len(req.output_ids), 1)
            req.customized_info = {key: TokenValues(before) for key in (RANKS, NODES)}
    result.logits_output.customized_info = {
        key: StepPlaces(places, settled.counts)
        for key, places in accepted_places(tree, settled).items()
    }
