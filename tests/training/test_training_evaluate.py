"""Acceptance on held-out prompts, and the ratio of two drafters."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from training.corpus import save_shard
from training.evaluate import CHAT, Accepted, excess_ratio
from training.writing import Written

ROOT = Path(__file__).parents[2]


def test_the_ratio_is_of_what_is_accepted_beyond_one():
    base = Accepted([10, 30], [10, 30], [])
    other = Accepted([8, 24], [12, 36], [])
    assert (base.length, other.length) == (2, 2.5)
    assert excess_ratio(base, other) == {"ratio": 1.5, "interval": [1.5, 1.5]}
    uneven = Accepted([8, 24, 5], [12, 20, 9], [])
    low, high = excess_ratio(Accepted([10, 30, 9], [10, 30, 9], []), uneven)["interval"]
    assert low < excess_ratio(Accepted([10, 30, 9], [10, 30, 9], []), uneven)["ratio"] < high


def test_held_out_chats_are_forty_and_differ():
    lines = CHAT.read_text().splitlines()
    assert len(set(lines)) == len(lines) == 40


@pytest.mark.model
def test_a_drafter_is_evaluated(tmp_path, smollm2):
    drafter = smollm2.drafter
    out, data = tmp_path / "out.json", tmp_path / "data"
    ids = torch.randint(100, 40000, (8, 96), generator=torch.Generator().manual_seed(0))
    save_shard(data, 0, Written(ids, torch.ones_like(ids, dtype=torch.bool)), {})
    done = subprocess.run(
        [
            *(sys.executable, "-m", "training.evaluate", "--target", str(smollm2.target)),
            *("--drafters", str(drafter), "--out", str(out), "--device", "cpu"),
            *("--arms", "chain", "16,4", "--temperatures", "0", "--contexts", "300"),
            *("--prompts", "2", "--long", "1", "--tokens", "8", "--slots", "2"),
            *("--data", str(data), "--calibrated", "1"),
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert done.returncode == 0, done.stderr
    result = json.loads(out.read_text())
    cells = result["cells"][str(drafter)]
    assert {key.rsplit(", T", 1)[0] for key in cells} == {"code", "chat", "code at 300"}
    assert cells["code, T = 0, 16,4"]["length"] >= cells["code, T = 0, chain"]["length"] > 1
    assert cells["code, T = 0, chain"]["by_depth"][0] <= 1
    calibration = result["calibration"][str(drafter)]
    assert len(calibration["error"]) == len(calibration["by_depth"]) == 7
    assert sum(row["count"] for row in calibration["by_depth"][0]) == 8 * 64
