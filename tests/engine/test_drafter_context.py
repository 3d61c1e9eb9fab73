"""What the drafter sees: its bounded context against a dense reference of the whole history."""

import functools
import json
from dataclasses import asdict, replace

import pytest
import torch
from safetensors.torch import save_file

from ddtree.engine import Engine, EngineConfig, SamplingParams, Speculation
from ddtree.errors import ConfigError, RequestError
from ddtree.models.drafter import load_drafter
from ddtree.models.drafter_window import DrafterOverrides
from support.dense_drafter import dense_logits
from support.reference import draw_prompt
from support.tiny import FEATURE_LAYERS, tiny_drafter, tiny_target

WINDOW, BLOCK, CONTEXT = 9, 5, 64
LENGTHS = [1, WINDOW - BLOCK, WINDOW - 1, WINDOW, WINDOW + 1, WINDOW + BLOCK, 2 * WINDOW - 1]
LENGTHS += [2 * WINDOW, 2 * WINDOW + 1, CONTEXT - 2]
CHUNKS = (3, WINDOW - 1, WINDOW, WINDOW + 1, 2 * WINDOW + 1, CONTEXT)
LAYERS = {"sliding": (WINDOW, WINDOW), "mixed": (WINDOW, None), "full": (None, None)}
KINDS = {
    f"{kind}, {layers} layers": {
        "window": WINDOW if layers == "sliding" else None,
        "window_kind": kind,
        "layer_windows": windows,
    }
    for kind in ("anchored", "per-query")
    for layers, windows in LAYERS.items()
}
TREE = Speculation("ddtree", 8, 4)


@pytest.fixture(scope="module")
def target():
    return tiny_target()


@pytest.fixture(scope="module")
def draw(target):
    """`draw_prompt`, each prompt decoded once."""
    return functools.cache(functools.partial(draw_prompt, target))


def features_of(target, ids):
    """Features [n, F] of plain text, by the model's own forward pass."""
    outputs = {}
    hooks = [
        target.model.base_model.layers[layer].register_forward_hook(
            lambda _module, _args, output, layer=layer: outputs.__setitem__(layer, output)
        )
        for layer in FEATURE_LAYERS
    ]
    with torch.inference_mode():
        target.reference_logits(torch.tensor(ids))
    for hook in hooks:
        hook.remove()
    return torch.cat([outputs[layer][0] for layer in FEATURE_LAYERS], -1)


def prefill(engine, prompt, speculation=TREE):
    """A request, taken up to its first round."""
    request = engine.submit(prompt, SamplingParams(30), speculation)
    while request.state != "decoding":
        engine.step()
    return request


def expected_draft(engine, request, window, config=None):
    """Logits [D, V] by the dense reference; `config` takes the place of the drafter's own."""
    *history, root = [*request.prompt, *request.output]
    features = features_of(engine.target, history)
    with torch.inference_mode():
        return dense_logits(
            engine.drafting.drafter, engine.target, (features, root), window, config
        )


def check(got, wanted, what):
    # transformers' norms and rotary embeddings run in float32.
    torch.testing.assert_close(got, wanted, rtol=0, atol=2e-5, msg=lambda text: f"{what}: {text}")


def compare(engine, request, window, config=None):
    """The engine's next draft for a request against the dense reference."""
    with torch.inference_mode():
        drafted = engine.drafting.draft([request])[0]
    wanted = expected_draft(engine, request, window, config)
    check(drafted, wanted, f"{request.length} tokens")


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_draft_after_prefill(target, draw, kind, causal):
    """Chunks shorter than the window, of its length, longer, and longer than two."""
    drafter = tiny_drafter(target, causal=causal, **KINDS[kind])
    engines = {
        chunk: Engine(target, drafter, EngineConfig(1, CONTEXT, prefill_chunk=chunk))
        for chunk in CHUNKS
    }
    for length in LENGTHS:
        prompt, _ = draw(length, 1, seed=length)
        wanted = None
        for chunk in CHUNKS[: 1 + sum(chunk < length for chunk in CHUNKS)]:
            engine = engines[chunk]
            request = prefill(engine, prompt)
            if wanted is None:
                wanted = expected_draft(engine, request, drafter.config.window)
            with torch.inference_mode():
                drafted = engine.drafting.draft([request])[0]
            check(drafted, wanted, f"{length} tokens in chunks of {chunk}")
            engine.abort(request)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("depth", range(BLOCK))
