"""Keys, values and logits of tree rounds against those of plain decoding."""

import pytest
import torch

from ddtree.core import Candidates, LevelwiseBuilder, layout_tree
from ddtree.engine import Engine, EngineConfig, SamplingParams, Speculation
from ddtree.engine.plan import Place, _cut_spans, verify_plan
from ddtree.engine.pool import KVPool, Runs
from support.drafts import with_drafts
from support.reference import draw_prompt
from support.tiny import tiny_drafter, tiny_target

COUNT = 24


@pytest.fixture(scope="module")
def target():
    return tiny_target()


def columns(engine, count):
    """All layers' keys and values in the pool's first cells."""
    pairs = [engine.pool.view(layer, Runs(0, 0, 1), count) for layer in range(3)]
    return torch.stack([torch.stack(pair) for pair in pairs])


def test_cache_after_commits_equals_a_plain_run(target):
    """Paths through second siblings, so that accepted rows really move."""
    prompt, output = draw_prompt(target, 6, COUNT, seed=5)
    plain = Engine(target, tiny_drafter(target), EngineConfig(max_context=64))
    plain.generate([prompt], SamplingParams(COUNT), Speculation("ar"))
    tree = Engine(target, tiny_drafter(target), EngineConfig(max_context=64))
    original, moved = tree.drafting.draft, []

    def second_best(requests):
        logits = torch.full_like(original(requests), -10.0)
        for row, request in enumerate(requests):
            following = (output[len(request.output) :] + [0] * 4)[:4]
            for depth, token in enumerate(following):
                logits[row, depth, token] = 5.0 - 0.1 * depth
                logits[row, depth, (token + 1) % 61] = 5.2
        return logits

    tree.drafting.draft = second_best
    move = tree.pool.move

    def watch(source, destination):
        moved.append(not torch.equal(source, destination))
        move(source, destination)

    tree.pool.move = watch
    request = tree.generate([prompt], SamplingParams(COUNT), Speculation("ddtree", 16, 2))[0]
    assert request.output == output
    assert any(moved)
    length = len(prompt) + COUNT - 1
    torch.testing.assert_close(columns(tree, length), columns(plain, length), atol=1e-6, rtol=0)


def test_every_row_s_logits_equal_its_own_chain(target):
    """Each node of a tree, three ragged requests at once, against plain text ending in it."""
    torch.manual_seed(1)
    tokens = torch.stack([torch.randperm(61)[:3] for _ in range(12)]).view(3, 4, 3)
    log_probs = torch.log_softmax(torch.randn(3, 4, 3), -1).sort(-1, descending=True).values
    candidates = Candidates(tokens, log_probs, torch.zeros(3, dtype=torch.bool))
    budgets, topks = torch.tensor([9, 5, 0]), torch.tensor([3, 2, 1])
    tree = LevelwiseBuilder(9, 3, 4, torch.device("cpu"))(candidates, budgets, topks)
    prefixes = [torch.randint(61, (n,)).tolist() for n in (3, 17, 8)]
    engine = Engine(target, None, EngineConfig(slots=3, max_context=64))
    size = engine.sizes.longest
    places = [Place(slot * size, size) for slot in range(3)]
    for place, prefix in zip(places, prefixes, strict=True):
        context = engine.make_request(prefix)
        context.base, context.room = place.base, place.room
        engine.loop.extend(context, prefix)
    roots, lengths = torch.tensor([7, 0, 3]), [3, 17, 8]
    rows = layout_tree(tree, roots, torch.tensor(lengths))
    with torch.inference_mode():
        plan = verify_plan(engine.pool, places, lengths, rows)
        logits = target.head(target.forward(rows.ids, rows.positions, plan)[0])
        for b, prefix in enumerate(prefixes):
            for row in range(int(tree.counts[b]) + 1):
                path, node = [], row
                while node:
                    path.insert(0, int(tree.tokens[b, node - 1]))
                    node = int(tree.parents[b, node - 1])
                text = [*prefix, int(roots[b]), *path]
                expected = target.reference_logits(torch.tensor(text))[-1]
                torch.testing.assert_close(logits[b, row], expected, atol=1e-5, rtol=0)


