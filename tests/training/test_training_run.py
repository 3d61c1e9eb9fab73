"""Training runs: they learn, stop and go on, and what they export is read back."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from benchmarks.tiny_models import write_tiny
from ddtree.errors import ConfigError
from ddtree.models.drafter import load_drafter
from support.tiny import tiny_drafter, tiny_target
from training import train
from training.corpus import Mixture
from training.export import export
from training.kernels import Kernels
from training.writing import scripts_of, write

RECIPE = train.Recipe(
    steps=60, tokens=320, spacing=3, window=6, rate=5e-3, warmup=5, kl=0.7, seed=3
)
ROOT = Path(__file__).parents[2]


def a_world():
    """A target, text of its own, and a new run with a random drafter."""
    target = tiny_target(dtype=torch.float32)
    scripts = scripts_of([[11, 12]], [0.7], [0], [0])
    written = write(target, scripts, [7], (32, 40), seed=0)
    return (
        target,
        Mixture([written], RECIPE.steps, RECIPE.seed),
        train.new_run(RECIPE, tiny_drafter(target)),
    )


def steps(count, target, run, written):
    return [train.take_step(RECIPE, target, run, written, Kernels()).line() for _ in range(count)]


def test_a_run_learns():
    target, written, run = a_world()
    told = steps(RECIPE.steps, target, run, written)
    first, last = told[:5], told[-5:]
    assert sum(t["loss"] for t in last) < 0.75 * sum(t["loss"] for t in first)
    assert sum(t["agreement"][0] for t in last) > sum(t["agreement"][0] for t in first) + 0.5


def test_a_run_that_was_stopped_goes_on_as_if_it_had_not(tmp_path):
    target, written, whole = a_world()
    steps(8, target, whole, written)
    _, _, first = a_world()
    steps(5, target, first, written)
    train.save(RECIPE, first, tmp_path)
    _, _, second = a_world()
    assert train.resume(RECIPE, second, tmp_path)
    assert second.step == 5
    steps(3, target, second, written)
    for one, other in zip(whole.network.parameters(), second.network.parameters(), strict=True):
        assert torch.equal(one, other)


def test_a_state_of_other_settings_is_refused(tmp_path):
    _, _, run = a_world()
    assert not train.resume(RECIPE, run, tmp_path)
    train.save(RECIPE, run, tmp_path)
    other = train.Recipe(**{**vars(RECIPE), "rate": 1.0})
    with pytest.raises(ConfigError, match="other settings \\(rate\\)"):
        train.resume(other, run, tmp_path)


def test_a_gradient_that_is_not_finite_stops_the_run():
    target, written, run = a_world()
    next(iter(run.network.parameters())).data.fill_(torch.nan)
    with pytest.raises(ConfigError, match="norm is nan"):
        steps(1, target, run, written)


def test_the_rate_rises_and_falls():
    rates = [RECIPE.rate_at(step) for step in range(RECIPE.steps)]
    assert rates[4] == pytest.approx(RECIPE.rate)
    assert rates[:5] == sorted(rates[:5])
    assert rates[5:] == sorted(rates[5:], reverse=True)
    assert RECIPE.rate_at(RECIPE.steps) == pytest.approx(RECIPE.rate / 10)


def command(name, *arguments):
    done = subprocess.run(
        [sys.executable, "-m", f"training.{name}", *map(str, arguments)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return done.stderr


def test_text_training_and_export_from_the_command_line(tmp_path):
    pair = write_tiny(tmp_path / "pair")
    code = tmp_path / "code"
    code.mkdir()
    says = '"""Function of this number, one of a few that give more than x."""'
    functions = (f"def f{n}(x):\n    {says}\n    return x + {n}\n" for n in range(5))
    (code / "a.py").write_text("\n".join(functions))
    data, run = tmp_path / "data", tmp_path / "run"
    told = {"--target": pair.target, "--device": "cpu"}
    common = [part for pair_ in told.items() for part in pair_]
    writing = [*common, "--out", data, "--batch", "4", "--length", "120", "--chat-share", "0"]
    writing += ["--invented", "0"]
    writing += ["--roots", code]
    assert "5 functions, 5 apart" in command("generate", *writing, "--shards", "1")
    assert '"shard": 0' not in command("generate", *writing, "--shards", "2")
    training = [*common, "--data", data, "--start", pair.drafter, "--out", run, "--window", "32"]
    training += ["--tokens", "480", "--spacing", "20", "--steps", "4", "--report-every", "2"]
    command("train", *training)
    assert [json.loads(line)["step"] for line in (run / "log.jsonl").read_text().splitlines()] == [
        2,
        4,
    ]
    assert "goes on at step 4" in command("train", *training)
    out = export(run, pair.drafter, tmp_path / "drafter")
    drafter = load_drafter(out, torch.float32, "cpu")
    state = torch.load(run / "state.pt", weights_only=True)["network"]
    for name, value in drafter.state_dict().items():
        assert torch.equal(value, state[name].bfloat16().float()), name
    assert drafter.config.window == 32
    assert json.loads((out / "training.json").read_text())["steps"] == 4
    with pytest.raises(ConfigError, match="is there already"):
        export(run, pair.drafter, out)
