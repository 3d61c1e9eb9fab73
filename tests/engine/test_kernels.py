"""Every kernel against its slow twin: on a CPU by Triton's interpreter, on a GPU as it is."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from transformers import Qwen2Config, Qwen3Config
from transformers.models.qwen3.modeling_qwen3 import Qwen3RMSNorm

from ddtree import core
from ddtree.core.heap import build_heap
from ddtree.core.walk import UNVISITED
from ddtree.engine import kernels
from ddtree.engine.fixed.parts import ACTIVE, STALLED, Choices, FixedPlan
from ddtree.engine.fixed.reach import Reach, pack_bits
from ddtree.engine.fixed.state import COLUMNS, Rows
from ddtree.engine.fixed.torch_parts import TorchParts
from ddtree.engine.fixed.triton_parts import TritonParts
from ddtree.engine.kernels import attention, growth, layers, settle, topk
from ddtree.engine.lean.models import LeanDrafter, LeanTarget, refusal
from ddtree.engine.plan import DraftCells
from ddtree.engine.pool import KVPool
from ddtree.models.attention import AttentionLayer
from ddtree.models.target import Target
from support.tiny import FEATURE_LAYERS, SHAPE, tiny_config, tiny_drafter, tiny_model, tiny_target

LAUNCH = re.compile(r"^ +(_\w+)\[\(", re.M)
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


@pytest.fixture
def device():
    return DEVICE


def generator(seed):
    return torch.Generator().manual_seed(seed)


def made_pool(device, heads=(2, 8), dtype=torch.float32, size=640, layers=1):
    """Numbers everywhere, and none where nobody may look."""
    pool = KVPool(layers, size, heads, dtype, device)
    pool.cells.copy_(torch.randn(pool.cells.shape, generator=generator(1)))
    return pool


def made_reach(device, batch, rows, ring, seed=0):
    """Requests of several lengths, far apart; a drafter's block lies before its ring."""
    draw = generator(seed)
    first = torch.arange(batch) * 140 + 20
    length = torch.randint(0, 110, (batch,), generator=draw)
    length[0] = 0
    held = length.clamp(max=ring) if ring else length
    depths = torch.randint(1, 5, (batch, rows), generator=draw)
    depths[:, 0] = 0
    visible = torch.rand(batch, rows, rows, generator=draw) < 0.3
    visible |= torch.eye(rows, dtype=torch.bool)
    return Reach(
        first=first.to(device),
        held=held.to(device),
        own=(first - 20 if ring else first + held).to(device),
        positions=(length[:, None] + depths).to(device),
        bits=pack_bits(visible).to(device),
        windows=torch.randint(3, 90, (batch,), generator=draw).to(device) if ring else None,
        anchored=bool(ring),
        ring=ring,
        columns=ring or 120,
    )


SHAPES = [
    # batch, heads, groups, dim, rows, layer's window, ring, splits
    (2, 4, 2, 8, 5, None, 0, 1),
    (2, 4, 2, 8, 5, None, 0, 3),
    (1, 6, 2, 16, 33, None, 0, 2),
    (3, 2, 2, 8, 65, 4, 0, 2),
    (3, 4, 2, 8, 5, None, 48, 2),
    (2, 9, 3, 24, 9, 7, 64, 1),
    (4, 8, 1, 12, 1, None, 0, 4),
]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_attention(device, shape):
    """Against float64, with no numbers in every cell that nobody sees."""
    batch, heads, groups, dim, rows, window, ring, splits = shape
    pool, reach = made_pool(device, (groups, dim)), made_reach(device, batch, rows, ring)
    q = torch.randn(batch, rows, heads, dim, generator=generator(2)).to(device).transpose(1, 2)
    layer, lowest = AttentionLayer(0, dim**-0.5, window), reach.lowest(window)
    wide = KVPool(1, pool.size, pool.heads, torch.float64, device)
    wide.cells.copy_(pool.cells)
    truth = TorchParts(1, 1, 1, device).attend(wide, layer, q.double(), (reach, lowest))
    taken = torch.cat(
        [reach.cells]
        + [
            first + torch.arange(held, device=device)
            for first, held in zip(reach.first, reach.held.tolist(), strict=True)
        ]
    )
    hidden = torch.ones(pool.size, dtype=torch.bool, device=device).index_fill(0, taken, False)
    pool.cells[:, :, hidden] = torch.nan
    run = attention.TreeAttention(device)
    seen = attention.Sight(
        reach.first, reach.held, reach.own, reach.positions, lowest, reach.bits, reach.ring
    )
    for _ in range(2):
        found = run(pool.layer(0), q, groups, layer.scale, seen, attention.Tiling(16, 16, splits))
        assert (found - truth).abs().max() < 2e-6


