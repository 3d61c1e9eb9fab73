"""A target and a drafter that run through lean layers."""

from torch import Tensor
from torch.nn.functional import linear

from ddtree.engine.kernels.layers import Rotary, add_norm, rotate
from ddtree.engine.lean.layers import lean_layer
from ddtree.engine.lean.stack import LeanStack, Shape, turns_of
from ddtree.engine.plan import CellPlan
from ddtree.engine.pool import KVPool
from ddtree.models.attention import AttentionLayer
from ddtree.models.drafter import Drafter
from ddtree.models.target import Target

# Whose layers differ in biases and in the norms of heads alone.
FAMILY = ("llama", "qwen2", "qwen3")


def refusal(target: Target) -> str | None:
    """Why a target's layers can't be run lean, None if they can."""
    config = target.model.config
    if config.model_type not in FAMILY:
        return f"model_type {config.model_type} is not one of {', '.join(FAMILY)}"
    if config.hidden_act != "silu":
        return f"hidden_act {config.hidden_act} is not silu"
    if getattr(config, "mlp_bias", False):
        return "its MLP has biases"
    return None


class LeanTarget:
    """`Target` with plans that tell their cells; ValueError for one that `refusal` names."""

    def __init__(self, target: Target) -> None:
        reason = refusal(target)
        if reason is not None:
            raise ValueError(f"no lean layers for this target: {reason}")
        self._target = target
        decoder, config = target.model.base_model, target.model.config
        windows = [config.sliding_window if slides else None for slides in target.sliding_layers]
        layers = [
            lean_layer(module, AttentionLayer(i, target.shape.head_dim**-0.5, window))
            for i, (module, window) in enumerate(zip(decoder.layers, windows, strict=True))
        ]
        turns = turns_of(decoder.rotary_emb, target.shape.max_positions, target.device)
        shape = Shape(config.num_attention_heads, config.rms_norm_eps)
        self._stack = LeanStack(layers, decoder.norm.weight, shape, turns)

    def forward(
        self, ids: Tensor, positions: Tensor, plan: CellPlan, *, features: bool = False
    ) -> tuple[Tensor, Tensor | None]:
        """See `Target.forward`."""
        taps = self._target.feature_layers if features else ()
        return self._stack.run(self._target.embed(ids), positions, plan, taps)

    def head(self, hidden: Tensor) -> Tensor:
        """See `Target.head`."""
        return self._target.head(hidden)


class LeanDrafter:
    """`ddtree.engine.fixed.drafting.Network` over a drafter's weights."""

    def __init__(self, drafter: Drafter) -> None:
        config = drafter.config
        device = drafter.norm.weight.device
        self._drafter, self._eps = drafter, config.rms_norm_eps
        self._layers = [lean_layer(module, module.self_attn.layer) for module in drafter.layers]  # type: ignore[union-attr, arg-type]
        self._turns = turns_of(drafter.rotary, config.max_positions, device)
        shape = Shape(config.num_heads, config.rms_norm_eps)
        self._stack = LeanStack(self._layers, drafter.norm.weight, shape, self._turns)
        self._queries = config.num_heads * config.head_dim

    def __call__(self, embedded: Tensor, positions: Tensor, plan: CellPlan) -> Tensor:
        """See `Drafter.forward`."""
        return self._stack.run(embedded, positions, plan)[0][:, 1:]

    def feed(self, pool: KVPool, cells: Tensor, features: Tensor, positions: Tensor) -> None:
        """Keys and values of features [n, F] at positions [n] into cells [n] of all layers."""
        drafter = self._drafter
        mixed = linear(features, drafter.fc.weight)
        hidden, _ = add_norm(None, mixed, drafter.hidden_norm.weight, self._eps, None)
        for number, layer in enumerate(self._layers):
            bias = layer.joined_bias
            joined = linear(
                hidden,
                layer.joined[self._queries :],
                None if bias is None else bias[self._queries :],
            )
            rotary = Rotary(*self._turns, layer.k_norm, layer.k_norm, self._eps)
            rotate(joined, pool.layer(number), cells, positions, rotary, 0)
