"""The walk down a tree draws what plain loops draw, one row at a time."""

import itertools
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from core.core_checks import make_tree
from core.sampling_checks import check_walk, rules_of
from ddtree import core
from ddtree.core.edits import LogitEdits
from ddtree.engine import SamplingParams
from ddtree.engine.choosing import make_edits
from support.law import edited_row

VOCAB = 4
STOPS = (2,)
SETTINGS = (
    {"temperature": 1.0},
    {"temperature": 0.7, "top_k": 2},
    {"temperature": 1.5, "top_p": 0.8, "min_p": 0.1},
    {"temperature": 0.0},
    {"temperature": 0.0, "frequency_penalty": 1.5, "repetition_penalty": 1.4},
    {"temperature": 1.0, "presence_penalty": 2.0, "bad_words": ((1,), (0, 3), (2, 0, 2))},
    {"temperature": 0.9, "min_tokens": 3, "logit_bias": {2: 4.0, 3: -math.inf}},
    {"temperature": 1e-310, "frequency_penalty": -0.5, "top_p": 0.5},
)


@st.composite
def batches(draw, max_batch=4):
    """Trees, logits and requests that differ in settings, outputs as long as one another."""
    size, width, seed = draw(st.integers(1, max_batch)), 12, draw(st.integers(0, 2**32))
    generator = torch.Generator().manual_seed(seed)
    nodes = []
    for _ in range(size):
        children = {(0, int(t)) for t in torch.randperm(VOCAB, generator=generator)[:3]}
        chosen: list[tuple[int, int]] = []
        for _ in range(draw(st.integers(0, width))):
            # Mostly the newest node's children, so that trees are deep as well as broad.
            pick = sorted(children)[int(torch.randint(len(children), (), generator=generator))]
            children.remove(pick)
            chosen.append(pick)
            children |= {(len(chosen), token) for token in range(VOCAB)}
        nodes.append(chosen)
    logits = 2 * torch.randn(size, width + 1, VOCAB, generator=generator, dtype=torch.float64)
    requests = [
        (SamplingParams(seed=draw(st.integers(0, 2**63 - 1)), **one), [0, 1], [3, 0], STOPS)
        for one in draw(st.lists(st.sampled_from(SETTINGS), min_size=size, max_size=size))
    ]
    return make_tree(nodes, width), logits, requests, [7 * b for b in range(size)]


@given(batches())
def test_walks_equal_plain_loops(drawn):
    check_walk(*drawn)


def full_tree(depth):
    """Every path of up to `depth` tokens."""
    nodes, level = [], [0]
    for _ in range(depth):
        following = []
        for parent, token in itertools.product(level, range(VOCAB)):
            nodes.append((parent, token))
            following.append(len(nodes))
        level = following
    return nodes


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_a_walk_equals_one_token_at_a_time(settings):
    """In a full tree the walk reaches the bottom; decoding the same rows with trees without nodes,
    at positions that grow by one, gives the same tokens: the noise belongs to the position."""
    depth, roots = 3, [5, 1000]
    nodes = full_tree(depth)
    generator = torch.Generator().manual_seed(3)
    logits = torch.randn(2, len(nodes) + 1, VOCAB, generator=generator, dtype=torch.float64)
    requests = [(SamplingParams(seed=s, **settings), [0, 1], [3], STOPS) for s in (11, 12)]
    walks = check_walk(make_tree([nodes, nodes], len(nodes)), logits, requests, roots)
    none = core.empty_tree(1, torch.device("cpu"))
    for b, (params, prompt, output, stops) in enumerate(requests):
        assert len(walks[b]) == depth + 1
        edits = make_edits(params, prompt, stops, VOCAB).advance(torch.tensor(output))
        for step, (row, token) in enumerate(walks[b]):
            position = torch.tensor([roots[b] + step])
            rules = rules_of([params], VOCAB)
            got = core.walk_choices(none, logits[b : b + 1, row : row + 1], rules, edits, position)
            assert got.tokens.tolist() == [[token]]
            edits = edits.advance(got.tokens[0])


def test_only_visited_rows_are_processed(monkeypatch):
    """As many rows are edited as the walks visit, whatever the trees' width."""
    processed = []
    apply = LogitEdits.apply
    monkeypatch.setattr(
        LogitEdits,
        "apply",
        lambda self, logits: processed.append(len(logits)) or apply(self, logits),
    )
    nodes = full_tree(3)
    logits = torch.zeros(2, len(nodes) + 1, VOCAB)
    requests = [
        (SamplingParams(seed=5, frequency_penalty=1.0, **one), [0], [0], ())
        for one in ({"temperature": 1.0}, {"temperature": 0.0})
    ]
    walks = check_walk(make_tree([nodes, nodes[:2]], len(nodes)), logits, requests, [3, 4])
    visits = [sum(len(walk) > depth for walk in walks) for depth in range(4)]
    assert visits[-1] == 1, "one walk should be short, the other not"
    assert processed == visits


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_odd_logits_are_flagged_where_the_walk_went(bad):
    tree = make_tree([[(0, 0), (0, 1)], [(0, 0), (0, 1)]], 2)
    logits = torch.zeros(2, 3, VOCAB)
    logits[:, 0, 1] = 50.0  # the walk goes to row 2
    logits[0, 1, 3] = logits[1, 2, 3] = bad
    rules = rules_of([SamplingParams(temperature=1.0, seed=s) for s in (1, 2)], VOCAB)
    choices = core.walk_choices(tree, logits, rules, None, torch.tensor([3, 4]))
    assert choices.invalid.tolist() == [[False] * 3, [False, False, True]]


def test_greedy_choices_are_the_lowest_best_ids_and_flag_odd_rows():
    logits = torch.tensor([[[0.0, 2.0, 2.0], [1.0, math.nan, 0.0], [-math.inf, math.inf, 0.0]]])
    choices = core.greedy_choices(logits)
    assert choices.tokens[0, 0] == 1
    assert choices.invalid.tolist() == [[False, True, True]]
    assert not choices.barred.any()


def test_bfloat16_rows_are_drawn_as_the_float32_ones_they_equal():
    logits = torch.randn(1, 1, 300, generator=torch.Generator().manual_seed(0)).bfloat16()
    params = [SamplingParams(temperature=0.9, top_k=40, seed=9)]
    tree, root = core.empty_tree(1, torch.device("cpu")), torch.tensor([4])
    one, other = (
        core.walk_choices(tree, values, rules_of(params, 300), None, root)
        for values in (logits, logits.float())
    )
    assert torch.equal(one.tokens, other.tokens)


def test_penalties_follow_the_path_and_not_the_batch():
    """Two walks in one batch part at the root; each is penalised for its own tokens."""
    nodes = full_tree(2)
    logits = torch.zeros(2, len(nodes) + 1, VOCAB)
    logits[0, :, 0] = logits[1, :, 1] = 1.0
    params = SamplingParams(frequency_penalty=2.0, seed=0)
    requests = [(params, [2], [2], ())] * 2
    walks = check_walk(make_tree([nodes, nodes], len(nodes)), logits, requests, [1, 1])
    assert [[token for _, token in walk] for walk in walks] == [[0, 1, 3], [1, 0, 3]]
    assert edited_row([1.0, 0, 0, 0], params, [2], [2, 0]) == [-1.0, 0, -2.0, 0]
