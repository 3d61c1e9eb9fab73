"""`ddtree sglang`, and doctor's line about it."""

import os
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from ddtree.cli import app, sglang_checks
from ddtree.errors import ConfigError


def test_launch_prints_the_line() -> None:
    result = CliRunner().invoke(
        app,
        ["sglang", "launch", "--recipe", "kimi-k2.6", "--budget", "32", "--", "--port", "7"],
        catch_exceptions=False,
    )
    assert result.exit_code == 0
    (line,) = result.stdout.splitlines()
    assert line.startswith("DDTREE_TOPK=4 python3 -m sglang.launch_server")
    assert "--tp-size 8" in line
    assert "--speculative-num-draft-tokens 33" in line
    assert line.endswith("--port 7")


def test_run_becomes_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[Any] = []
    monkeypatch.setattr(os, "execvpe", lambda *given: ran.append(given))
    line = ["sglang", "launch", "--recipe", "qwen3-8b", "--topk", "8", "--run"]
    assert CliRunner().invoke(app, line).exit_code == 0
    ((program, words, environment),) = ran
    assert program == words[0] == "python3"
    assert environment["DDTREE_TOPK"] == "8"
    assert not any(word.startswith("DDTREE_") for word in words)


def test_an_unknown_recipe_is_refused() -> None:
    with pytest.raises(ConfigError, match="recipe: got 'nosuch'"):
        CliRunner().invoke(app, ["sglang", "launch", "--recipe", "nosuch"], catch_exceptions=False)


def test_a_drafter_is_written(tmp_path: Path) -> None:
    out = tmp_path / "drafter"
    result = CliRunner().invoke(app, ["sglang", "drafter", "smollm2-135m", str(out)])
    assert result.exit_code == 0, result.output
    assert result.stdout.strip() == str(out)
    assert (out / "config.json").is_file()


def test_doctor_says_what_the_plugin_finds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert sglang_checks.sglang().value.startswith("not installed")
    monkeypatch.setattr(sglang_checks, "installed_root", lambda: tmp_path)
    monkeypatch.setattr("importlib.metadata.version", lambda name: "0.6.0")
    check = sglang_checks.sglang()
    assert check.status == "note"
    assert "0.6.0, DDTREE does not register: sglang.srt." in check.value
    assert "more)" in check.value
    monkeypatch.setattr(sglang_checks, "problems", lambda root: ())
    assert sglang_checks.sglang().status == "ok"
