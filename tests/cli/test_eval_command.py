import json
import os
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from ddtree.bench.session import ServeBackend
from ddtree.cli import app
from ddtree.cli.eval_given import arm_of, bench_spec, fetch_bytes, read_tasks, variables_of
from ddtree.errors import ConfigError
from ddtree.records.arms import Arm
from ddtree.records.evals import EVAL_FILE, read_eval

MOCK = """
import asyncio
from ddtree.endpoint.mock import serve_forever
from ddtree.endpoint.mock_script import MockScript
asyncio.run(serve_forever(MockScript(), {port}))
"""

DOUBLE = {
    "id": "double",
    "prompt": "Double a number.",
    "language": "python",
    "entry_point": "double",
    "calls": [{"args": [2], "expected": 4}, {"args": [5], "expected": 10}],
    "reference": "def double(n):\n    return 2 * n\n",
}
ECHO = {
    "id": "echo",
    "prompt": "Print what you read.",
    "language": "python",
    "stdin_tests": [{"stdin": "a\n", "stdout": "a\n"}],
    "reference": "print(input())\n",
}


def suite(folder: Path, *tasks: dict[str, object]) -> str:
    path = folder / "tasks.jsonl"
    path.write_text("".join(json.dumps(task) + "\n" for task in tasks))
    return f"file:{path}"


def invoke(*arguments: str) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, ["eval", *arguments])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, result.stdout, result.stderr


