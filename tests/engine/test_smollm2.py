"""The real pair: SmolLM2-135M and the shipped drafter, in float32."""

import pytest
import torch
import transformers

from ddtree.engine import Engine, EngineConfig, SamplingParams, Speculation, load_engine
from ddtree.models.compat import load_causal_lm
from ddtree.models.drafter import load_drafter

pytestmark = pytest.mark.model

TEXTS = (
    'def fibonacci(n: int) -> int:\n    """Return the n-th Fibonacci number."""\n',
    "The three most important things to know about trees are",
    "import heapq\n\n\ndef merge(left, right):\n",
    '{"name": "Ada", "born": 1815, "field": "',
)
TOKENS = 32


@pytest.fixture(scope="module")
def loaded(smollm2):
    config = EngineConfig(slots=4, max_context=512, draft_window="full")
    return load_engine(smollm2, dtype="float32", config=config)


@pytest.fixture(scope="module")
def prompts(loaded):
    return [loaded.tokenizer(text).input_ids for text in TEXTS]


@pytest.fixture(scope="module")
def baseline(loaded, prompts):
    """Each prompt alone, one token at a time."""
    sampling = SamplingParams(TOKENS)
    return [loaded.engine.generate([p], sampling, Speculation("ar"))[0].output for p in prompts]


def test_ar_is_transformers_greedy(loaded, prompts, baseline):
    model = load_causal_lm(loaded.paths.target, torch.float32, "cpu")
    for prompt, ours in zip(prompts, baseline, strict=True):
        ids = torch.tensor([prompt])
        with torch.inference_mode():
            output = model.generate(
                ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=TOKENS
            )
        assert output[0, len(prompt) :].tolist() == ours


@pytest.mark.parametrize(
    ("budget", "topk", "window"),
    [(1, 1, "full"), (4, 2, 64), (7, 1, "full"), (8, 4, 64), (8, 4, "full"), (33, 8, "full")],
)
def test_trees_equal_ar(loaded, prompts, baseline, budget, topk, window):
    """Token for token, four ragged requests in one batch; benchmarks/exactness.py has the grid."""
    speculation = Speculation("ddtree", budget, topk, window)
    requests = loaded.engine.generate(prompts, SamplingParams(TOKENS), speculation)
    assert [r.output for r in requests] == baseline


def test_eight_at_once_equal_each_alone(loaded, prompts, baseline):
    """Greedy and sampled, drafting and not, prompts side by side in one pass."""
    sampled = [SamplingParams(20, temperature=0.8, top_p=0.95, seed=n) for n in range(4)]
    alone = [
        loaded.engine.generate([prompt], sampling, Speculation("ar"))[0].output
        for prompt, sampling in zip(prompts, sampled, strict=True)
    ]
    drafter = loaded.engine.drafting.drafter
    engine = Engine(loaded.engine.target, drafter, EngineConfig(slots=8, max_context=256))
    methods = (Speculation("ddtree", 8, 4), Speculation("chain"), Speculation("ar"), None)
    asked = list(zip(prompts, [SamplingParams(TOKENS)] * 4, methods, strict=True))
    asked += list(zip(prompts, sampled, methods, strict=True))
    requests = [engine.submit(*one) for one in asked]
    most = 0
    while not engine.is_idle:
        engine.step()
        most = max(most, len(engine.scheduler.decoding()))
    assert most == 8
    assert [r.output for r in requests] == [*baseline, *alone]


def test_the_drafter_drafts(loaded, prompts):
    """Trees accept more than chains, chains more than nothing: a drafter fed with wrong features
    or positions accepts next to nothing."""
    lengths = []
    for speculation in (Speculation("chain"), Speculation("ddtree", 16, 4)):
        requests = loaded.engine.generate(prompts, SamplingParams(TOKENS), speculation)
        rounds = sum(r.stats.rounds for r in requests)
        lengths.append(1 + sum(r.stats.num_accepted for r in requests) / rounds)
    assert 1.6 < lengths[0] < lengths[1]


class _DensePlan:
    """Attention of a block over all context at once, without a cache."""

    def __init__(self, context):
        self.context = context  # [layers, 2, n, G, C]

    def attend(self, layer, q, k, v):
        keys, values = self.context[layer.index].transpose(1, 2).unsqueeze(1)
        return torch.nn.functional.scaled_dot_product_attention(
            q,
            torch.cat([keys, k], 2),
            torch.cat([values, v], 2),
            scale=layer.scale,
            enable_gqa=True,
        ).transpose(1, 2)


class _Assistant(torch.nn.Module):
    """Our drafter as the assistant of transformers' own DFlash decoding, which decides alone what
    to draft from, what to accept and which features come back."""

    def __init__(self, drafter):
        super().__init__()
        self.drafter = drafter
        self.config = transformers.Qwen3Config(num_hidden_layers=drafter.config.num_layers)
        self.config.target_layer_ids = list(drafter.config.target_layer_ids)
        self.config.block_size = drafter.config.block_size
        self.config.mask_token_id = drafter.config.mask_token_id
        self.generation_config = transformers.GenerationConfig()
        self.device = torch.device("cpu")
        self.features = []

    def forward(self, noise_embeds, context_hidden_states, position_ids, **_):
        self.features.append(context_hidden_states)
        seen = torch.cat(self.features, 1)
        context = self.drafter.context(seen, torch.arange(seen.shape[1])[None])
        positions = position_ids[:, -noise_embeds.shape[1] :]
        hidden = self.drafter(noise_embeds, positions, _DensePlan(context))
        padded = torch.nn.functional.pad(hidden, (0, 0, 1, 0))  # its caller drops the anchor's row
        return transformers.modeling_outputs.BaseModelOutput(last_hidden_state=padded)


@pytest.mark.skipif(
    not hasattr(transformers.GenerationConfig(), "speculation_type"),
    reason="this transformers has no DFlash decoding of its own",
)
def test_chain_accepts_what_transformers_own_dflash_accepts(loaded, prompts, smollm2):
    drafter = load_drafter(smollm2.drafter, torch.float32, "cpu")
    model = load_causal_lm(loaded.paths.target, torch.float32, "cpu")
    for prompt in prompts[:2]:
        assistant = _Assistant(drafter)
        ids = torch.tensor([prompt])
        with torch.inference_mode():
            output = model.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                do_sample=False,
                max_new_tokens=TOKENS,
                assistant_model=assistant,
                speculation_type="dflash",
            )
        theirs = [features.shape[1] - 1 for features in assistant.features[1:]]
        counts = []
        loaded.engine.observers.append(
            lambda result, c=counts: c.extend(result.accepted.num_accepted.tolist())
        )
        request = loaded.engine.generate([prompt], SamplingParams(TOKENS), Speculation("chain"))[0]
        loaded.engine.observers.clear()
        assert output[0, len(prompt) :].tolist() == request.output
        assert len(theirs) >= 5
        assert counts[: len(theirs)] == theirs
