"""A plugin for measurements alone: how many drafted tokens a round accepts is drawn from a given
histogram, for DDTREE and for SGLang's own DFLASH chain.

Weights are random, so that without it nothing would be accepted. The target's and the drafter's
passes run as ever, and what they choose is overwritten where acceptance looks. Texts mean nothing.
FORCED_HISTOGRAM: a JSON list, rounds by accepted tokens.
"""

import functools
import json
import os

import torch

DRAWS = 4096
# Probabilities by rank at each depth, so that trees take the shapes that a trained drafter gives.
BY_RANK = (0.7, 0.1, 0.05, 0.03, 0.02, 0.015, 0.012, 0.01)


class Draws:
    """Accepted tokens for round after round; its tensors stay where CUDA graphs know them."""

    def __init__(self, histogram, device):
        weights = torch.tensor(histogram, dtype=torch.float64)
        generator = torch.Generator().manual_seed(0)
        table = torch.multinomial(weights, DRAWS, replacement=True, generator=generator)
        self._table = table.to(device)
        self._round = torch.zeros(1, dtype=torch.int64, device=device)

    def next(self, count):
        """[count] int64, one for each request."""
        self._round.add_(1)
        requests = torch.arange(count, device=self._round.device)
        return self._table[(self._round + requests * 127) % DRAWS]


# Both are made once for a device, in a first call outside CUDA graphs.
draws = functools.cache(Draws)


@functools.cache
def by_rank(topk, device):
    """[topk] log-probabilities."""
    return torch.tensor(BY_RANK[:topk], device=device).log()


def on_chain(tree):
    """[B, N] bool: nodes whose path is of best candidates alone."""
    best = tree.live() & (tree.ranks == 0)
    root = torch.ones_like(best[:, :1])
    found = torch.zeros_like(best)
    for _ in range(tree.max_depth):
        found = best & torch.cat([root, found], 1).gather(1, tree.parents)
    return found


def forced_choices(tree, wanted):
    """[B, N + 1] choices that accept the first `wanted` [B] tokens of the chain of best candidates,
    or as many as it has, and nothing else."""
    taken = on_chain(tree) & (tree.depths <= wanted[:, None])
    # All other rows choose a token that no node has.
    ids = torch.arange(tree.width + 1, device=wanted.device)
    used = (tree.tokens[:, :, None] == ids).any(1)
    spare = (~used).int().argmax(1, keepdim=True)
    rows = torch.where(taken, tree.parents, tree.width + 1)
    return spare.expand(-1, tree.width + 2).scatter(1, rows, tree.tokens)[:, :-1]


def register():
    """Force both in this process."""
    histogram = tuple(json.loads(os.environ["FORCED_HISTOGRAM"]))
    _force_trees(histogram)
    _force_chain(histogram)


def _force_trees(histogram):
    from ddtree.core.candidates import Candidates
    from ddtree.sglang_plugin import drafting, worker

    choose, found = worker.choose, drafting.HeadShard.candidates

    def forced(planted, logits, start, drawing):
        choose(planted, logits, start, drawing)  # for its time
        wanted = draws(histogram, logits.device).next(len(start.lengths))
        return forced_choices(planted.tree, wanted)

    def candidates(shard, hidden, topk):
        real = found(shard, hidden, topk)
        values = by_rank(topk, hidden.device).expand_as(real.log_probs).clone()
        return Candidates(real.tokens, values, real.invalid)

    worker.choose = forced
    drafting.HeadShard.candidates = candidates


def _force_chain(histogram):
    from sglang.srt.speculative import dflash_worker_v2 as stock

    name = "_compute_dflash_accept_bonus_triton_unchecked"
    plain = getattr(stock, name)

    def forced(*, candidates, target_top1, **outputs):
        wanted = draws(histogram, candidates.device).next(len(candidates))[:, None]
        following = torch.roll(candidates, -1, 1)
        places = torch.arange(candidates.shape[1], device=candidates.device)
        # A token that differs from the candidate ends the run.
        chosen = torch.where(places < wanted, following, (following + 1) % 1024)
        plain(candidates=candidates, target_top1=chosen, **outputs)

    setattr(stock, name, forced)
