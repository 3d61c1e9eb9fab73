"""A causal language model of transformers as the target: rows in, hidden states and features out.

Attention runs through `models.attention`; everything else (norms, projections, rotary
embeddings, experts) is transformers' own forward pass.
"""

import functools
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from ddtree.errors import ModelError
from ddtree.models.attention import HOOK_NAME, AttendPlan, AttentionLayer, register_hook
from ddtree.models.compat import LENGTH_DEPENDENT_ROPE, rope_types

KNOWN_LAYER_TYPES = ("full_attention", "sliding_attention")


@dataclass(frozen=True)
class TargetShape:
    """Sizes the engine needs to lay out its caches. `max_positions` bounds prompt + output."""

    num_layers: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    max_positions: int


@dataclass
class _FeatureTap:
    """Collects chosen decoder layers' outputs while `active`."""

    layer_ids: tuple[int, ...]
    active: bool = False
    outputs: dict[int, Tensor] = field(default_factory=dict)

    def record(self, layer: int, module: nn.Module, args: object, output: object) -> None:
        if self.active:
            self.outputs[layer] = output[0] if isinstance(output, tuple) else output  # type: ignore[assignment]

    def take(self) -> Tensor:
        """[B, S, len(layer_ids) * E], layers in the order of `layer_ids`."""
        return torch.cat([self.outputs.pop(layer) for layer in self.layer_ids], -1)