def test_draft_after_commits_across_the_edge(target, draw, kind, causal, depth):
    """Rounds that accept 0 to 4 drafts, on the path of the drafter's second choices, move context
    past the window's edge."""
    drafter = tiny_drafter(target, causal=causal, **KINDS[kind])
    prompt, output = draw(WINDOW - 2, 30, seed=2)
    vocab = target.shape.vocab_size
    engine = Engine(target, drafter, EngineConfig(slots=1, max_context=CONTEXT))
    request = prefill(engine, prompt, Speculation("ddtree", 30, 2))
    real_draft = engine.drafting.draft

    def draft(requests):
        logits = torch.full_like(real_draft(requests), -10.0)
        future = output[len(request.output) :][: BLOCK - 1]
        for place, token in enumerate(future):
            logits[0, place, (token + 1) % vocab] = 10.0
            logits[0, place, token] = 9.0 if place < depth else -torch.inf
        return logits

    for _ in range(4 if depth == 0 else 2):
        length = request.length
        engine.drafting.draft = draft
        engine.step()
        assert request.length == length + depth + 1
        engine.drafting.draft = real_draft
        compare(engine, request, drafter.config.window)


@pytest.mark.parametrize("kind", KINDS)
def test_second_request_sees_nothing_of_the_first(target, draw, kind):
    """Rings that longer requests have filled several times over, given to a shorter request beside
    a long one, with which it is attended in one call."""
    drafter = tiny_drafter(target, causal=True, **KINDS[kind])
    engine = Engine(target, drafter, EngineConfig(slots=2, max_context=CONTEXT))
    long, _ = draw(3 * WINDOW + 2, 1, seed=1)
    for length in (1, WINDOW - BLOCK, WINDOW - 1, WINDOW, WINDOW + 1):
        engine.generate([long, long], SamplingParams(6), TREE)
        prompt, _ = draw(length, 1, seed=length)
        requests = [engine.submit(p, SamplingParams(30), TREE) for p in (prompt, long)]
        while any(request.state != "decoding" for request in requests):
            engine.step()
        with torch.inference_mode():
            drafted = engine.drafting.draft(requests)
        for logits, request in zip(drafted, requests, strict=True):
            wanted = expected_draft(engine, request, drafter.config.window)
            check(logits, wanted, f"{length} tokens")
            engine.abort(request)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_requests_of_one_batch_have_windows_of_their_own(target, draw, kind, causal):
    """Lengths on both sides of every window, and a ring between them that nobody uses."""
    drafter = tiny_drafter(target, causal=causal, **KINDS[kind])
    config = EngineConfig(slots=5, max_context=CONTEXT, draft_window="full")
    engine = Engine(target, drafter, config)
    windows = (6, "full", WINDOW, 20, 20)
    requests = []
    for number, window in enumerate(windows):
        prompt, _ = draw(6 + 9 * number, 1, seed=number)
        speculation = Speculation("ddtree", 8, 4, draft_window=window)
        requests.append(engine.submit(prompt, SamplingParams(40), speculation))
    while any(request.state != "decoding" for request in requests):
        engine.step()
    engine.abort(requests.pop(2))
    asked = [None if w == "full" else w for w in windows[:2] + windows[3:]]
    requests, asked = zip(
        *sorted(zip(requests, asked, strict=True), key=lambda pair: pair[0].slot), strict=True
    )
    assert all(request.state == "decoding" for request in requests)
    with torch.inference_mode():
        drafted = engine.drafting.draft(requests)
    for logits, request, window in zip(drafted, requests, asked, strict=True):
        check(logits, expected_draft(engine, request, window), f"window {window}")


