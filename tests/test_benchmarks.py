"""The scripts behind the committed results, on a subset of what they measured."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).parents[1] / "benchmarks"
RESULTS = sorted((SCRIPTS / "results").rglob("*.json"))


def run(script, out, *arguments):
    """The script's result file, decoded."""
    done = subprocess.run(
        [sys.executable, script, "--out", str(out), *arguments],
        cwd=SCRIPTS,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(out.read_text())


@pytest.mark.model
def test_exactness(tmp_path, smollm2):
    result = run(
        "exactness.py",
        tmp_path / "exactness.json",
        *("--prompts", "2", "--long", "1", "--tokens", "8"),
        *("--budgets", "16", "--topks", "4", "--windows", "64,full"),
    )
    assert result["verdict"] == "exact"
    assert result["passed"]
    assert [c["identical"] for c in result["cells"]] == [2, 2]
    assert max(result["prompt_tokens"]) > 1024


@pytest.mark.model
def test_sampled_exactness(tmp_path, smollm2):
    result = run(
        "sampled_exactness.py",
        tmp_path / "sampled.json",
        *("--prompts", "3", "--tokens", "8", "--budgets", "8", "--temperatures", "1.0"),
    )
    assert result["passed"]
    assert [c["how"] for c in result["cells"]] == ["alone", "batched"]
    assert all(c["outputs"] == 3 for c in result["cells"])


@pytest.mark.model
def test_sampling_cost(tmp_path, smollm2):
    result = run("sampling_cost.py", tmp_path / "cost.json", *("--prompts", "1", "--tokens", "4"))
    assert result["stages"]["T=1 top_p=0.95"]["accept_ms"] > 0
    assert result["choice"]["visited_rows_ms"] > 0


@pytest.mark.model
def test_coupled_drafting(tmp_path, smollm2):
    """Record, fit, replay and decode, on a few tokens."""
    result = run(
        "coupled_drafting.py",
        tmp_path / "coupled.json",
        *("--recordings", str(tmp_path), "--prompts", "2", "--tokens", "12"),
        *("--temperatures", "1.0", "--others", "1:0.95:0", "--other-prompts", "1"),
        *("--shapes", "7:1,8:4", "--decode", "1"),
    )
    (decoded,) = result["engine"]
    assert decoded["same_output"] == decoded["prompts"] == 2
    assert result["replays"]


def test_builder_cost(tmp_path):
    rows = run("builder_cost.py", tmp_path / "cost.json", "--repeats", "1")["rows"]
    assert {row["batch"] for row in rows} == {1, 8, 32}
    assert all(row["build_ms"] > 0 for row in rows)


@pytest.mark.parametrize("path", RESULTS, ids=lambda p: str(p.relative_to(SCRIPTS)))
def test_results_say_where_they_come_from(path):
    data = json.loads(path.read_text())
    provenance = data.get("provenance", data)
    assert provenance.get("torch") or provenance["versions"]["torch"]
    assert provenance.get("command")
