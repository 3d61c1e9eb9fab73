"""Checks at load that the target computes through our plan what it computes by itself.

A mask, a position or an attention variant that is silently wrong costs acceptance or, worse,
correctness; both probes take a few forward passes of a dozen rows.
"""

import torch
from torch import Tensor

from ddtree.core import VerifyRows, causal_rows
from ddtree.engine.packing import PackedPlan, Segment
from ddtree.engine.plan import Decoder, Place, verify_plan
from ddtree.engine.pool import KVPool
from ddtree.errors import ModelError
from ddtree.models.drafter import Drafter
from ddtree.models.drafter_config import check_against_target
from ddtree.models.target import Target

# Largest root mean square deviation allowed between our logits and the model's own, relative to
# their spread. bfloat16 keeps 8 bits and the two paths round in different places.
TOLERANCE = {torch.bfloat16: 0.1, torch.float32: 1e-3, torch.float64: 1e-4}

_PLACE = Place(0, 16)  # beside which another prompt may stand in the pool


def check_pair(target: Target, drafter: Drafter) -> None:
    """Raise a ModelError unless drafter and target fit: sizes, features, dtype, device."""
    check_against_target(drafter.config, target.model.config, drafter.fc.in_features)
    if target.feature_layers != drafter.config.target_layer_ids:
        raise ModelError(
            f"the target captures layers {target.feature_layers}, the drafter reads "
            f"{drafter.config.target_layer_ids}: make the target with the drafter's layer ids"
        )
    weight = drafter.fc.weight
    for name, ours, theirs in (
        ("dtype", weight.dtype, target.dtype),
        ("device", weight.device, target.device),
    ):
        if ours != theirs:
            raise ModelError(
                f"the drafter's {name} is {ours}, the target's {theirs}; load both alike"
            )


@torch.inference_mode()
def probe_target(target: Target, decoder: Decoder | None = None) -> None:
    """Raise a ModelError unless the target passes both probes, through its fast twin if given."""
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(target.shape.vocab_size, (12,), generator=generator).to(target.device)
    _probe_parity(target, decoder or target, ids)
    _probe_siblings(target, decoder or target, ids)


def _probe_parity(target: Target, decoder: Decoder, ids: Tensor) -> None:
    """A prompt beside another's in one pass, then rows as rounds append them: every logit against
    the model's own forward pass."""
    own = target.reference_logits(ids)
    pool = _small_pool(target)
    plan = PackedPlan(pool, [Segment(16, 0, 5), Segment(0, 0, 7)])
    hidden, _ = decoder.forward(torch.cat([ids[:5], ids[:7]])[None], plan.positions, plan)
    ours = torch.cat([decoder.head(hidden)[0, 5:], _run(decoder, pool, 7, ids[7:])])
    error = _relative_error(ours.double(), own.double())
    limit = TOLERANCE.get(target.dtype, 0.1)
    if not error <= limit:
        raise ModelError(
            f"{type(target.model).__name__}, run by {type(decoder).__name__}: logits through the "
            "plan differ from the model's own "
            f"by {error:.3g} of their spread (limit {limit:g}); this architecture needs something "
            "that the attention hook does not do"
        )


def _relative_error(ours: Tensor, own: Tensor) -> float:
    """Root mean square deviation relative to the spread, of logits that not both rule out."""
    told = (ours != -torch.inf) | (own != -torch.inf)
    return float((ours - own)[told].square().mean().sqrt() / own[told].std())


def _probe_siblings(target: Target, decoder: Decoder, ids: Tensor) -> None:
    """Change one leaf's token: no other row's logits may move by a single bit."""
    outputs = []
    for leaf in (ids[5], (ids[5] + 1) % target.shape.vocab_size):
        pool = _small_pool(target)
        _run(decoder, pool, 0, ids[:4])
        row = torch.stack([ids[4], leaf, ids[6], ids[7]])[None]
        # Root, two siblings below it, and a child of the second.
        visible = torch.tensor(
            [[[1, 0, 0, 0], [1, 1, 0, 0], [1, 0, 1, 0], [1, 0, 1, 1]]], device=row.device
        ).bool()
        positions = 4 + torch.tensor([[0, 1, 1, 2]], device=row.device)
        rows = VerifyRows(row, positions, visible, torch.ones_like(row, dtype=torch.bool))
        hidden, _ = decoder.forward(row, positions, verify_plan(pool, [_PLACE], [4], rows))
        outputs.append(decoder.head(hidden)[0])
    if not torch.equal(outputs[0][[0, 2, 3]], outputs[1][[0, 2, 3]]):
        raise ModelError(
            f"{type(target.model).__name__}: a draft node's logits depend on its sibling; trees "
            "can't be verified on this architecture"
        )


def _run(decoder: Decoder, pool: KVPool, length: int, ids: Tensor) -> Tensor:
    """Logits [S, V] of plain text appended at `length`."""
    rows = causal_rows(ids[None], length + torch.arange(len(ids), device=ids.device)[None])
    hidden, _ = decoder.forward(
        rows.ids, rows.positions, verify_plan(pool, [_PLACE], [length], rows)
    )
    return decoder.head(hidden)[0]


def _small_pool(target: Target) -> KVPool:
    shape = target.shape
    heads = (shape.num_kv_heads, shape.head_dim)
    return KVPool(shape.num_layers, 32, heads, target.dtype, target.device)
