"""Rounds of a fixed shape, the host one round behind, against the ragged loop."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ddtree.core import sampling as core_sampling
from ddtree.engine import Engine, EngineConfig, SamplingParams, Speculation
from ddtree.engine.fixed import drafting as fixed_drafting
from ddtree.engine.fixed.launches import bucket_of, width_of
from ddtree.engine.fixed.reach import pack_bits, unpack_bits
from ddtree.errors import ConfigError
from support.reference import draw_prompt
from support.tiny import tiny_drafter, tiny_target

COUNT = 24
TREE = Speculation("ddtree", 8, 4)
METHODS = [
    Speculation("ar"),
    Speculation("chain"),
    *(Speculation("ddtree", b, k) for b, k in [(1, 1), (3, 2), (8, 4), (33, 8), (40, 16)]),
    *(Speculation("ddtree", 8, 4, w) for w in (1, 3, "full")),
]
LAWS = [
    SamplingParams(COUNT, temperature=0.7, seed=3),
    SamplingParams(COUNT, temperature=1.0, top_k=5, seed=4),
    SamplingParams(COUNT, temperature=1.3, top_p=0.8, seed=5),
    SamplingParams(COUNT, temperature=0.9, top_k=20, top_p=0.9, min_p=0.05, seed=6),
]


@pytest.fixture(scope="module")
def target():
    return tiny_target()


@pytest.fixture(scope="module")
def cases(target):
    drawn = [draw_prompt(target, n, COUNT, seed=n) for n in (1, 2, 9, 30, 41)]
    return {tuple(prompt): output for prompt, output in drawn}


def make_engine(target, rounds="stepped", drafter=None, **config):
    given = {"max_context": 96, "rounds": rounds, **config}
    return Engine(target, drafter or tiny_drafter(target), EngineConfig(**given))


def told(request):
    """All that a request's rounds leave behind."""
    stats = request.stats
    stats.check()
    return (
        request.output,
        request.finish_reason,
        request.ranks,
        request.nodes,
        stats.accepted_histogram,
        stats.tree_nodes,
        stats.undrafted_rounds,
        stats.cut_tokens,
    )


def both(target, prompts, sampling, speculation, **config):
    return [
        [
            told(r)
            for r in make_engine(target, rounds, **config).generate(prompts, sampling, speculation)
        ]
        for rounds in ("stepped", "ragged")
    ]


def following(cases, wrong_from):
    """Instead of the drafter's logits: slot n's true continuation, wrong from some depth on."""
    lines = [list(prompt) + output for prompt, output in cases.items()]
    table = torch.zeros(len(lines) + 1, 300, dtype=torch.int64)
    for row, line in enumerate(lines):
        table[row, : len(line)] = torch.tensor(line)

    def logits(self, rows):
        depths = torch.arange(self.block - 1)
        tokens = table[rows["slot"][:, None], rows["length"][:, None] + 1 + depths]
        tokens = torch.where(depths < wrong_from, tokens, (tokens + 1) % 61)
        spread = torch.full((*tokens.shape, 61), -10.0, dtype=torch.float64)
        return spread.scatter(2, tokens[..., None], 10.0)

    return logits


@pytest.mark.parametrize("slots", [1, 3, 5])
@pytest.mark.parametrize("speculation", METHODS, ids=str)
def test_greedy(target, cases, speculation, slots):
    stepped, ragged = both(target, list(cases), SamplingParams(COUNT), speculation, slots=slots)
    assert stepped == ragged
    assert [one[0] for one in stepped] == list(cases.values())


@pytest.mark.parametrize("sampling", LAWS, ids=lambda law: f"T={law.temperature:g}")
@pytest.mark.parametrize("speculation", METHODS[:5], ids=str)
def test_sampled(target, cases, speculation, sampling):
    stepped, ragged = both(target, list(cases), sampling, speculation, slots=3)
    assert stepped == ragged


@pytest.mark.parametrize("wrong_from", [1, 2, 4])
def test_accepted_runs(target, cases, monkeypatch, wrong_from):
    """With drafts that are right for so many depths a round accepts as many."""
    monkeypatch.setattr(fixed_drafting.FixedDrafting, "logits", following(cases, wrong_from))
    for speculation in (Speculation("chain"), TREE):
        engine = make_engine(target, slots=5)
        requests = engine.generate(list(cases), SamplingParams(COUNT), speculation)
        assert [r.output for r in requests] == list(cases.values())
        for request in requests:
            request.stats.check()
            assert request.stats.accepted_histogram[wrong_from] >= (COUNT - 1) // (wrong_from + 1)


