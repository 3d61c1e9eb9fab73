"""What the algorithm must satisfy, written independently of it: plain loops over every prefix.

Each `check_*` takes data and raises AssertionError; the property tests feed them drawn data, the
mutation list fixed data. The code under test is looked up in `ddtree.core` at each call, so that
a bug planted there is what gets checked.
"""

import itertools
import math
from collections.abc import Sequence

import torch
from torch import Tensor

from ddtree import core

CPU = torch.device("cpu")
Ranks = tuple[int, ...]
# Weights are sums of at most a handful of numbers in double precision.
EPSILON = 1e-9


# ---- trees -------------------------------------------------------------------------------------


def all_prefixes(log_probs: list[list[float]], topk: int) -> dict[Ranks, float]:
    """Every rank tuple with a finite weight, by enumeration."""
    found: dict[Ranks, float] = {}
    level: dict[Ranks, list[float]] = {(): []}
    for row in log_probs:
        level = {
            (*ranks, rank): [*terms, value]
            for ranks, terms in level.items()
            for rank, value in enumerate(row[:topk])
            if value > -math.inf
        }
        found |= {ranks: math.fsum(terms) for ranks, terms in level.items()}
    return found


def by_rank_tuple(prefixes: dict[Ranks, float]) -> list[Ranks]:
    """The heap's order: heaviest first, equal weights by smaller rank tuple."""
    return sorted(prefixes, key=lambda ranks: (-prefixes[ranks], ranks))


def by_level(prefixes: dict[Ranks, float]) -> list[Ranks]:
    """The level-wise order: among equal weights the shallower, the smaller parent, the smaller
    rank, parents being numbered in this same order within their depth."""
    place: dict[Ranks, int] = {(): 0}
    for depth in range(1, max(map(len, prefixes), default=0) + 1):
        level = [ranks for ranks in prefixes if len(ranks) == depth]
        level.sort(key=lambda ranks: (-prefixes[ranks], place[ranks[:-1]], ranks[-1]))
        place |= {ranks: number for number, ranks in enumerate(level)}
    return sorted(prefixes, key=lambda ranks: (-prefixes[ranks], len(ranks), place[ranks]))


def rank_tuples(tree: core.DraftTree, b: int) -> list[Ranks]:
    """Nodes of request b as rank tuples, in the tree's order; parents must come first."""
    paths: list[Ranks] = [()]
    for n in range(int(tree.counts[b])):
        parent = int(tree.parents[b, n])
        assert parent <= n, f"node {n} precedes its parent, row {parent}"
        paths.append((*paths[parent], int(tree.ranks[b, n])))
    return paths[1:]


def token_paths(tree: core.DraftTree, b: int) -> list[tuple[int, ...]]:
    """Nodes of request b as token tuples, in the tree's order; parents must come first."""
    paths: list[tuple[int, ...]] = [()]
    for n in range(int(tree.counts[b])):
        parent = int(tree.parents[b, n])
        assert parent <= n, f"node {n} precedes its parent, row {parent}"
        paths.append((*paths[parent], int(tree.tokens[b, n])))
    return paths[1:]


def build_both(
    logits: Tensor, budgets: Sequence[int], topks: Sequence[int]
) -> tuple[core.Candidates, dict[str, core.DraftTree]]:
    """Candidates of logits [B, D, V] and the tree that each builder makes of them."""
    candidates = core.top_candidates(logits, max(topks))
    depth, kept = candidates.tokens.shape[1:]
    builder = core.LevelwiseBuilder(max(budgets), kept, depth, CPU)
    return candidates, {
        "heap": core.build_heap(candidates, budgets, topks),
        "levelwise": builder(candidates, torch.tensor(budgets), torch.tensor(topks)),
    }


def check_builders(logits: Tensor, budgets: Sequence[int], topks: Sequence[int]) -> None:
    """Both builders choose the heaviest prefixes, in well-formed trees, with equal scores."""
    candidates, trees = build_both(logits, budgets, topks)
    table = candidates.log_probs.double().tolist()
    for name, tree in trees.items():
        assert tree.tokens.shape == (len(budgets), max(budgets)), name
        for b, (budget, topk) in enumerate(zip(budgets, topks, strict=True)):
            prefixes = all_prefixes(table[b], topk)
            check_heaviest(tree, b, prefixes, budget)
            check_form(tree, b, candidates)
    torch.testing.assert_close(
        trees["heap"].scores, trees["levelwise"].scores, rtol=0, atol=EPSILON
    )
    assert torch.equal(trees["heap"].counts, trees["levelwise"].counts)


