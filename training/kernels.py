"""What a training step runs through: plain functions, or the same ones compiled for a GPU."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

from ddtree.models.drafter import Drafter
from ddtree.models.target import Target
from training.blocks import Attention, Places, dense_attention, flexible_attention
from training.objective import Mix, mixed


@dataclass(frozen=True)
class Kernels:
    """attention_of: how blocks of these places attend. mix: the loss of rows of logits."""

    attention_of: Callable[[Places], Attention] = dense_attention
    mix: Mix = mixed


def fitting(device: str, target: Target, network: Drafter) -> Kernels:
    """Plain on a CPU. On a GPU compiled, with the norms and MLPs of both networks, in place."""
    if device == "cpu":
        return Kernels()
    for model in (target.model, network):
        compile_parts(model)
    attend: Callable[..., Tensor] = torch.compile(flex_attention)
    masking = torch.compile(create_block_mask)
    return Kernels(lambda places: flexible_attention(places, attend, masking), torch.compile(mixed))


def compile_parts(model: nn.Module, backend: str = "inductor") -> int:
    """Compile each norm and MLP where it stands; how many there were.

    Whole layers would not do: each holds its own index, for which it would be compiled again.
    """
    parts = [
        module for module in model.modules() if type(module).__name__.endswith(("RMSNorm", "MLP"))
    ]
    for part in parts:
        part.compile(backend=backend)
    return len(parts)