@pytest.mark.parametrize("wrong_from", [1, 4])
@pytest.mark.parametrize("limit", range(1, 8))
def test_limits_and_stops_inside_an_accepted_run(target, cases, monkeypatch, limit, wrong_from):
    monkeypatch.setattr(fixed_drafting.FixedDrafting, "logits", following(cases, wrong_from))
    prompts = list(cases)
    engine = make_engine(target, slots=5)
    requests = engine.generate(prompts, SamplingParams(limit), TREE)
    assert [r.output for r in requests] == [cases[p][:limit] for p in prompts]
    stop = cases[prompts[0]][limit]
    ended = make_engine(target, slots=5).generate(
        prompts, SamplingParams(COUNT, stop_token_ids=(stop,)), TREE
    )
    for request, prompt in zip(ended, prompts, strict=True):
        output = cases[prompt]
        assert request.output == output[: output.index(stop) + 1 if stop in output else COUNT]
        request.stats.check()


def test_mixed_batch_joins_and_leaves(target, cases):
    """Every method, greedy and drawn, of other lengths and limits; some need the host within a
    round, so that rounds of both kinds follow each other."""
    needs_host = (
        SamplingParams(COUNT, repetition_penalty=1.3),
        SamplingParams(9, temperature=0.8, seed=7, logprobs=2),
    )
    asked = [
        (list(cases)[i % 5], sampling, speculation)
        for i, (sampling, speculation) in enumerate(
            (sampling, speculation)
            for speculation in METHODS
            for sampling in (SamplingParams(1 + len(str(speculation)) % COUNT), *LAWS, *needs_host)
        )
    ]
    outputs = []
    for rounds in ("stepped", "ragged"):
        engine = make_engine(target, rounds, slots=3)
        requests = [engine.submit(*one) for one in asked]
        while not engine.is_idle:
            engine.step()
        outputs.append([told(request) for request in requests])
        assert engine.cache_use().free_slots == 3
    assert outputs[0] == outputs[1]


def test_a_draw_that_needs_the_whole_row(target, cases, monkeypatch):
    """Nuclei that the pool of best tokens doesn't decide: accepted runs end before them, and a
    root that stands before one is the ragged loop's."""
    monkeypatch.setattr(core_sampling, "POOL", 6)
    flat = SamplingParams(COUNT, temperature=3.0, top_p=0.97, seed=9)
    stalls = []
    monkeypatch.setattr(
        Engine,
        "_ragged",
        lambda self, some, run=Engine._ragged: stalls.append(some) or run(self, some),
    )
    for speculation in (Speculation("ar"), TREE, Speculation("ddtree", 40, 16)):
        outputs = [
            [r.output for r in make_engine(target, rounds).generate(list(cases), flat, speculation)]
            for rounds in ("stepped", "ragged")
        ]
        assert outputs[0] == outputs[1]
    assert any(stalls)


def test_tight_cache(target, cases):
    """Runs of cells just long enough, side by side: a round under way when a request ends writes
    into nobody's."""
    prompts = list(cases) * 3
    config = {"slots": 4, "cache_tokens": 320}
    stepped, ragged = both(target, prompts, SamplingParams(COUNT), TREE, **config)
    assert stepped == ragged


def test_abort_while_a_round_is_under_way(target, cases):
    engine = make_engine(target, slots=2)
    prompts = list(cases)
    first, second, third = (engine.submit(p, SamplingParams(COUNT), TREE) for p in prompts[:3])
    for _ in range(4):
        engine.step()
    engine.abort(first)
    while not engine.is_idle:
        engine.step()
    assert (second.output, third.output) == (cases[prompts[1]], cases[prompts[2]])
    engine.abort(engine.submit(prompts[3], SamplingParams(COUNT), TREE))
    again = engine.generate(prompts, SamplingParams(COUNT), TREE)
    assert [r.output for r in again] == list(cases.values())