def check_heaviest(tree: core.DraftTree, b: int, prefixes: dict[Ranks, float], budget: int) -> None:
    """The scores are the `budget` largest weights; the nodes are those, where no tie decides."""
    count = int(tree.counts[b])
    assert count == min(budget, len(prefixes)), f"{count} nodes of {len(prefixes)}, {budget=}"
    best = sorted(prefixes.values(), reverse=True)[:count]
    expected = torch.tensor(best, dtype=torch.float64)
    torch.testing.assert_close(tree.scores[b, :count], expected, rtol=0, atol=EPSILON)
    chosen = set(rank_tuples(tree, b))
    assert len(chosen) == count, "a prefix was chosen twice"
    for ranks, weight in prefixes.items():
        if count and weight > best[-1] + EPSILON:
            assert ranks in chosen, f"{ranks} outweighs a chosen prefix"
        if not count or weight < best[-1] - EPSILON:
            assert ranks not in chosen, f"{ranks} is lighter than one left out"
    for ranks, score in zip(rank_tuples(tree, b), tree.scores[b].tolist(), strict=False):
        assert abs(prefixes[ranks] - score) < EPSILON, f"the score of {ranks} is not its own"


def check_form(tree: core.DraftTree, b: int, candidates: core.Candidates) -> None:
    """Best first, depth and token of every node, siblings a rank prefix, neutral padding."""
    count, nodes = int(tree.counts[b]), rank_tuples(tree, b)
    scores = tree.scores[b].tolist()
    assert all(a >= c for a, c in itertools.pairwise(scores)), "not best first"
    for n, ranks in enumerate(nodes):
        assert int(tree.depths[b, n]) == len(ranks) <= tree.max_depth
        assert int(tree.tokens[b, n]) == int(candidates.tokens[b, len(ranks) - 1, ranks[-1]])
    children: dict[Ranks, list[int]] = {}
    for ranks in nodes:
        children.setdefault(ranks[:-1], []).append(ranks[-1])
    for siblings in children.values():
        assert siblings == list(range(len(siblings))), "siblings aren't a rank prefix in order"
    for values in (tree.tokens, tree.parents, tree.depths, tree.ranks):
        assert not values[b, count:].any(), "padding isn't 0"
    assert (tree.scores[b, count:] == -math.inf).all()
    assert tree.live()[b].tolist() == [n < count for n in range(tree.width)]


def check_order(logits: Tensor, budget: int, topk: int) -> None:
    """Nodes come in exactly the order that each builder's tie rule gives; sums must be exact."""
    candidates, trees = build_both(logits, [budget] * len(logits), [topk] * len(logits))
    for b, log_probs in enumerate(candidates.log_probs.double().tolist()):
        prefixes = all_prefixes(log_probs, topk)
        assert rank_tuples(trees["heap"], b) == by_rank_tuple(prefixes)[:budget]
        assert rank_tuples(trees["levelwise"], b) == by_level(prefixes)[:budget]


def check_full_vocabulary(logits: Tensor, budget: int, topk: int) -> None:
    """Scores are log-probabilities against all V logits, so depths of different shape compare."""
    size = logits.shape[0]
    _, trees = build_both(logits, [budget] * size, [topk] * size)
    table = torch.log_softmax(logits.double(), -1)
    best = table.sort(-1, descending=True).values[..., :topk].tolist()
    for name, tree in trees.items():
        for b in range(size):
            expected = sorted(all_prefixes(best[b], topk).values(), reverse=True)[:budget]
            scores = tree.scores[b, : int(tree.counts[b])].tolist()
            assert len(scores) == len(expected), name
            for got, wanted in zip(scores, expected, strict=True):
                assert abs(got - wanted) < 1e-4, f"{name}: {got} where {wanted} is possible"
            for path, got in zip(token_paths(tree, b), scores, strict=True):
                own = math.fsum(float(table[b, d, token]) for d, token in enumerate(path))
                assert abs(got - own) < 1e-4, f"{name}: {path} scores {got}, is worth {own}"


