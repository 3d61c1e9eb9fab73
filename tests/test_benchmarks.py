"""The scripts behind the committed results, on a subset of what they measured."""

import importlib
import json
import random
import subprocess
import sys
from dataclasses import replace
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
    assert result["coupled_drafting"]
    assert all(c["coupled"] for c in result["cells"])


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


@pytest.mark.model
def test_long_context(tmp_path, smollm2):
    """Here the context's end is a configured one; the script's default is the target's own."""
    out = tmp_path / "long.json"
    result = run("long_context.py", out, "--context", "150", "--windows", "64")
    assert result["passed"]
    assert [cell["generated"] for cell in result["cells"]] == [[40, 2, 1, 48]] * 4
    assert all("150" in reason for reason in result["refused"].values())


@pytest.mark.model
def test_draft_window(tmp_path, smollm2):
    cells = run("draft_window.py", tmp_path / "window.json", "--quick")["cells"]
    held = {(c["window"], c["context"]): c["drafter_cache_bytes"] for c in cells}
    assert held[32, 48] == held[32, 160] < held["full", 160]
    assert all(cell["draft_ms"]["median"] > 0 for cell in cells)


@pytest.mark.model
def test_serving_throughput(tmp_path, smollm2):
    """Its context is added to those that the result file holds."""
    out = tmp_path / "throughput.json"
    out.write_text(json.dumps({"contexts": {"900": {}}}))
    contexts = run("serving_throughput.py", out, "--quick")["contexts"]
    assert set(contexts) == {"24", "900"}
    for size in ("1", "2"):
        arms = contexts["24"]["concurrencies"][size]["arms"]
        assert arms["ddtree(4,4)"]["acceptance_length"] > arms["ar"]["acceptance_length"] == 1
        assert all(arm["tok_s"] > 0 for arm in arms.values())


@pytest.mark.model
def test_prefill_interleave(tmp_path, smollm2):
    """The short request is through before the long prompt behind which it came."""
    result = run("prefill_interleave.py", tmp_path / "interleave.json", "--quick")
    (found,) = result["arms"]["64"]["crowded"]
    assert found["short_was_first"]
    assert found["stream_gaps"] > 1


def test_extract_cost(tmp_path):
    result = run("extract_cost.py", tmp_path / "cost.json", "--lines", "800", "--repeats", "1")
    assert sorted(result["seconds"]) == ["code", "drafts", "prose", "quoted tags"]
    assert min(result["seconds"].values()) > 0


@pytest.mark.sandbox
def test_reference_grading(tmp_path):
    result = run("reference_grading.py", tmp_path / "references.json", "--limit", "6")
    assert sorted(result["tiers"]) == ["bubblewrap", "landlock"]
    for tier in result["tiers"].values():
        assert tier["passed"] == 6
        assert tier["same_at_all_workers"]


def test_soak(tmp_path):
    result = run(
        "soak.py", tmp_path / "soak.json", *("--seconds", "40", "--prompts", "10", "--bound", "20")
    )
    assert result["passed"], result["faults"]
    assert set(result["answers"]) == set(soak_module("soak_cases").WEIGHTS)


def soak_module(name):
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(SCRIPTS)
        return importlib.import_module(name)


def test_soak_s_slope_tells_a_leak_from_steps():
    soak, noise = soak_module("soak"), random.Random(0)
    flat = [400 + noise.gauss(0, 0.3) + 2 * (second % 40 > 20) for second in range(300)]
    leak = [value + 5 * second / 60 for second, value in enumerate(flat)]
    low, high = soak.slope(flat)["interval"]
    assert low < 0.5 < 1.5 < 3 < soak.slope(leak)["interval"][0]
    assert high - low < 2
    with pytest.raises(SystemExit, match="3 samples of memory say nothing"):
        soak.slope(flat[:3])


def test_soak_s_judge_sees_every_fault():
    cases = soak_module("soak_cases")
    call = cases.Call("greedy", {"n": 1}, ids=(5, 6), text="ab")
    good = cases.Answer(200, {0: [5, 6]}, {0: "ab"}, {0: "length"}, 2)
    assert cases.judge(call, good) is None
    for change, expected in (
        ({"status": 500}, "status 500"),
        ({"ids": {0: [5, 7]}}, "choice 0: ids"),
        ({"text": {0: "ac"}}, "choice 0: text"),
        ({"finish": {}}, "finish reasons"),
        ({"completion_tokens": 3}, "3 tokens by usage"),
        ({"error": "gone"}, "error in the stream"),
    ):
        assert expected in cases.judge(call, replace(good, **change))
    refused = cases.Call("bad", {}, status=400)
    assert cases.judge(refused, cases.Answer(400, error="prompt: is empty")) is None
    assert "without a message" in cases.judge(refused, cases.Answer(400))


@pytest.mark.model
def test_gpu_rounds(tmp_path, smollm2):
    asked = ("--budgets", "0,8", "--concurrency", "2", "--contexts", "60", "--repeats", "1")
    result = run("gpu_rounds.py", tmp_path / "rounds.json", *asked)
    plain, tree = result["cells"]
    assert plain["draft_s"] == 0 < tree["draft_s"]
    assert 0 < plain["bytes"] < tree["bytes"]
    assert all(cell["floor_s"] > 0 < cell["round_s"] for cell in result["cells"])


@pytest.mark.model
def test_gpu_speed(tmp_path, smollm2):
    asked = ("--tokens", "6", "--chats", "1", "--code", "1", "--passes", "1", "--dtype", "float32")
    result = run("gpu_speed.py", tmp_path / "speed.json", *asked)
    arms = result["prompts"]["code"]
    assert list(arms)[:2] == ["ar", "chain"]
    assert all(arm["identical_to_ar"] == 1 for arm in arms.values())


@pytest.mark.parametrize("path", RESULTS, ids=lambda p: str(p.relative_to(SCRIPTS)))
def test_results_say_where_they_come_from(path):
    data = json.loads(path.read_text())
    provenance = data.get("provenance", data)
    assert provenance.get("torch") or provenance["versions"]["torch"]
    assert provenance.get("command")