def test_abort_of_all_leaves_nothing_behind(target, cases):
    engine = make_engine(target, slots=2)
    prompts = list(cases)
    for _ in range(3):
        requests = [engine.submit(prompt, SamplingParams(COUNT), TREE) for prompt in prompts[:2]]
        for _ in range(3):
            engine.step()
        for request in requests:
            engine.abort(request)
        assert engine.is_idle
    outputs = [r.output for r in engine.generate(prompts, SamplingParams(COUNT), TREE)]
    assert outputs == list(cases.values())


def test_drafts_end_where_the_drafter_does(target, cases):
    """Roots beyond the drafter's last position go on without drafts."""
    drafter = tiny_drafter(target, max_positions=50)
    stepped, ragged = both(
        target, list(cases), SamplingParams(COUNT), TREE, drafter=drafter, slots=5
    )
    assert stepped == ragged
    assert any(one[6] for one in stepped)


@pytest.mark.parametrize("kind", ["anchored", "per-query"])
@pytest.mark.parametrize("causal", [False, True])
def test_windows_of_all_kinds(target, cases, kind, causal):
    drafter = tiny_drafter(target, window_kind=kind, causal=causal, layer_windows=(6, None))
    for window in (5, 7, 12):
        config = {"drafter": drafter, "draft_window": 12, "slots": 5}
        speculation = Speculation("ddtree", 33, 8, window)
        stepped, ragged = both(target, list(cases), SamplingParams(COUNT), speculation, **config)
        assert stepped == ragged


def test_target_with_sliding_windows(cases):
    from transformers import MistralConfig

    from ddtree.models.target import Target
    from support.tiny import FEATURE_LAYERS, tiny_config, tiny_model

    fields = tiny_config().to_dict() | {"sliding_window": 6, "head_dim": 8}
    for name in ("model_type", "architectures", "transformers_version", "layer_types"):
        fields.pop(name, None)
    sliding = Target(tiny_model(MistralConfig(**fields)), FEATURE_LAYERS)
    stepped, ragged = both(sliding, list(cases), SamplingParams(COUNT), METHODS[5], slots=5)
    assert stepped == ragged


@pytest.mark.parametrize("culprit", ["target", "drafter"])
def test_numbers_that_break_end_one_request_alone(target, cases, culprit):
    """A row whose logits are no numbers fails; its neighbours do not notice."""
    engine = make_engine(target, slots=5)
    prompts = list(cases)
    requests = [engine.submit(prompt, SamplingParams(COUNT), TREE) for prompt in prompts]
    for _ in range(3):
        engine.step()
    broken = requests[2]
    if culprit == "target":
        engine.pool.layer(0)[1, broken.base] = torch.nan
    else:
        engine.drafting.pool.layer(0)[1, broken.slot * engine.drafting.cells.size + 5] = torch.nan
    while not engine.is_idle:
        engine.step()
    assert broken.finish_reason == "error"
    assert culprit in broken.error
    for request, output in zip(requests, cases.values(), strict=True):
        if request is not broken:
            assert request.output == output
    again = engine.generate(prompts, SamplingParams(COUNT), TREE)
    assert [r.output for r in again] == list(cases.values())


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 70), st.integers(0, 2**31))
def test_bits(size, seed):
    generator = torch.Generator().manual_seed(seed)
    marks = torch.rand(2, 3, size, generator=generator) < 0.5
    assert torch.equal(unpack_bits(pack_bits(marks), size), marks)


def test_buckets():
    assert [bucket_of(n, 64) for n in (1, 2, 3, 4, 5, 6, 7, 9, 13, 17, 25, 33, 64)] == [
        *(1, 2, 3, 4, 6, 6, 8, 12, 16, 24, 32, 48, 64)
    ]
    assert bucket_of(7, 7) == 7


def test_widths():
    """Small ones as they are, then in steps; never more than the largest, never too few."""
    assert [width_of(n, 128) for n in (0, 1, 7, 16, 17, 24, 33, 64, 65, 128)] == [
        *(0, 1, 7, 16, 24, 24, 40, 64, 80, 128)
    ]
    assert width_of(65, 70) == 70
    assert all(width_of(n, 128) >= n for n in range(129))


def test_graphs_need_a_gpu(target):
    with pytest.raises(ConfigError, match=r"rounds: got graphs, .* cpu"):
        make_engine(target, "graphs")
    assert make_engine(target, "auto").rounds == "ragged"
    assert make_engine(target, "auto").prepare() is None
