"""What sampling must satisfy, held against the second writing in `support.law`.

Each `check_*` takes data and raises AssertionError; the tests feed them drawn data, the mutation
list fixed data. The code under test is looked up in `ddtree.core` at each call, so that a bug
planted there is what gets checked.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from ddtree import core
from ddtree.engine import SamplingParams
from ddtree.engine import choosing as choosing_module
from support.law import (
    drawn_token,
    edited_row,
    gumbel_of,
    kept_tokens,
    noise_bits,
    processed,
)

# Probability mass near an edge of a filter that rounding may put on either side.
SLACK = 1e-12


def rules_of(params: Sequence[SamplingParams], vocab: int) -> core.SamplingRules:
    """Rules of requests that sample (temperatures above 0)."""

    def floats(values: list[float]) -> Tensor:
        return torch.tensor(values, dtype=torch.float64)

    return core.SamplingRules(
        torch.tensor([p.seed for p in params]),
        floats([p.temperature for p in params]),
        torch.tensor([p.top_k if p.top_k > 0 else vocab for p in params]),
        floats([p.top_p for p in params]),
        floats([p.min_p for p in params]),
    )


# ---- noise -------------------------------------------------------------------------------------


def check_noise(seeds: Tensor, positions: Tensor, tokens: Tensor) -> None:
    """Uniforms bit by bit and Gumbel noise within rounding, against Python's integers and libm."""
    u, noise = core.noise.uniform(seeds, positions, tokens), core.gumbel(seeds, positions, tokens)
    rough = core.noise.approximate_gumbel(seeds, positions, tokens)
    assert u.dtype == noise.dtype == torch.float64
    keys = torch.broadcast_tensors(seeds, positions, tokens)
    for key, got, value, near in zip(
        zip(*(k.flatten().tolist() for k in keys), strict=True),
        u.flatten().tolist(),
        noise.flatten().tolist(),
        rough.flatten().tolist(),
        strict=True,
    ):
        assert got == (noise_bits(*key) + 0.5) * 2.0**-32, f"{key}: {got}"
        exact = gumbel_of(*key)
        # Near 0 the outer logarithm passes the inner one's relative error on as an absolute one.
        assert abs(value - exact) <= 8 * math.ulp(max(1.0, abs(exact))), f"{key}: {value}, {exact}"
        assert abs(near - exact) <= core.noise.APPROXIMATION_ERROR


# ---- filters and draws -------------------------------------------------------------------------


def check_filters(logits: Tensor, params: Sequence[SamplingParams]) -> None:
    """`rank` and `log_probabilities` of logits [n, V] against a sequential loop, row by row."""
    rules = rules_of(params, logits.shape[-1])
    found = core.log_probabilities(logits, rules)
    ranked = core.rank(logits, rules)
    for row, (values, one) in enumerate(zip(logits.double().tolist(), params, strict=True)):
        order = sorted(range(len(values)), key=lambda token, v=values: (-v[token], token))
        assert ranked.ids[row].tolist() == order, "not best first, equal ones by lower id"
        kept = [t for t in range(len(values)) if found[row, t].exp() > 0]
        listed = ranked.ids[row][ranked.kept[row] & (ranked.scaled[row].exp() > 0)].tolist()
        assert sorted(listed) == kept, f"{one}: {kept} have a chance, {listed} are kept"
        sure, maybe = (set(tokens) for tokens in kept_tokens(values, one, SLACK))
        assert kept, "nothing is left"
        assert sure <= set(kept) <= maybe, f"{one}: {kept} kept, {sorted(sure)} expected"
        scaled = dict(zip(order, ranked.scaled[row].tolist(), strict=True))
        expected = {t: math.exp(scaled[t]) for t in kept}
        total = math.fsum(expected.values())
        for token, got in zip(kept, found[row, kept].exp().tolist(), strict=True):
            assert abs(got - expected[token] / total) < 1e-12


