"""The self-test sees what it is for; how large a bias is on this machine is not asked here."""

import asyncio
import dataclasses
import importlib
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from ddtree.bench import gates
from ddtree.bench.selftest import BIAS_LIMIT, CaseResult, Row, run_selftest
from ddtree.bench.selftest_cases import CASES, COSTS, plan_case
from ddtree.bench.selftest_truth import Sent, Truth
from ddtree.bench.warmup import AGREEING, MAX_BATCHES, WITHIN
from ddtree.cli import bench_selftest
from ddtree.cli.bench_selftest import selftest
from ddtree.endpoint.client import ServerClient
from ddtree.endpoint.stream import ERROR_CLASSES
from ddtree.errors import ConfigError
from ddtree.records import metrics
from ddtree.records.files import RequestLog
from ddtree.records.requests import RequestRecord


def short(*names: str) -> tuple[CaseResult, ...]:
    return asyncio.run(run_selftest(3, 0.5, names))


def rows(result: CaseResult) -> dict[str, Row]:
    return {row.metric: row for row in result.rows}


def wrong_counts(results: Iterable[CaseResult]) -> set[tuple[str, str]]:
    return {
        (result.name, row.metric)
        for result in results
        for row in result.rows
        if row.bias is None and not row.is_right
    }


def test_counts_are_exact_in_every_case() -> None:
    results = short(*(case.name for case in CASES))
    assert [result.name for result in results] == [case.name for case in CASES]
    assert wrong_counts(results) == set()
    by_name = {result.name: rows(result) for result in results}
    assert by_name["steady"]["tokens"].truth == by_name["steady"]["chunks"].truth > 0
    assert by_name["four"]["tokens"].truth > 3 * by_name["four"]["chunks"].truth
    for name in ("refused", "in_band", "broken", "silent", "crash"):
        (failed,) = [row for metric, row in by_name[name].items() if metric.startswith("failed as")]
        assert failed.measured > 0
        assert by_name[name]["finished"].measured > 0
    assert by_name["crash"]["server found dead"].measured == 1
    for name in ("steady", "four", "first8", "drift"):
        for metric in ("tok/s", "TTFT ms", "tpot ms"):
            assert by_name[name][metric].bias is not None
            assert by_name[name][metric].truth > 0


def test_a_chunk_counted_as_a_token_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = ServerClient.stream_completion

    async def chunks(self: ServerClient, *arguments: Any) -> RequestRecord:
        record = await stream(self, *arguments)
        return dataclasses.replace(record, chunk_tokens=(1,) * len(record.chunk_tokens))

    monkeypatch.setattr(ServerClient, "stream_completion", chunks)
    results = short("steady", "four")
    assert wrong_counts(results) == {("four", "tokens")}
    # Four tokens in a chunk: the speed is off by far more than any machine's noise.
    (_, four) = results
    assert rows(four)["tok/s"].bias == pytest.approx(-0.75, abs=0.15)
    assert not four.is_right


def test_tpot_by_n_minus_one_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    def flattered(record: RequestRecord) -> float:
        span = record.chunk_times_s[-1] - record.chunk_times_s[0]
        return span / (sum(record.chunk_tokens) - 1)

    monkeypatch.setattr(metrics, "tpot_s", flattered)
    (found,) = short("first8")
    # Seven of some thirteen tokens came in the first chunk.
    assert (rows(found)["tpot ms"].bias or 0) < -0.3
    assert not found.is_right
    assert wrong_counts([found]) == set()


@pytest.mark.parametrize("case", ["refused", "in_band", "broken", "silent", "crash"])
def test_dropped_failures_are_caught(monkeypatch: pytest.MonkeyPatch, case: str) -> None:
    append = RequestLog.append

    def survivors(self: RequestLog, records: Iterable[RequestRecord]) -> None:
        append(self, [record for record in records if record.error is None])

    monkeypatch.setattr(RequestLog, "append", survivors)
    (found,) = short(case)
    wrong = {metric for _, metric in wrong_counts([found])}
    assert "requests" in wrong
    assert any(metric.startswith("failed as") for metric in wrong)


def test_failures_called_successes_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = ServerClient.stream_completion

    async def fine(self: ServerClient, *arguments: Any) -> RequestRecord:
        return dataclasses.replace(await stream(self, *arguments), error=None)

    monkeypatch.setattr(ServerClient, "stream_completion", fine)
    wrong = {metric for _, metric in wrong_counts(short("broken"))}
    assert {"finished", "finished, but not alike", "failed as broken_stream"} <= wrong


def test_a_late_clock_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = ServerClient.stream_completion

    async def late(self: ServerClient, *arguments: Any) -> RequestRecord:
        record = await stream(self, *arguments)
        return dataclasses.replace(record, sent_s=record.sent_s - 1.0)

    monkeypatch.setattr(ServerClient, "stream_completion", late)
    assert (rows(short("steady")[0])["TTFT ms"].bias or 0) > 1