@pytest.mark.parametrize("kind", ["anchored", "per-query"])
@pytest.mark.parametrize("length", [5, 6, 7, 20])
def test_request_window_narrows_the_engine_s(target, draw, kind, length):
    drafter = tiny_drafter(target, window_kind=kind)
    prompt, _ = draw(length, 1, seed=4)
    engine = Engine(target, drafter, EngineConfig(max_context=CONTEXT, draft_window="full"))
    compare(engine, prefill(engine, prompt, Speculation("ddtree", 8, 4, draft_window=6)), 6)


@pytest.mark.parametrize("kind", ["anchored", "per-query"])
@pytest.mark.parametrize("window", [CONTEXT - 1, CONTEXT, CONTEXT + 3, "full"])
def test_windows_as_long_as_the_context(target, draw, kind, window):
    """At its very end: a per-query window of the context's length hides its first tokens from the
    later rows of a block, a full one hides nothing."""
    drafter = tiny_drafter(target, window_kind=kind)
    prompt, _ = draw(CONTEXT - 2, 1, seed=5)
    engine = Engine(target, drafter, EngineConfig(max_context=CONTEXT, draft_window=window))
    compare(engine, prefill(engine, prompt), None if window == "full" else window)


def test_window_of_the_context_is_no_window(target, draw):
    """Counts with a window as long as the context equal those without one."""
    prompt, _ = draw(20, 1, seed=4)
    histograms = []
    for window in (CONTEXT, "full"):
        config = EngineConfig(max_context=CONTEXT, draft_window=window)
        engine = Engine(target, tiny_drafter(target), config)
        request = engine.generate([prompt], SamplingParams(30), TREE)[0]
        histograms.append(request.stats.accepted_histogram)
    assert histograms[0] == histograms[1]


def checkpoint(folder, drafter, layers):
    """The drafter as files, with `layers` of LAYERS and nothing that says what they mean but
    `is_causal`, which mixed layers need."""
    config = drafter.config
    names = {"num_layers", "num_heads", "num_kv_heads", "max_positions"}
    kept = {k: v for k, v in asdict(config).items() if k not in names}
    fields = {
        **{k: v for k, v in kept.items() if "window" not in k and "causal" not in k},
        "num_hidden_layers": config.num_layers,
        "num_attention_heads": config.num_heads,
        "num_key_value_heads": config.num_kv_heads,
        "max_position_embeddings": config.max_positions,
        "layer_types": [f"{'full' if w is None else 'sliding'}_attention" for w in LAYERS[layers]],
        "sliding_window": WINDOW,
    }
    if layers == "mixed":
        fields["is_causal"] = True
    (folder / "config.json").write_text(json.dumps(fields))
    save_file(drafter.state_dict(), folder / "model.safetensors")


# (layers, override of the kind, of causal) -> (kind, causal): what the layers' types say is
# overridden, each by itself.
MEANINGS = {
    ("full", None, None): ("anchored", False),
    ("full", "per-query", None): ("per-query", False),
    ("full", "per-query", True): ("per-query", True),
    ("sliding", None, None): ("per-query", True),
    ("sliding", "anchored", None): ("anchored", True),
    ("sliding", None, False): ("per-query", False),
    ("sliding", "anchored", False): ("anchored", False),
    ("mixed", None, None): ("per-query", True),
    ("mixed", "anchored", False): ("anchored", False),
}


@pytest.mark.parametrize("asked", MEANINGS, ids=str)
@pytest.mark.parametrize("window", [None, 7, 12])
def test_overridden_meaning(target, draw, tmp_path, asked, window):
    """A drafter loaded with overrides drafts as the dense reference does under that meaning."""
    layers, kind, causal = asked
    checkpoint(tmp_path, tiny_drafter(target), layers)
    overrides = DrafterOverrides(kind, causal)
    drafter = load_drafter(tmp_path, torch.float64, "cpu", overrides)
    meant = replace(
        tiny_drafter(target).config,
        layer_windows=LAYERS[layers],
        **dict(zip(("window_kind", "causal"), MEANINGS[asked], strict=True)),
    )
    default = WINDOW if layers == "sliding" else None
    engine = Engine(target, drafter, EngineConfig(max_context=CONTEXT, draft_window=window))
    for length in (WINDOW - 1, WINDOW + 1, 2 * WINDOW):
        prompt, _ = draw(length, 1, seed=length)
        compare(engine, prefill(engine, prompt), window or default, meant)


