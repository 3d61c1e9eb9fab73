"""The law of sampled text through trees is the target's, exactly enumerated.

A tiny float64 model over five tokens: the joint law of the next three by the chain rule, its
factors from the model's own forward pass and a second writing of edits and filters. The engine
draws them thousands of times, through trees of likely and of unlikely tokens. Seeds are fixed, so
the outcome is; `ODDS` is each test's chance of failing had they been drawn at random.
"""

import functools
from dataclasses import dataclass

import pytest
import torch

from ddtree.core import empty_tree
from ddtree.engine import Engine, EngineConfig, SamplingParams, Speculation, choosing
from ddtree.models.coupling_file import Calibration, DepthWeights
from mutations.planting import Mutation, planted
from support.law import assert_drawn_from, edited_row, joint_law, processed
from support.tiny import tiny_drafter, tiny_target

VOCAB, LENGTH, DEPTH = 5, 3, 4
PROMPT = (4, 1, 0, 2)
SEEDS, AT_ONCE = 800, 1600  # draws for each setting; requests in one batch
ODDS = 1e-6
WALK = "ddtree.core.walk"
TREE = Speculation("ddtree", 8, 4)

SETTINGS = (
    {"temperature": 0.5},
    {"temperature": 1.0},
    {"temperature": 1.5},
    {"temperature": 1.5, "top_k": 3},
    {"temperature": 1.0, "top_p": 0.8},
    {"temperature": 1.5, "min_p": 0.1},
    {"temperature": 0.5, "top_k": 4, "top_p": 0.9, "min_p": 0.05},
    {
        "temperature": 1.0,
        "repetition_penalty": 1.5,
        "presence_penalty": 0.4,
        "frequency_penalty": 0.8,
        "logit_bias": {0: 1.0},
        "bad_words": ((2, 3), (1, 1)),
        "min_tokens": 1,
        "stop_token_ids": (4,),
    },
)


@functools.cache
def target():
    return tiny_target(1, vocab_size=VOCAB)  # whose distributions are not peaked


@functools.cache
def next_logits(path):
    """Logits [V] after the prompt and `path`, by the model's own forward pass."""
    with torch.inference_mode():
        return target().reference_logits(torch.tensor([*PROMPT, *path]))[-1].tolist()


def law_of(params):
    """The law of the next tokens; a stop token ends them."""
    stops = params.stop_token_ids

    def step(path):
        return processed(edited_row(next_logits(path), params, PROMPT, path, stops), params)

    law = joint_law(step, LENGTH)
    short = {}
    for path, weight in law.items():
        ends = next((i for i, token in enumerate(path) if token in stops), LENGTH)
        key = path[: ends + 1] + (-1,) * (LENGTH - ends - 1)
        short[key] = short.get(key, 0.0) + weight
    return short


def likely(path):
    """Draft logits [D, V] of the tokens that greedy decoding makes most likely."""
    rows = []
    for _ in range(DEPTH):
        rows.append(next_logits(path))
        path = (*path, rows[-1].index(max(rows[-1])))
    return torch.tensor(rows, dtype=torch.float64)


def unlikely(path):
    """The reverse: what the target least expects comes first."""
    return -likely(path)


@dataclass
class Prefilled:
    """The prompt's keys, in the first cells."""

    base: int = 0
    room: int = 16
    length: int = 0


def draw(settings, propose, speculation, calibration=None):
    """(LENGTH tokens, setting) of requests with seeds of their own, many in a batch."""
    config = EngineConfig(slots=AT_ONCE, max_context=16, max_budget=8, max_topk=4)
    drafter = tiny_drafter(target())
    drafter.calibration = calibration
    engine = Engine(target(), drafter, config)
    engine.drafting.draft = lambda requests: torch.stack(
        [propose_once(propose, tuple(r.output)) for r in requests]
    )
    with torch.inference_mode():
        hidden = engine.loop.prefill([(Prefilled(), PROMPT)]).hidden[None]
        cells = torch.arange(len(PROMPT))
        slots = torch.arange(AT_ONCE)[:, None] * engine.sizes.longest
        engine.pool.move(cells.repeat(AT_ONCE), (slots + cells).flatten())
        first = engine.target.head(hidden[:, -1:])
    every = [
        SamplingParams(LENGTH, seed=SEEDS * number + seed, **one)
        for seed in range(SEEDS)
        for number, one in enumerate(settings)
    ]
    drawn = []
    for start in range(0, len(every), AT_ONCE):
        requests = [
            engine.make_request(PROMPT, one, speculation) for one in every[start : start + AT_ONCE]
        ]
        decode(engine, requests, first)
        assert (engine.drafting.coupling(requests) is None) == (calibration is None)
        drawn += [(*r.output, *(-1,) * (LENGTH - len(r.output))) for r in requests]
    return [drawn[number :: len(settings)] for number in range(len(settings))]