def test_rows_are_judged() -> None:
    assert Row("tokens", 5, 5, None).is_right
    assert not Row("tokens", 5, 6, None).is_right
    assert Row("tok/s", 100, 99.1, -0.009).is_right
    assert not Row("tok/s", 100, 98.9, -0.011).is_right
    assert not Row("tok/s", 100, float("nan"), float("inf")).is_right
    assert BIAS_LIMIT == 0.01


def test_truth_has_its_own_formulas() -> None:
    """Two streams; both decode from 2.0 to 4.0 and send eight tokens in that time."""
    one = Sent(0, 0.5, (1.0, 2.0, 3.0, 4.0), (5, 2, 2, 2), True)
    two = Sent(1, 0.5, (2.0, 3.0, 5.0), (1, 2, 4), True)
    cut_off = Sent(2, 0.0, (9.0,), (1,), False)
    truth = Truth((one, two, cut_off), 2)
    assert truth.tokens_per_s(2) == pytest.approx(8 / 2, rel=1e-3)
    assert truth.ttft_s() == pytest.approx((0.5 + 1.5) / 2)
    assert truth.tpot_s() == pytest.approx((3 / 6 + 3 / 6) / 2)
    assert truth.ended == (one, two)


def test_plans_follow_from_their_arguments() -> None:
    for case in CASES:
        plan = plan_case(case.name, 8, 20.0)
        assert plan == plan_case(case.name, 8, 20.0)
        assert len(plan.max_tokens) >= 16
        assert all(name.startswith("http_") or name in ERROR_CLASSES for name in case.failures)
    # 64 streams with a step of 25.6 ms: 2,500 events a second.
    for cost in COSTS:
        assert plan_case(cost.name, 64, 10.0).max_tokens == (1 + round(10 / 0.0256),) * 64


def test_the_cost_script_measures_its_cases(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(Path(__file__).parents[2] / "benchmarks")
    script = importlib.import_module("client_cost")
    for case in ("stream", "batch", "steady"):
        found = script.measure(case, 2, 0.4)
        assert found["events"] > 10
        assert found["share"] == pytest.approx(2500 * found["us_per_event"] / 1e6)
        assert found["case"]["name"] == case


def result(bias: float) -> CaseResult:
    found = (Row("tok/s", 100.0, 100 * (1 + bias), bias), Row("tokens", 5, 5, None))
    return CaseResult("steady", "one token a chunk", 8, 1.0, 0.05, 0.001, found, ())


@pytest.mark.parametrize(("bias", "status"), [(0.002, 0), (0.05, 1)])
@pytest.mark.parametrize("as_json", [False, True])
def test_command(monkeypatch: pytest.MonkeyPatch, bias: float, status: int, as_json: bool) -> None:
    async def fake(*_: Any) -> tuple[CaseResult, ...]:
        return (result(bias),)

    monkeypatch.setattr("ddtree.bench.selftest.run_selftest", fake)
    app = typer.Typer()
    app.command()(selftest)
    done = CliRunner().invoke(app, ["--json"] if as_json else [])
    assert done.exit_code == status
    if as_json:
        data = json.loads(done.stdout)
        assert data["passed"] is (status == 0)
        assert [row["is_right"] for row in data["cases"][0]["rows"]] == [status == 0, True]
    else:
        assert ("FAILED" in done.stdout) is ("WRONG" in done.stdout) is bool(status)


def test_unknown_case_is_named() -> None:
    with pytest.raises(ConfigError, match="--case 'nope': unknown; there are steady, four"):
        bench_selftest.selftest(case=["nope"])


def test_the_page_names_every_case_and_gate() -> None:
    page = (Path(__file__).parents[2] / "docs" / "bench-selftest.md").read_text()
    for case in CASES:
        assert f"| `{case.name}` | {case.about} |" in page
    for gate in gates.GATES:
        assert f"| `{gate.__name__}` |" in page
    for text, value in (
        ("delays stamps, on average, by over 1 ms and 1 %", gates.MEAN_LAG_LIMIT_S == 0.001),
        ("its lag is over 2 ms (p99)", gates.LAG_LIMIT_S == 0.002),
        ("over 5 % fewer requests in flight", gates.CONCURRENCY_LIMIT == 0.05),
        ("half of the 4-grams", gates.LOOP_LIMIT == 0.5),
        ("the last three take the\n  same time within 5 %", (AGREEING, WITHIN) == (3, 0.05)),
        ("ten batches at most", MAX_BATCHES == 10),
        ("a bias exceeds 1 %", BIAS_LIMIT == 0.01),
    ):
        assert text in page
        assert value, text
