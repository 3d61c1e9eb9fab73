"""Candidates that look at the noise of the draw."""

import pytest
import torch

from core import coupling_checks as checks
from core.core_checks import token_paths
from ddtree import core
from ddtree.core import coupling

CHECKS = [
    checks.check_twin,
    checks.check_small_vocabulary,
    checks.check_other_rows,
    checks.check_alone,
    checks.check_plain_coefficients,
    checks.check_ties,
    checks.check_unusable,
    checks.check_draws,
]


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_check_passes(check):
    check()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_other_float_types(dtype):
    logits, made = checks.random_logits(2, 3, 90).to(dtype), checks.make_coupling([0, 1], 3)
    got = coupling.coupled_candidates(logits, 4, made)
    same = coupling.coupled_candidates(logits.float(), 4, made)
    assert torch.equal(got.tokens, same.tokens)
    assert torch.equal(got.log_probs, same.log_probs)


def test_a_topk_beyond_the_pool():
    wide = coupling.POOL + 40
    logits, made = checks.random_logits(1, 2, 3 * wide), checks.make_coupling([0], 2)
    got = coupling.coupled_candidates(logits, wide, made)
    assert got.tokens.shape == (1, 2, wide)
    assert (got.log_probs.diff(dim=-1) <= 0).all()
    assert all(len(set(row.tolist())) == wide for row in got.tokens[0])


@pytest.mark.parametrize("scale", [0.6, 1.8])
def test_the_model_is_exact_for_gumbel_errors(scale):
    """The chance that docs and fits rest on: with noise g and logits off by Gumbel noise of scale
    s, the draw is v with P(v) of a = 1 / (s T), b = 1 / s."""
    temperature, draws = 0.8, 40_000
    logits = torch.tensor([[[1.0, 0.2, -0.5, 2.0, 0.1]]])
    made = checks.make_coupling([1], 1, (1 / (scale * temperature), 1 / scale, 0))
    made = coupling.Coupling(torch.tensor([0]), *(getattr(made, f) for f in FIELDS))
    got = coupling.coupled_candidates(logits, 5, made)
    expected = torch.zeros(5).scatter_(0, got.tokens[0, 0], got.log_probs[0, 0].exp())
    noise = core.gumbel(made.seeds[0], made.roots[0] + 1, torch.arange(5))
    generator = torch.Generator().manual_seed(0)
    error = -torch.empty(draws, 5).exponential_(generator=generator).log()
    drawn = (logits[0, 0] / temperature + noise + scale * error).argmax(-1)
    share = torch.bincount(drawn, minlength=5) / draws
    # Five standard errors.
    assert ((share - expected).abs() < 5 * (expected * (1 - expected) / draws).sqrt()).all()


def test_trees_are_the_best_under_these_scores():
    """The batched builder and the heap choose the same nodes from them."""
    depth, topk, budget = 4, 5, 12
    logits = checks.random_logits(3, depth, checks.VOCAB)
    got = coupling.coupled_candidates(logits, topk, checks.make_coupling([0, 1, 2], depth))
    builder = core.LevelwiseBuilder(budget, topk, depth, torch.device("cpu"))
    tree = builder(got, torch.full((3,), budget), torch.full((3,), topk))
    heap = core.build_heap(got, [budget] * 3, [topk] * 3)
    for row in range(3):
        assert set(token_paths(tree, row)) == set(token_paths(heap, row))
    plain = builder(
        core.top_candidates(logits, topk), torch.full((3,), budget), torch.full((3,), topk)
    )
    assert any(set(token_paths(tree, b)) != set(token_paths(plain, b)) for b in range(3))


FIELDS = ("seeds", "roots", "log_q", "noise", "rest")
