"""The same engine on a GPU."""

import pytest
import torch

from ddtree.engine import Engine, EngineConfig, SamplingParams, Speculation
from ddtree.models.target import Target
from support.drafts import oracle, with_drafts
from support.reference import draw_prompt
from support.tiny import FEATURE_LAYERS, tiny_config, tiny_drafter, tiny_model

pytestmark = pytest.mark.gpu
COUNT = 24


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize(
    "speculation", [Speculation("ar"), Speculation("chain"), Speculation("ddtree", 8, 4)], ids=str
)
def test_ids_equal_the_cpu_reference(speculation, dtype):
    """Ragged requests in one batch, with drafts that are right for three depths."""
    reference = Target(tiny_model(tiny_config()), FEATURE_LAYERS)
    drawn = dict(
        (tuple(prompt), output)
        for prompt, output in (draw_prompt(reference, n, COUNT, seed=n) for n in (2, 9, 30))
    )
    target = Target(tiny_model(tiny_config(), dtype=dtype).to("cuda"), FEATURE_LAYERS)
    drafter = tiny_drafter(target).to("cuda")
    engine = Engine(target, drafter, EngineConfig(max_context=96))
    right = oracle(drawn, 4, 61)
    with_drafts(engine, lambda request: [*right(request)[:3], 0])
    requests = engine.generate(list(drawn), SamplingParams(COUNT), speculation)
    assert [r.output for r in requests] == list(drawn.values())


LAWS = [SamplingParams(COUNT), SamplingParams(COUNT, temperature=0.9, top_k=20, seed=6)]
TREES = [
    Speculation("ar"),
    Speculation("chain"),
    *(Speculation("ddtree", budget, topk) for budget, topk in [(8, 4), (33, 8)]),
]


def on_gpu(rounds, seed=0, **config):
    target = Target(tiny_model(tiny_config(), seed, torch.float32).to("cuda"), FEATURE_LAYERS)
    given = {"max_context": 96, "slots": 8, "rounds": rounds, **config}
    return Engine(target, tiny_drafter(target).to("cuda"), EngineConfig(**given))


def prompts_of(count):
    draw = torch.Generator().manual_seed(count)
    return [torch.randint(0, 61, (n + 2,), generator=draw).tolist() for n in range(count)]


def told(requests):
    return [(r.output, r.ranks, r.nodes, r.stats.accepted_histogram) for r in requests]


@pytest.fixture(scope="module")
def engines():
    return {rounds: on_gpu(rounds) for rounds in ("ragged", "stepped", "graphs")}


@pytest.mark.parametrize("sampling", LAWS, ids=lambda law: f"T={law.temperature:g}")
@pytest.mark.parametrize("speculation", TREES, ids=str)
@pytest.mark.parametrize("count", [1, 2, 3, 4, 5, 8, 9])
def test_graphs_equal_launches(engines, count, speculation, sampling):
    """At every bucket and one past it: the same kernels, so the same bits and thus tokens; and what
    the ragged loop gives, whose sums have another order."""
    prompts = prompts_of(count)
    graphs, stepped, ragged = (
        told(engines[rounds].generate(prompts, sampling, speculation))
        for rounds in ("graphs", "stepped", "ragged")
    )
    assert graphs == stepped
    assert [one[0] for one in graphs] == [one[0] for one in ragged]


def test_nothing_is_left_of_other_requests(engines):
    """A graph replayed after others have used its memory, over caches full of large numbers."""
    used = engines["graphs"]
    for speculation in reversed(TREES):
        used.generate(prompts_of(8), LAWS[1], speculation)
        for pool in (used.pool, used.drafting.pool):
            pool.cells.fill_(1e4)
        for sampling in LAWS:
            found = told(used.generate(prompts_of(5), sampling, speculation))
            assert found == told(on_gpu("stepped").generate(prompts_of(5), sampling, speculation))


def test_mixed_requests(engines):
    """Greedy and drawn, of several budgets, some at their ends sooner, in the same rounds."""
    given = [
        (prompt, SamplingParams(5 + 3 * i, temperature=i % 2, seed=i), TREES[i % 4])
        for i, prompt in enumerate(prompts_of(11))
    ]
    found = []
    for rounds in ("graphs", "stepped", "ragged"):
        requests = [engines[rounds].submit(*one) for one in given]
        while not engines[rounds].is_idle:
            engines[rounds].step()
        found.append([r.output for r in requests])
    assert found[0] == found[1] == found[2]
