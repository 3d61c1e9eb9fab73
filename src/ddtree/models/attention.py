"""The hook through which transformers' attention layers reach our plan.

transformers looks attention functions up by name. Ours is registered there and not among its
mask makers, so with `use_cache=False` it builds neither mask nor cache, and every decoder layer
calls the plan that was passed to `forward` as a keyword.
"""

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor, nn
from transformers import AttentionInterface

from ddtree.errors import ModelError

HOOK_NAME = "ddtree"


@dataclass(frozen=True)
class AttentionLayer:
    """Which layer attends, and how: `window` None means full attention, else a row at position p
    sees positions above p - window."""

    index: int
    scale: float
    window: int | None


class AttendPlan(Protocol):
    """Where rows' keys and values go and what each row sees, for one forward pass."""

    def attend(self, layer: AttentionLayer, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """q [B, H, S, C], k and v [B, G, S, C] (rotated already) -> [B, S, H, C]."""
        ...


def attend_through_plan(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    **options: object,
) -> tuple[Tensor, None]:
    """transformers' attention signature; `options` holds the plan, the scale and the window."""
    if attention_mask is not None:
        raise ModelError("transformers built an attention mask, which the plan would ignore")
    for name in ("softcap", "s_aux"):
        if options.get(name) is not None:
            raise ModelError(f"attention with {name} is not implemented; this model is unsupported")
    plan = options["plan"]
    scale = options.get("scaling")
    window = options.get("sliding_window")
    layer = AttentionLayer(
        int(module.layer_idx),  # type: ignore[arg-type]
        float(query.shape[-1] ** -0.5 if scale is None else scale),  # type: ignore[arg-type]
        None if window is None else int(window),  # type: ignore[call-overload]
    )
    return plan.attend(layer, query, key, value), None  # type: ignore[attr-defined]


def register_hook() -> None:
    """Make the hook known to transformers; calling it again changes nothing."""
    AttentionInterface.register(HOOK_NAME, attend_through_plan)
