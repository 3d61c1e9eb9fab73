"""What rounds of a fixed shape must satisfy, on the tiny float64 model: texts and drafts of known
ranks as `engine_checks` has them, each request's rows in tensors and the host one round behind.

A drafter that knows each slot's text proposes it for some depths and something else below.
"""

import functools

import torch

from ddtree import engine as engine_api
from ddtree.core import empty_tree
from ddtree.engine import SamplingParams, Speculation
from ddtree.engine.fixed import drafting, torch_parts
from ddtree.engine.fixed.parts import ACTIVE, Choices, Grown
from ddtree.engine.fixed.state import COLUMNS, SlotState
from support.reference import draw_prompt
from support.tiny import tiny_drafter, tiny_target

COUNT, RIGHT, MOST_STEPS = 24, 3, 500
TREE = Speculation("ddtree", 40, 4)
DRAWN = SamplingParams(COUNT, temperature=0.8, top_k=20, seed=1)
PENALISED = SamplingParams(6, repetition_penalty=1.2)


@functools.cache
def target():
    return tiny_target()


@functools.cache
def cases():
    drawn = [draw_prompt(target(), n, COUNT, seed=n) for n in (3, 9, 30, 17)]
    return {tuple(prompt): output for prompt, output in drawn}


def scripted(self, rows):
    """Logits whose best is the slot's text for RIGHT depths; what comes second is right below."""
    table = torch.zeros(len(cases()) + 1, 128, dtype=torch.int64)
    for slot, (prompt, output) in enumerate(cases().items()):
        line = torch.tensor([*prompt, *output])
        table[slot, : len(line)] = line
    depths = torch.arange(self.block - 1)
    right = table[rows["slot"][:, None], rows["length"][:, None] + 1 + depths]
    spread = torch.full((*right.shape, 61), -10.0, dtype=torch.float64)
    spread.scatter_(2, right[..., None], 3.0)
    other = (right + 1) % 61
    rival = torch.where(depths < RIGHT, 2.5, 4.0)[:, None].expand(len(right), -1, 1)
    return spread.scatter_(2, other[..., None], rival.double())


def engine(rounds="stepped", **config):
    given = {"max_context": 96, "slots": len(cases()), "rounds": rounds, **config}
    return engine_api.Engine(target(), tiny_drafter(target()), engine_api.EngineConfig(**given))


def check_scripted():
    """The texts themselves, and as many accepted tokens as the script allows."""
    original = drafting.FixedDrafting.logits
    drafting.FixedDrafting.logits = scripted
    try:
        requests = engine().generate(list(cases()), SamplingParams(COUNT), TREE)
    finally:
        drafting.FixedDrafting.logits = original
    assert [r.output for r in requests] == list(cases().values())
    for request in requests:
        request.stats.check()
        assert len(request.stats.accepted_histogram) == RIGHT + 2, (
            "drafts were not what was scripted"
        )
        assert sum(request.stats.accepted_histogram[RIGHT:]) >= 4


def asked():
    """More requests than slots, of other lengths: greedy, drawn, ended by a token, and some that
    need the host within a round, so that rounds of both kinds follow each other."""
    for prompt, output in cases().items():
        for speculation in (TREE, Speculation("ddtree", 8, 4, 3), Speculation("ar")):
            stopped = SamplingParams(COUNT, stop_token_ids=(output[7],))
            for sampling in (SamplingParams(COUNT), DRAWN, PENALISED, SamplingParams(5), stopped):
                yield prompt, sampling, speculation


def told(rounds):
    """Tokens, accepted ranks and places of all that is asked."""
    one = engine(rounds, slots=3, cache_tokens=400, draft_window=9)
    requests = [one.submit(*each) for each in asked()]
    for _ in range(MOST_STEPS):
        if one.is_idle:
            return [(r.output, r.ranks, r.nodes, r.finish_reason) for r in requests]
        one.step()
    raise AssertionError(f"not over after {MOST_STEPS} steps")


@functools.cache
def told_by_ragged():
    return told("ragged")


def check_against_ragged():
    """What the ragged loop does."""
    assert told("stepped") == told_by_ragged()


def check_ended_rows():
    """A request at its end reads and writes nobody's cells and moves nothing."""
    state = SlotState(2, 3, nobody_base=50, vocab=61, device=torch.device("cpu"))
    for name, value in {"base": 7, "length": 20, "end": 20, "root": 5, "budget": 4}.items():
        state.ints[0, COLUMNS[name]] = value
    before = state.ints.clone()
    parts = torch_parts.TorchParts(0, 1, 3, state.ints.device)
    rows = state.rows(parts.open(state.ints, torch.tensor([0])))
    assert rows["base"].tolist() == [50], "an ended request's row is in its own run"
    bits = torch.ones(1, 1, 1, dtype=torch.int32)
    tree = empty_tree(1, bits.device)
    grown = Grown(tree, rows["root"][:, None], rows["length"][:, None], bits)
    choices = Choices(torch.tensor([[9]]), torch.tensor([[False]]))
    settled = parts.settle(state.ints, rows, grown, choices, torch.tensor([False]))
    assert not settled.report[0, ACTIVE]
    assert state.ints.equal(before), "an ended request's row moved a length"
