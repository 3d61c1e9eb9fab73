"""One draw from the processed distribution, whichever way it is found."""

import itertools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from core.sampling_checks import check_draws, check_filters, rules_of
from ddtree import core
from ddtree.core import sampling
from ddtree.engine import SamplingParams

TEMPERATURES = (1e-310, 1e-6, 0.5, 1.0, 1e9)
TOP_PS = (1e-9, 0.5, 0.95, 0.9999, 1.0)
MIN_PS = (0.0, 0.05, 1.0)
KINDS = ("random", "tied", "rounded", "peaked", "flat", "holes")


def make_logits(kind, rows, vocab, seed=0):
    """float32 logits [rows, vocab] of a shape that trained models give, or that breaks things."""
    generator = torch.Generator().manual_seed(seed + vocab)
    values = 3 * torch.randn(rows, vocab, generator=generator)
    if kind == "tied":
        values = torch.randint(-2, 3, (rows, vocab), generator=generator).float()
    elif kind == "rounded":
        values = values.bfloat16().float()
    elif kind == "peaked":
        values[torch.arange(rows), torch.randint(vocab, (rows,), generator=generator)] += 30
    elif kind == "flat":
        values = torch.zeros(rows, vocab)
    elif kind == "holes":
        values[torch.rand(rows, vocab, generator=generator) < 0.5] = -torch.inf
        values[:, -1] = 0.0
    return values


def combinations(vocab):
    """Every combination of settings, each with a seed of its own."""
    above = sampling.POOL + 76
    top_ks = sorted({1, min(5, vocab), max(vocab - 1, 1), vocab, min(above, vocab)})
    settings = itertools.product(TEMPERATURES, top_ks, TOP_PS, MIN_PS)
    return [
        SamplingParams(temperature=t, top_k=k, top_p=p, min_p=m, seed=7 * n)
        for n, (t, k, p, m) in enumerate(settings)
    ]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("vocab", [1, 2, 5, 63, 1024, 1025, 1500])
def test_every_combination_equals_the_full_vocabulary(vocab, kind):
    params = combinations(vocab)
    logits = make_logits(kind, len(params), vocab)
    check_draws(logits, params, torch.arange(len(params)))


@pytest.mark.parametrize("kind", KINDS)
def test_a_real_vocabulary_equals_the_slow_twin(kind):
    params = combinations(49152)[:: 17 if kind in ("flat", "tied") else 13]
    logits = make_logits(kind, len(params), 49152)
    for first in range(0, len(params), 8):
        part = params[first : first + 8]
        check_draws(logits[first : first + 8], part, torch.arange(len(part)))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("vocab", [1, 2, 5, 63])
def test_filters_equal_a_sequential_loop(vocab, kind):
    params = combinations(vocab)
    check_filters(make_logits(kind, len(params), vocab, seed=1).double(), params)


@pytest.mark.parametrize("kind", KINDS)
def test_filters_of_more_tokens_than_the_pool(kind):
    params = combinations(1500)[::11]
    check_filters(make_logits(kind, len(params), 1500, seed=1), params)


LOGITS = st.lists(st.integers(-2, 3).map(float) | st.floats(-30, 30), min_size=1, max_size=9)
PARAMS = st.builds(
    SamplingParams,
    temperature=st.sampled_from([1e-310, 0.1, 0.7, 1.0, 2.0, 1e9]),
    top_k=st.integers(0, 10),
    top_p=st.floats(0, 1, exclude_min=True),
    min_p=st.floats(0, 1),
    seed=st.integers(0, 2**63 - 1),
)


@given(LOGITS, PARAMS, st.integers(0, 2**40))
def test_any_row(values, params, position):
    logits = torch.tensor([values], dtype=torch.float64)
    check_filters(logits, [params])
    check_draws(logits, [params], torch.tensor([position]))


@pytest.mark.parametrize("vocab", [5, 1500])
def test_mixed_rows_equal_rows_alone(vocab):
    params = combinations(vocab)[::5]
    logits = make_logits("rounded", len(params), vocab)
    positions = 3 * torch.arange(len(params))
    rules = rules_of(params, vocab)
    together = core.sample(logits, rules, positions)
    for row in range(len(params)):
        one = torch.tensor([row])
        assert core.sample(logits[one], rules.take(one), positions[one])[0] == together[row]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("vocab", [5, 1500])
def test_drawing_without_reading_back_is_the_same_where_it_is_sure(vocab, kind):
    params = combinations(vocab)
    logits = make_logits(kind, len(params), vocab)
    rules, positions = rules_of(params, vocab), torch.arange(len(params))
    expected = core.sample(logits, rules, positions)
    tokens, sure = sampling.sample_unread(logits, rules, positions, filtered=True)
    assert torch.equal(tokens[sure], expected[sure])
    # Among equals the pool of a larger vocabulary decides nothing.
    assert sure.all() if vocab <= sampling.POOL else sure.any() or kind == "flat"
    whole = ((rules.top_k >= vocab) & (rules.top_p >= 1)).nonzero()[:, 0]
    alike, sure = sampling.sample_unread(
        logits[whole], rules.take(whole), positions[whole], filtered=False
    )
    assert torch.equal(alike, expected[whole])
    assert sure.all()