@functools.cache
def propose_once(propose, path):
    return propose(path)


def decode(engine, requests, first):
    """What `Engine.step` does, with one prefill for all."""
    for slot, request in enumerate(requests):
        request.slot, request.length = slot, len(PROMPT)
        request.room = engine.sizes.longest
        request.base = slot * request.room
        if request.sampling.has_edits:
            request.edits = choosing.make_edits(request.sampling, PROMPT, request.stop_ids, VOCAB)
    with torch.inference_mode():
        tree = empty_tree(len(requests), first.device)
        tokens = choosing.choose(requests, tree, first.expand(len(requests), 1, -1)).tokens
    for request, token in zip(requests, tokens[:, 0].tolist(), strict=True):
        request.take([token])
    while going := [r for r in requests if r.finish_reason is None]:
        result = engine.loop.run_round(going)
        assert not result.faults
        for request, kept in zip(going, result.tokens, strict=True):
            request.take(kept)


def check_law(settings, propose, speculation=TREE, calibration=None):
    """Every setting's draws against its law."""
    drawn = draw(settings, propose, speculation, calibration)
    for one, samples in zip(settings, drawn, strict=True):
        assert_drawn_from(samples, law_of(SamplingParams(LENGTH, **one)), ODDS / len(settings))


@pytest.mark.parametrize("propose", [likely, unlikely])
def test_the_law_of_three_tokens_is_the_target_s(propose):
    check_law(SETTINGS, propose)


def check_coupled_law(propose):
    """Narrow trees whose tokens the noise decides: with the drafter's logits the target's own, the
    first candidate is the draw itself."""
    weights = DepthWeights((1.0,) * DEPTH, (1.0,) * DEPTH, (0.0,) * DEPTH)
    calibration = Calibration((0.5,), (weights,))
    settings = ({"temperature": 1.0}, {"temperature": 1.5}, {"temperature": 0.7, "top_p": 0.95})
    check_law(settings, propose, Speculation("ddtree", 3, 2), calibration)


@pytest.mark.parametrize("propose", [likely, unlikely])
def test_the_law_is_the_target_s_where_trees_look_at_the_noise(propose):
    """Over seeds, not given the tree."""
    check_coupled_law(propose)


def test_the_laws_are_worth_testing():
    """No setting's law is all but certain, and filters and penalties each change it."""
    laws = [law_of(SamplingParams(LENGTH, **one)) for one in SETTINGS]
    for law in laws:
        assert max(law.values()) < 0.6
        assert abs(sum(law.values()) - 1) < 1e-9
    assert len(laws[3]) < len(laws[2])
    assert any(-1 in path for path in laws[7])


BIASED = (
    Mutation(
        "a drafted token at depth 2 is taken for the target's",
        WALK,
        (
            (
                "        fits &= tree.tokens[going] == drawn[:, None]\n",
                "        if depth == 1:\n"
                "            held = fits.any(-1)\n"
                "            heir = tree.tokens[going].gather(1, fits.int().argmax(-1)[:, None])\n"
                "            drawn = torch.where(held, heir[:, 0], drawn)\n"
                "            tokens[going, rows] = drawn\n"
                "        fits &= tree.tokens[going] == drawn[:, None]\n",
            ),
        ),
        (
            lambda: check_law(SETTINGS[:2], likely),
            lambda: check_law(SETTINGS[:2], unlikely),
            lambda: check_coupled_law(unlikely),
        ),
    ),
    Mutation(
        "greedy below the root",
        WALK,
        (
            (
                "drawn = _choose(edited, rules, positions + depth + 1)",
                "drawn = _choose(edited, rules, positions + depth + 1)\n"
                "        if depth:\n"
                "            drawn = best_token(edited)",
            ),
        ),
        (lambda: check_law(SETTINGS[:2], likely), lambda: check_law(SETTINGS[:2], unlikely)),
    ),
    Mutation(
        "every row is penalised for the root's path",
        WALK,
        (("edits.take(further).advance(drawn[further])", "edits.take(further)"),),
        (lambda: check_law(SETTINGS[-1:], likely),),
    ),
)


@pytest.mark.parametrize("mutation", BIASED, ids=lambda mutation: mutation.name)
def test_a_biased_acceptor_is_seen(mutation):
    with planted(mutation):
        for check in mutation.caught_by:
            with pytest.raises(AssertionError):
                check()