@dataclass
class _CountingPlan:
    """Checks that each layer attends once, in order, over rows of their own positions."""

    plan: AttendPlan
    slides: tuple[bool, ...]  # by layer
    calls: int = 0

    def attend(self, layer: AttentionLayer, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        if layer.index != self.calls:
            raise ModelError(f"attention call {self.calls} came from layer {layer.index}")
        if (layer.window is not None) != self.slides[layer.index]:
            raise ModelError(
                f"layer {layer.index} attends with window {layer.window}, but its layer_type says "
                f"{'sliding' if self.slides[layer.index] else 'full'} attention"
            )
        self.calls += 1
        return self.plan.attend(layer, q, k, v)


class Target:
    """`forward` runs the decoder without its head; `head` turns chosen rows into logits."""

    def __init__(self, model: PreTrainedModel, feature_layers: tuple[int, ...] = ()) -> None:
        config = model.config
        refuse_unsupported(model)
        register_hook()
        model.set_attn_implementation(HOOK_NAME)
        model.eval()
        self.model = model
        self._decoder: Callable[..., object] = model.base_model
        self._head: nn.Module = model.get_output_embeddings()
        self._embedding: nn.Module = model.get_input_embeddings()
        self._softcap: float | None = getattr(config, "final_logit_softcapping", None)
        self.device: torch.device = model.device
        self.dtype: torch.dtype = self._embedding.weight.dtype
        self.shape = TargetShape(
            num_layers=config.num_hidden_layers,
            num_kv_heads=config.num_key_value_heads,
            head_dim=_head_dim(config),
            vocab_size=config.vocab_size,
            max_positions=config.max_position_embeddings,
        )
        self.eos_ids = _eos_ids(model)
        self.feature_layers = feature_layers
        self.sliding_layers = _sliding_layers(config)
        self._tap = _FeatureTap(feature_layers)
        layers: nn.ModuleList = model.base_model.layers
        for layer in feature_layers:
            layers[layer].register_forward_hook(functools.partial(self._tap.record, layer))

    def forward(
        self, ids: Tensor, positions: Tensor, plan: AttendPlan, *, features: bool = False
    ) -> tuple[Tensor, Tensor | None]:
        """ids, positions [B, S] -> hidden [B, S, E] after the final norm, and the features
        [B, S, len(feature_layers) * E] before it (None unless asked for)."""
        if positions.shape != ids.shape:
            # transformers would broadcast [1, S] and invent missing positions.
            raise ModelError(f"positions {tuple(positions.shape)}, expected {tuple(ids.shape)}")
        counting = _CountingPlan(plan, self.sliding_layers)
        self._tap.active = features
        output = self._decoder(
            input_ids=ids, position_ids=positions, use_cache=False, plan=counting
        )
        self._tap.active = False
        if counting.calls != self.shape.num_layers:
            raise ModelError(
                f"{counting.calls} attention calls for {self.shape.num_layers} layers: this "
                "architecture does not attend once a layer through the hook"
            )
        hidden: Tensor = output.last_hidden_state  # type: ignore[attr-defined]
        return hidden, self._tap.take() if features else None

    def head(self, hidden: Tensor) -> Tensor:
        """Logits [..., V] of hidden states [..., E], as the model's own head gives them."""
        logits: Tensor = self._head(hidden)
        if self._softcap:
            logits = torch.tanh(logits / self._softcap) * self._softcap
        return logits

    def reference_logits(self, ids: Tensor) -> Tensor:
        """Logits [S, V] of plain text ids [S] by the model's own forward pass and attention."""
        self.model.set_attn_implementation("eager")
        try:
            logits: Tensor = self.model(input_ids=ids[None], use_cache=False).logits[0]
        finally:
            self.model.set_attn_implementation(HOOK_NAME)
        return logits

    def embed(self, ids: Tensor) -> Tensor:
        """Embeddings [..., E] of ids [...]."""
        embedded: Tensor = self._embedding(ids)
        return embedded


def refuse_unsupported(model: PreTrainedModel) -> None:
    """Raise a ModelError that names what the hook can't compute; silence would mean wrong
    logits."""
    config = model.config
    name = type(model).__name__
    if config.is_encoder_decoder:
        raise ModelError(f"{name}: an encoder-decoder model; a causal decoder is needed")
    if getattr(config, "attn_logit_softcapping", None):
        raise ModelError(f"{name}: attn_logit_softcapping is not implemented by the plan")
    other = set(getattr(config, "layer_types", None) or ()) - set(KNOWN_LAYER_TYPES)
    if other:
        raise ModelError(f"{name}: layer_types {sorted(other)}; {KNOWN_LAYER_TYPES} are supported")
    if any(hasattr(module, "sinks") for module in model.modules()):
        raise ModelError(f"{name}: attention sinks are not implemented by the plan")
    bad_rope = set(rope_types(config)) & set(LENGTH_DEPENDENT_ROPE)
    if bad_rope:
        raise ModelError(
            f"{name}: rope_type {sorted(bad_rope)[0]} depends on the longest request of a batch; "
            "set another rope_type in the checkpoint's config.json"
        )
    if not getattr(config, "num_key_value_heads", None):
        raise ModelError(f"{name}: num_key_value_heads is missing; this architecture is unknown")
    if getattr(config, "kv_lora_rank", None):
        raise ModelError(f"{name}: latent attention (kv_lora_rank) is not implemented by the plan")
    if not hasattr(model.base_model, "layers"):
        raise ModelError(f"{name}: no list of decoder layers found; this architecture is unknown")


def _sliding_layers(config: object) -> tuple[bool, ...]:
    """By layer, whether it attends over a sliding window."""
    count: int = config.num_hidden_layers  # type: ignore[attr-defined]
    kinds = getattr(config, "layer_types", None)
    if kinds is None:
        return (getattr(config, "sliding_window", None) is not None,) * count
    return tuple(kind == "sliding_attention" for kind in kinds)


def _head_dim(config: object) -> int:
    explicit = getattr(config, "head_dim", None)
    return explicit or config.hidden_size // config.num_attention_heads  # type: ignore[attr-defined, no-any-return]


def _eos_ids(model: PreTrainedModel) -> frozenset[int]:
    """End-of-sequence ids of the generation configuration, else of the model's."""
    for source in (getattr(model, "generation_config", None), model.config):
        ids = getattr(source, "eos_token_id", None)
        if ids is not None:
            return frozenset([ids] if isinstance(ids, int) else ids)
    return frozenset()