def test_a_sibling_s_token_moves_no_other_row(target):
    rows_of = []
    for sibling in (11, 12):
        tokens = torch.tensor([[[5, sibling], [8, 9]]])
        log_probs = torch.tensor([[[-0.5, -1.0], [-0.2, -2.0]]])
        candidates = Candidates(tokens, log_probs, torch.zeros(1, dtype=torch.bool))
        builder = LevelwiseBuilder(4, 2, 2, torch.device("cpu"))
        tree = builder(candidates, torch.tensor([4]), torch.tensor([2]))
        engine = Engine(target, None, EngineConfig(slots=1, max_context=32))
        context = engine.make_request([1, 2, 3])
        context.base, context.room = 0, 64
        engine.loop.extend(context, [1, 2, 3])
        rows = layout_tree(tree, torch.tensor([4]), torch.tensor([3]))
        with torch.inference_mode():
            plan = verify_plan(engine.pool, [Place(0, 64)], [3], rows)
            rows_of.append(target.head(target.forward(rows.ids, rows.positions, plan)[0])[0])
    changed = (tree.tokens[0] == 12).nonzero()[0].item() + 1
    under = {changed} | {n + 1 for n in range(4) if int(tree.parents[0, n]) == changed}
    for row in range(5):
        assert torch.equal(rows_of[0][row], rows_of[1][row]) == (row not in under)


@pytest.mark.parametrize(
    ("bases", "reads", "expected"),
    [
        ([0, 100, 200], [10, 12, 11], [(0, 3, 0, 100, 12)]),
        ([0, 200, 300], [10, 12, 11], [(0, 2, 0, 200, 12), (2, 3, 300, 0, 11)]),
        ([100, 200], [10, 900], [(0, 1, 100, 0, 10), (1, 2, 200, 0, 900)]),
        ([0, 100, 200], [900, 10, 20], [(0, 1, 0, 0, 900), (1, 3, 100, 100, 20)]),
        # Not ascending, as slots of the drafter's rings may come.
        ([100, 0, 200], [10, 10, 10], [(0, 1, 100, 0, 10), (1, 3, 0, 200, 10)]),
    ],
)
def test_spans_follow_bases_and_lengths(bases, reads, expected):
    spans = _cut_spans([Place(base, 1000) for base in bases], reads)
    assert [(s.first, s.last, s.base, s.stride, s.columns) for s in spans] == expected


def test_no_span_reads_outside_a_run():
    """A longer neighbour's columns would lie in somebody else's cells."""
    places = [Place(0, 100), Place(100, 100), Place(200, 300), Place(500, 300)]
    spans = _cut_spans(places, [90, 100, 101, 300])
    assert [(s.first, s.last, s.columns) for s in spans] == [(0, 2, 100), (2, 4, 300)]


def test_gaps_between_slots_and_unlike_lengths(target):
    """A request that left, and one far longer than its neighbour: outputs stay their own."""
    drawn = [draw_prompt(target, n, COUNT, seed=n) for n in (3, 4, 5)]
    engine = Engine(target, tiny_drafter(target), EngineConfig(slots=3, max_context=64))
    speculation = Speculation("ddtree", 8, 4)
    limits = (COUNT, 4, COUNT)
    requests = [
        engine.submit(prompt, SamplingParams(limit), speculation)
        for (prompt, _), limit in zip(drawn, limits, strict=True)
    ]
    while not engine.is_idle:
        engine.step()
    for request, (_, output), limit in zip(requests, drawn, limits, strict=True):
        assert request.output == output[:limit]


def test_stale_cells_are_never_seen(target):
    """Every cell beyond what is committed holds poison before each round."""
    prompt, output = draw_prompt(target, 6, COUNT, seed=6)
    engine = Engine(target, tiny_drafter(target), EngineConfig(slots=2, max_context=64))
    with_drafts(engine, lambda request: [1, 2, 3, 4])
    request = engine.submit(prompt, SamplingParams(COUNT), Speculation("ddtree", 8, 4))
    while not engine.is_idle:
        engine.step()
        if request.slot >= 0:
            beyond = request.base + request.length
            engine.pool._cells[:, :, beyond : request.base + engine.sizes.longest] = 1e3
    assert request.output == output


def test_pool_moves_overlapping_cells():
    pool = KVPool(2, 6, (1, 2), torch.float64, torch.device("cpu"))
    rows = torch.arange(2 * 2 * 6 * 2, dtype=torch.float64).view(2, 2, 6, 1, 2)
    pool.write_all(torch.arange(6), rows)
    pool.move(torch.tensor([2, 3, 4]), torch.tensor([1, 2, 3]))
    keys, _ = pool.view(1, Runs(0, 0, 1), 6)
    assert torch.equal(keys[0, 0], rows[1, 0, [0, 2, 3, 4, 4, 5], 0])
