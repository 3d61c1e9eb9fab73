"""The scripts that measure SGLang, on a CPU and a subset of what they measured."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from sglang_plugin.sglang_server import Pair

pytestmark = [pytest.mark.sglang, pytest.mark.model]

SCRIPTS = Path(__file__).parents[2] / "benchmarks"
SMALL = ("--device", "cpu", "--trees", "4:4", "--contexts", "60", "--at-once", "2", "--passes", "1")


def run(script: str, out: Path, *arguments: str) -> dict[str, Any]:
    """The script's result file, decoded."""
    done = subprocess.run(
        [sys.executable, script, *SMALL, "--kv", "4096", "--out", str(out), *arguments],
        cwd=SCRIPTS,
        capture_output=True,
        text=True,
        timeout=400,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    result: dict[str, Any] = json.loads(out.read_text())
    return result


MEASURED = ("--sections", "exactness", "speed", "--tokens", "8", "--judged", "3")


def test_exactness_and_speed_are_measured(pair: Pair, tmp_path: Path) -> None:
    sections = run("sglang_gpu.py", tmp_path / "gpu.json", *MEASURED, "--judged-tokens", "6")[
        "sections"
    ]
    assert [cell["arm"] for cell in sections["exactness"]["cells"]] == ["ar", "ddtree-4-4"]
    assert {cell["verdict"] for cell in sections["exactness"]["cells"]} == {None}
    plain, tree = sections["speed"]["cells"]
    assert plain["acceptance_length"] == 1 < tree["acceptance_length"]


@pytest.mark.thorough
def test_acceptance_is_forced(tmp_path: Path) -> None:
    """Nothing would be accepted of random weights' drafts."""
    arms = [{"arm": "ar", "histogram": []}, {"arm": "ddtree-4-4", "histogram": [1, 7, 5]}]
    cells = [{**arm, "at_once": 1, "context": 60} for arm in arms]
    recorded = tmp_path / "recorded.json"
    recorded.write_text(json.dumps({"sections": {"speed": {"cells": cells}}}))
    given = ("--small", "--recorded", str(recorded), "--tokens", "24")
    forced = run("sglang_forced.py", tmp_path / "forced.json", *given)
    assert forced["label"] == "random weights, forced acceptance"
    assert forced["speed"][1]["acceptance_length"] > 1.5