# ---- candidates --------------------------------------------------------------------------------


def check_candidates(logits: Tensor, topk: int) -> None:
    """Both selections against Python's sort, and bit for bit against each other."""
    fast, slow = core.top_candidates(logits, topk), core.top_candidates_sorted(logits, topk)
    rows = logits.float().tolist()
    for got in (fast, slow):
        kept = min(topk, logits.shape[-1])
        assert got.tokens.shape == got.log_probs.shape == (*logits.shape[:2], kept)
        assert got.log_probs.dtype == torch.float32
        assert not (got.log_probs > 0).any()
        for b, request in enumerate(rows):
            broken = any(math.isnan(v) or v == math.inf for row in request for v in row)
            assert bool(got.invalid[b]) == broken
            if broken:
                assert (got.log_probs[b] == -math.inf).all(), "something can be drafted"
                continue
            for d, row in enumerate(request):
                _check_ranked(row, got.tokens[b, d].tolist(), got.log_probs[b, d].tolist())
    usable = ~fast.invalid
    assert torch.equal(fast.invalid, slow.invalid)
    assert torch.equal(fast.tokens[usable], slow.tokens[usable])
    bits = fast.log_probs.view(torch.int32), slow.log_probs.view(torch.int32)
    assert torch.equal(*bits)


def _check_ranked(row: list[float], tokens: list[int], log_probs: list[float]) -> None:
    """Value descending, id ascending; log-probabilities against the whole row."""
    assert tokens == sorted(range(len(row)), key=lambda token: (-row[token], token))[: len(tokens)]
    top = max(row)
    for token, got in zip(tokens, log_probs, strict=True):
        if row[token] == -math.inf:
            assert got == -math.inf
            continue
        total = top + math.log(math.fsum(math.exp(value - top) for value in row))
        assert abs(got - (row[token] - total)) < 1e-5 * max(1.0, abs(row[token]), abs(total))


# ---- layout and acceptance ---------------------------------------------------------------------


def make_tree(nodes: Sequence[Sequence[tuple[int, int]]], width: int) -> core.DraftTree:
    """Trees out of (parent row, token) lists, padded to `width`.

    Siblings rank in the order given; scores fall from node to node.
    """
    shape = (len(nodes), width)
    tokens = torch.zeros(shape, dtype=torch.int64)
    parents, depths, ranks = tokens.clone(), tokens.clone(), tokens.clone()
    scores = torch.full(shape, -math.inf, dtype=torch.float64)
    for b, request in enumerate(nodes):
        depth_of = [0]
        for n, (parent, token) in enumerate(request):
            depth_of.append(depth_of[parent] + 1)
            tokens[b, n], parents[b, n], depths[b, n] = token, parent, depth_of[-1]
            ranks[b, n] = sum(parent == elder for elder, _ in request[:n])
            scores[b, n] = -float(n)
    counts = torch.tensor([len(request) for request in nodes])
    deepest = int(depths.max()) if width else 0
    return core.DraftTree(tokens, parents, depths, ranks, scores, counts, deepest)


def ancestry(tree: core.DraftTree, b: int, row: int) -> list[int]:
    """Rows from the root down to `row`, found by climbing."""
    path = [row]
    while path[-1] > 0:
        path.append(int(tree.parents[b, path[-1] - 1]))
    return path[::-1]


def check_layout(tree: core.DraftTree, roots: Tensor, positions: Tensor) -> None:
    """Ids, positions and the mask, row by row, against the ancestor closure."""
    rows = core.layout_tree(tree, roots, positions)
    size = tree.width + 1
    assert rows.visible.shape == (tree.batch_size, size, size)
    for b in range(tree.batch_size):
        count, root, start = int(tree.counts[b]), int(roots[b]), int(positions[b])
        for row in range(size):
            live = row <= count
            path = ancestry(tree, b, row) if live else [row]
            seen = rows.visible[b, row].nonzero()[:, 0].tolist()
            assert seen == sorted(path), f"row {row} sees {seen}, its ancestors are {path}"
            depth = len(path) - 1
            assert int(rows.visible[b, row].sum()) == depth + 1
            assert int(rows.positions[b, row]) == start + depth
            drafted = live and row > 0
            assert int(rows.ids[b, row]) == (int(tree.tokens[b, row - 1]) if drafted else root)
            assert bool(rows.live[b, row]) == live


