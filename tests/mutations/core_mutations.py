"""Bugs planted in the algorithm."""

from mutations import core_battery as battery
from mutations import engine_checks as engine
from mutations.planting import Mutation

HEAP, LEVELWISE = "ddtree.core.heap", "ddtree.core.levelwise"
CANDIDATES, LAYOUT = "ddtree.core.candidates", "ddtree.core.layout"
ACCEPT, WINDOW, TREE = "ddtree.core.accept", "ddtree.core.window", "ddtree.core.tree"

TREE_MUTATIONS = (
    Mutation(
        "heap pushes no sibling",
        HEAP,
        (("if rank + 1 < min(topk, len(level)):", "if False:"),),
        (battery.check_optimal_trees,),
    ),
    Mutation(
        "heap pushes no child",
        HEAP,
        (("if node.depth < len(log_probs):", "if False:"),),
        (battery.check_optimal_trees,),
    ),
    Mutation(
        "heap ignores topk",
        HEAP,
        (("if rank + 1 < min(topk, len(level)):", "if rank + 1 < len(level):"),),
        (battery.check_optimal_trees,),
    ),
    Mutation(
        "heap stops one node early",
        HEAP,
        (("len(nodes) < budget:", "len(nodes) < budget - 1:"),),
        (battery.check_optimal_trees,),
    ),
    Mutation(
        "heap scores a child by its own token alone",
        HEAP,
        (("push(weight + log_probs[node.depth][0]", "push(log_probs[node.depth][0]"),),
        (battery.check_optimal_trees, battery.check_scores),
    ),
    Mutation(
        "heap keeps the elder's token in a sibling's score",
        HEAP,
        (("elder_out = weight - level[rank]", "elder_out = weight"),),
        (battery.check_optimal_trees, battery.check_scores),
    ),
    Mutation(
        "levelwise builder knows no siblings",
        LEVELWISE,
        (("for r in range(topk) if", "for r in range(1) if"),),
        (battery.check_optimal_trees, engine.check_trees),
        harmless_to=engine.check_output,
    ),
    Mutation(
        "levelwise budget one too large",
        LEVELWISE,
        (
            (
                "(nodes < budgets[:, None])",
                "(nodes <= budgets[:, None])",
            ),
        ),
        (battery.check_optimal_trees, engine.check_trees),
        harmless_to=engine.check_output,
    ),
    Mutation(
        "levelwise budget one too small",
        LEVELWISE,
        (
            (
                "(nodes < budgets[:, None])",
                "(nodes < budgets[:, None] - 1)",
            ),
        ),
        (battery.check_optimal_trees, engine.check_trees),
        harmless_to=engine.check_output,
    ),
    Mutation(
        "levelwise builder ignores a request's topk",
        LEVELWISE,
        (
            (
                "self._ranks < topks[:, None, None]",
                "self._ranks < self.topk + 0 * topks[:, None, None]",
            ),
        ),
        (battery.check_optimal_trees, engine.check_trees),
        harmless_to=engine.check_output,
    ),
    Mutation(
        "levelwise scores a child by its own token alone",
        LEVELWISE,
        (
            (
                "weight.index_select(1, level.parents) + own",
                "0 * weight.index_select(1, level.parents) + own",
            ),
        ),
        (battery.check_optimal_trees, engine.check_trees),
    ),
    Mutation(
        "levelwise builder prunes one pair too many",
        LEVELWISE,
        (("if (i + 1) * (r + 1) <= width", "if (i + 1) * (r + 1) < width"),),
        (battery.check_optimal_trees,),
    ),
    Mutation(
        "levelwise parents point one prefix too low",
        LEVELWISE,
        (
            (
                "torch.stack([parents + offset, ranks, depths], 1)",
                "torch.stack([(parents + offset - 1).clamp(min=0), ranks, depths], 1)",
            ),
        ),
        (battery.check_optimal_trees,),
    ),
    Mutation(
        "levelwise equal weights in no fixed order",
        LEVELWISE,
        (
            (
                "weight = best.values[:, : level.keep]",
                "best = torch.sort((weight.index_select(1, level.parents) + own).flip(-1), "
                "dim=-1, descending=True, stable=True)\n"
                "            best = type('Best', (), dict(values=best.values, "
                "indices=len(level.ranks) - 1 - best.indices))\n"
                "            weight = best.values[:, : level.keep]",
            ),
        ),
        (battery.check_optimal_trees,),
    ),
    Mutation(
        "log-probabilities renormalised over topk",
        CANDIDATES,
        (
            (
                "torch.gather(torch.log_softmax(values, -1), -1, tokens)",
                "torch.log_softmax(torch.gather(values, -1, tokens), -1)",
            ),
        ),
        (battery.check_scores, battery.check_selection),
    ),
    Mutation(
        "equal logits rank by higher id",
        CANDIDATES,
        (("(0x7FFFFFFF - ids)", "ids"),),
        (battery.check_selection,),
    ),
    Mutation(
        "minus zero ranks below zero",
        CANDIDATES,
        (("(values + 0.0).view", "values.view"),),
        (battery.check_selection,),
    ),
    Mutation(
        "one chunk of the vocabulary too few",
        CANDIDATES,
        (
            (
                "best = _ordered_topk(maxima, ids.expand_as(maxima), keep)",
                "best = _ordered_topk(maxima, ids.expand_as(maxima), max(keep - 1, 1))",
            ),
        ),
        (battery.check_selection,),
    ),
    Mutation(
        "NaN raises no flag",
        CANDIDATES,
        (("maxima.isnan() | ", ""),),
        (battery.check_flags,),
    ),
    Mutation(
        "infinity raises no flag",
        CANDIDATES,
        ((" | (maxima == torch.inf)", ""),),
        (battery.check_flags,),
    ),
    Mutation(
        "an impossible token keeps its place",
        CANDIDATES,
        (
            (
                "torch.log_softmax(values, -1), -1, tokens)",
                "torch.log_softmax(values.clamp(min=-1e4), -1), -1, tokens)",
            ),
            (
                "dead = (torch.gather(values, -1, tokens) == -torch.inf) | invalid",
                "dead = torch.zeros_like(log_probs, dtype=torch.bool) | invalid",
            ),
        ),
        (battery.check_selection,),
    ),
)

