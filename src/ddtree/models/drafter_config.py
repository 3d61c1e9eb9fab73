"""What a DFlash checkpoint's config.json says, checked and in one form.

Reads z-lab's format: a Qwen3 decoder's fields plus the drafter's own, which sit at top level or
inside `dflash_config`. Nothing is guessed: a key that is missing, of a wrong type, contradicted
elsewhere or asks for a variant this package does not compute raises a ModelError that names it.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

from ddtree.core import WindowKind
from ddtree.errors import ConfigError, ModelError
from ddtree.models.config_fields import ConfigFields
from ddtree.models.drafter_rope import read_rope
from ddtree.models.drafter_window import DrafterOverrides, Origin, read_window

ARCHITECTURE = "DFlashDraftModel"

# Keys of DFlash's relatives that change what the network computes, with the values that leave it
# a plain DFlash drafter.
_VARIANT_KEYS: Mapping[str, tuple[object, ...]] = {
    "projector_type": ("dflash",),
    "attention_mode": ("gqa", "mha"),
    "selector_rank": (0,),
    "selector_top_k": (0,),
    "conv_kernel_size": (0,),
    "markov_rank": (0,),
    "gru_hidden_dim": (0,),
    "draft_vocab_size": (),
    "sample_from_anchor": (False,),
    "final_logit_softcapping": (),
    "output_multiplier": (1, 1.0),
    "attention_sink": (False,),
    "mlp_bias": (False,),
}


class TargetFields(Protocol):
    """The fields of a target's configuration that a drafter must agree with."""

    hidden_size: int
    vocab_size: int
    num_hidden_layers: int


@dataclass(frozen=True)
class ResolvedWindow:
    """Committed tokens that a block's first row sees at most, and how many are kept for it.

    A full per-query window is a block longer than its ring, so that it hides nothing from the last
    row either.
    """

    tokens: int
    ring: int


@dataclass(frozen=True)
class DrafterConfig:
    """A drafter's shapes and rules.

    `rope_scaling` is None for plain rotary embeddings, else a checked dict with `rope_type` of
    linear, yarn or llama3. `causal`: a row of the block sees later rows only if it is False.
    `layer_windows[i]` is the number of committed context tokens that layer i was trained with,
    None for all of them; `window` is the largest, None if any layer sees the full context.
    `window_kind`: "anchored" windows end at the anchor for every row of the block, "per-query"
    windows move with the row. `target_layer_ids` index the target's decoder layers from 0;
    features are their outputs, concatenated in this order.
    """

    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    rms_norm_eps: float
    attention_bias: bool
    rope_theta: float
    rope_scaling: dict[str, object] | None
    max_positions: int
    block_size: int
    mask_token_id: int
    target_layer_ids: tuple[int, ...]
    num_target_layers: int
    causal: bool
    window: int | None
    window_kind: WindowKind
    layer_windows: tuple[int | None, ...]
    causal_origin: Origin = "explicit key"
    window_kind_origin: Origin = "explicit key"

    def own_window(self, layer: int) -> int | None:
        """The window that `layer` keeps whatever draft_window is; None if draft_window is its
        window.

        Layers that are all alike have one window, which draft_window sets, shorter or longer.
        Where some slide and some don't, the sliding ones keep theirs and draft_window bounds all.
        """
        return self.layer_windows[layer] if len(set(self.layer_windows)) > 1 else None

    def check_window(self, wanted: int) -> str | None:
        """What is wrong with a draft_window of `wanted` tokens, None if nothing is."""
        if wanted > self.max_positions:
            return f"got {wanted}, the drafter's own limit is {self.max_positions} positions"
        if self.window_kind == "per-query" and wanted < self.block_size:
            return (
                f"got {wanted}, expected at least the drafter's block of {self.block_size}: a "
                "per-query window that is shorter would end inside the block"
            )
        return None

    def resolve_window(
        self, wanted: int | Literal["full"] | None, max_context: int
    ) -> ResolvedWindow:
        """A draft_window in an engine of `max_context` tokens; None takes the one that the
        checkpoint was trained with. ConfigError for what `check_window` refuses."""
        if wanted is None:
            wanted = self.window or "full"
        elif wanted != "full" and (fault := self.check_window(wanted)) is not None:
            raise ConfigError(f"draft_window: {fault}")
        largest = min(max_context, self.max_positions)
        reach = largest + self.block_size if self.window_kind == "per-query" else largest
        tokens = reach if wanted == "full" else min(wanted, reach)
        return ResolvedWindow(tokens, min(tokens, largest))


def load_drafter_config(folder: Path, overrides: DrafterOverrides | None = None) -> DrafterConfig:
    """Parse `folder`/config.json; ModelError if it is absent, no JSON object, or unusable."""
    path = folder / "config.json"
    try:
        fields = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ModelError(
            f"{path}: cannot be read ({error.strerror}); a drafter is a folder with config.json "
            "and model.safetensors"
        ) from error
    except ValueError as error:
        raise ModelError(f"{path}: not valid JSON ({error})") from error
    if not isinstance(fields, dict):
        raise ModelError(f"{path}: expected a JSON object, got {type(fields).__name__}")
    return parse_drafter_config(fields, str(path), overrides)


