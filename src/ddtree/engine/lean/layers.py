"""The layers of a Llama, Qwen2 or Qwen3 decoder as packed weights.

The modules' own parameters become views of the packed ones, so that both share one memory.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ddtree.models.attention import AttentionLayer


@dataclass(frozen=True)
class LeanLayer:
    """One layer. joined: [(H + 2 G) C, E], queries, keys and values. out: [E, H C]. opened:
    [2 I, E], gate and up. down: [E, I]. Biases and the norms of heads are None where there are
    none. norms: before attention and before the MLP."""

    attention: AttentionLayer
    norms: tuple[Tensor, Tensor]
    joined: Tensor
    joined_bias: Tensor | None
    out: Tensor
    out_bias: Tensor | None
    opened: Tensor
    down: Tensor
    q_norm: Tensor | None
    k_norm: Tensor | None


def lean_layer(module: Any, attention: AttentionLayer) -> LeanLayer:
    """A layer of transformers' or of the drafter, whose parts have the same names."""
    own, mlp = module.self_attn, module.mlp
    projections = (own.q_proj, own.k_proj, own.v_proj)
    joined, bias = pack(projections)
    opened, _ = pack((mlp.gate_proj, mlp.up_proj))
    return LeanLayer(
        attention=attention,
        norms=(module.input_layernorm.weight, module.post_attention_layernorm.weight),
        joined=joined,
        joined_bias=bias,
        out=own.o_proj.weight,
        out_bias=own.o_proj.bias,
        opened=opened,
        down=mlp.down_proj.weight,
        q_norm=weight_of(own, "q_norm"),
        k_norm=weight_of(own, "k_norm"),
    )


def pack(projections: Sequence[nn.Linear]) -> tuple[Tensor, Tensor | None]:
    """Weights one below the other, and biases if there are any; the modules keep views."""
    joined = torch.cat([module.weight.data for module in projections])
    _share(joined, (module.weight for module in projections))
    if projections[0].bias is None:
        return joined, None
    bias = torch.cat([module.bias.data for module in projections])
    _share(bias, (module.bias for module in projections))
    return joined, bias


def weight_of(module: object, name: str) -> Tensor | None:
    """The weight of a part that may be missing."""
    part = getattr(module, name, None)
    return None if part is None else part.weight


def _share(joined: Tensor, parameters: Iterable[Tensor]) -> None:
    first = 0
    for parameter in parameters:
        parameter.data = joined[first : first + len(parameter)]
        first += len(parameter)
