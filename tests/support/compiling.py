"""Compiles every kernel for a GPU on a machine that has none: launches do nothing but compile.

    python -m support.compiling [ARCH]

runs rounds of a tiny model with them and prints the names of what was compiled, one a line.
"""

import sys

import torch
import triton
from transformers import Qwen3Config
from triton.backends.compiler import GPUTarget
from triton.runtime.jit import JITFunction

from ddtree.engine import Engine, EngineConfig, SamplingParams, Speculation, assembly
from ddtree.engine import engine as engine_module
from ddtree.models.target import Target
from support.tiny import FEATURE_LAYERS, SHAPE, tiny_config, tiny_drafter, tiny_model

HOPPER = 90


class _Nowhere:
    """What of a driver is asked before a launch."""

    def __init__(self, arch: int) -> None:
        self._target = GPUTarget("cuda", arch, 32)

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return device

    def get_current_target(self) -> GPUTarget:
        return self._target


def main(arch: int = HOPPER) -> None:
    """Compile for an architecture."""
    names = set()
    run = JITFunction.run

    def compiled(self, *args, grid, warmup, **kwargs):
        names.add(f"{self.fn.__module__}.{self.fn.__name__}")
        return run(self, *args, grid=grid, warmup=True, **kwargs)

    JITFunction.run = compiled
    triton.runtime.driver.set_active(_Nowhere(arch))
    # What nothing writes must be something that a round can go on with.
    torch.empty = torch.zeros
    torch.empty_like = torch.zeros_like
    torch.Tensor.new_empty = torch.Tensor.new_zeros
    for dtype in (torch.float32, torch.bfloat16):
        rounds_of(dtype)
    sys.stdout.write("\n".join(sorted(names)))


def rounds_of(dtype: torch.dtype) -> None:
    """Rounds with and without drafts, of layers with norms of heads and without."""
    # Nothing is computed, so nothing would pass.
    assembly.probe_target = lambda target, decoder: None
    engine_module.means_for = lambda target, drafting: assembly.kernels_for(
        target, drafting.drafter, drafting.block - 1, 8
    )
    for config in (tiny_config(), Qwen3Config(**SHAPE, head_dim=16)):
        target = Target(tiny_model(config, dtype=dtype), FEATURE_LAYERS)
        engine = Engine(
            target, tiny_drafter(target), EngineConfig(rounds="stepped", max_context=200)
        )
        for tree in (Speculation("ar"), Speculation("chain"), Speculation("ddtree", 40, 4)):
            requests = [engine.make_request([1, 2, 3], SamplingParams(9), tree) for _ in range(3)]
            for slot, request in enumerate(requests):
                request.slot, request.base = slot, slot * engine.sizes.longest
                request.length, request.output = 3, [1]
            engine.fixed.advance(requests)
            engine.fixed.drain()


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
