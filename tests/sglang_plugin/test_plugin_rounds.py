"""A round on tensors laid out as SGLang's, against plain decoding with a table of next tokens."""

import pytest
import torch
from torch import Tensor

from ddtree.core.accept import accept_walk
from ddtree.core.candidates import Candidates
from ddtree.core.levelwise import LevelwiseBuilder
from ddtree.sglang_plugin import rounds
from ddtree.sglang_plugin.ranks import (
    NO_PLACE,
    NODES,
    RANKS,
    StepPlaces,
    TokenValues,
    accepted_places,
)
from ddtree.sglang_plugin.rounds import Planted, Start, TreeShape
from mutations.planting import Mutation, assert_caught

ROUNDS = "ddtree.sglang_plugin.rounds"
VOCABULARY = 12
SHAPES = [TreeShape(4, budget, 3, None) for budget in (1, 3, 4, 9)]


def a_table(requests: int, columns: int) -> Tensor:
    """`req_to_token` with slots of its own for each position; row 0 holds slots of others, which
    padding must never take."""
    slots = torch.randperm(requests * columns) + 1
    rows = slots.view(requests, columns).int()
    return torch.cat([rows[:1], rows])


def a_start(lengths: list[int]) -> Start:
    rows = torch.arange(1, len(lengths) + 1)
    return Start(rows, torch.tensor(lengths), torch.randint(VOCABULARY, (len(lengths),)))


def trees_of(shape: TreeShape, start: Start) -> Planted:
    size = (len(start.rows), shape.block - 1, VOCABULARY)
    logits = torch.randn(size).log_softmax(-1)
    best = logits.topk(shape.topk, -1)
    none = torch.zeros(len(start.rows), dtype=torch.bool)
    candidates = Candidates(best.indices, best.values, none)
    builder = LevelwiseBuilder(shape.budget, shape.topk, shape.block - 1, torch.device("cpu"))
    return rounds.plant(candidates, builder, shape, start)


def check_slots_are_the_requests_own() -> None:
    shape, table = TreeShape(4, 9, 3, None), a_table(3, 40)
    start = Start(torch.tensor([2, 0, 1]), torch.tensor([7, 0, 30]), torch.tensor([5, 0, 6]))
    block = rounds.open_block(start, table, shape, mask_token=11)
    assert block.ids.tolist() == [[5, 11, 11, 11], [0, 11, 11, 11], [6, 11, 11, 11]]
    assert block.positions.tolist() == [[7, 8, 9, 10], [0, 1, 2, 3], [30, 31, 32, 33]]
    assert block.slots.shape == (3, 10)
    assert torch.equal(block.slots[0], table[2, 7:17].long())
    assert torch.equal(block.slots[2], table[1, 30:40].long())
    assert not block.slots[1].any()


def check_window_is_the_last_tokens_then_the_block() -> None:
    shape, shared = TreeShape(4, 9, 3, 5), a_table(3, 40)
    for lengths in ([1, 5, 6], [30, 4, 2]):
        start = a_start(lengths)
        own = torch.zeros_like(shared)
        block = rounds.open_block(start, shared, shape, mask_token=0)
        seen = rounds.fill_window(shared, own, start, block, 5)
        for row, (length, count) in enumerate(zip(lengths, seen.tolist(), strict=True), 1):
            assert count == min(length, 5)
            expected = shared[row, length - count : length + 4]
            assert torch.equal(own[row, : count + 4], expected)


def check_mask_is_the_ancestors() -> None:
    for shape in SHAPES:
        start = a_start([3, 1, 8])
        planted = trees_of(shape, start)
        flat = rounds.full_mask(planted, start.lengths)
        offset = 0
        for number, length in enumerate(start.lengths.tolist()):
            width = length + shape.rows
            part = flat[offset : offset + shape.rows * width].view(shape.rows, width)
            assert part[:, :length].all()
            assert torch.equal(part[:, length:], planted.rows.visible[number])
            offset += shape.rows * width
        assert offset == len(flat)


def check_accepted_rows_come_to_the_front() -> None:
    """Slots hold their row's number; after the moves position L + j holds the j-th of the path."""
    for shape in SHAPES:
        table, start = a_table(3, 40), a_start([3, 9, 20])
        block = rounds.open_block(start, table, shape, mask_token=0)
        planted = trees_of(shape, start)
        choices = torch.randint(VOCABULARY, (3, shape.rows))
        # Along the first request's deepest path the target agrees with the tree.
        choices[0].scatter_(0, planted.tree.parents[0].flip(0), planted.tree.tokens[0].flip(0))
        settled = rounds.settle(planted, choices, start)
        cache = torch.full((200,), -1)
        cache[block.slots[:, : shape.rows]] = torch.arange(shape.rows).expand(3, -1)
        sources, targets = rounds.moves(block, settled.path)
        cache[targets] = cache[sources]
        hidden = torch.arange(3 * shape.rows).float()[:, None].expand(-1, 2)
        kept = rounds.kept_hidden(hidden, settled.path, shape.rows).view(3, shape.steps, 2)
        for number, (path, bonus) in enumerate(accept_walk(planted.tree, choices)):
            count = len(path)
            assert settled.counts[number] == count
            assert settled.roots[number] == bonus
            assert settled.lengths[number] == start.lengths[number] + count
            assert cache[block.slots[number, :count]].tolist() == path
            rows = [number * shape.rows + row for row in path]
            assert kept[number, :count, 0].tolist() == rows
            tokens = planted.rows.ids[number, path[1:]].tolist()
            assert settled.tokens[number, :count].tolist() == [*tokens, bonus]
        assert settled.tokens.shape == (3, shape.steps)
    assert settled.counts[0] > 1