def longest_agreeing(tree: core.DraftTree, b: int, choices: list[int]) -> list[int]:
    """Rows of the deepest node all of whose path the target chose, by trying every node."""
    best = [0]
    for row in range(1, int(tree.counts[b]) + 1):
        path = ancestry(tree, b, row)
        agrees = all(
            choices[above] == int(tree.tokens[b, below - 1])
            for above, below in itertools.pairwise(path)
        )
        if agrees and len(path) > len(best):
            best = path
    return best


def check_accept(tree: core.DraftTree, choices: Tensor) -> None:
    """`accept` and `accept_walk` find the longest agreeing path and lay it out as promised."""
    roots = torch.zeros(tree.batch_size, dtype=torch.int64)
    rows = core.layout_tree(tree, roots, roots)
    got, walks = core.accept(tree, rows, choices), core.accept_walk(tree, choices)
    columns = tree.max_depth + 1
    assert got.rows.shape == got.tokens.shape == (tree.batch_size, columns)
    for b in range(tree.batch_size):
        path = longest_agreeing(tree, b, choices[b].tolist())
        bonus, count = int(choices[b, path[-1]]), len(path) - 1
        assert walks[b] == (path, bonus)
        assert int(got.num_accepted[b]) == count
        assert int(got.bonus[b]) == bonus
        assert got.rows[b].tolist() == path + list(range(count + 1, columns))
        drafted = [int(tree.tokens[b, row - 1]) for row in path[1:]]
        expected = [*drafted, bonus] + [0] * (columns - count - 1)
        assert got.tokens[b].tolist() == expected


def check_place(tree: core.DraftTree, rows: list[int], batch_size: int) -> None:
    """Every field lands at its batch row; the other rows are trees without nodes."""
    placed = tree.place(torch.tensor(rows), batch_size)
    assert placed.batch_size == batch_size
    assert (placed.width, placed.max_depth) == (tree.width, tree.max_depth)
    fields = ("tokens", "parents", "depths", "ranks", "scores", "counts")
    for name in fields:
        before, after = getattr(tree, name), getattr(placed, name)
        assert after.dtype == before.dtype
        for b in range(batch_size):
            if b in rows:
                assert torch.equal(after[b], before[rows.index(b)]), name
            else:
                empty = -math.inf if name == "scores" else 0
                assert (after[b] == empty).all(), name


# ---- draft windows -----------------------------------------------------------------------------


def simulated_ring(length: int, size: int) -> list[int]:
    """Ring columns after writing positions 0 .. length - 1 one after the other; -1 = never."""
    ring = [-1] * size
    for position in range(length):
        ring[position % size] = position
    return ring


def check_ring(lengths: Sequence[int], size: int) -> None:
    """`ring_positions` against the simulation."""
    got = core.ring_positions(torch.tensor(lengths), size).tolist()
    assert got == [simulated_ring(length, size) for length in lengths]


def check_window(
    lengths: Sequence[int], windows: Sequence[int], sizes: tuple[int, int], how: tuple[str, bool]
) -> None:
    """`draft_visible` entry by entry; sizes = (ring, block), how = (kind, causal).

    Windows are at least as long as the block, so that no row of it falls out of another's window.
    """
    (ring, block), (kind, causal) = sizes, how
    visibility = core.DraftVisibility(kind, causal)
    got = core.draft_visible(torch.tensor(lengths), torch.tensor(windows), ring, block, visibility)
    assert got.shape == (len(lengths), block, block + ring)
    for b, (length, window) in enumerate(zip(lengths, windows, strict=True)):
        held = simulated_ring(length, ring)
        for t in range(block):
            inside = [j <= t or not causal for j in range(block)]
            first = length if kind == "anchored" else length + t + 1
            wanted = set(range(max(first - window, 0), length))
            expected = inside + [position in wanted for position in held]
            assert got[b, t].tolist() == expected, f"{length=} {window=} row {t}"
