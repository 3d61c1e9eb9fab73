"""What is compiled computes the same, and is not compiled again at every step."""

import pytest
import torch
from torch._dynamo.testing import CompileCounter
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

from support.tiny import tiny_drafter, tiny_target
from training import blocks, train
from training.corpus import Mixture
from training.kernels import Kernels, compile_parts, fitting
from training.objective import mixed
from training.writing import scripts_of, write

RECIPE = train.Recipe(steps=8, tokens=320, spacing=4, window=6, warmup=5, seed=3)


def losses(compiled):
    """Six steps over sequences of two lengths."""
    target = tiny_target(dtype=torch.float32)
    scripts = scripts_of([[11, 12]], [0.7], [0], [0])
    corpora = [write(target, scripts, [7], (32, length), seed=0) for length in (40, 24)]
    run = train.new_run(RECIPE, tiny_drafter(target))
    kernels = Kernels()
    if compiled:
        layers = len(target.model.base_model.layers)
        assert compile_parts(target.model, "eager") == 3 * layers + 1
        kernels = Kernels(mix=torch.compile(mixed, backend="eager"))
        assert compile_parts(run.network, "eager") > 0
    mixture = Mixture(corpora, RECIPE.steps, RECIPE.seed)
    told = [train.take_step(RECIPE, target, run, mixture, kernels) for _ in range(6)]
    return [step.line()["loss"] for step in told]


@pytest.mark.filterwarnings("ignore:The .grad attribute")  # torch.compile looks at it
def test_compiled_parts_take_the_same_steps():
    assert losses(compiled=True) == pytest.approx(losses(compiled=False), rel=1e-5)


def test_new_places_of_the_same_shape_compile_nothing_again():
    masking, attending = CompileCounter(), CompileCounter()
    mask = torch.compile(create_block_mask, backend=masking)
    attend = torch.compile(flex_attention, backend=attending)
    torch.manual_seed(0)
    for _ in range(4):
        anchors = torch.randint(0, 248, (2, 32)).sort(1).values
        places = blocks.Places(anchors, 256, 8, 128)
        q = torch.randn(2, 4, 256, 16)
        k, v = torch.randn(2, 2, 2, 512, 16)
        found = blocks.flexible_attention(places, attend, mask)(q, k, v, 0.3)
        expected = blocks.dense_attention(places)(q, k, v, 0.3)
        torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-4)
    assert masking.frame_count == attending.frame_count == 1


def test_a_cpu_compiles_nothing():
    target = tiny_target()
    assert fitting("cpu", target, tiny_drafter(target)) == Kernels()
