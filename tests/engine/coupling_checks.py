"""What an engine with a calibrated drafter must satisfy, on a tiny float64 model.

The code under test is looked up at each call, so that a bug planted there is what gets checked.
"""

import torch

from core.core_checks import token_paths
from ddtree import engine as engine_api
from ddtree.engine import SamplingParams, Speculation
from ddtree.models.coupling_file import Calibration, DepthWeights
from support.tiny import tiny_config, tiny_drafter, tiny_model, tiny_target

DEPTH, TOKENS, TEMPERATURE = 4, 16, 0.9
PROMPTS = [[5, 9, 2], [7], [3, 1, 4, 1, 5, 9, 2, 6], [11, 30, 8, 8], [60, 2], [1, 1]]
SEEDS = [3, 2**50 + 1, 77, 12, 5, 1000]
MADE_UP = DepthWeights((1.3, 1.2, 1.1, 1.0), (1.1, 0.9, 0.7, 0.5), (1.0, 0.5, 0.0, -0.5))
EXACT = DepthWeights((1 / TEMPERATURE,) * DEPTH, (1.0,) * DEPTH, (0.0,) * DEPTH)
CHAIN, TREE = Speculation("chain"), Speculation("ddtree", 8, 4)


class Rounds(list):
    """Results of all rounds, in order."""

    def paths(self, number):
        """Trees of request `number` (by order of submission), round by round."""
        return [
            token_paths(result.tree, row)
            for result in self
            for row, request in enumerate(result.requests)
            if request.number == number
        ]


def make_engine(weights, *, coupled=True, rounds=None):
    """An engine whose drafter has `weights` at every temperature, or none."""
    target = tiny_target()
    drafter = tiny_drafter(target)
    if weights is not None:
        drafter.calibration = Calibration((0.1,), (weights,))
    config = engine_api.EngineConfig(slots=6, max_context=64, coupled_drafting=coupled)
    observe = None if rounds is None else rounds.append
    return engine_api.Engine(target, drafter, config, observe)


def generate(engine, speculation, changes=({},) * 6):
    """All prompts at once, each with its own seed and changes of its sampling."""
    usual = {"max_tokens": TOKENS, "temperature": TEMPERATURE}
    requests = [
        engine.submit(prompt, SamplingParams(**{**usual, "seed": seed, **change}), speculation)
        for prompt, seed, change in zip(PROMPTS, SEEDS, changes, strict=True)
    ]
    while not engine.is_idle:
        engine.step()
    return requests


def draft_the_target(engine, outputs):
    """In the drafter's place the target's own logits along `outputs` (by prompt)."""
    original, model = engine.drafting.draft, tiny_model(tiny_config())

    def draft(requests):
        logits = original(requests)
        for row, request in enumerate(requests):
            ids = [*request.prompt, *outputs[request.prompt]]
            rows = model(torch.tensor([ids])).logits[0, request.length :][:DEPTH]
            logits[row, : len(rows)] = rows
        return logits

    engine.drafting.draft = draft


def check_outputs():
    """The same tokens as without drafts, whatever the weights; other trees."""
    plain = [r.output for r in generate(make_engine(None), Speculation("ar"))]
    assert len({tuple(output) for output in plain}) == 6
    for speculation in (CHAIN, TREE):
        off, on = Rounds(), Rounds()
        assert [r.output for r in generate(make_engine(None, rounds=off), speculation)] == plain
        assert [r.output for r in generate(make_engine(MADE_UP, rounds=on), speculation)] == plain
        assert any(on.paths(number) != off.paths(number) for number in range(6))


def check_draws_are_drafted():
    """A drafter that gives the target's own logits has all of its first candidates accepted: each
    is the draw. Without the noise it has not."""
    outputs = {r.prompt: r.output for r in generate(make_engine(None), Speculation("ar"))}
    lengths = {}
    for name, weights in (("plain", None), ("coupled", EXACT)):
        engine = make_engine(weights)
        draft_the_target(engine, outputs)
        requests = generate(engine, CHAIN)
        assert {r.prompt: r.output for r in requests} == outputs
        lengths[name] = [r.stats.acceptance_length for r in requests]
        if weights is not None:
            # The last round may lack tokens to follow.
            whole = (TOKENS - 1) // (DEPTH + 1)
            assert all(sum(r.stats.accepted_histogram[DEPTH:]) >= whole for r in requests)
    assert max(lengths["plain"]) < min(lengths["coupled"])


def check_other_requests():
    """In a mixed batch greedy and filtered requests get the trees they get without calibration."""
    others = {0: {"temperature": 0.0}, 2: {"top_k": 5}, 3: {"top_p": 0.5}, 5: {"min_p": 0.2}}
    changes = [others.get(number, {"top_p": 0.95, "top_k": 50}) for number in range(6)]
    off, on = Rounds(), Rounds()
    generate(make_engine(None, rounds=off), TREE, changes)
    generate(make_engine(MADE_UP, rounds=on), TREE, changes)
    for number in range(6):
        assert (on.paths(number) == off.paths(number)) == (number in others)


def check_switch():
    """`coupled_drafting` off ranks by probability although the drafter is calibrated."""
    off, without = Rounds(), Rounds()
    generate(make_engine(MADE_UP, coupled=False, rounds=off), TREE)
    generate(make_engine(None, rounds=without), TREE)
    for number in range(6):
        assert off.paths(number) == without.paths(number)