def parse_drafter_config(
    fields: Mapping[str, object],
    source: str = "config.json",
    overrides: DrafterOverrides | None = None,
) -> DrafterConfig:
    """Check a decoded config.json; `source` opens every error message.

    Optional, with the format's own defaults: attention_bias (False), hidden_act (silu),
    architectures; the window and causality keys as `DrafterConfig` describes.
    """
    reader = ConfigFields(fields, source)
    _refuse_variants(reader)
    num_layers = reader.integer("num_hidden_layers", minimum=1)
    vocab_size = reader.integer("vocab_size", minimum=1)
    num_target_layers = reader.integer("num_target_layers", minimum=1)
    block_size = reader.integer("block_size", minimum=2)
    seen = read_window(reader, num_layers, block_size, overrides or DrafterOverrides())
    rope = read_rope(reader)
    config = DrafterConfig(
        hidden_size=reader.integer("hidden_size", minimum=1),
        intermediate_size=reader.integer("intermediate_size", minimum=1),
        num_layers=num_layers,
        num_heads=reader.integer("num_attention_heads", minimum=1),
        num_kv_heads=reader.integer("num_key_value_heads", minimum=1),
        head_dim=reader.integer("head_dim", minimum=2),
        vocab_size=vocab_size,
        rms_norm_eps=reader.positive("rms_norm_eps"),
        attention_bias=reader.boolean("attention_bias", default=False),
        rope_theta=rope.theta,
        rope_scaling=rope.scaling,
        max_positions=reader.integer("max_position_embeddings", minimum=1),
        block_size=block_size,
        mask_token_id=_mask_token_id(reader, vocab_size),
        target_layer_ids=_target_layer_ids(reader, num_target_layers),
        num_target_layers=num_target_layers,
        causal=seen.causal,
        window=seen.window,
        window_kind=seen.window_kind,
        layer_windows=seen.layer_windows,
        causal_origin=seen.causal_origin,
        window_kind_origin=seen.window_kind_origin,
    )
    _check_heads(reader, config)
    return config


def check_against_target(
    config: DrafterConfig, target_config: TargetFields, fc_in_features: int
) -> None:
    """Raise a ModelError that names the key unless the drafter fits the target.

    The drafter uses the target's embedding and head, so hidden size and vocabulary must agree;
    `fc_in_features` is the input width of its feature projection.
    """
    pairs = (
        ("hidden_size", config.hidden_size, target_config.hidden_size),
        ("vocab_size", config.vocab_size, target_config.vocab_size),
        ("num_target_layers", config.num_target_layers, target_config.num_hidden_layers),
    )
    for key, ours, theirs in pairs:
        if ours != theirs:
            raise ModelError(
                f"drafter {key}: got {ours}, but the target has {theirs}; "
                "use the drafter that was trained for this target"
            )
    width = len(config.target_layer_ids) * target_config.hidden_size
    if fc_in_features != width:
        raise ModelError(
            f"drafter fc.weight: takes {fc_in_features} features, expected {width} = "
            f"{len(config.target_layer_ids)} target_layer_ids x target hidden_size "
            f"{target_config.hidden_size}; weights and config.json don't belong together"
        )


def _refuse_variants(reader: ConfigFields) -> None:
    architectures = reader.value("architectures")
    if architectures is not None and architectures != [ARCHITECTURE]:
        raise reader.error("architectures", architectures, f"[{ARCHITECTURE!r}]")
    activation = reader.value("hidden_act")
    if activation not in (None, "silu"):
        raise reader.error("hidden_act", activation, "'silu'")
    for key, neutral in _VARIANT_KEYS.items():
        value = reader.value(key)
        if value is not None and value not in neutral:
            allowed = " or ".join(repr(item) for item in neutral)
            expected = f"no such key{f' or {allowed}' if allowed else ''}: this variant of DFlash"
            raise reader.error(key, value, f"{expected} is not supported")


def _check_heads(reader: ConfigFields, config: DrafterConfig) -> None:
    if config.num_heads % config.num_kv_heads:
        raise reader.error(
            "num_key_value_heads",
            config.num_kv_heads,
            f"a divisor of num_attention_heads ({config.num_heads})",
        )
    if config.head_dim % 2:
        raise reader.error("head_dim", config.head_dim, "an even number (rotary halves)")


def _mask_token_id(reader: ConfigFields, vocab_size: int) -> int:
    mask_token_id = reader.integer("mask_token_id", minimum=0)
    if mask_token_id >= vocab_size:
        raise reader.error("mask_token_id", mask_token_id, f"an id below vocab_size ({vocab_size})")
    return mask_token_id


def _target_layer_ids(reader: ConfigFields, num_target_layers: int) -> tuple[int, ...]:
    key = "target_layer_ids"
    ids = reader.integers(key)
    if not ids:
        raise reader.error(key, [], "at least one layer id")
    if len(set(ids)) != len(ids):
        raise reader.error(key, list(ids), "every layer id once")
    if min(ids) < 0 or max(ids) >= num_target_layers:
        raise reader.error(
            key, list(ids), f"ids from 0 to {num_target_layers - 1} (num_target_layers - 1)"
        )
    return ids
