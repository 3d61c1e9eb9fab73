"""Bias, penalties and bans, against lists and dicts."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from core.sampling_checks import check_edits
from ddtree import core
from ddtree.engine import SamplingParams
from ddtree.engine.choosing import make_edits

VOCAB = 6
TOKENS = st.integers(0, VOCAB - 1)


@st.composite
def requests(draw, length):
    """(params, prompt, output, stops) with few tokens, so that they repeat."""
    words = st.lists(TOKENS, min_size=1, max_size=4).map(tuple)
    params = SamplingParams(
        temperature=1.0,
        repetition_penalty=draw(st.sampled_from([1.0, 0.5, 1.3, 2.0])),
        presence_penalty=draw(st.sampled_from([0.0, -2.0, 0.7])),
        frequency_penalty=draw(st.sampled_from([0.0, -0.5, 1.1])),
        logit_bias=draw(
            st.dictionaries(TOKENS, st.sampled_from([-math.inf, -3.0, 0.5, 100.0]), max_size=3)
        ),
        bad_words=tuple(draw(st.lists(words, max_size=3))),
        min_tokens=draw(st.integers(0, 6)),
    )
    prompt = draw(st.lists(TOKENS, min_size=1, max_size=5))
    output = draw(st.lists(TOKENS, min_size=length, max_size=length))
    return params, prompt, output, tuple(draw(st.sets(TOKENS, max_size=2)))


@given(st.data())
def test_mixed_batches_equal_lists_and_dicts(data):
    """Each row alone and all in one batch, whose padding changes no bit."""
    length, size = data.draw(st.integers(0, 5)), data.draw(st.integers(1, 4))
    batch = [data.draw(requests(length)) for _ in range(size)]
    values = st.floats(-5, 5) | st.sampled_from([-math.inf, 0.0, -0.0])
    flat = data.draw(st.lists(values, min_size=size * VOCAB, max_size=size * VOCAB))
    check_edits(torch.tensor(flat, dtype=torch.float64).view(size, VOCAB), batch)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_order_is_bias_then_penalties_then_bans(dtype):
    """Token 0: -1 + 3 = 2 is positive, so repetition halves it before presence takes 1."""
    params = SamplingParams(
        logit_bias={0: 3.0, 1: -3.0, 2: -math.inf},
        repetition_penalty=2.0,
        presence_penalty=1.0,
        frequency_penalty=0.5,
    )
    edits = make_edits(params, [1], (), 4)
    for token in (0, 0):
        edits = edits.advance(torch.tensor([token]))
    got = edits.apply(torch.tensor([[-1.0, 1.0, 5.0, 1.0]], dtype=dtype))
    assert got.tolist() == [[2 / 2 - 2 * 0.5 - 1, -2.0 * 2, -math.inf, 1.0]]
    assert got.dtype is dtype


def apply_after(output, **settings):
    """Tokens that are banned after `output`, with stop token 3."""
    edits = make_edits(SamplingParams(**settings), [4, 5], (3,), VOCAB)
    for token in output:
        edits = edits.advance(torch.tensor([token]))
    edited = edits.apply(torch.zeros(1, VOCAB))[0]
    return (edited == -torch.inf).nonzero()[:, 0].tolist()


@pytest.mark.parametrize("length", range(5))
def test_stop_tokens_wait_for_min_tokens(length):
    assert apply_after([0] * length, min_tokens=3) == ([3] if length < 3 else [])


@pytest.mark.parametrize(
    ("output", "banned"),
    [
        ([], [2]),
        ([0], [1, 2]),  # 0 1 is a bad word
        ([0, 0], [1, 2, 4]),  # so is 0 0 4
        ([0, 0, 5], [2]),  # only an output that ends so
        ([0, 5, 0], [1, 2]),
        ([4, 5, 0, 0], [1, 2, 4]),
    ],
)
def test_bad_words_of_several_lengths(output, banned):
    assert apply_after(output, bad_words=((0, 1), (2,), (0, 0, 4))) == banned


def test_bad_words_see_the_output_and_not_the_prompt():
    assert apply_after([], bad_words=((5, 1),)) == []


def test_edits_are_not_changed_by_going_on():
    """Siblings go on from the same edits."""
    edits = make_edits(SamplingParams(frequency_penalty=1.0, min_tokens=2), [0], (3,), VOCAB)
    before = edits.apply(torch.zeros(1, VOCAB))
    edits.advance(torch.tensor([2]))
    assert torch.equal(edits.apply(torch.zeros(1, VOCAB)), before)


def test_an_edit_that_changes_nothing_gives_back_the_bits():
    edits = make_edits(SamplingParams(), (), (), VOCAB)
    logits = torch.randn(1, VOCAB, generator=torch.Generator().manual_seed(0))
    assert torch.equal(edits.apply(logits), logits)


def test_all_banned_is_barred_and_its_neighbour_is_not():
    nothing = {token: -math.inf for token in range(VOCAB)}
    parts = [
        make_edits(SamplingParams(logit_bias=bias), [0], (), VOCAB) for bias in (nothing, {0: 1.0})
    ]
    tree = core.empty_tree(2, torch.device("cpu"))
    zeros = torch.zeros(2, dtype=torch.int64)
    for temperature in (0.0, 1.0):
        rules = core.SamplingRules(
            zeros, torch.full((2,), temperature).double(), zeros + VOCAB, *torch.ones(2, 2).double()
        )
        rules = core.SamplingRules(
            rules.seeds, rules.temperatures, rules.top_k, rules.top_p, rules.min_p * 0
        )
        choices = core.walk_choices(
            tree, torch.zeros(2, 1, VOCAB), rules, core.concat_edits(parts), zeros
        )
        assert choices.barred.tolist() == [[True], [False]]
        assert choices.invalid.tolist() == [[False], [False]]


def test_tokens_outside_the_vocabulary_stop_nothing():
    """A stop id that the head doesn't have can't be banned, and no other is in its place."""
    edits = make_edits(SamplingParams(min_tokens=1), (), (VOCAB, -1), VOCAB)
    assert torch.equal(edits.apply(torch.zeros(1, VOCAB)), torch.zeros(1, VOCAB))
