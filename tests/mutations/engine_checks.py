"""What the engine must satisfy, measured on a tiny random float64 model.

The truth comes from transformers alone: plain greedy text by its own forward pass, features by
hooks on its layers, drafts by a dense softmax over all context. The engine runs with scripted
drafts that hold the text's continuation at a known rank, or not at all, so that accepted paths
have all lengths and many leave the tree's first rows; how far each must be accepted is known.

The code under test is looked up at each call, so that a bug planted there is what gets checked;
`mixed_run` is kept for the checks that share it and must be forgotten when the code changes.
"""

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor
from transformers import MistralConfig, PreTrainedModel

from core.core_checks import all_prefixes, token_paths
from ddtree import engine as engine_api
from ddtree.engine import SamplingParams, Speculation
from ddtree.engine.pool import Runs
from ddtree.models import target as target_module
from support import tiny

PROMPT_LENGTHS = (5, 11, 23, 9)
TEXT = 48  # generated tokens of reference
SLOTS, RING, CHUNK, BLOCK = 4, 12, 8, 5
MAX_CONTEXT = 96
SLIDING = 2  # shorter than a tree is deep, so that ancestors drop out of the window
# transformers computes norms and rotary embeddings in float32.
TOLERANCE = 1e-4


@dataclass(frozen=True)
class Text:
    """A prompt with its greedy continuation by `model`, and the features of every token."""

    model: PreTrainedModel
    prompt: list[int]
    ids: list[int]
    features: Tensor  # [n, F]

    @property
    def output(self) -> list[int]:
        return self.ids[len(self.prompt) :]


def build_model(sliding: bool):
    """The tiny Llama, or a Mistral of its size whose layers see the last few tokens."""
    config = tiny.tiny_config()
    if sliding:
        config = MistralConfig(**config.to_dict(), sliding_window=SLIDING)
    return tiny.tiny_model(config)


@functools.cache
def reference_model(sliding: bool = False):
    return build_model(sliding)


@functools.cache
def text(number: int, sliding: bool = False) -> Text:
    """Greedy decoding that recomputes everything for every token."""
    model = reference_model(sliding)
    generator = torch.Generator().manual_seed(number)
    size = (1, PROMPT_LENGTHS[number])
    ids = torch.randint(model.config.vocab_size, size, generator=generator)
    prompt = ids[0].tolist()
    outputs: dict[int, Tensor] = {}
    hooks = [
        model.base_model.layers[layer].register_forward_hook(
            lambda _module, _args, output, layer=layer: outputs.__setitem__(layer, output)
        )
        for layer in tiny.FEATURE_LAYERS
    ]
    for _ in range(TEXT):
        logits = model(input_ids=ids, use_cache=False).logits[0, -1]
        best = logits.topk(2)
        assert best.values[0] - best.values[1] > 1e-4, "redraw this prompt: a near-tie"
        ids = torch.cat([ids, best.indices[None, :1]], 1)
    model(input_ids=ids, use_cache=False)
    for hook in hooks:
        hook.remove()
    features = torch.cat([outputs[layer][0] for layer in tiny.FEATURE_LAYERS], -1)
    return Text(model, prompt, ids[0].tolist(), features)