def test_meanings_differ(target, draw):
    """Past the window each meaning drafts something else, so that the tests above can tell."""
    prompt, _ = draw(2 * WINDOW, 1, seed=3)
    found = []
    for kind in KINDS:
        for causal in (False, True):
            drafter = tiny_drafter(target, causal=causal, **KINDS[kind])
            engine = Engine(target, drafter, EngineConfig(max_context=CONTEXT))
            with torch.inference_mode():
                found.append(engine.drafting.draft([prefill(engine, prompt)])[0])
    # Without a window there is nothing to move: both kinds are one.
    full = [index for index, kind in enumerate(KINDS) if "full" in kind]
    same = {(2 * full[0] + c, 2 * full[1] + c) for c in (0, 1)}
    for first in range(len(found)):
        for second in range(first + 1, len(found)):
            distance = float((found[first] - found[second]).abs().max())
            assert (distance < 1e-9) == ((first, second) in same)


def test_more_than_the_drafter_s_own_limit_is_refused(target):
    drafter = tiny_drafter(target, max_positions=40)
    with pytest.raises(ConfigError, match="draft_window: got 41, the drafter's own limit is 40"):
        Engine(target, drafter, EngineConfig(max_context=CONTEXT, draft_window=41))
    engine = Engine(target, drafter, EngineConfig(max_context=CONTEXT, draft_window="full"))
    assert engine.draft_window == 40
    with pytest.raises(RequestError, match="got 41, the drafter's own limit is 40") as caught:
        engine.submit([1], speculation=Speculation("chain", draft_window=41))
    assert caught.value.field == "speculation.draft_window"
    for window in (40, "full", None):
        compare(engine, prefill(engine, [5, 6], Speculation("chain", draft_window=window)), None)


def test_more_than_the_engine_was_started_for_is_refused(target):
    engine = Engine(target, tiny_drafter(target), EngineConfig(max_context=CONTEXT, draft_window=9))
    for window in (10, "full"):
        with pytest.raises(RequestError, match=f"got {window}, the engine was started for 9"):
            engine.submit([1], speculation=Speculation("chain", draft_window=window))


def test_per_query_window_inside_the_block_is_refused(target, draw):
    drafter = tiny_drafter(target, window_kind="per-query")
    with pytest.raises(ConfigError, match=r"draft_window: got 4, .* block of 5"):
        Engine(target, drafter, EngineConfig(max_context=CONTEXT, draft_window=4))
    engine = Engine(target, drafter, EngineConfig(max_context=CONTEXT))
    with pytest.raises(RequestError, match=r"got 4, .* block of 5"):
        engine.submit([1], speculation=Speculation("chain", draft_window=4))
    anchored = Engine(target, tiny_drafter(target), EngineConfig(max_context=CONTEXT))
    prompt, _ = draw(20, 1, seed=4)
    compare(anchored, prefill(anchored, prompt, Speculation("chain", draft_window=2)), 2)


def test_memory_does_not_grow_past_the_window(target):
    """The drafter's cells are window + block per slot, at start and after contexts many times
    as long."""
    drafter = tiny_drafter(target, **KINDS["per-query, sliding layers"])
    engine = Engine(target, drafter, EngineConfig(slots=2, max_context=200))
    pool = engine.drafting.pool
    layers, kv, numbers, size = 2, 2, 2 * 8, 8
    expected = layers * kv * 2 * (WINDOW + BLOCK) * numbers * size
    assert pool.num_bytes == expected
    storage = pool._cells.data_ptr()
    prompt = list(range(50))
    engine.generate([prompt, prompt], SamplingParams(80), TREE)
    assert pool.num_bytes == expected
    assert pool._cells.data_ptr() == storage
