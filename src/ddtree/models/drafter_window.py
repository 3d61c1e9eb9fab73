"""Which context a drafter's layers see: read from its config.json, or overridden.

Two things are open in a DFlash checkpoint and change what it proposes, never what is emitted:
where the window on the context ends for the later rows of a block, and whether a row sees the rows
behind it. Explicit keys decide; only where they are absent do the layers' types.
"""

from dataclasses import dataclass
from typing import Literal, get_args

from ddtree.core import WindowKind
from ddtree.errors import ConfigError, ModelError
from ddtree.models.config_fields import ConfigFields

Origin = Literal["override", "explicit key", "layer types"]


@dataclass(frozen=True)
class DrafterOverrides:
    """Meanings to use in place of the checkpoint's; None leaves it the word.

    Lengths stay: an override to per-query lets the window move with the row, be it a layer's own
    or draft_window, one to anchored holds it at the anchor. ConfigError on any other value.
    """

    window_kind: WindowKind | None = None
    causal: bool | None = None

    def __post_init__(self) -> None:
        kinds = get_args(WindowKind)
        if self.window_kind is not None and self.window_kind not in kinds:
            raise ConfigError(
                f"window_kind: got {self.window_kind!r}, expected {' or '.join(kinds)}"
            )
        if self.causal not in (None, True, False):
            raise ConfigError(f"draft_causal: got {self.causal!r}, expected true or false")


@dataclass(frozen=True)
class WindowReading:
    """What a checkpoint and the overrides say together, fields as in `DrafterConfig`."""

    causal: bool
    causal_origin: Origin
    window: int | None
    window_kind: WindowKind
    window_kind_origin: Origin
    layer_windows: tuple[int | None, ...]


def read_window(
    reader: ConfigFields, num_layers: int, block_size: int, overrides: DrafterOverrides
) -> WindowReading:
    """Windows by layer, and both meanings with their origin; ModelError names a key that can't be
    used."""
    layers = _layer_windows(reader, num_layers)
    causal, causal_origin = _causal(reader, layers, overrides)
    kind, kind_origin = _window_kind(reader, layers, overrides)
    shortest = min((window for window in layers if window is not None), default=block_size)
    if kind == "per-query" and shortest < block_size:
        raise reader.error(
            "sliding_window",
            shortest,
            f"at least block_size ({block_size}), because a per-query window that is shorter "
            "would end inside the block",
        )
    return WindowReading(causal, causal_origin, _trained(layers), kind, kind_origin, layers)


def _causal(
    reader: ConfigFields, layers: tuple[int | None, ...], overrides: DrafterOverrides
) -> tuple[bool, Origin]:
    if overrides.causal is not None:
        return overrides.causal, "override"
    explicit = reader.value("is_causal", "causal")
    if isinstance(explicit, bool):
        return explicit, "explicit key"
    if explicit is not None:
        raise reader.error("is_causal", explicit, "true or false")
    sliding = {window is not None for window in layers}
    if len(sliding) > 1:
        raise ModelError(
            f"{reader.source}: is_causal is missing and layer_types mixes full and sliding "
            "attention, which leaves open whether rows of a block see later rows; "
            'add "is_causal": true or false as the checkpoint was trained, or override it'
        )
    return sliding == {True}, "layer types"


def _window_kind(
    reader: ConfigFields, layers: tuple[int | None, ...], overrides: DrafterOverrides
) -> tuple[WindowKind, Origin]:
    if overrides.window_kind is not None:
        return overrides.window_kind, "override"
    explicit = reader.value("window")
    if explicit == "anchored":
        return "anchored", "explicit key"
    if explicit == "per-query":
        return "per-query", "explicit key"
    if explicit is not None:
        raise reader.error("window", explicit, "'anchored' or 'per-query'")
    full = all(window is None for window in layers)
    return "anchored" if full else "per-query", "layer types"


def _trained(layers: tuple[int | None, ...]) -> int | None:
    windows = [window for window in layers if window is not None]
    return max(windows) if len(windows) == len(layers) else None


def _layer_windows(reader: ConfigFields, num_layers: int) -> tuple[int | None, ...]:
    enabled = reader.value("use_sliding_window", "use_swa")
    if enabled is not None and not isinstance(enabled, bool):
        raise reader.error("use_sliding_window", enabled, "true or false")
    window = reader.optional_integer("sliding_window", "swa_window_size", minimum=1)
    layer_types = reader.value("layer_types")
    if layer_types is None:
        sliding = _sliding_by_depth(reader, num_layers, window if enabled else None)
    else:
        sliding = _sliding_by_type(reader, layer_types, num_layers)
    if any(sliding) and enabled is False:
        raise reader.error(
            "use_sliding_window", False, "true, because layer_types has sliding_attention layers"
        )
    if any(sliding) and window is None:
        raise reader.error(
            "sliding_window", None, "a number of tokens, because some layers are sliding"
        )
    return tuple(window if slides else None for slides in sliding)


def _sliding_by_type(reader: ConfigFields, layer_types: object, num_layers: int) -> list[bool]:
    known = ("full_attention", "sliding_attention")
    if not isinstance(layer_types, list) or any(kind not in known for kind in layer_types):
        raise reader.error("layer_types", layer_types, f"a list of {' or '.join(known)}")
    if len(layer_types) != num_layers:
        raise reader.error(
            "layer_types", layer_types, f"one entry per layer (num_hidden_layers is {num_layers})"
        )
    return [kind == "sliding_attention" for kind in layer_types]


def _sliding_by_depth(reader: ConfigFields, num_layers: int, window: int | None) -> list[bool]:
    """Qwen3's rule without layer_types: layers from max_window_layers on slide."""
    if window is None:
        return [False] * num_layers
    first = reader.integer("max_window_layers", minimum=0)
    return [layer >= first for layer in range(num_layers)]