@dataclass
class DenseAttention:
    """A plan that attends by plain softmax: all context keys, then the block's own."""

    context: Tensor  # [layers, 2, n, G, C]
    positions: Tensor  # [n]
    anchor: int
    causal: bool

    def attend(self, layer, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        held = self.context[layer.index].transpose(1, 2)[:, None]  # [2, 1, G, n, C]
        keys, values = torch.cat([held[0], k], 2), torch.cat([held[1], v], 2)
        group = q.shape[1] // k.shape[1]
        keys, values = (part.repeat_interleave(group, 1) for part in (keys, values))
        scores = q @ keys.transpose(2, 3) * layer.scale
        scores = scores.masked_fill(~self.seen(q.shape[2], layer.window), -math.inf)
        return (scores.softmax(-1) @ values).transpose(1, 2)

    def seen(self, block: int, window: int | None) -> Tensor:
        rows = self.anchor + torch.arange(block)[:, None]
        columns = torch.cat([self.positions, self.anchor + torch.arange(block)])
        seen = (columns < self.anchor) | (columns <= rows) | (not self.causal)
        return seen if window is None else seen & (columns > rows - window)


def dense_draft(drafter, source: Text, length: int, window: int) -> Tensor:
    """Logits [D, V] after the root at `length`, which sees the last `window` tokens before it."""
    model = source.model
    positions = torch.arange(max(length - window, 0), length)
    context = drafter.context(source.features[positions][None], positions[None])
    plan = DenseAttention(context, positions, length, drafter.config.causal)
    ids = torch.tensor([[source.ids[length]] + [drafter.config.mask_token_id] * (BLOCK - 1)])
    block = length + torch.arange(BLOCK)[None]
    hidden = drafter(model.get_input_embeddings()(ids), block, plan)
    return model.get_output_embeddings()(hidden)[0]


def scripted_logits(source: Text, length: int, perfect: bool) -> Tensor:
    """Draft logits [D, V]: noise, with the true token at rank 0, 1 or 2 or nowhere; `perfect` is
    rank 0 at every depth. Past the reference's end there is no truth."""
    generator = torch.Generator().manual_seed(1000 * length + source.ids[0])
    vocab = source.model.config.vocab_size
    logits = torch.randn(BLOCK - 1, vocab, dtype=torch.float64, generator=generator)
    # Three tokens a depth stand out, so that trees are both deep and broad.
    best = logits.topk(3)
    logits.scatter_add_(
        1, best.indices, torch.tensor([[6.0, 5.5, 5.0]]).double().expand(BLOCK - 1, -1)
    )
    for depth, token in enumerate(source.ids[length + 1 :][: BLOCK - 1]):
        draw = int(torch.randint(8, (), generator=generator))
        rank = 0 if perfect else (0, 0, 0, 0, 1, 1, 2, vocab - 1)[draw]
        other = int(logits[depth].argsort(descending=True)[rank])
        logits[depth, [token, other]] = logits[depth, [other, token]]
    return logits


def best_paths(logits: Tensor, budget: int, topk: int) -> set[tuple[int, ...]]:
    """The `budget` heaviest token paths, by enumeration."""
    best = torch.log_softmax(logits, -1).sort(-1, descending=True)
    prefixes = all_prefixes(best.values[:, :topk].tolist(), topk)
    chosen = sorted(prefixes, key=lambda ranks: -prefixes[ranks])[:budget]
    return {tuple(int(best.indices[d, rank]) for d, rank in enumerate(r)) for r in chosen}


@dataclass(frozen=True)
class Case:
    """One request: which text, how it drafts, and what that must resolve to."""

    text: int
    speculation: Speculation
    sampling: SamplingParams
    budget: int = 0
    topk: int = 1
    window: int = RING
    sliding: bool = False

    @property
    def source(self) -> Text:
        return text(self.text, self.sliding)


MIXED = (
    Case(0, Speculation("ddtree", 20, 3, 6), SamplingParams(26), 20, 3, 6),
    Case(1, Speculation("ar"), SamplingParams(15)),
    Case(2, Speculation("ddtree", 7, 2), SamplingParams(30), 7, 2),
    Case(3, Speculation("chain"), SamplingParams(21), BLOCK - 1, 1),
    # Waits for a slot that another request has used.
    Case(1, Speculation("ddtree", 30, 3, 10), SamplingParams(24), 30, 3, 10),
)
PLAIN = tuple(Case(c.text, Speculation("ar"), c.sampling) for c in MIXED)


@dataclass
class Evidence:
    """What a run left: per request and round, what came and what was expected."""

    cases: tuple[Case, ...]
    requests: list = field(default_factory=list)
    outputs: list[list[int]] = field(default_factory=list)
    draft_errors: list[float] = field(default_factory=list)
    context_errors: list[float] = field(default_factory=list)
    nodes: list[tuple[set, set]] = field(default_factory=list)
    accepted: list[tuple[int, int]] = field(default_factory=list)


class Spy:
    """Stands between the loop and the drafter: measures its work, then hands out the script."""

    def __init__(self, evidence: Evidence, perfect: bool) -> None:
        self.evidence, self.perfect = evidence, perfect
        self.script: dict[int, Tensor] = {}

    def install(self, engine) -> None:
        self.drafting, self.draft_for_real = engine.drafting, engine.drafting.draft
        self.ring = engine.draft_window
        engine.drafting.draft = self.draft

    def draft(self, requests) -> Tensor:
        logits = self.draft_for_real(requests)
        assert logits.shape[:2] == (len(requests), BLOCK - 1)
        for row, request in enumerate(requests):
            case = self.evidence.cases[request.number]
            source, length = case.source, request.length
            expected = len(source.prompt) + len(request.output) - 1
            assert length == expected, f"{length} committed tokens, the text has {expected}"
            self.evidence.context_errors.append(self._context_error(request, source))
            dense = dense_draft(self.drafting.drafter, source, length, case.window)
            self.evidence.draft_errors.append(float((logits[row] - dense).abs().max()))
            self.script[request.number] = scripted_logits(source, length, self.perfect)
        return torch.stack([self.script[r.number] for r in requests])

    def _context_error(self, request, source: Text) -> float:
        """Largest deviation of the ring's keys and values from those of a plain prefill."""
        drafter, pool = self.drafting.drafter, self.drafting.pool
        positions = torch.arange(max(request.length - self.ring, 0), request.length)
        expected = drafter.context(source.features[positions][None], positions[None])
        worst = 0.0
        for layer, pair in enumerate(expected):
            size = BLOCK + self.ring
            held = pool.view(layer, Runs(request.slot * size, 0, 1), size)
            for got, wanted in zip(held, pair, strict=True):
                ring = got[0][:, BLOCK + positions % self.ring].transpose(0, 1)
                worst = max(worst, float((ring - wanted).abs().max()))
        return worst

    def observe(self, result) -> None:
        for row, request in enumerate(result.requests):
            case = self.evidence.cases[request.number]
            if not case.budget:
                continue
            script = self.script[request.number]
            expected = best_paths(script, case.budget, case.topk)
            nodes = set(token_paths(result.tree, row))
            self.evidence.nodes.append((nodes, expected))
            root = len(case.source.prompt) + len(request.output) - 1
            future = case.source.ids[root + 1 :]
            agreeing = [len(path) for path in expected if list(path) == future[: len(path)]]
            count = int(result.accepted.num_accepted[row])
            self.evidence.accepted.append((count, max(agreeing, default=0)))


def run_engine(
    cases: tuple[Case, ...], *, perfect: bool = False, chunk: int = CHUNK, **drafter
) -> Evidence:
    """Decode `cases` together, prompts `chunk` by `chunk`; `drafter` changes its own fields."""
    evidence = Evidence(cases)
    spy = Spy(evidence, perfect)
    model = build_model(cases[0].sliding)
    target = target_module.Target(model, tiny.FEATURE_LAYERS)
    config = engine_api.EngineConfig(
        slots=SLOTS,
        max_context=MAX_CONTEXT,
        prefill_chunk=chunk,
        draft_window="full" if drafter else RING,
    )
    own_drafter = tiny.tiny_drafter(target, block_size=BLOCK, **drafter)
    engine = engine_api.Engine(target, own_drafter, config, spy.observe)
    spy.install(engine)
    with torch.inference_mode():
        for case in cases:
            prompt = case.source.prompt
            evidence.requests.append(engine.submit(prompt, case.sampling, case.speculation))
        for _ in range(400):
            if engine.is_idle:
                break
            engine.step()
    evidence.outputs = [request.output for request in evidence.requests]
    return evidence


@functools.cache
def mixed_run() -> Evidence:
    return run_engine(MIXED)


# ---- checks ------------------------------------------------------------------------------------


def check_output() -> None:
    """Trees, chains and plain decoding in one batch give exactly the plain greedy text."""
    check_texts(mixed_run())


def check_plain_output() -> None:
    """Plain decoding of ragged contexts gives the plain greedy text."""
    check_texts(run_engine(PLAIN))


def check_gap_output() -> None:
    """The same where one of four leaves and nobody takes its place."""
    check_texts(run_engine(PLAIN[:4]))


def check_sliding_output() -> None:
    """The same for a target whose layers see a few tokens only: by position, never by column."""
    check_texts(run_engine(tuple(replace(case, sliding=True) for case in MIXED)))


def check_texts(evidence: Evidence) -> None:
    for case, output in zip(evidence.cases, evidence.outputs, strict=True):
        expected = case.source.output[: case.sampling.max_tokens]
        assert output == expected, f"{case.speculation.method}: {output}, plain is {expected}"


def check_trees() -> None:
    """Every request's tree holds the best paths under its own budget and topk."""
    for got, expected in mixed_run().nodes:
        assert got == expected


def check_acceptance() -> None:
    """As many nodes are accepted as the best tree and the text allow."""
    counts = mixed_run().accepted
    for got, expected in counts:
        assert got == expected
    assert {got for got, _ in counts} == set(range(BLOCK)), "some length was never accepted"


def check_drafter_context() -> None:
    """The drafter's ring holds what a plain prefill of the committed text would put there."""
    assert max(mixed_run().context_errors) < TOLERANCE


def check_long_chunk_context() -> None:
    """The same where one chunk of a prompt is longer than the ring."""
    evidence = run_engine(MIXED[2:4], chunk=2 * RING)
    assert max(evidence.context_errors) < TOLERANCE


def check_drafts() -> None:
    """The drafter's logits are those of a dense pass over the last W committed tokens."""
    assert max(mixed_run().draft_errors) < TOLERANCE


def check_per_query_drafts() -> None:
    """The same for a checkpoint whose layers slide their own windows."""
    changes = {"window": 7, "window_kind": "per-query", "layer_windows": (7, None)}
    whole = [replace(case, window=MAX_CONTEXT) for case in MIXED[1:4]]
    evidence = run_engine(tuple(whole), causal=True, **changes)
    check_texts(evidence)
    assert max(evidence.draft_errors) < TOLERANCE


def first_seen(output: Sequence[int], index: int) -> bool:
    return output[index] not in output[:index]


def check_stop() -> None:
    """A stop id ends the text there, as first token, inside a run or as a bonus."""
    places = []
    for number in (0, 1):
        output = text(number).output
        for index in (i for i in range(8) if first_seen(output, i)):
            places.append(index % BLOCK)
            got = decode_one(number, SamplingParams(20, stop_token_ids=(output[index],)))
            assert got.output == output[: index + 1]
            assert got.finish_reason == "stop"
    assert set(places) == set(range(BLOCK)), "some place of a run was never tried"


def check_limit() -> None:
    """max_tokens ends the text there, wherever in a run it falls."""
    for limit in range(1, 2 * BLOCK + 2):
        got = decode_one(0, SamplingParams(limit))
        assert got.output == text(0).output[:limit]
        assert got.finish_reason == "length"


def decode_one(number: int, sampling: SamplingParams):
    """One request whose drafts are perfect: every round gains a whole block."""
    case = Case(number, Speculation("chain"), sampling, BLOCK - 1, 1)
    request = run_engine((case,), perfect=True).requests[0]
    rounds = request.stats.accepted_histogram
    assert rounds[:-1] == [0] * len(rounds[:-1]), "perfect drafts were rejected"
    return request
