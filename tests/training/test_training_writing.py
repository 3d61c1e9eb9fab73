"""Sequences that the target writes: given tokens where scripts say, its own elsewhere."""

import pytest
import torch

from support.tiny import tiny_target
from training import writing

END = 7


def a_text(temperatures=(0.0, 0.0), size=(6, 40), seed=0):
    target = tiny_target()
    # A long header that leads to a turn, whose end leads to a short one, whose end to any start.
    scripts = writing.scripts_of([[11, 12, 13], [21]], temperatures, [1, -1], [0])
    ends = range(END + 1)  # several, so that turns of a random model end
    return target, writing.write(target, scripts, ends, size, seed)


def test_given_tokens_come_in_order_and_turns_follow_each_other():
    _, written = a_text()
    turns = 0
    for ids, drawn in zip(written.ids.tolist(), written.drawn.tolist(), strict=True):
        place, script = 0, 0
        while place < len(ids):
            header = [[11, 12, 13], [21]][script][: len(ids) - place]
            assert ids[place : place + len(header)] == header
            assert not any(drawn[place : place + len(header)])
            place += len(header)
            while place < len(ids):
                assert drawn[place]
                place += 1
                if ids[place - 1] <= END:
                    script, turns = 1 - script, turns + 1
                    break
    assert turns > 3


def test_drawn_tokens_are_the_targets_best_at_temperature_0():
    target, written = a_text()
    for ids, drawn in zip(written.ids, written.drawn, strict=True):
        best = target.reference_logits(ids).argmax(-1)
        assert torch.equal(ids[1:][drawn[1:]], best[:-1][drawn[1:]])


def test_a_seed_gives_the_same_text_and_another_seed_another():
    texts = [a_text((1.0, 1.0), seed=seed)[1].ids for seed in (1, 1, 2)]
    assert torch.equal(texts[0], texts[1])
    assert not torch.equal(texts[0], texts[2])


@pytest.mark.parametrize("temperature", [0.5, 1.0])
def test_drawn_tokens_follow_the_temperature(temperature):
    torch.manual_seed(0)
    logits = torch.randn(1, 5).expand(20000, -1) * 2
    generator = torch.Generator().manual_seed(0)
    drawn = writing._draw(logits, torch.full((20000,), temperature), generator)
    found = torch.bincount(drawn, minlength=5) / 20000
    torch.testing.assert_close(found, (logits[0] / temperature).softmax(-1), atol=0.015, rtol=0)


def test_a_turn_ends_at_its_limit():
    target = tiny_target()
    scripts = writing.scripts_of([[11, 12], [21]], [1.0, 1.0], [1, 0], [0], [5, 3])
    ids, drawn = writing.write(target, scripts, [], (4, 33), seed=0).__dict__.values()
    expected = ([False] * 2 + [True] * 5 + [False] + [True] * 3) * 3
    assert drawn.tolist() == [expected] * 4
    assert (ids[:, [0, 11, 22]] == 11).all()