@pytest.mark.gpu
def test_attention_in_bfloat16(device):
    """float32 sums: off by roundings of the output and of the weights, whatever the length. The
    interpreter multiplies bfloat16's bits."""
    pool, reach = made_pool(device, dtype=torch.bfloat16), made_reach(device, 2, 9, 0)
    q = torch.randn(2, 4, 9, 8, generator=generator(2)).to(device, torch.bfloat16)
    layer = AttentionLayer(0, 8**-0.5, None)
    wide = KVPool(1, pool.size, pool.heads, torch.float64, device)
    wide.cells.copy_(pool.cells)
    truth = TorchParts(1, 1, 1, device).attend(wide, layer, q.double(), (reach, None))
    parts = TritonParts(1, attention.TreeAttention(device), 64)
    found = parts.attend(pool, layer, q, (reach, None)).double()
    assert (found - truth).abs().max() < 2**-7


def test_compiles_for_a_gpu(tmp_path):
    """The interpreter runs what a compiler refuses: here is the compiler, without a GPU."""
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    environment["TRITON_CACHE_DIR"] = str(tmp_path)
    run = subprocess.run(
        [sys.executable, "-m", "support.compiling"],
        cwd=Path(__file__).parents[1],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr[-3000:]
    here = Path(kernels.__file__).parent.glob("*.py")
    launched = {f"{path.stem}.{name}" for path in here for name in LAUNCH.findall(path.read_text())}
    assert {name.removeprefix(f"{kernels.__name__}.") for name in run.stdout.split()} == launched


def test_tiling():
    """Splits while the device has room for it, never for a large batch; a tile as high as its rows,
    low ones where there are few."""
    cuts = [(1, 3, 51, 64), (8, 3, 51, 64), (64, 8, 68, 128), (1, 3, 195, 64), (32, 3, 3, 64)]
    found = [attention.tiling_of(*cut, 396) for cut in cuts]
    assert [(one.block_m, one.splits) for one in found] == [
        (16, 16),
        (64, 16),
        (128, 1),
        (64, 16),
        (16, 4),
    ]
    assert all(one.block_n * one.least == 128 for one in found)


def coarse_logits(shape, seed, digits):
    """With ties, since values are rounded."""
    return torch.randn(shape, generator=generator(seed)).round(decimals=digits)


@pytest.mark.parametrize(
    ("vocab", "depth", "count", "digits"),
    [(61, 4, 4, 6), (5000, 7, 8, 1), (9000, 2, 3, 0), (10, 2, 16, 6)],
)
def test_candidates(device, vocab, depth, count, digits):
    logits = coarse_logits((3, depth, vocab), 0, digits)
    logits[2, 1, 3] = torch.nan
    logits[1, 0, 2:] = -torch.inf
    wanted = core.top_candidates(logits, count)
    found = topk.top_candidates(logits.to(device), count)
    assert torch.equal(found.invalid.cpu(), wanted.invalid)
    numbers = wanted.log_probs > -torch.inf
    assert torch.equal(found.tokens.cpu()[numbers], wanted.tokens[numbers])
    torch.testing.assert_close(found.log_probs.cpu(), wanted.log_probs, atol=1e-5, rtol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_best_tokens(device, dtype):
    logits = coarse_logits((2, 5, 9000), 3, 1).to(dtype)
    logits[0, 1, 4], logits[1, 2, 5], logits[1, 3, 6] = torch.nan, torch.inf, -torch.inf
    tokens, invalid = topk.best_tokens(logits.to(device))
    marked = torch.zeros(2, 5, dtype=torch.bool)
    marked[0, 1] = marked[1, 2] = True
    assert torch.equal(invalid.cpu(), marked)
    best = logits.max(-1).indices
    assert torch.equal(tokens.cpu()[~marked], best[~marked])


@pytest.mark.parametrize("width", [1, 5, 31, 32, 33, 70])
@pytest.mark.parametrize("digits", [6, 0])
def test_growth(device, width, digits):
    """The heap's trees, node for node, ties included, and the rows that verify them."""
    candidates = core.top_candidates(coarse_logits((4, 6, 40), width, digits), 5)
    candidates.log_probs[3, 1:] = -torch.inf
    budgets, topks = torch.tensor([width, width // 2, 0, width]), torch.tensor([5, 2, 5, 9])
    roots = torch.tensor([7, 8, 9, 10]), torch.tensor([100, 5, 0, 3])
    wanted = build_heap(candidates, budgets.tolist(), topks.tolist())
    there = core.Candidates(*(part.to(device) for part in vars(candidates).values()))
    limits = budgets.to(device), topks.to(device)
    tree, *rows = growth.grow(there, width, limits, tuple(part.to(device) for part in roots))
    for name in ("tokens", "parents", "depths", "ranks", "scores", "counts"):
        own, padded = getattr(wanted, name), getattr(tree, name).cpu()
        assert torch.equal(padded[..., : own.shape[-1]], own), name
    if wanted.width < width:
        return
    laid = core.layout_tree(wanted, *roots)
    for found, right in zip(rows, (laid.ids, laid.positions, pack_bits(laid.visible)), strict=True):
        assert torch.equal(found.cpu(), right)


def test_digits():
    """A path's ranks fit one number for a block of 16 with 16 candidates, not for any."""
    assert growth.digits_fit(15, 16)
    assert not growth.digits_fit(15, 64)


def made_ints(device, slots=5):
    """State of requests: one is at its end, one beyond the drafter's last root."""
    ints = torch.zeros(slots + 1, len(COLUMNS) - 2, dtype=torch.int64)
    ints[:, COLUMNS["base"]] = torch.arange(slots + 1) * 100
    ints[:slots, COLUMNS["length"]] = torch.tensor([3, 40, 9, 17, 11])[:slots]
    ints[:slots, COLUMNS["end"]] = 40
    ints[:slots, COLUMNS["last_root"]] = torch.tensor([60, 60, 60, 16, 60])[:slots]
    ints[:slots, COLUMNS["budget"]] = 9
    ints[:slots, COLUMNS["topk"]] = 3
    ints[:, COLUMNS["root"]] = torch.arange(slots + 1) + 20
    return ints.to(device)


@pytest.mark.parametrize("slots", [[0, 1, 2, 3, 5, 5], [4], [3, 0, 2]])
def test_open_rows(device, slots):
    ints, chosen = made_ints(device), torch.tensor(slots, device=device)
    found = settle.open_rows(ints, chosen, COLUMNS)
    assert torch.equal(found, TorchParts(1, 1, 1, device).open(ints, chosen))


def made_round(device, seed, unknown):
    """Rows, trees and choices that follow them for some way; some choices are not known."""
    ints = made_ints(device)
    draw = generator(seed)
    slots = torch.tensor([0, 1, 2, 3, 4, 5], device=device)
    parts = TorchParts(9, 3, 4, device)
    rows = Rows(parts.open(ints, slots), torch.zeros(6, 3), torch.zeros(6, 3, 4))
    logits = torch.randn(6, 4, 12, generator=draw).to(device)
    grown = parts.grow(core.top_candidates(logits, 3), rows)
    tokens = torch.randint(0, 12, (6, 10), generator=draw).to(device)
    children = grown.tree.parents.cpu()
    for b in range(6):
        for n in reversed(range(9)):
            if torch.rand((), generator=draw) < 0.7:
                tokens[b, children[b, n]] = grown.tree.tokens[b, n]
    if unknown:
        lost = torch.rand(6, 10, generator=draw) < 0.4
        tokens = tokens.masked_fill(lost.to(device), UNVISITED)
    invalid = (torch.rand(6, 10, generator=draw) < 0.2).to(device)
    return ints, rows, grown, Choices(tokens, invalid), (torch.arange(6, device=device) == 4)


@pytest.mark.parametrize("unknown", [False, True])
@pytest.mark.parametrize("seed", range(6))
def test_settle(device, seed, unknown):
    given = made_round(device, seed, unknown)
    own = given[0].clone()
    wanted = TorchParts(9, 3, 4, device).settle(*given)
    found = TritonParts(9, attention.TreeAttention(device), 8).settle(own, *given[1:])
    assert torch.equal(own[:-1], given[0][:-1])
    assert torch.equal(found.count, wanted.count)
    for b, count in enumerate(wanted.count.tolist()):
        kept = [STALLED, ACTIVE, *range(2, 6), *range(6, 7 + count)]
        kept += [*range(11, 11 + count), *range(15, 15 + count)]
        assert found.report[b, kept].tolist() == wanted.report[b, kept].tolist()
        assert found.rows[b, : count + 1].tolist() == wanted.rows[b, : count + 1].tolist()


def test_move(device):
    """All layers, rows that overlap with where they go, and rows that stay."""
    rows = torch.tensor([[0, 2, 3, 8, 4], [0, 1, 2, 3, 4], [0, 1, 9, 3, 4]], device=device)
    first = torch.tensor([5, 100, 200], device=device)
    pools = [made_pool(device, (3, 8), size=300, layers=3) for _ in range(2)]
    settle.move(pools[0].cells, first, rows)
    TorchParts(1, 1, 1, device).move(pools[1], first, rows)
    assert torch.equal(pools[0].cells, pools[1].cells)


@pytest.mark.parametrize("ring", [2, 48])
def test_taken(device, ring):
    given = made_round(device, 1, False)
    twin, parts = TorchParts(9, 3, 4, device), TritonParts(9, attention.TreeAttention(device), 8)
    settled = twin.settle(*given)
    features = torch.randn(6, 10, 40, generator=generator(3)).to(device)
    sizes = 5, DraftCells(5, ring)
    for found, wanted in zip(
        parts.taken(features, settled, given[1], sizes),
        twin.taken(features, settled, given[1], sizes),
        strict=True,
    ):
        assert torch.equal(found, wanted)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_add_norm(device, dtype):
    delta, residual = torch.randn(2, 5, 48, generator=generator(0)).to(device, dtype)
    norm = Qwen3RMSNorm(48, eps=1e-5).to(device, dtype)
    norm.weight.data = torch.randn(48, generator=generator(1)).to(device, dtype)
    wide = torch.zeros(5, 2, 48, dtype=dtype, device=device)
    found, summed = layers.add_norm(delta, residual, norm.weight, 1e-5, wide[:, 1])
    # The interpreter cuts bfloat16 off where a GPU rounds.
    tolerance = 1e-6 if dtype == torch.float32 else 2**-6
    torch.testing.assert_close(summed, delta + residual, atol=tolerance, rtol=tolerance)
    assert torch.equal(wide[:, 1], summed)
    assert not wide[:, 0].any()
    torch.testing.assert_close(found, norm(summed), atol=tolerance, rtol=tolerance)
    alone, same = layers.add_norm(None, summed, norm.weight, 1e-5, None)
    assert torch.equal(alone, found)
    assert same is summed


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_gate(device, dtype):
    joined = torch.randn(3, 2 * 1500, generator=generator(0)).to(device, dtype)
    wanted = torch.nn.functional.silu(joined[:, :1500]) * joined[:, 1500:]
    torch.testing.assert_close(layers.gate(joined), wanted)


LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 1e4,
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
SLIDING = {"use_sliding_window": True, "sliding_window": 5, "max_window_layers": 1}
CONFIGS = {
    "llama": tiny_config(),
    "llama-biases": tiny_config(attention_bias=True),
    "llama3-rope": tiny_config(rope_parameters=LLAMA3),
    "qwen2": Qwen2Config(**SHAPE),
    "qwen2-sliding": Qwen2Config(**SHAPE, **SLIDING),
    "qwen3": Qwen3Config(**SHAPE, head_dim=16),
}


def test_lean_target_of_every_kind(device):
    """Hidden states and features of transformers' own forward pass, keys in the same cells."""
    for name, config in CONFIGS.items():
        model = tiny_model(config, dtype=torch.float32)
        for parameter in model.parameters():
            if parameter.dim() == 1:
                torch.nn.init.normal_(parameter, std=0.5)
        target = Target(model.to(device), FEATURE_LAYERS)
        reach = made_reach(device, 2, 5, 0)
        parts = TorchParts(1, 1, 1, device)
        pools = [
            made_pool(device, (target.shape.num_kv_heads, target.shape.head_dim), layers=3)
            for _ in range(2)
        ]
        ids = torch.randint(0, 61, (2, 5), generator=generator(4)).to(device)
        plain = target.forward(
            ids, reach.positions, FixedPlan(pools[0], reach, parts), features=True
        )
        lean = LeanTarget(target).forward(
            ids, reach.positions, FixedPlan(pools[1], reach, parts), features=True
        )
        for found, wanted in zip(lean, plain, strict=True):
            assert (found - wanted).abs().max() < 1e-4 * wanted.abs().max(), name
        torch.testing.assert_close(pools[1].cells, pools[0].cells, atol=1e-4, rtol=1e-4)
        # The modules' parameters are views of the packed ones: nothing changed for them.
        again = target.forward(ids, reach.positions, FixedPlan(pools[0], reach, parts))
        assert torch.equal(again[0], plain[0])


def test_lean_drafter(device):
    target = tiny_target(dtype=torch.float32)
    drafter = tiny_drafter(target).to(device)
    reach, parts = made_reach(device, 3, 5, 48), TorchParts(1, 1, 1, device)
    pools = [made_pool(device, layers=2) for _ in range(2)]
    features = torch.randn(7, 64, generator=generator(5)).to(device)
    positions = torch.arange(7, device=device) + 30
    embedded = torch.randn(3, 5, 32, generator=generator(6)).to(device)
    lean = LeanDrafter(drafter)
    lean.feed(pools[0], positions + 2, features, positions)
    pools[1].write_all(positions + 2, drafter.context(features[None], positions[None]))
    torch.testing.assert_close(pools[0].cells, pools[1].cells, atol=1e-5, rtol=1e-4)
    found = lean(embedded, reach.positions, FixedPlan(pools[0], reach, parts))
    wanted = drafter(embedded, reach.positions, FixedPlan(pools[1], reach, parts))
    torch.testing.assert_close(found, wanted, atol=1e-5, rtol=1e-4)


def test_no_lean_layers_for_strangers():
    target = tiny_target(dtype=torch.float32, mlp_bias=True)
    assert "biases" in refusal(target)
    with pytest.raises(ValueError, match="biases"):
        LeanTarget(target)
    assert refusal(tiny_target(hidden_act="gelu")) == "hidden_act gelu is not silu"
