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
