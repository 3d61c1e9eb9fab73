"""What draft windows must satisfy: an engine's drafts against a drafter written out a second time.

Prompts are beginnings of a text whose features are known from transformers' own pass, and each is
drafted for once, behind its first token. The code under test is looked up at each call, as in
`engine_checks`.
"""

from dataclasses import replace

import torch

from ddtree import engine as engine_api
from ddtree.engine import SamplingParams, Speculation
from ddtree.errors import ConfigError, DDTreeError, RequestError
from ddtree.models import drafter_window
from ddtree.models.config_fields import ConfigFields
from mutations.engine_checks import TOLERANCE, text
from support import tiny
from support.dense_drafter import dense_logits

WINDOW, BLOCK, CONTEXT = 9, 5, 48
LAYERS = {"sliding": (WINDOW, WINDOW), "mixed": (WINDOW, None), "full": (None, None)}
# (types of the layers, overrides of kind and causality) -> the meaning they have together.
MEANINGS = {
    ("sliding", None, None): ("per-query", True),
    ("sliding", "anchored", None): ("anchored", True),
    ("sliding", None, False): ("per-query", False),
    ("mixed", None, None): ("per-query", True),
    ("mixed", "anchored", False): ("anchored", False),
    ("full", "per-query", True): ("per-query", True),
}


def make_engine(draft_window=None, slots=1, **drafter):
    """`drafter`: its own fields."""
    target = tiny.tiny_target()
    own = tiny.tiny_drafter(target, block_size=BLOCK, **drafter)
    config = engine_api.EngineConfig(slots, CONTEXT, draft_window=draft_window)
    return engine_api.Engine(target, own, config)


def submit(engine, length, window=None):
    """A request whose prompt is the text's first `length` tokens."""
    speculation = Speculation("chain", draft_window=window)
    return engine.submit(text(0).ids[:length], SamplingParams(2), speculation)


def compare(engine, requests, limits, **meaning):
    """Drafts of all requests in one pass; `limits`: the windows that bind them, None for none.
    `meaning` takes the place of what the drafter's configuration says."""
    while any(request.state != "decoding" for request in requests):
        engine.step()
    config = replace(engine.drafting.drafter.config, **meaning)
    with torch.inference_mode():
        drafted = engine.drafting.draft(requests)
        for logits, request, limit in zip(drafted, requests, limits, strict=True):
            history = (text(0).features[: request.length], request.root)
            wanted = dense_logits(engine.drafting.drafter, engine.target, history, limit, config)
            torch.testing.assert_close(logits, wanted, rtol=0, atol=TOLERANCE)


def check_meanings() -> None:
    """Layers' types and overrides give the meaning that the table says, with the checkpoint's
    windows and with another."""
    for (layers, kind, causal), (true_kind, true_causal) in MEANINGS.items():
        types = ["full_attention" if w is None else "sliding_attention" for w in LAYERS[layers]]
        fields = {"layer_types": types, "sliding_window": WINDOW}
        if layers == "mixed":
            fields["is_causal"] = True
        reading = drafter_window.read_window(
            ConfigFields(fields, "config.json"),
            len(types),
            BLOCK,
            drafter_window.DrafterOverrides(kind, causal),
        )
        own = {
            name: getattr(reading, name)
            for name in ("causal", "window", "window_kind", "layer_windows")
        }
        default = WINDOW if layers == "sliding" else None
        meaning = {"window_kind": true_kind, "causal": true_causal}
        for window in (None, 7):
            engine = make_engine(window, **own)
            requests = [submit(engine, 2 * WINDOW)]
            compare(engine, requests, [window or default], layer_windows=LAYERS[layers], **meaning)


def check_long_windows() -> None:
    """At the context's very end: a per-query window of the context's length hides its first tokens
    from a block's later rows, a full one hides nothing."""
    for kind in ("anchored", "per-query"):
        for window in (CONTEXT - 1, CONTEXT, CONTEXT + 3, "full"):
            engine = make_engine(window, window_kind=kind)
            limit = None if window == "full" else window
            compare(engine, [submit(engine, CONTEXT - 2)], [limit])


def check_batch_windows() -> None:
    """Requests of one pass have windows of their own, all but one shorter than their context."""
    asked, lengths = (6, "full", WINDOW, 20), (10, 15, 24, 33)
    for kind in ("anchored", "per-query"):
        engine = make_engine("full", len(asked), window_kind=kind)
        requests = [submit(engine, *pair) for pair in zip(lengths, asked, strict=True)]
        compare(engine, requests, [None if w == "full" else w for w in asked])


def check_window_limits() -> None:
    """Windows beyond the drafter's limit, beyond the engine's or inside the block are refused."""
    error = refusal(make_engine, 41, max_positions=40)
    assert isinstance(error, ConfigError), error
    engine = make_engine("full", max_positions=40)
    assert engine.draft_window == 40
    refused = [
        (engine, 41),
        (make_engine(WINDOW), WINDOW + 1),
        (make_engine(WINDOW), "full"),
        (make_engine(window_kind="per-query"), BLOCK - 1),
    ]
    for engine, window in refused:
        error = refusal(submit, engine, 5, window)
        assert isinstance(error, RequestError), error
        assert error.field == "speculation.draft_window"


def refusal(ask, *arguments, **fields) -> DDTreeError:
    """What `ask` raises, which it must."""
    try:
        ask(*arguments, **fields)
    except DDTreeError as error:
        return error
    raise AssertionError(f"{arguments} was not refused")
