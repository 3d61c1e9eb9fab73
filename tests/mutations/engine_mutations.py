"""Bugs planted in the engine and in the target's adapter."""

from ddtree.errors import ModelError
from mutations import engine_checks as engine
from mutations.planting import Mutation

LOOP, PLAN, DRAFTING = "ddtree.engine.loop", "ddtree.engine.plan", "ddtree.engine.drafting"
POOL, REQUEST, MAKING = "ddtree.engine.pool", "ddtree.engine.request", "ddtree.engine.making"
PACKING = "ddtree.engine.packing"
TARGET = "ddtree.models.target"

ACCEPTED_FEATURES = "features[b, accepted.rows[b, : count + 1]]"
MOVE = "self.pool.move(source.flatten(), (base[:, None] + columns).flatten())"

COMMIT_MUTATIONS = (
    Mutation(
        "accepted keys are not moved",
        LOOP,
        ((MOVE, "pass"),),
        (engine.check_output,),
    ),
    Mutation(
        "accepted keys are moved one column too far",
        LOOP,
        ((MOVE, MOVE.replace("+ columns", "+ columns + 1")),),
        (engine.check_output,),
    ),
    Mutation(
        "the row before each accepted one is kept",
        LOOP,
        (("base[:, None] + accepted.rows", "base[:, None] + (accepted.rows - 1).clamp(min=0)"),),
        (engine.check_output,),
    ),
    Mutation(
        "a move overwrites its own sources",
        POOL,
        (
            (
                "self._cells.index_copy_(2, target, self._cells.index_select(2, source))",
                "order = range(len(source) - 1, -1, -1)\n"
                "        for i in order:\n"
                "            self._cells[:, :, target[i]] = self._cells[:, :, source[i]]",
            ),
        ),
        (engine.check_output,),
    ),
    Mutation(
        "the bonus counts as computed",
        LOOP,
        (("request.length += count + 1", "request.length += count + 2"),),
        (engine.check_output,),
    ),
    Mutation(
        "features of the first rows",
        LOOP,
        ((ACCEPTED_FEATURES, "features[b, : count + 1]"),),
        (engine.check_drafter_context, engine.check_drafts),
        harmless_to=engine.check_output,
    ),
    Mutation(
        "features include the bonus",
        LOOP,
        ((ACCEPTED_FEATURES, "features[b, accepted.rows[b, : count + 2]]"),),
        (engine.check_drafter_context, engine.check_drafts),
        harmless_to=engine.check_output,
    ),
    Mutation(
        "features leave out the root",
        LOOP,
        ((ACCEPTED_FEATURES, "features[b, accepted.rows[b, min(1, count) : count + 1]]"),),
        (engine.check_drafter_context, engine.check_drafts),
        harmless_to=engine.check_output,
    ),
    Mutation(
        "features of another request",
        LOOP,
        ((ACCEPTED_FEATURES, ACCEPTED_FEATURES.replace("features[b", "features[0")),),
        (engine.check_drafter_context, engine.check_drafts),
        harmless_to=engine.check_output,
    ),
    Mutation(
        "features off by one layer",
        TARGET,
        (("layers[layer].register_forward_hook", "layers[layer - 1].register_forward_hook"),),
        (engine.check_drafter_context, engine.check_drafts),
        harmless_to=engine.check_output,
    ),
    Mutation(
        "features after the final norm",
        TARGET,
        (
            (
                "return hidden, self._tap.take() if features else None",
                "taken = self._tap.take() if features else None\n"
                "        if taken is not None:\n"
                "            taken = torch.cat([taken[..., : -hidden.shape[-1]], hidden], -1)\n"
                "        return hidden, taken",
            ),
        ),
        (engine.check_drafter_context, engine.check_drafts),
        harmless_to=engine.check_output,
    ),
)

ROUND_MUTATIONS = (
    Mutation(
        "the last round's mask is used again",
        LOOP,
        (
            (
                "return layout_tree(tree, roots, positions)",
                "rows = layout_tree(tree, roots, positions)\n"
                "        stale = getattr(self, 'stale', rows.visible)\n"
                "        self.stale = rows.visible\n"
                "        if stale.shape == rows.visible.shape:\n"
                "            rows.visible.copy_(stale)\n"
                "        return rows",
            ),
        ),
        (engine.check_output,),
    ),
    Mutation(
        "trees go to the first rows of the batch",
        LOOP,
        (("tree.place(torch.tensor(chosen,", "tree.place(torch.arange(len(chosen),"),),
        (engine.check_trees,),
        harmless_to=engine.check_output,
    ),
    Mutation(
        "every request drafts with the widest topk",
        LOOP,
        (("torch.tensor([d.topk for d in drafts]", "torch.tensor([topk for d in drafts]"),),
        (engine.check_trees,),
        harmless_to=engine.check_output,
    ),
    Mutation(
        "every request drafts with the largest budget",
        LOOP,
        (("torch.tensor([d.budget for d in drafts]", "torch.tensor([width for d in drafts]"),),
        (engine.check_trees,),
        harmless_to=engine.check_output,
    ),
    Mutation(
        "a later prompt chunk starts at position 0",
        PACKING,
        (("self.length + torch.arange(self.count", "0 * self.length + torch.arange(self.count"),),
        (engine.check_output,),
    ),
    Mutation(
        "a prompt sees the keys of the one before it in the pass",
        PACKING,
        (("Runs(segment.base, 0, 1)", "Runs(self._segments[0].base, 0, 1)"),),
        (engine.check_output,),
        error=ModelError,  # the probe at load
    ),
    Mutation(
        "prompts are written over each other",
        PACKING,
        (("[column + segment.base for", "[column + segments[0].base for"),),
        (engine.check_output,),
        error=ModelError,
    ),
    Mutation(
        "a prompt's row sees the token after it",
        PACKING,
        (("hidden = keys > rows", "hidden = keys > rows + 1"),),
        (engine.check_output,),
        error=ModelError,
    ),
    Mutation(
        "the first token comes from the pass's last row",
        LOOP,
        (("device=hidden.device) - 1]", "device=hidden.device) * 0 - 1]"),),
        (engine.check_output,),
    ),
    Mutation(
        "the first prompt chunk's features are dropped",
        LOOP,
        (("self.drafting.feed(fed)", "pass"),),
        (engine.check_drafter_context,),
        harmless_to=engine.check_output,
    ),
    Mutation(
        "ragged plain rows are not masked",
        PLAN,
        ((" and min(lengths[first:last]) + 1 == columns", ""),),
        (engine.check_plain_output,),
    ),
    Mutation(
        "a gap between runs is read over",
        PLAN,
        (("0 < step == apart and", "0 < step and"),),
        (engine.check_gap_output,),
        error=RuntimeError,  # with the last gap's stride the first runs end outside the pool
    ),
    Mutation(
        "all new rows are written to one column",
        PLAN,
        (
            (
                "writes = length[:, None] + torch.arange(size, device=rows.ids.device)",
                "writes = length[:, None] + torch.arange(size, device=rows.ids.device) * 0",
            ),
        ),
        (engine.check_output,),
        error=ModelError,  # the probe at load
    ),
)

