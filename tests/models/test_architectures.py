"""Targets of several families through the hook, and those it must refuse."""

import pytest
import torch
import transformers

from ddtree.core import causal_rows
from ddtree.engine import Engine, EngineConfig, SamplingParams, Speculation
from ddtree.engine.plan import Place, verify_plan
from ddtree.errors import ModelError
from ddtree.models.attention import attend_through_plan
from ddtree.models.target import Target
from support.drafts import with_drafts
from support.reference import draw_prompt
from support.tiny import FEATURE_LAYERS, tiny_config, tiny_drafter, tiny_model

COUNT = 20
COMMON = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "vocab_size": 61,
    "max_position_embeddings": 256,
    "eos_token_id": None,
    "bos_token_id": None,
    "pad_token_id": None,
}
MIXED = ["sliding_attention", "full_attention", "sliding_attention"]
FAMILIES = {
    "llama": lambda: tiny_config(),
    "llama tied": lambda: tiny_config(tie_word_embeddings=True),
    "qwen2": lambda: transformers.Qwen2Config(**COMMON),
    "qwen2 sliding": lambda: transformers.Qwen2Config(
        **COMMON, use_sliding_window=True, sliding_window=6, layer_types=MIXED
    ),
    "qwen3": lambda: transformers.Qwen3Config(**COMMON),
    "mistral sliding": lambda: transformers.MistralConfig(**COMMON, sliding_window=6),
    "gemma3 sliding": lambda: transformers.Gemma3TextConfig(
        **COMMON, sliding_window=6, layer_types=MIXED, query_pre_attn_scalar=8
    ),
    "gemma3 softcapped head": lambda: transformers.Gemma3TextConfig(
        **COMMON, layer_types=MIXED, query_pre_attn_scalar=8, final_logit_softcapping=3.0
    ),
}


@pytest.mark.parametrize("family", FAMILIES)
def test_trees_equal_plain_decoding(family):
    """Past every sliding window, with trees whose branches are accepted."""
    target = Target(tiny_model(FAMILIES[family]()), FEATURE_LAYERS)
    drafter = tiny_drafter(target)
    for length in (2, 15):
        prompt, output = draw_prompt(target, length, COUNT, seed=length)
        engine = Engine(target, drafter, EngineConfig(max_context=64, prefill_chunk=4))

        def propose(request, output=output):
            return [*(output[len(request.output) :] + [0] * 4)[:3], 0]

        with_drafts(engine, propose)
        for speculation in (Speculation("ar"), Speculation("chain"), Speculation("ddtree", 8, 4)):
            request = engine.generate([prompt], SamplingParams(COUNT), speculation)[0]
            assert request.output == output, speculation


def test_features_are_layer_outputs_before_the_final_norm():
    model = tiny_model(tiny_config())
    target = Target(model, (0, 2))
    ids = torch.randint(61, (1, 7), generator=torch.Generator().manual_seed(0))
    seen = []
    handles = [
        model.model.layers[i].register_forward_hook(lambda m, a, out: seen.append(out))
        for i in (0, 2)
    ]
    target.reference_logits(ids[0])
    for handle in handles:
        handle.remove()
    engine = Engine(target, None, EngineConfig(slots=1, max_context=16))
    rows = causal_rows(ids, torch.arange(7)[None])
    plan = verify_plan(engine.pool, [Place(0, 16)], [0], rows)
    _, features = target.forward(rows.ids, rows.positions, plan, features=True)
    expected = torch.cat([out[0] if isinstance(out, tuple) else out for out in seen], -1)
    torch.testing.assert_close(features, expected, atol=5e-5, rtol=0)


def rope(kind):
    parameters = {"rope_type": kind, "rope_theta": 1e4, "factor": 2.0}
    if kind == "longrope":
        parameters |= {
            "short_factor": [1.0] * 4,
            "long_factor": [2.0] * 4,
            "original_max_position_embeddings": 64,
        }
    return tiny_config(rope_parameters=parameters, head_dim=8)


REFUSED = {
    "attn_logit_softcapping": lambda: transformers.Gemma2Config(**COMMON),
    "sinks": lambda: transformers.GptOssConfig(
        **COMMON, num_local_experts=2, num_experts_per_tok=1, layer_types=MIXED
    ),
    "dynamic": lambda: rope("dynamic"),
    "longrope": lambda: rope("longrope"),
    "layer_types": lambda: transformers.Llama4TextConfig(
        **COMMON,
        layer_types=["chunked_attention", "full_attention", "chunked_attention"],
        num_local_experts=2,
        intermediate_size_mlp=48,
    ),
    "encoder-decoder": lambda: None,
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused_by_name(name):
    if name == "encoder-decoder":
        config = transformers.T5Config(
            d_model=16, d_kv=4, d_ff=16, num_layers=1, num_heads=2, vocab_size=11
        )
        model = transformers.T5ForConditionalGeneration(config)
    else:
        model = tiny_model(REFUSED[name](), dtype=torch.float32)
    with pytest.raises(ModelError, match=name):
        Target(model)


def test_a_scaled_head_fails_the_parity_probe():
    """Whatever the hook does not know shows in the logits."""
    config = transformers.CohereConfig(**{**COMMON, "logit_scale": 0.25})
    with pytest.raises(ModelError, match="differ from the model's own"):
        Engine(Target(tiny_model(config)), None, EngineConfig(max_context=32))


def test_a_leaking_mask_fails_the_sibling_probe(monkeypatch):
    from ddtree.engine import plan, probe

    target = Target(tiny_model(tiny_config()))
    original = plan.verify_plan

    def leaky(pool, slots, lengths, rows):
        size = rows.ids.shape[1]
        everything = torch.ones(size, size, dtype=torch.bool).tril().expand_as(rows.visible)
        changed = plan.VerifyRows(rows.ids, rows.positions, everything, rows.live)
        return original(pool, slots, lengths, changed)

    monkeypatch.setattr(probe, "verify_plan", leaky)
    with pytest.raises(ModelError, match="sibling"):
        probe.probe_target(target)


@pytest.mark.parametrize("option", ["softcap", "s_aux"])
def test_the_hook_refuses_options_it_would_ignore(option):
    with pytest.raises(ModelError, match=option):
        attend_through_plan(torch.nn.Identity(), *[torch.zeros(1)] * 3, None, **{option: 1.0})


def test_the_hook_refuses_a_mask():
    with pytest.raises(ModelError, match="mask"):
        attend_through_plan(torch.nn.Identity(), *[torch.zeros(1)] * 4)


def test_positions_must_have_the_ids_shape():
    target = Target(tiny_model(tiny_config()))
    ids = torch.zeros(2, 3, dtype=torch.int64)
    with pytest.raises(ModelError, match="positions"):
        target.forward(ids, torch.arange(3)[None], None)


def test_a_layer_that_attends_twice_is_noticed():
    class Twice:
        def attend(self, layer, q, k, v):
            return q.transpose(1, 2)

    model = tiny_model(tiny_config())
    target = Target(model)
    model.model.layers[1].self_attn.layer_idx = 0
    ids = torch.zeros(1, 3, dtype=torch.int64)
    with pytest.raises(ModelError, match="layer 0"):
        target.forward(ids, ids, Twice())
