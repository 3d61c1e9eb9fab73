"""Calibration: what a drafter says against what the target means."""

import pytest
import torch

from support.tiny import tiny_drafter, tiny_target
from training import calibration
from training.blocks import dense_attention
from training.writing import scripts_of, write


def test_a_bin_holds_what_was_said_meant_and_best():
    scores = torch.tensor([[0.15, 0.85], [0.3, 0.7], [0.9, 0.1]]).log()[None]
    true = torch.tensor([[0.6, 0.4], [0.2, 0.8], [1.0, 0.0]])[None]
    count, said, meant, best = calibration._binned(scores, true)
    assert count[6:].sum() == count.sum() == 3
    assert said.sum() == pytest.approx(0.85 + 0.7 + 0.9)
    assert meant.sum() == pytest.approx(0.4 + 0.8 + 1.0)
    assert best.sum() == 2
    curve = calibration.Curve(*(table[None] for table in (count, said, meant, best)))
    assert curve.error()[0] == pytest.approx((0.45 + 0.1 + 0.1) / 3)
    assert [row["count"] for row in curve.rows()[0]] == [1, 1, 1]


def test_every_drafted_position_is_counted_once():
    target = tiny_target(dtype=torch.float32)
    network = tiny_drafter(target)
    written = write(target, scripts_of([[11, 12]], [1.0], [0], [0]), [7], (6, 30), seed=0)
    curve = calibration.curve_of(target, network, written, (2, 3, 5), dense_attention, 8)
    assert curve.count.sum(1).tolist() == [30] * 4
    assert (curve.meant <= curve.count).all()