def check_draws(logits: Tensor, params: Sequence[SamplingParams], positions: Tensor) -> None:
    """`sample` takes the argmax of log p + noise over the whole vocabulary, row by row."""
    vocab = logits.shape[-1]
    rules = rules_of(params, vocab)
    tokens = core.sample(logits, rules, positions)
    noise = core.gumbel(rules.seeds[:, None], positions[:, None], torch.arange(vocab))
    scores = core.log_probabilities(logits, rules) + noise
    expected = scores.max(-1).indices
    wrong = (tokens != expected).nonzero()[:, 0].tolist()
    assert not wrong, f"{[params[i] for i in wrong[:3]]}: {tokens[wrong[:3]]} drawn"


# ---- edits -------------------------------------------------------------------------------------


def check_edits(
    logits: Tensor, requests: Sequence[tuple[SamplingParams, list[int], list[int], tuple[int, ...]]]
) -> None:
    """Rows of logits [n, V] after edits, against lists and dicts; requests are (params, prompt,
    output, stops), their outputs equally long. Alone and in one batch, taken token by token."""
    vocab = logits.shape[-1]
    alone = []
    for params, prompt, output, stops in requests:
        edits = choosing_module.make_edits(params, prompt, stops, vocab)
        for token in output:
            edits = edits.advance(torch.tensor([token]))
        alone.append(edits)
    together = core.concat_edits(alone).apply(logits)
    for row, (params, prompt, output, stops) in enumerate(requests):
        expected = edited_row(logits[row].tolist(), params, prompt, output, stops)
        for got in (alone[row].apply(logits[row : row + 1])[0], together[row]):
            torch.testing.assert_close(
                got, torch.tensor(expected, dtype=logits.dtype), rtol=1e-6, atol=1e-6
            )
        assert torch.equal(alone[row].apply(logits[row : row + 1])[0], together[row])


# ---- walks -------------------------------------------------------------------------------------


def walk_one(
    tree: core.DraftTree, b: int, logits: Tensor, request: tuple, root: int
) -> list[tuple[int, int]]:
    """(row, token) pairs of one request's walk by plain loops; request as in `check_edits`, with
    the output up to and including the root. logits [M, V]."""
    params, prompt, output, stops = request
    children = {
        (int(tree.parents[b, n]), int(tree.tokens[b, n])): n + 1 for n in range(int(tree.counts[b]))
    }
    row, path, found = 0, list(output), []
    while True:
        values = edited_row(logits[row].double().tolist(), params, prompt, path, stops)
        p = processed(values, params)
        depth = len(path) - len(output)
        greedy = params.temperature == 0
        token = int(p.argmax()) if greedy else drawn_token(p, params.seed, root + depth + 1)
        found.append((row, token))
        path.append(token)
        if (row, token) not in children:
            return found
        row = children[row, token]


def check_walk(
    tree: core.DraftTree, logits: Tensor, requests: Sequence[tuple], roots: Sequence[int]
) -> list[list[tuple[int, int]]]:
    """`walk_choices` then `accept` emit what plain loops do; rows off the path are UNVISITED."""
    vocab = logits.shape[-1]
    rules = rules_of([p for p, *_ in requests], vocab)
    edits = []
    for params, prompt, output, stops in requests:
        one = choosing_module.make_edits(params, prompt, stops, vocab)
        for token in output:
            one = one.advance(torch.tensor([token]))
        edits.append(one)
    positions = torch.tensor(roots)
    choices = core.walk_choices(tree, logits, rules, core.concat_edits(edits), positions)
    rows = core.layout_tree(tree, torch.zeros_like(positions), positions)
    accepted = core.accept(tree, rows, choices.tokens)
    walks = []
    for b, request in enumerate(requests):
        expected = walk_one(tree, b, logits[b], request, roots[b])
        visited = dict(expected)
        for row in range(tree.width + 1):
            token = visited.get(row, core.walk.UNVISITED)
            assert int(choices.tokens[b, row]) == token, f"row {row} of request {b}"
        count = len(expected) - 1
        assert int(accepted.num_accepted[b]) == count
        assert accepted.tokens[b, : count + 1].tolist() == [token for _, token in expected]
        assert accepted.rows[b, : count + 1].tolist() == [row for row, _ in expected]
        walks.append(expected)
    assert not choices.invalid.any()
    assert not choices.barred.any()
    return walks
