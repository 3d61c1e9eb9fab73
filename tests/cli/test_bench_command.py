import os
import sys
from dataclasses import replace
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner

from ddtree.bench.session import ServeBackend
from ddtree.bench.spec import BenchSpec
from ddtree.bench.spec_file import preset
from ddtree.cli.bench import app, server_settings, without_graphs
from ddtree.cli.bench_progress import BenchProgress
from ddtree.endpoint.config import EndpointConfig
from ddtree.errors import ConfigError, EndpointError
from ddtree.records.arms import Arm

SPEC = """
title: Command
model: mock
dtype: float32
arms: [{method: ddtree, budget: 4, topk: 2}]
contexts: [60]
concurrencies: [1]
prompts: 2
blocks: 1
max_tokens: 8
control: true
"""

MOCK = """
import asyncio, os
from ddtree.endpoint.mock import serve_forever
from ddtree.endpoint.mock_script import MockScript
assert os.environ["OMP_WAIT_POLICY"] == "passive"
asyncio.run(serve_forever(MockScript(round_s=dict(ar=0.003)), {port}))
"""


@pytest.fixture
def spec_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A spec whose server is the mock in a process of its own."""

    def command(self: ServeBackend, port: int, drafter: bool) -> list[str]:
        return [sys.executable, "-c", MOCK.format(port=port)]

    monkeypatch.setattr(ServeBackend, "_command", command)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    path = tmp_path / "spec.yaml"
    path.write_text(SPEC)
    return path


def test_run_prints_verdict_and_path_and_report_repeats_them(
    tmp_path: Path, spec_file: Path
) -> None:
    out = tmp_path / "run"
    result = CliRunner().invoke(app, ["run", str(spec_file), "--out", str(out)])
    # A busy test machine may void every block; the command must then say so.
    valid = "no cell is valid" not in result.stderr
    assert result.exit_code == (0 if valid else 1), result.output
    headline, path = result.stdout.splitlines()
    assert headline
    assert Path(path) == (out / "report.html").resolve()
    assert "starting the server without a drafter" in result.stderr
    assert "<html" in (out / "report.html").read_text()
    (out / "report.html").unlink()
    again = CliRunner().invoke(app, ["report", str(out)])
    assert again.stdout == result.stdout
    assert (out / "report.html").exists()


@pytest.mark.parametrize("arguments", [[], ["s.yaml", "--preset", "demo"]])
def test_one_source_of_the_spec(tmp_path: Path, arguments: list[str]) -> None:
    result = CliRunner().invoke(app, ["run", *arguments, "--out", str(tmp_path / "run")])
    assert isinstance(result.exception, ConfigError)
    assert "one of them" in str(result.exception)
    assert not (tmp_path / "run").exists()


def test_server_that_cannot_start(
    tmp_path: Path, spec_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def command(self: ServeBackend, port: int, drafter: bool) -> list[str]:
        return [sys.executable, "-c", "raise SystemExit('no such model')"]

    monkeypatch.setattr(ServeBackend, "_command", command)
    result = CliRunner().invoke(app, ["run", str(spec_file), "--out", str(tmp_path / "run")])
    assert isinstance(result.exception, EndpointError)
    assert "no such model" in str(result.exception)


def test_report_of_no_run(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["report", str(tmp_path)])
    assert isinstance(result.exception, ConfigError)
    assert "is this a run folder?" in str(result.exception)


def test_serve_command_line(tmp_path: Path) -> None:
    spec: BenchSpec = preset("demo")
    backend = ServeBackend(spec, tmp_path, {})
    command = backend._command(8123, drafter=True)
    assert command[1:4] == ["-m", "ddtree", "serve"]
    options = dict(zip(command[4::2], command[5::2], strict=True))
    assert options == {
        "--model": "smollm2-135m",
        "--port": "8123",
        "--host": "127.0.0.1",
        "--dtype": "bfloat16",
        "--slots": "4",
        "--max-stall-ms": "0",
        "--shutdown-timeout": "3",
        "--max-budget": "64",
        "--max-topk": "8",
    }
    assert backend._command(8123, drafter=False)[-2:] == ["--drafter", "none"]


@pytest.mark.parametrize(
    ("arms", "expected"),
    [
        ([], {}),
        ([Arm("chain", draft_window=64)], {"--draft-window": "64"}),
        (
            [Arm("ddtree", 96, 20, 64), Arm("ddtree", 4, 2, 256), Arm("ddtree", 4, 2)],
            {"--max-budget": "96", "--max-topk": "20", "--draft-window": "256"},
        ),
        (
            [Arm("ddtree", 4, 2, 256), Arm("chain", draft_window="full")],
            {"--max-budget": "64", "--max-topk": "2", "--draft-window": "full"},
        ),
    ],
)
def test_the_server_is_started_for_the_largest_arm(
    tmp_path: Path, arms: list[Arm], expected: dict[str, str]
) -> None:
    spec = replace(preset("demo"), arms=(Arm("ar"), Arm("chain"), *arms))
    command = ServeBackend(spec, tmp_path, {})._command(8123, drafter=True)
    options = dict(zip(command[4::2], command[5::2], strict=True))
    names = ("--max-budget", "--max-topk", "--draft-window")
    assert {name: options[name] for name in names if name in options} == expected


def test_eager_reaches_the_servers_that_a_run_starts(tmp_path: Path) -> None:
    spec = without_graphs(without_graphs(preset("demo")))
    assert ServeBackend(spec, tmp_path, {})._command(1, True).count("--eager") == 1
    for endpoint in (EndpointConfig(url="http://127.0.0.1:1"), EndpointConfig("vllm")):
        with pytest.raises(ConfigError, match="--eager: is for servers that this run starts"):
            without_graphs(replace(spec, endpoint=endpoint))


def test_server_settings() -> None:
    assert server_settings(3) == {
        "OMP_WAIT_POLICY": "passive",
        "GOMP_SPINCOUNT": "0",
        "OMP_NUM_THREADS": "3",
    }
    assert int(server_settings(None)["OMP_NUM_THREADS"]) >= 1


@pytest.mark.parametrize("terminal", [False, True])
def test_progress(terminal: bool) -> None:
    text = StringIO()
    console = Console(file=text, force_terminal=terminal, width=120, highlight=False)
    with BenchProgress(console) as progress:
        progress.note("starting [the] server")
        progress.total(4.0)
        progress.advance("context 60: on file", 1.0, None)
        progress.advance("chain at context 60", 1.0, 25.04)
    shown = text.getvalue()
    assert "starting [the] server" in shown
    assert "chain at context 60  25.0 tok/s" in shown
    assert "50%" in shown


def test_progress_shows_no_share_until_the_work_is_known() -> None:
    text = StringIO()
    with BenchProgress(Console(file=text, width=120)) as progress:
        progress.total(0.0)
        progress.advance("probe", 5.0, 20.0)
        assert "%" not in text.getvalue()
        assert "left" not in text.getvalue()
        progress.total(4.0)
        progress.advance("finalist", 1.0, 20.0)
    assert " 25%  finalist" in text.getvalue()