ROW_MUTATIONS = (
    Mutation(
        "position is the node's index",
        LAYOUT,
        (("positions[:, None] + depths", "positions[:, None] + torch.arange(width + 1)"),),
        (battery.check_rows, engine.check_output),
    ),
    Mutation(
        "siblings see each other",
        LAYOUT,
        (
            (
                "visible[:, :, 0] &= live",
                "visible[:, :, 0] &= live\n"
                "    alike = (parents[:, :, None] == parents[:, None]) & (depths > 0)[:, None]\n"
                "    visible |= alike & (depths > 0)[:, :, None]",
            ),
        ),
        (battery.check_rows, engine.check_output),
    ),
    Mutation(
        "padding is seen",
        LAYOUT,
        (("visible[:, :, 0] &= live", "visible[:, :, 0] &= live\n    visible |= ~live[:, None]"),),
        (battery.check_rows, engine.check_output),
    ),
    Mutation(
        "padding sees the root",
        LAYOUT,
        (("visible[:, :, 0] &= live", "pass"),),
        (battery.check_rows,),
    ),
    Mutation(
        "grandparents are not seen",
        LAYOUT,
        (("ancestor = parents.gather(1, ancestor)", "pass"),),
        (battery.check_rows, engine.check_output),
    ),
    Mutation(
        "the deepest nodes miss the root",
        LAYOUT,
        (("range(tree.max_depth)", "range(tree.max_depth - 1)"),),
        (battery.check_rows, engine.check_output),
    ),
    Mutation(
        "the drafter's first path is accepted unverified",
        ACCEPT,
        (
            (
                "(tree.tokens == choices.gather(1, tree.parents))",
                "(tree.ranks == 0)",
            ),
        ),
        (battery.check_walk, engine.check_output),
    ),
    Mutation(
        "any matching node is accepted without its ancestors",
        ACCEPT,
        (("accepted = tree.live() & ~unmatched.any(-1)", "accepted = matched"),),
        (battery.check_walk,),
    ),
    Mutation(
        "acceptance stops one early",
        ACCEPT,
        (("accepted.sum(-1)", "(accepted.sum(-1) - 1).clamp(min=0)"),),
        (battery.check_walk, engine.check_acceptance),
        harmless_to=engine.check_output,
    ),
    Mutation(
        "bonus of the row above the last",
        ACCEPT,
        (
            (
                "path.gather(1, num_accepted[:, None])",
                "path.gather(1, (num_accepted - 1).clamp(min=0)[:, None])",
            ),
        ),
        (battery.check_walk, engine.check_output),
    ),
    Mutation(
        "bonus of the row of that number",
        ACCEPT,
        (("bonus = choices.gather(1, last)", "bonus = choices.gather(1, num_accepted[:, None])"),),
        (battery.check_walk, engine.check_output),
    ),
    Mutation(
        "padding is accepted",
        ACCEPT,
        (
            ("matched = tree.live() & (", "matched = ("),
            ("accepted = tree.live() & ~", "accepted = ~"),
        ),
        (battery.check_walk,),
    ),
    Mutation(
        "columns past the path move the root",
        ACCEPT,
        (
            (
                "functional.pad(columns, (0, 1)).scatter",
                "functional.pad(0 * columns, (0, 1)).scatter",
            ),
        ),
        (battery.check_walk,),
    ),
    Mutation(
        "tokens are the nodes in tree order",
        ACCEPT,
        (
            (
                "drafted = ids.gather(1, following.clamp(max=width))",
                "drafted = ids.gather(1, (columns + 1).clamp(max=width))",
            ),
        ),
        (battery.check_walk, engine.check_output),
    ),
)