SLIDING_MUTATIONS = (
    Mutation(
        "a sliding target layer takes a key's column for its position",
        PLAN,
        (("rows.positions[first:last]\n        )", "writes[first:last]\n        )"),),
        (engine.check_sliding_output,),
        harmless_to=engine.check_output,
    ),
    Mutation(
        "a sliding target layer takes a row's column for its position",
        PLAN,
        (("rows.positions[first:last, :, None]", "writes[first:last, :, None]"),),
        (engine.check_sliding_output,),
        harmless_to=engine.check_output,
    ),
    Mutation(
        "a sliding target layer's window is one token too long for prompts",
        PACKING,
        (("keys <= rows - window", "keys < rows - window"),),
        (engine.check_sliding_output,),
        error=ModelError,
    ),
    Mutation(
        "a sliding target layer's window is one token too long",
        PLAN,
        (("first:last, :, None] - window)", "first:last, :, None] - window - 1)"),),
        (engine.check_sliding_output,),
        error=ModelError,  # the probe at load
    ),
    Mutation(
        "every row of a pass has its first row's window",
        PLAN,
        (("rows.positions[first:last, :, None]", "rows.positions[first:last, :1, None]"),),
        (engine.check_sliding_output,),
        error=ModelError,
    ),
)

DRAFT_MUTATIONS = (
    Mutation(
        "a request's window is ignored while the ring holds more",
        PLAN,
        (
            (
                "block + held[b] == columns and context.windows[b] >= held[b]",
                "block + held[b] == columns",
            ),
        ),
        (engine.check_drafts,),
        harmless_to=engine.check_output,
    ),
    Mutation(
        "a layer's own window is ignored",
        PLAN,
        (("windows[first:last].clamp(max=window)", "windows[first:last]"),),
        (engine.check_per_query_drafts,),
    ),
    Mutation(
        "the ring is written one column late",
        DRAFTING,
        (("held % self.ring)", "(held + 1) % self.ring)"),),
        (engine.check_drafter_context,),
        harmless_to=engine.check_output,
    ),
    Mutation(
        "the oldest features survive",
        DRAFTING,
        (("pending[-self.ring :]", "pending[: self.ring]"),),
        (engine.check_long_chunk_context,),
    ),
    Mutation(
        "context keys sit one position late",
        DRAFTING,
        (("torch.cat(positions)[None]", "torch.cat(positions)[None] + 1"),),
        (engine.check_drafter_context,),
        harmless_to=engine.check_output,
    ),
    Mutation(
        "the block starts one position late",
        DRAFTING,
        (("device=ids.device)[:, None] + offsets", "device=ids.device)[:, None] + offsets + 1"),),
        (engine.check_drafts,),
        harmless_to=engine.check_output,
    ),
    Mutation(
        "the block is shortened",
        DRAFTING,
        (("self.block = config.block_size", "self.block = config.block_size - 1"),),
        (engine.check_trees,),
        harmless_to=engine.check_plain_output,
    ),
    Mutation(
        "budget off by one in the engine",
        MAKING,
        (
            (
                "min(budget, possible), topk",
                "min(budget, possible) - 1, topk",
            ),
        ),
        (engine.check_trees,),
        harmless_to=engine.check_output,
    ),
)

REQUEST_MUTATIONS = (
    Mutation(
        "a stop id inside a run is overlooked",
        REQUEST,
        (("if token in self.stop_ids or", "if token in self.stop_ids and token is tokens[-1] or"),),
        (engine.check_stop,),
    ),
    Mutation(
        "the stop id itself is dropped",
        REQUEST,
        (
            (
                'self.finish_reason = "stop"',
                'self.finish_reason = "stop"\n                kept.pop()',
            ),
        ),
        (engine.check_stop,),
    ),
    Mutation(
        "max_tokens is overrun by one",
        REQUEST,
        ((">= self.limit:", "> self.limit:"),),
        (engine.check_limit,),
    ),
    Mutation(
        "max_tokens ends only whole runs",
        REQUEST,
        (
            (
                "if len(self.output) + len(kept) >= self.limit:",
                "if len(kept) == len(tokens) and len(self.output) + len(kept) >= self.limit:",
            ),
        ),
        (engine.check_limit,),
    ),
)
