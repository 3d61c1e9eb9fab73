"""Candidates: exact top-k with a fixed order among equals."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from core.core_checks import check_candidates
from ddtree import core

DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
# The two-step selection works in chunks of 64.
VOCABULARIES = (63, 64, 65, 128, 1000)
SPECIAL = st.sampled_from([0.0, -0.0, 1.0, -1.0, 1e-40, -1e-40, -math.inf])
FEWER = settings(max_examples=min(settings.default.max_examples, 80))
BROKEN = st.sampled_from([math.nan, -math.nan, math.inf])


@st.composite
def small_logits(draw, values):
    """[B, D, V] of up to 6 tokens, in any float type."""
    shape = [draw(st.integers(1, high)) for high in (3, 3, 6)]
    size = shape[0] * shape[1] * shape[2]
    flat = draw(st.lists(values, min_size=size, max_size=size))
    return torch.tensor(flat, dtype=torch.float64).view(shape).to(draw(st.sampled_from(DTYPES)))


@given(small_logits(SPECIAL | st.floats(-30, 30)), st.integers(1, 8))
def test_small_vocabularies(logits, topk):
    check_candidates(logits, topk)


@given(small_logits(BROKEN | SPECIAL), st.integers(1, 8))
def test_unusable_rows_are_flagged(logits, topk):
    check_candidates(logits, topk)


@FEWER
@given(
    st.integers(0, 2**32),
    st.sampled_from(VOCABULARIES),
    st.sampled_from([1, 2, 3, 15, 16, 17, 70]),
    st.sampled_from([2, 40, 10**6]),
    st.sampled_from(DTYPES),
)
def test_vocabularies_around_the_chunk_size(seed, vocab, topk, levels, dtype):
    # 1000 tokens are 16 chunks; few levels make most values equal.
    generator = torch.Generator().manual_seed(seed)
    drawn = torch.randint(levels, (1, 2, vocab), generator=generator)
    logits = (20.0 * drawn / levels - 10).to(dtype)
    logits[0, 0, torch.randint(vocab, (vocab // 3,), generator=generator)] = -math.inf
    check_candidates(logits, topk)


@pytest.mark.parametrize("vocab", VOCABULARIES)
@pytest.mark.parametrize("bad", [math.nan, -math.nan, math.inf])
@pytest.mark.parametrize("whole", [True, False])
def test_an_unusable_row_of_any_size_is_flagged(vocab, bad, whole):
    logits = torch.zeros(2, 2, vocab)
    logits[1, 0, 0 if not whole else slice(None)] = bad
    check_candidates(logits, 4)
    check_candidates(logits, vocab)


@FEWER
@given(st.permutations(range(16)), st.integers(1, 20))
def test_the_best_tokens_may_lie_in_as_many_chunks(order, topk):
    logits = torch.zeros(1, 1, 1000)
    for chunk, value in enumerate(order):
        logits[0, 0, 64 * chunk + value] = 1.0 + value
    check_candidates(logits, topk)


def test_negative_and_positive_zero_are_equal():
    logits = torch.tensor([[[-0.0, 0.0, -0.0, 0.0]]])
    for select in (core.top_candidates, core.top_candidates_sorted):
        assert select(logits, 3).tokens.tolist() == [[[0, 1, 2]]]


def test_double_values_beyond_single_precision_are_flagged():
    logits = torch.zeros(1, 1, 3, dtype=torch.float64)
    logits[0, 0, 1] = 1e300
    assert core.top_candidates(logits, 2).invalid.tolist() == [True]


def test_a_certain_token_scores_zero_at_most():
    logits = torch.full((1, 1, 4), -math.inf)
    logits[0, 0, 2] = 3.3
    got = core.top_candidates(logits, 2)
    assert got.tokens[0, 0, 0] == 2
    assert got.log_probs[0, 0].tolist() == [0.0, -math.inf]