@pytest.fixture
def mock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Servers that are started are the mock, in a process of its own."""

    def command(self: ServeBackend, port: int, drafter: bool) -> list[str]:
        return [sys.executable, "-c", MOCK.format(port=port)]

    monkeypatch.setattr(ServeBackend, "_command", command)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))


def test_run_goes_on_and_is_reported_and_scored_anew(tmp_path: Path, mock: None) -> None:
    out = tmp_path / "eval"
    ask = ["run", "--suite", suite(tmp_path, DOUBLE, ECHO), "--out", str(out)]
    ask += ["--model", "mock", "--dtype", "float32", "--max-tokens", "8", "--workers", "1"]
    with pytest.raises(ConfigError, match="no request succeeded"):
        invoke(*ask, "--out", str(tmp_path / "no-chat-there"))
    ask += ["--prompting", "completion"]
    status, told, _ = invoke(*ask)
    assert status == 0
    summary = read_eval(out / EVAL_FILE)
    assert [row.arm for row in summary.rows] == [Arm("ar"), Arm("ddtree", 16, 4)]
    assert summary.rows[1].paired is not None
    assert summary.rows[1].paired.grade == "exact"
    assert summary.selfcheck in json.loads((out / EVAL_FILE).read_text())["selfcheck"]
    assert summary.provenance["server"]["device"] == "cpu"
    page = (out / "report.html").read_text()
    assert told.splitlines()[-1] == str((out / "report.html").resolve())
    requests = (out / "requests.jsonl").read_text()
    assert len(requests.splitlines()) == 4

    # Nothing is asked for again, and all ways to the table give the same one.
    (out / "report.html").unlink()
    assert invoke(*ask)[1] == told
    assert (out / "requests.jsonl").read_text() == requests
    assert invoke("report", str(out))[1] == told
    assert invoke("rescore", str(out), "--workers", "1")[1] == told
    # The resumption is in the provenance, which the page shows the first part of.
    assert (out / "report.html").read_text().count("<tr>") == page.count("<tr>")
    assert json.loads(invoke("report", str(out), "--json")[1])["suite"] == summary.suite

    with pytest.raises(ConfigError, match="max_tokens: 8, now 9"):
        invoke(*[a if a != "8" else "9" for a in ask])
    suite(tmp_path, DOUBLE)
    with pytest.raises(ConfigError, match="the answers are to one with"):
        invoke("rescore", str(out))


@pytest.mark.model
def test_a_served_model_is_graded(tmp_path: Path) -> None:
    out = tmp_path / "eval"
    ask = ["run", "--limit", "2", "--max-tokens", "24", "--concurrency", "2", "--arm", "ddtree:8,4"]
    ask += ["--dtype", "float32"]
    # A switch that the template does not have is refused, not dropped.
    with pytest.raises(ConfigError, match="no variable 'enable_thinking'"):
        invoke(*ask, "--no-thinking", "--out", str(tmp_path / "switched"))
    status, told, _ = invoke(*ask, "--out", str(out))
    assert status == 0, told
    summary = read_eval(out / EVAL_FILE)
    assert [row.tasks for row in summary.rows] == [2, 2]
    assert summary.rows[1].acceptance_length is not None
    assert summary.rows[1].acceptance_length > 1


def test_selfcheck_names_what_it_finds(tmp_path: Path) -> None:
    good = suite(tmp_path, DOUBLE, ECHO)
    status, told, _ = invoke("selfcheck", "--suite", good, "--workers", "1")
    assert status == 0
    assert "2 of 2 references pass" in told
    bad = suite(tmp_path, {**DOUBLE, "reference": "def double(n):\n    return n\n"})
    status, told, _ = invoke("selfcheck", "--suite", bad, "--workers", "1")
    assert status == 1
    assert "0 of 1 references pass" in told
    assert "  double, reference: assertion" in told


def test_nothing_is_run_after_a_selfcheck_that_is_not_clean(tmp_path: Path, mock: None) -> None:
    out = tmp_path / "eval"
    accepts_all = {**DOUBLE, "tests": "pass\n"}
    del accepts_all["calls"]
    with pytest.raises(ConfigError, match="not clean, nothing was run"):
        invoke("run", "--suite", suite(tmp_path, accepts_all), "--out", str(out), "--model", "mock")
    assert not (out / "requests.jsonl").exists()


def test_known_suites_and_a_missing_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    told = invoke("suites")[1]
    assert "humaneval  absent  164 tasks  MIT" in told
    assert "livecodebench" in told
    with pytest.raises(ConfigError, match=r"`ddtree eval fetch mbpp` gets it") as error:
        invoke("selfcheck", "--suite", "mbpp")
    assert str(tmp_path / "ddtree" / "mbpp" / "sanitized-mbpp.json") in str(error.value)
    with pytest.raises(ConfigError, match="expected one of humaneval"):
        invoke("selfcheck", "--suite", "nosuch")


@pytest.mark.parametrize("address", ["http://example.org/a", "file:///etc/passwd", "wheel:x==1/y"])
def test_only_what_is_known_is_fetched(address: str) -> None:
    with pytest.raises(ConfigError, match="expected"):
        fetch_bytes(address)


def test_an_unconfined_sandbox_has_to_be_asked_for(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--allow-unsafe-exec"):
        invoke("selfcheck", "--suite", suite(tmp_path, DOUBLE), "--sandbox", "plain")


@pytest.mark.parametrize(
    ("text", "arm"),
    [
        ("ar", Arm("ar")),
        ("chain", Arm("chain")),
        ("chain:full", Arm("chain", draft_window="full")),
        ("ddtree:16,4", Arm("ddtree", 16, 4)),
        ("ddtree:16,4,1024", Arm("ddtree", 16, 4, 1024)),
    ],
)
def test_arms(text: str, arm: Arm) -> None:
    assert arm_of(text) == arm


@pytest.mark.parametrize(
    "text", ["", "tree:16,4", "ddtree", "ddtree:16", "ddtree:16,x", "ddtree:16,4,5,6", "ar:1"]
)
def test_arms_that_are_none(text: str) -> None:
    with pytest.raises(ConfigError, match="--arm"):
        arm_of(text)


def test_template_variables() -> None:
    given = ["enable=true", "level=high", 'o={"a": 1}']
    assert variables_of(given) == (("enable", True), ("level", "high"), ("o", {"a": 1}))
    for bad in ("alone", "=1"):
        with pytest.raises(ConfigError, match="NAME=JSON"):
            variables_of([bad])


def test_servers_of_a_benchmarks_specification(tmp_path: Path) -> None:
    path = tmp_path / "spec.yaml"
    path.write_text(
        "model: m\narms: [{method: ddtree, budget: 4, topk: 2}]\ncontexts: [60]\n"
        "concurrencies: [1, 8]\nendpoint: {url: 'http://127.0.0.1:1', kind: ddtree}\n"
    )
    spec = bench_spec(path, {}, None, 3, 99)
    assert spec.arms == (Arm("ar"), Arm("chain"), Arm("ddtree", 4, 2))
    assert (spec.model, spec.concurrencies, spec.max_tokens) == ("m", (3,), 99)
    assert bench_spec(path, {}, ["chain"], 3, 99).arms == (Arm("ar"), Arm("chain"))


def test_days_are_for_dated_suites(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="its tasks have no dates"):
        read_tasks(suite(tmp_path, DOUBLE), None, ("2025-01-01", None))
    with pytest.raises(ConfigError, match="expected a day"):
        read_tasks(suite(tmp_path, DOUBLE), None, ("soon", None))