PLACE_MUTATIONS = (
    Mutation(
        "placed trees come in ascending order",
        TREE,
        (("out.index_copy(0, rows, values)", "out.index_copy(0, rows.sort().values, values)"),),
        (battery.check_placing,),
    ),
    Mutation(
        "rows without a tree keep possible scores",
        TREE,
        (("spread(self.scores, -torch.inf)", "spread(self.scores, 0)"),),
        (battery.check_placing,),
    ),
    Mutation(
        "rows without a tree have a node",
        TREE,
        (("spread(self.counts, 0)", "spread(self.counts, 1)"),),
        (battery.check_placing,),
    ),
)

WINDOW_MUTATIONS = (
    Mutation(
        "draft window ignored",
        WINDOW,
        (("(held >= 0) & (held >= lowest)", "(held >= 0) & (held >= lowest - 10**6)"),),
        (battery.check_windows, engine.check_drafts, engine.check_per_query_drafts),
        harmless_to=engine.check_output,
    ),
    Mutation(
        "ring position off by one",
        WINDOW,
        (("lengths[:, None] - 1 - columns", "lengths[:, None] - columns"),),
        (battery.check_windows, engine.check_drafts),
        harmless_to=engine.check_output,
    ),
    Mutation(
        "window one token too long",
        WINDOW,
        (("lowest = (anchor - windows", "lowest = (anchor - 1 - windows"),),
        (battery.check_windows, engine.check_drafts),
    ),
    Mutation(
        "per-query window one token too long",
        WINDOW,
        (("- windows[:, None, None] + 1", "- windows[:, None, None]"),),
        (battery.check_windows, engine.check_per_query_drafts),
    ),
    Mutation(
        "per-query window anchored",
        WINDOW,
        (("lowest = anchor + offsets[:, None] -", "lowest = anchor + 0 * offsets[:, None] -"),),
        (battery.check_windows, engine.check_per_query_drafts),
    ),
    Mutation(
        "causal block sees ahead",
        WINDOW,
        (("if how.causal:", "if False:"),),
        (battery.check_windows, engine.check_per_query_drafts),
    ),
    Mutation(
        "never written columns are seen",
        WINDOW,
        (("(held >= 0) & (held >= lowest)", "(held >= lowest)"),),
        (battery.check_windows,),
    ),
)
