"""`compare`, `recommend` and `export` as commands."""

import csv
import io
import json
from pathlib import Path

import pytest
import typer
from run_folders import RunFolder, fill
from typer.testing import CliRunner, Result

from ddtree.bench.summarise import SUMMARY_FILE, write_summary
from ddtree.cli import bench_results
from ddtree.errors import ConfigError
from ddtree.records.schedule import parse_schedule


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return fill(RunFolder(tmp_path / "run")).path


def call(*words: object) -> Result:
    app = typer.Typer()
    for command in (bench_results.compare, bench_results.recommend, bench_results.export):
        app.command()(command)
    return CliRunner().invoke(app, [str(word) for word in words])


def good(*words: object) -> str:
    result = call(*words)
    assert result.exit_code == 0, result.output
    return result.stdout


def test_compare(run: Path) -> None:
    text = good("compare", run, run)
    assert text.count("1.000 (1.000 to 1.000)") == 6
    cells = json.loads(good("compare", run, run, "--json"))["cells"]
    assert [cell["speed"]["value"] for cell in cells] == pytest.approx([1.0] * 3)
    assert isinstance(call("compare", run, run, "--allow", "all").exception, ConfigError)


def test_recommend(run: Path, tmp_path: Path) -> None:
    path = tmp_path / "deep" / "schedule.json"
    text = good("recommend", run, "--schedule", path)
    assert text.startswith("Ship ddtree(8,4): 1.80x")
    assert "--method ddtree --budget 8 --topk 4" in text
    schedule = parse_schedule(path.read_text(), "s")
    assert [entry.arm.label for entry in schedule.entries] == ["ddtree(8,4)"]
    assert json.loads(good("recommend", run, "--json"))["choices"][0]["label"] == "ddtree(8,4)"
    write_summary(run)
    assert good("recommend", run / SUMMARY_FILE) == good("recommend", run)


def test_export(run: Path, tmp_path: Path) -> None:
    assert len(list(csv.DictReader(io.StringIO(good("export", run))))) == 3
    assert len(json.loads(good("export", run, "--format", "json", "--what", "requests"))) == 12
    out = tmp_path / "table.md"
    assert good("export", run, "--format", "markdown", "--out", out) == ""
    assert out.read_text().startswith("Ship ddtree(8,4)")
    write_summary(run)
    assert good("export", run / SUMMARY_FILE) == good("export", run)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--what", "requests", "--format", "markdown"], "markdown: holds cells alone"),
        (["--what", "requests"], "requests are in a run's folder"),
    ],
)
def test_what_cannot_be_exported_is_said(run: Path, words: list[str], said: str) -> None:
    write_summary(run)
    result = call("export", run / SUMMARY_FILE, *words)
    assert isinstance(result.exception, ConfigError)
    assert said in str(result.exception)
