"""A round's parts in plain torch: the slow twins of the kernels, and all there is on a CPU."""

import torch
from torch import Tensor
from torch.nn.functional import pad, scaled_dot_product_attention

from ddtree.core import (
    Acceptance,
    Candidates,
    LevelwiseBuilder,
    VerifyRows,
    accept,
    layout_tree,
    top_candidates,
)
from ddtree.core.walk import UNVISITED
from ddtree.engine.fixed.parts import Choices, Grown, Settled
from ddtree.engine.fixed.reach import Reach, pack_bits, unpack_bits
from ddtree.engine.fixed.state import COLUMNS, Rows
from ddtree.engine.plan import DraftCells, additive_mask
from ddtree.engine.pool import KVPool
from ddtree.models.attention import AttentionLayer


class TorchParts:
    """Trees have `width` nodes, of `topk` candidates at each of `depth` depths."""

    def __init__(self, width: int, topk: int, depth: int, device: torch.device) -> None:
        self._builder = LevelwiseBuilder(width, topk, depth, device)

    def open(self, ints: Tensor, slots: Tensor) -> Tensor:
        """See `Parts`."""
        own = ints.index_select(0, slots)
        active = own[:, COLUMNS["length"]] < own[:, COLUMNS["end"]]
        # A request at its end still has its slot for a round; its run has no room for another.
        who = torch.where(active, slots, len(ints) - 1)
        table = torch.cat([ints.index_select(0, who), who[:, None], active.long()[:, None]], 1).T
        drafts = table[COLUMNS["length"]] <= table[COLUMNS["last_root"]]
        budgets = table[COLUMNS["budget"]] * drafts
        return table.contiguous().index_copy_(
            0, torch.tensor([COLUMNS["budget"]], device=ints.device), budgets[None]
        )

    def attend(
        self, pool: KVPool, layer: AttentionLayer, q: Tensor, sight: tuple[Reach, Tensor | None]
    ) -> Tensor:
        """See `Parts`. Copies the keys of every column that could be held."""
        batch, heads, rows, dim = q.shape
        groups, reach = pool.heads[0], sight[0]
        columns = torch.arange(reach.columns, device=q.device)
        index = torch.cat([reach.first[:, None] + columns, reach.cells.view(batch, rows)], 1)
        keys, values = (
            cells[index.clamp(max=pool.size - 1)].view(batch, -1, groups, dim).transpose(1, 2)
            for cells in pool.layer(layer.index)
        )
        seen = visible(*sight)
        # What nobody sees may hold no numbers, and zero times those is none either.
        known = seen.any(1)[:, None, :, None]
        attended = scaled_dot_product_attention(
            q.reshape(batch, groups, -1, dim),
            keys.where(known, 0),
            values.where(known, 0),
            attn_mask=additive_mask(seen[:, None], heads // groups, q.dtype),
            scale=layer.scale,
        )
        return attended.reshape(batch, heads, rows, dim).transpose(1, 2)

    def candidates(self, logits: Tensor, topk: int) -> Candidates:
        """See `Parts`."""
        return top_candidates(logits, topk)

    def grow(self, candidates: Candidates, rows: Rows) -> Grown:
        """See `Parts`."""
        tree = self._builder(candidates, rows["budget"], rows["topk"])
        laid = layout_tree(tree, rows["root"], rows["length"])
        return Grown(tree, laid.ids, laid.positions, pack_bits(laid.visible))

    def best(self, logits: Tensor) -> Choices:
        """See `Parts`."""
        best = logits.max(-1)
        return Choices(best.indices, best.values.isnan() | (best.values == torch.inf))

    def settle(
        self, ints: Tensor, rows: Rows, grown: Grown, choices: Choices, bad_draft: Tensor
    ) -> Settled:
        """See `Parts`."""
        seen = unpack_bits(grown.bits, choices.tokens.shape[1])
        live = pad(grown.tree.live(), (1, 0), value=True)
        laid = VerifyRows(grown.ids, grown.positions, seen, live)
        found, stalled = _settled(accept(grown.tree, laid, choices.tokens))
        active = rows["active"].bool()
        flags = torch.stack(
            [
                stalled & active,
                active,
                found.num_accepted,
                grown.tree.counts,
                bad_draft,
                _visited(choices.invalid, found),
            ],
            1,
        )
        report = torch.cat([flags, found.tokens, *_path(grown, found)], 1)
        _advance(ints, rows, active & ~stalled, found)
        return Settled(found.rows, found.num_accepted, report)

    def move(self, pool: KVPool, first: Tensor, rows: Tensor) -> None:
        """See `Parts`."""
        columns = torch.arange(rows.shape[1], device=rows.device)
        pool.move((first[:, None] + rows).flatten(), (first[:, None] + columns).flatten())

    def taken(
        self, features: Tensor, settled: Settled, rows: Rows, sizes: tuple[int, DraftCells]
    ) -> tuple[Tensor, Tensor, Tensor]:
        """See `Parts`."""
        nobody, cells = sizes
        own = features.gather(1, settled.rows[..., None].expand(-1, -1, features.shape[-1]))
        columns = torch.arange(settled.rows.shape[1], device=features.device)
        positions = rows["length"][:, None] + columns
        last = settled.count[:, None]
        kept = (columns <= last) & (columns > last - cells.ring)
        kept &= rows["active"][:, None].bool()
        slots = torch.where(kept, rows["slot"][:, None], nobody)
        target = slots * cells.size + cells.block + positions % cells.ring
        return own.flatten(0, 1), positions.flatten(), target.flatten()


def visible(reach: Reach, lowest: Tensor | None) -> Tensor:
    """[B, S, columns + S] bool: what each row sees, none of it below position `lowest` [B, S]."""
    columns = torch.arange(reach.columns, device=reach.held.device)
    anchors = reach.positions[:, :1]
    positions = columns.expand(len(anchors), -1)
    if reach.ring:
        turns = torch.div(anchors - 1 - columns, reach.ring, rounding_mode="floor")
        positions = columns + turns * reach.ring
    size = reach.positions.shape[1]
    committed = (columns < reach.held[:, None])[:, None].expand(-1, size, -1)
    own = unpack_bits(reach.bits, size)
    if lowest is not None:
        committed = committed & (positions[:, None] >= lowest[:, :, None])
        if reach.limits_own:
            own = own & (reach.positions[:, None] >= lowest[:, :, None])
    return torch.cat([committed, own], 2)


def _settled(accepted: Acceptance) -> tuple[Acceptance, Tensor]:
    """An acceptance whose bonus is known, and [B] bool where there is none."""
    unknown = accepted.bonus == UNVISITED
    count = accepted.num_accepted - unknown.long()
    stalled = count < 0
    count = count.clamp(min=0)
    columns = torch.arange(accepted.tokens.shape[1], device=count.device)
    known = (columns <= count[:, None]) & ~stalled[:, None]
    tokens = torch.where(known, accepted.tokens, 0)
    bonus = tokens.gather(1, count[:, None])[:, 0]
    return Acceptance(count, accepted.rows, tokens, bonus), stalled


def _visited(flags: Tensor, accepted: Acceptance) -> Tensor:
    """[B] bool: whether flags [B, M] mark a row that the walk visited."""
    columns = torch.arange(accepted.rows.shape[1], device=flags.device)
    on_path = columns <= accepted.num_accepted[:, None]
    marked: Tensor = (flags.gather(1, torch.where(on_path, accepted.rows, 0)) & on_path).any(1)
    return marked


def _path(grown: Grown, accepted: Acceptance) -> tuple[Tensor, Tensor]:
    """Ranks and places [B, A - 1] of accepted nodes; what lies beyond them means nothing."""
    places = (accepted.rows[:, 1:] - 1).clamp(0, max(grown.tree.width - 1, 0))
    if not grown.tree.width:
        return places, places
    return grown.tree.ranks.gather(1, places), places


def _advance(ints: Tensor, rows: Rows, moves: Tensor, accepted: Acceptance) -> None:
    """Lengths and roots of rows that move, [B] bool."""
    nobody = len(ints) - 1
    where = torch.where(moves, rows["slot"], nobody)
    gained = torch.where(moves, accepted.num_accepted + 1, 0)
    ints[:, COLUMNS["length"]].index_add_(0, where, gained)
    # Nobody's root stays 0, however many rows write it.
    ints[:, COLUMNS["root"]].index_copy_(0, where, torch.where(moves, accepted.bonus, 0))
