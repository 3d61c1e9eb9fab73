"""Greedy decoding through trees gives the target's own ids, whatever the drafter proposes."""

import pytest
import torch

from ddtree.engine import Engine, EngineConfig, SamplingParams, Speculation
from support.drafts import hostile, oracle, with_drafts
from support.reference import draw_prompt
from support.tiny import tiny_drafter, tiny_target

COUNT = 24
METHODS = [
    Speculation("ar"),
    Speculation("chain"),
    *(Speculation("ddtree", b, k) for b, k in [(1, 1), (1, 4), (3, 2), (4, 1), (8, 4), (33, 8)]),
    *(Speculation("ddtree", 8, 4, w) for w in (1, 3, 7, "full")),
]


@pytest.fixture(scope="module")
def target():
    return tiny_target()


@pytest.fixture(scope="module")
def cases(target):
    """Prompts of several lengths with their continuations."""
    drawn = [draw_prompt(target, n, COUNT, seed=n) for n in (1, 2, 9, 30, 41)]
    return {tuple(prompt): output for prompt, output in drawn}


def make_engine(target, **config):
    return Engine(target, tiny_drafter(target), EngineConfig(**{"max_context": 96, **config}))


@pytest.mark.parametrize("speculation", METHODS, ids=str)
def test_random_drafter(target, cases, speculation):
    engine = make_engine(target)
    requests = engine.generate(list(cases), SamplingParams(COUNT), speculation)
    assert [r.output for r in requests] == list(cases.values())


@pytest.mark.parametrize("quality", [oracle, hostile])
@pytest.mark.parametrize("speculation", METHODS, ids=str)
def test_oracle_and_hostile_drafters(target, cases, speculation, quality):
    engine = make_engine(target, slots=2)
    with_drafts(engine, quality(cases, 4, target.shape.vocab_size))
    requests = engine.generate(list(cases), SamplingParams(COUNT), speculation)
    assert [r.output for r in requests] == list(cases.values())


def test_oracle_is_accepted_whole(target, cases):
    """Every round but the last commits a whole block."""
    for speculation in (Speculation("chain"), Speculation("ddtree", 8, 4)):
        engine = with_drafts(make_engine(target), oracle(cases, 4, target.shape.vocab_size))
        request = engine.generate([next(iter(cases))], SamplingParams(COUNT), speculation)[0]
        rounds = -(-(COUNT - 1) // 5)
        assert request.stats.rounds == rounds
        assert request.stats.accepted_histogram[4] >= rounds - 1


def test_hostile_is_rejected_whole(target, cases):
    engine = with_drafts(make_engine(target), hostile(cases, 4, target.shape.vocab_size))
    request = engine.generate([next(iter(cases))], SamplingParams(COUNT), Speculation("chain"))[0]
    assert request.stats.accepted_histogram == [COUNT - 1]


@pytest.mark.parametrize("chunk", [1, 3, 16, 64])
def test_prefill_chunks(target, cases, chunk):
    engine = make_engine(target, prefill_chunk=chunk)
    requests = engine.generate(list(cases), SamplingParams(COUNT), Speculation("ddtree", 8, 4))
    assert [r.output for r in requests] == list(cases.values())


def test_mixed_batch_joins_and_leaves(target, cases):
    """Requests of every method, of other lengths and limits, share rounds."""
    engine = make_engine(target, slots=3)
    prompts = list(cases)
    submitted = [
        (engine.submit(prompts[i % 5], SamplingParams(1 + 5 * i % COUNT), speculation), i)
        for i, speculation in enumerate(METHODS)
    ]
    while not engine.is_idle:
        engine.step()
    for request, i in submitted:
        assert request.output == cases[request.prompt][: 1 + 5 * i % COUNT]
        request.stats.check()


def test_equal_topk1_and_chain(target, cases):
    """A tree of one candidate a depth and block_size - 1 nodes is the chain."""
    histograms = []
    for speculation in (Speculation("chain"), Speculation("ddtree", 4, 1)):
        engine = make_engine(target)
        requests = engine.generate(list(cases), SamplingParams(COUNT), speculation)
        histograms.append([r.stats.accepted_histogram for r in requests])
    assert histograms[0] == histograms[1]


def test_float32_matches_reference():
    target = tiny_target(dtype=torch.float32)
    prompt, output = draw_prompt(target, 11, COUNT, seed=3)
    engine = make_engine(target)
    for speculation in METHODS:
        assert engine.generate([prompt], SamplingParams(COUNT), speculation)[0].output == output


def test_mask_id_and_id_zero_are_ordinary_tokens(target):
    """Prompts and drafts made of token 0 and the mask id decode like any other."""
    for token in (0, 3):
        prompt = (token,) * 6
        engine = make_engine(target)
        plain = engine.generate([prompt], SamplingParams(COUNT), Speculation("ar"))[0].output
        engine = with_drafts(make_engine(target), lambda request, t=token: [t] * 4)
        tree = engine.generate([prompt], SamplingParams(COUNT), Speculation("ddtree", 8, 4))[0]
        assert tree.output == plain
