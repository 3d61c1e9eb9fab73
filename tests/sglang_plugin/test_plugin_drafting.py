"""Candidates of a vocabulary cut among ranks equal those of the whole; trees keep their place."""

import pytest
import torch
from torch import Tensor

from ddtree.core.candidates import Candidates, top_candidates
from ddtree.core.levelwise import LevelwiseBuilder
from ddtree.sglang_plugin import drafting
from ddtree.sglang_plugin.drafting import Gather, HeadShard, TreeHead
from ddtree.sglang_plugin.rounds import Start, TreeShape, full_mask, plant
from mutations.planting import Mutation, assert_caught


def on_ranks(logits: Tensor, cuts: list[int], topk: int) -> list[Candidates]:
    """What each rank makes of its slice; ranks run one after the other, so what they send is
    collected in a first pass."""
    slices = torch.split(logits, cuts, -1)
    firsts = [sum(cuts[:rank]) for rank in range(len(cuts))]
    sent: list[Tensor] = []

    def collect(part: Tensor) -> Tensor:
        sent.append(part)
        return part[None]

    for part, first in zip(slices, firsts, strict=True):
        drafting.merged_candidates(part, first, topk, collect)
    gather: Gather = lambda part: torch.stack(sent)  # noqa: E731
    return [
        drafting.merged_candidates(part, first, topk, gather)
        for part, first in zip(slices, firsts, strict=True)
    ]


def check_ranks_agree_with_the_whole() -> None:
    for dtype in (torch.float32, torch.bfloat16):
        logits = (torch.randn(3, 4, 200) * 3).to(dtype)
        logits[0, 0, 150] = logits[0, 0, 20] = 30.0
        logits[1, 2, :190] = -torch.inf
        expected = top_candidates(logits, 5)
        # The last slice holds fewer tokens than are asked of it.
        for found in on_ranks(logits, [80, 64, 56], 5) + on_ranks(logits, [100, 97, 3], 5):
            assert torch.equal(found.tokens, expected.tokens)
            torch.testing.assert_close(found.log_probs, expected.log_probs, atol=1e-5, rtol=1e-5)
            assert not found.invalid.any()


def check_a_nan_anywhere_drafts_nothing() -> None:
    logits = torch.randn(2, 3, 100)
    logits[1, 0, 70] = torch.nan
    for found in on_ranks(logits, [50, 50], 4):
        assert found.invalid.tolist() == [False, True]
        assert (found.log_probs[1] == -torch.inf).all()


@pytest.mark.parametrize(
    "check", [check_ranks_agree_with_the_whole, check_a_nan_anywhere_drafts_nothing]
)
def test_merged_candidates(check: object) -> None:
    torch.manual_seed(0)
    assert callable(check)
    check()


@pytest.mark.parametrize(
    "mutation",
    [
        Mutation(
            "ids of the shard taken for tokens",
            "ddtree.sglang_plugin.drafting",
            (("pad(own.tokens + first, short)", "pad(own.tokens, short)"),),
            (check_ranks_agree_with_the_whole,),
        ),
        Mutation(
            "log-probabilities of the shard alone",
            "ddtree.sglang_plugin.drafting",
            (("total.logsumexp(0)", "total[0]"),),
            (check_ranks_agree_with_the_whole,),
        ),
        Mutation(
            "another rank's NaN goes unseen",
            "ddtree.sglang_plugin.drafting",
            (("(flag != 0).any(0)", "(flag != 0)[0]"),),
            (check_a_nan_anywhere_drafts_nothing,),
        ),
    ],
    ids=lambda mutation: mutation.name,
)
def test_planted_bug_is_caught(mutation: Mutation) -> None:
    torch.manual_seed(0)
    assert_caught(mutation)


def test_the_head_plants_what_the_builder_builds() -> None:
    torch.manual_seed(0)
    shape = TreeShape(4, 6, 3, None)
    start = Start(torch.tensor([1, 2]), torch.tensor([5, 9]), torch.tensor([3, 4]))
    weight, hidden = torch.randn(50, 8), torch.randn(8, 8)
    head = HeadShard(weight, 0, None)
    mask = torch.ones(7 * (5 + 7) + 7 * (9 + 7) + 3, dtype=torch.uint8)
    grown = TreeHead(head, shape, start, mask)
    grown(hidden)
    candidates = head.candidates(hidden.view(2, 4, 8)[:, 1:], 3)
    expected = plant(candidates, LevelwiseBuilder(6, 3, 3, torch.device("cpu")), shape, start)
    found = grown.planted[2]
    assert torch.equal(found.tree.tokens, expected.tree.tokens)
    assert torch.equal(found.rows.positions, expected.rows.positions)
    assert torch.equal(mask[:-3].bool(), full_mask(expected, start.lengths))
    assert mask[-3:].all()
