"""Fixed data for the algorithm's checks: what the property tests draw, in a second or less."""

from collections.abc import Sequence

import torch
from torch import Tensor

from core.core_checks import (
    check_accept,
    check_builders,
    check_candidates,
    check_full_vocabulary,
    check_layout,
    check_order,
    check_place,
    check_ring,
    check_window,
    make_tree,
)

SEEDS = range(12)
# Request 0: two siblings with children, four deep; request 1: one node; request 2: none.
TREES: Sequence[Sequence[tuple[int, int]]] = (
    [(0, 1), (0, 2), (1, 0), (2, 2), (3, 1), (2, 0), (5, 0)],
    [(0, 0)],
    [],
)


def random_logits(seed: int) -> Tensor:
    """[2, D, V]; every other one of small integers, so that weights tie."""
    generator = torch.Generator().manual_seed(seed)
    shape = (2, 1 + seed % 4, 3 + seed % 3)
    if seed % 2:
        return torch.randint(-2, 3, shape, generator=generator).float()
    return 3 * torch.randn(shape, generator=generator)


def check_optimal_trees() -> None:
    """Ragged budgets and topks, one of them past the vocabulary."""
    check_builders(torch.zeros(2, 1, 6), [4, 6], [6, 6])
    for seed in SEEDS:
        check_builders(random_logits(seed), [3 + seed, 2 * seed], [2, 9])
        check_order(random_logits(seed | 1), 3 + seed, 3)


def check_scores() -> None:
    """A flat depth beside a peaked one, then anything."""
    flat, peaked = [0.0] * 5, [6.0, 0, 0, 0, 0]
    check_full_vocabulary(torch.tensor([[flat, peaked], [peaked, flat]]), 4, 2)
    for seed in SEEDS:
        check_full_vocabulary(random_logits(seed), 6, 2)


def check_selection() -> None:
    """Ties, both zeros, impossible tokens and chunk boundaries; topk around the chunks' number."""
    check_candidates(torch.tensor([[[-0.0, 0.0, -0.0, 1.0]]]), 3)
    check_candidates(torch.tensor([[[-torch.inf, 0.0, -torch.inf, 1.0]]]), 3)
    scattered = torch.zeros(1, 1, 1000)
    scattered[0, 0, ::64] = torch.arange(1.0, 17.0)  # the best tokens, one a chunk
    check_candidates(scattered, 4)
    for vocab in (63, 64, 65, 200, 1000):
        generator = torch.Generator().manual_seed(vocab)
        for levels in (2, 10**6):
            logits = torch.randint(levels, (1, 2, vocab), generator=generator) * 20.0 / levels
            logits[0, 0, ::3] = -torch.inf
            for topk in (1, 3, 4, 16):
                check_candidates(logits, topk)


def check_flags() -> None:
    """A row that can't be trusted silences its request and no other."""
    for bad in (torch.nan, torch.inf):
        logits = torch.zeros(2, 2, 5)
        logits[1, 1, 2] = bad
        check_candidates(logits, 3)
        check_builders(logits, [3, 3], [2, 2])


def check_rows() -> None:
    """Layout of ragged trees with padding."""
    tree = make_tree(TREES, width=8)
    check_layout(tree, torch.tensor([4, 5, 6]), torch.tensor([10, 0, 3]))


def check_walk() -> None:
    """Every path of the ragged trees, and padding whose token matches."""
    short = make_tree([[(0, 1), (1, 1)], []], width=2)
    check_accept(short, torch.zeros(2, 3, dtype=torch.int64))
    tree = make_tree(TREES, width=8)
    for seed in range(30):
        generator = torch.Generator().manual_seed(seed)
        check_accept(tree, torch.randint(3, (3, 9), generator=generator))
    check_accept(tree, torch.zeros(3, 9, dtype=torch.int64))
    check_accept(tree, torch.ones(3, 9, dtype=torch.int64))


def check_placing() -> None:
    """Trees spread over a larger batch, out of order."""
    check_place(make_tree(TREES, width=8), [3, 0, 2], 5)


def check_windows() -> None:
    """Rings and windows around their boundaries."""
    lengths = (0, 1, 7, 11, 12, 13, 17, 23, 24, 25)
    for ring in (12, 15, 40):
        check_ring(lengths, ring)
        for kind in ("anchored", "per-query"):
            for causal in (False, True):
                check_window(lengths, [12] * len(lengths), (ring, 5), (kind, causal))