@pytest.mark.parametrize(
    ("kind", "settings", "decided"),
    [
        ("peaked", {"top_p": 0.95}, True),  # the nucleus ends inside the pool
        ("flat", {"top_p": 0.95}, False),  # it doesn't
        ("random", {"top_k": 1023}, True),
        ("random", {"top_k": 1024}, False),  # the pool's last token may have equals outside
        ("random", {"top_k": 1030, "top_p": 0.1}, False),  # its total lies outside
        ("tied", {"top_k": 950}, False),  # equals of the last one reach over the pool's end
        ("random", {"min_p": 0.05}, None),  # no order is needed
        ("random", {}, None),
    ],
)
def test_each_way_is_taken_where_it_decides(kind, settings, decided, monkeypatch):
    """Decided by the pool, by the whole row in order, or without any order."""
    pooled, ranked = [], []
    pool, rank = sampling._pool, sampling.rank

    def watch_pool(*args):
        pooled.append(pool(*args))
        return pooled[-1]

    def watch_rank(*args):
        ranked.append(args)
        return rank(*args)

    monkeypatch.setattr(sampling, "_pool", watch_pool)
    monkeypatch.setattr(sampling, "rank", watch_rank)
    params = [SamplingParams(temperature=1.0, seed=s, **settings) for s in range(3)]
    core.sample(make_logits(kind, 3, 1500), rules_of(params, 1500), torch.arange(3))
    assert [sure.tolist() for _, sure in pooled] == ([] if decided is None else [[decided] * 3])
    assert sum(len(logits) for logits, _ in ranked) == (3 if decided is False else 0)


@pytest.mark.parametrize("limit", [1500, 700])
def test_the_pool_and_the_whole_row_agree_at_top_p_s_very_edge(limit):
    """top_p is the mass before some token, to the last bit: one order of adding up or the token is
    kept by one and dropped by the other."""
    logits = make_logits("random", 40, 1500)
    for place in (1, 7, 40, 200):
        plain = [SamplingParams(temperature=0.9, top_k=limit, seed=0)] * 40
        mass = core.rank(logits, rules_of(plain, 1500)).mass[:, place].tolist()
        rules = rules_of(
            [SamplingParams(temperature=0.9, top_k=limit, top_p=p, seed=0) for p in mass], 1500
        )
        pool, sure = sampling._pool(logits, sampling._scale(logits, rules.temperatures), rules)
        assert sure.all()
        ranked = core.rank(logits, rules)
        assert torch.equal(pool.kept, ranked.kept[:, : sampling.POOL])
        assert ranked.kept.sum(-1).tolist() == [place] * 40


def kept(logits, **settings):
    rules = rules_of([SamplingParams(**{"temperature": 1.0, "seed": 0, **settings})], len(logits))
    found = core.log_probabilities(torch.tensor([logits]), rules)[0]
    return (found > -torch.inf).nonzero()[:, 0].tolist()


@pytest.mark.parametrize(
    ("top_p", "expected"), [(0.25, [0]), (0.2501, [0, 1]), (0.5, [0, 1]), (0.75, [0, 1, 2])]
)
def test_top_p_keeps_the_fewest_tokens_that_reach_it(top_p, expected):
    """Quarters are exact: a mass of just top_p is enough."""
    assert kept([0.0] * 4, top_p=top_p) == expected


def test_ties_go_to_the_lower_id():
    assert kept([1.0, 2.0, 2.0, 1.0, 2.0], top_k=2) == [1, 2]
    assert kept([1.0, 2.0, 2.0, 1.0, 2.0], top_k=4) == [0, 1, 2, 4]
    assert kept([0.0] * 5, top_p=1e-9) == [0]
    assert kept([0.0] * 5, min_p=1.0) == [0, 1, 2, 3, 4]


def test_top_p_sees_what_top_k_left_renormalised():
    """Of shares .4 .3 .2 .1, three are kept as .44 .33 .22, and .75 of that is two tokens."""
    logits = torch.tensor([0.4, 0.3, 0.2, 0.1]).log().tolist()
    assert kept(logits, top_p=0.75) == [0, 1, 2]
    assert kept(logits, top_k=3, top_p=0.75) == [0, 1]


def test_min_p_is_a_share_of_the_best_at_the_temperature():
    """e^-2 of the best at temperature 1, e^-1 at 2."""
    assert kept([2.0, 0.0], min_p=0.3) == [0]
    assert kept([2.0, 0.0], min_p=0.3, temperature=2.0) == [0, 1]


def test_equal_logits_at_the_smallest_temperature_are_both_drawn():
    logits, size = torch.tensor([[1.0, 1.0, 0.0]]), 64
    params = [SamplingParams(temperature=1e-310, seed=s) for s in range(size)]
    drawn = core.sample(logits.expand(size, -1), rules_of(params, 3), torch.zeros(size).long())
    assert set(drawn.tolist()) == {0, 1}


@given(LOGITS, PARAMS)
def test_top_k_and_min_p_are_idempotent(values, params):
    """At temperature 1 what they kept, they keep (top_p cuts a nucleus of the nucleus)."""
    logits = torch.tensor([values], dtype=torch.float64)
    one = SamplingParams(temperature=1.0, seed=0, top_k=params.top_k, min_p=params.min_p * 0.999)
    rules = rules_of([one], len(values))
    once = core.log_probabilities(logits, rules)
    twice = core.log_probabilities(once, rules)
    torch.testing.assert_close(once, twice, rtol=1e-9, atol=1e-9)


@given(LOGITS, PARAMS)
def test_no_filter_gives_back_the_distribution(values, params):
    logits = torch.tensor([values], dtype=torch.float64)
    rules = rules_of([SamplingParams(temperature=params.temperature, seed=0)], len(values))
    expected = torch.log_softmax((logits - logits.amax()) / params.temperature, -1)
    torch.testing.assert_close(core.log_probabilities(logits, rules), expected)