def check_first_requests_are_a_view() -> None:
    start = a_start([3, 1, 8])
    planted = trees_of(SHAPES[2], start)
    two = planted.first(2)
    alone = rounds.settle(two, torch.ones(2, 5, dtype=torch.int64), start.first(2))
    whole = rounds.settle(planted, torch.ones(3, 5, dtype=torch.int64), start)
    assert torch.equal(alone.tokens, whole.tokens[:2])
    assert two.rows.ids.data_ptr() == planted.rows.ids.data_ptr()


CHECKS = [
    check_slots_are_the_requests_own,
    check_window_is_the_last_tokens_then_the_block,
    check_mask_is_the_ancestors,
    check_accepted_rows_come_to_the_front,
    check_first_requests_are_a_view,
]


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_rounds(check: object) -> None:
    for seed in range(5):
        torch.manual_seed(seed)
        assert callable(check)
        check()


MUTATIONS = [
    Mutation(
        "padding writes to row 0's slots",
        ROUNDS,
        ((" * (start.rows > 0)[:, None]", ""),),
        (check_slots_are_the_requests_own,),
    ),
    Mutation(
        "slots start one late",
        ROUNDS,
        (
            (
                "start.lengths[:, None] + offsets).clamp",
                "start.lengths[:, None] + 1 + offsets).clamp",
            ),
        ),
        (check_slots_are_the_requests_own,),
    ),
    Mutation(
        "the window slips by one",
        ROUNDS,
        (
            (
                "(start.lengths - visible)[:, None] + columns",
                "(start.lengths - visible)[:, None] + 1 + columns",
            ),
        ),
        (check_window_is_the_last_tokens_then_the_block,),
    ),
    Mutation(
        "the block is written over the context",
        ROUNDS,
        (("ends = visible[:, None] +", "ends = visible[:, None] - 1 +"),),
        (check_window_is_the_last_tokens_then_the_block,),
    ),
    Mutation(
        "mask rows as if nothing were cached",
        ROUNDS,
        (("+ index[:, None] * width[:, None, None]", "+ index[:, None] * rows"),),
        (check_mask_is_the_ancestors,),
    ),
    Mutation(
        "the first request's place for all",
        ROUNDS,
        (("ends = (width * rows).cumsum(0)", "ends = width * rows"),),
        (check_mask_is_the_ancestors,),
    ),
    Mutation(
        "nothing moves",
        ROUNDS,
        (("sources = block.slots.gather(1, path)", "sources = block.slots[:, : path.shape[1]]"),),
        (check_accepted_rows_come_to_the_front,),
    ),
    Mutation(
        "the drafter is fed the first rows",
        ROUNDS,
        (
            (
                "return batch.gather(1, index).flatten(0, 1)",
                "return batch[:, : index.shape[1]].flatten(0, 1)",
            ),
        ),
        (check_accepted_rows_come_to_the_front,),
    ),
    Mutation(
        "the bonus is not counted",
        ROUNDS,
        (("counts = taken.num_accepted + 1", "counts = taken.num_accepted"),),
        (check_accepted_rows_come_to_the_front,),
    ),
]


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.name)
def test_planted_bug_is_caught(mutation: Mutation) -> None:
    torch.manual_seed(0)
    assert_caught(mutation)


def test_ranks_and_nodes_are_those_of_the_accepted_tokens() -> None:
    torch.manual_seed(1)
    shape, start = TreeShape(4, 9, 3, None), a_start([3, 9, 20])
    planted = trees_of(shape, start)
    tree = planted.tree
    choices = torch.full((3, shape.rows), VOCABULARY)
    choices.scatter_(1, tree.parents.flip(1), tree.tokens.flip(1))
    settled = rounds.settle(planted, choices, start)
    places = accepted_places(tree, settled)
    ranks_of, nodes_of = (StepPlaces(places[key], settled.counts) for key in (RANKS, NODES))
    for number, (path, _) in enumerate(accept_walk(tree, choices)):
        ranks = [int(tree.ranks[number, row - 1]) for row in path[1:]]
        assert ranks_of[number] == [*ranks, NO_PLACE]
        assert nodes_of[number] == [*(row - 1 for row in path[1:]), NO_PLACE]
    assert max(ranks_of[0] + ranks_of[1] + ranks_of[2]) >= 0


def test_a_steps_values_become_one_entry_a_token() -> None:
    values = TokenValues([NO_PLACE])
    values.append([0, 2, NO_PLACE])
    values.append([NO_PLACE])
    assert values == [NO_PLACE, 0, 2, NO_PLACE, NO_PLACE]
