"""What the drafter sees: its bounded context against a dense reference of the whole history."""

import pytest
import torch

from ddtree.core import causal_rows
from ddtree.engine import Engine, EngineConfig, SamplingParams, Speculation
from ddtree.engine.plan import verify_plan
from ddtree.engine.pool import KVPool
from support.dense_drafter import dense_logits
from support.drafts import oracle, with_drafts
from support.reference import draw_prompt
from support.tiny import tiny_drafter, tiny_target

WINDOW, BLOCK = 9, 5
LENGTHS = [1, WINDOW - BLOCK, WINDOW - 1, WINDOW, WINDOW + 1, WINDOW + BLOCK, 2 * WINDOW - 1]
LENGTHS += [2 * WINDOW, 2 * WINDOW + 1, 40]
KINDS = {
    "anchored": {"window": WINDOW, "window_kind": "anchored", "layer_windows": (WINDOW, WINDOW)},
    "per-query": {"window": WINDOW, "window_kind": "per-query", "layer_windows": (WINDOW, WINDOW)},
    "mixed": {"window": None, "window_kind": "per-query", "layer_windows": (WINDOW, None)},
    "full": {"window": None, "window_kind": "anchored", "layer_windows": (None, None)},
}


@pytest.fixture(scope="module")
def target():
    return tiny_target()


def features_of(target, ids):
    """Features [n, F] of plain text, by one forward pass over a fresh pool."""
    pool = KVPool(3, 1, len(ids), (2, 8), target.dtype, target.device)
    rows = causal_rows(torch.tensor([ids]), torch.arange(len(ids))[None])
    plan = verify_plan(pool, [0], [0], rows)
    with torch.inference_mode():
        return target.forward(rows.ids, rows.positions, plan, features=True)[1][0]


def prefill(engine, prompt, speculation):
    """Take a request up to its first round."""
    request = engine.submit(prompt, SamplingParams(30), speculation)
    engine._admit()
    while request.state != "decoding":
        engine._advance(request)


def compare(engine, target, drafter, history, window):
    """The engine's next draft for its only request against the dense reference."""
    request = engine._running[0]
    assert [*request.prompt, *request.output] == history
    with torch.inference_mode():
        drafted = engine.drafting.draft([request])[0]
        expected = dense_logits(
            drafter, target, features_of(target, history[:-1]), history[-1], window
        )
    # transformers' norms and rotary embeddings run in float32.
    torch.testing.assert_close(drafted, expected, rtol=0, atol=2e-5)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("length", LENGTHS)
def test_draft_after_prefill(target, length, kind, causal):
    drafter = tiny_drafter(target, causal=causal, **KINDS[kind])
    prompt, output = draw_prompt(target, length, 1, seed=length)
    for chunk in (3, 64):
        config = EngineConfig(max_context=64, prefill_chunk=chunk)
        engine = Engine(target, drafter, config)
        prefill(engine, prompt, Speculation("ddtree", 8, 4))
        window = drafter.config.window if kind in ("anchored", "per-query") else None
        compare(engine, target, drafter, prompt + output, window)


@pytest.mark.parametrize("kind", ["anchored", "per-query", "full"])
@pytest.mark.parametrize("depth", [0, 2, 4])
def test_draft_after_commits_across_the_edge(target, kind, depth):
    """Rounds that accept 0, 2 or 4 drafts, on a path that leaves the drafter's first choice,
    move context past the window's edge."""
    drafter = tiny_drafter(target, **KINDS[kind])
    prompt, output = draw_prompt(target, 5, 30, seed=2)
    vocab = target.shape.vocab_size
    engine = Engine(target, drafter, EngineConfig(max_context=64))
    true = oracle({tuple(prompt): output}, 4, vocab)

    def propose(request):
        tokens = true(request)
        return [t if d < depth else (t + 1) % vocab for d, t in enumerate(tokens)]

    real_draft = engine.drafting.draft
    with_drafts(engine, propose)
    engine.submit(prompt, SamplingParams(30), Speculation("ddtree", 8, 4))
    planned = engine.drafting.draft
    for _ in range(5):
        engine.drafting.draft = planned
        engine.step()
        engine.drafting.draft = real_draft
        request = engine._running[0]
        compare(engine, target, drafter, [*prompt, *request.output], drafter.config.window)


def test_request_window_narrows_the_engine_s(target):
    drafter = tiny_drafter(target)
    prompt, output = draw_prompt(target, 20, 1, seed=4)
    engine = Engine(target, drafter, EngineConfig(max_context=64, draft_window="full"))
    prefill(engine, prompt, Speculation("ddtree", 8, 4, draft_window=6))
    compare(engine, target, drafter, prompt + output, 6)


def test_window_of_the_context_is_no_window(target):
    """Counts with a window as long as the context equal those without one."""
    prompt, _ = draw_prompt(target, 20, 1, seed=4)
    histograms = []
    for window in (64, "full"):
        engine = Engine(
            target, tiny_drafter(target), EngineConfig(max_context=64, draft_window=window)
        )
        request = engine.generate([prompt], SamplingParams(30), Speculation("ddtree", 8, 4))[0]
        histograms.append(request.stats.accepted_histogram)
    assert histograms[0] == histograms[1]


def test_memory_does_not_grow_past_the_window(target):
    """The drafter's cells are window + block per slot, at start and after contexts many times
    as long."""
    drafter = tiny_drafter(target, **KINDS["anchored"])
    engine = Engine(target, drafter, EngineConfig(slots=2, max_context=200))
    pool = engine.drafting.pool
    layers, kv, numbers, size = 2, 2, 2 * 8, 8
    expected = layers * kv * 2 * (WINDOW + BLOCK) * numbers * size
    assert pool.num_bytes == expected
    storage = pool._cells.data_ptr()
    prompt = list(range(50))
    engine.generate([prompt, prompt], SamplingParams(140), Speculation("ddtree", 8, 4))
    assert pool.num_bytes == expected
    assert pool._cells.data_ptr() == storage
