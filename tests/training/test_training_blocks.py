"""Many blocks at once are the drafter's own pass below each anchor."""

import pytest
import torch
from torch.nn.attention.flex_attention import create_mask

from mutations.planting import Mutation, planted
from support.dense_drafter import dense_logits
from support.tiny import tiny_drafter, tiny_target
from training import blocks
from training.plans import CausalPlan, GridPlan

LENGTH, WINDOW = 19, 6


def close(found, expected):
    """transformers' norms round to float32, whatever the weights are."""
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-4)


def a_batch(target):
    """ids, hidden states and features of two sequences."""
    torch.manual_seed(0)
    ids = torch.randint(5, target.shape.vocab_size, (2, LENGTH))
    positions = torch.arange(LENGTH).expand(2, -1)
    return ids, *target.forward(ids, positions, CausalPlan(), features=True)


def test_whole_sequences_are_the_models_own_pass():
    target = tiny_target()
    ids, hidden, _ = a_batch(target)
    for row in range(2):
        close(target.head(hidden[row]), target.reference_logits(ids[row]))


def test_a_grid_token_by_token_is_the_whole_pass():
    target = tiny_target()
    ids, hidden, _ = a_batch(target)
    plan = GridPlan(target.shape, 2, LENGTH, hidden)
    for place in range(LENGTH):
        plan.place = place
        step = torch.full((2, 1), place)
        one, _ = target.forward(ids[:, place : place + 1], step, plan)
        close(one[:, 0], hidden[:, place])


def check_blocks_are_the_drafters_pass(window):
    target = tiny_target()
    drafter = tiny_drafter(target)
    ids, _, features = a_batch(target)
    anchors = torch.tensor([[1, 5, 13, 14], [0, 7, 8, 13]])
    places = blocks.Places(anchors, LENGTH, drafter.config.block_size, window)
    attention = blocks.dense_attention(places)
    drafted = target.head(blocks.draft(drafter, target.embed, ids, features, places, attention))
    for row in range(2):
        for number, anchor in enumerate(anchors[row].tolist()):
            history = features[row, :anchor], int(ids[row, anchor])
            expected = dense_logits(drafter, target, history, window)
            close(drafted[row, number], expected)


@pytest.mark.parametrize("window", [1, WINDOW, 100])
def test_blocks_are_the_drafters_pass_below_each_anchor(window):
    check_blocks_are_the_drafters_pass(window)


@pytest.mark.parametrize(
    ("name", "old", "new"),
    [
        ("the anchor is seen as committed", "(key < anchor)", "(key <= anchor)"),
        (
            "one token more than the window",
            "key >= anchor - self.window",
            "key > anchor - self.window",
        ),
        (
            "blocks see each other",
            "own = (key >= self.length) & (",
            "own = (key >= self.length) | (",
        ),
        (
            "positions count from the block",
            "self.anchors[:, :, None] + offsets",
            "0 * self.anchors[:, :, None] + offsets",
        ),
        ("all rows hold masks", "rows[:, :, 0] = ids.gather(1, places.anchors)", "pass"),
    ],
)
def test_planted_bug_is_caught(name, old, new):
    with (
        planted(Mutation(name, "training.blocks", ((old, new),), ())),
        pytest.raises(AssertionError),
    ):
        check_blocks_are_the_drafters_pass(WINDOW)


def test_flex_attention_sees_the_same():
    torch.manual_seed(0)
    places = blocks.Places(torch.tensor([[3, 9, 14], [0, 1, 18]]), LENGTH, 5, WINDOW)
    rows = 3 * places.size
    mask = create_mask(
        lambda b, h, row, key: places.sees(b, row, key), 2, 1, rows, LENGTH + rows, device="cpu"
    )
    q = torch.randn(2, 4, rows, 16)
    k, v = torch.randn(2, 2, 2, LENGTH + rows, 16)
    dense = blocks.dense_attention(places)(q, k, v, 0.3)
    expected = torch.nn.functional.scaled_dot_product_attention(
        q, k, v, attn_mask=mask, scale=0.3, enable_gqa=True
    )
    torch.testing.assert_close(dense, expected)


def test_gradients_reach_every_weight():
    target = tiny_target()
    drafter = tiny_drafter(target).requires_grad_()
    ids, _, features = a_batch(target)
    places = blocks.Places(torch.tensor([[5], [7]]), LENGTH, drafter.config.block_size, WINDOW)
    attention = blocks.dense_attention(places)
    blocks.draft(drafter, target.embed, ids, features, places, attention).square().sum().backward()
    without = [name for name, weight in drafter.named_parameters() if weight.grad is None]
    assert without == []
