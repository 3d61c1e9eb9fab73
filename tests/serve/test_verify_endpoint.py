"""The losslessness procedure over HTTP."""

import asyncio
import contextlib
import json
from dataclasses import replace

import pytest

from ddtree.cli import main
from ddtree.endpoint.client import ServerClient
from ddtree.errors import EndpointError
from ddtree.records.arms import Arm
from ddtree.records.sampling import Sampling
from ddtree.verify.endpoint_source import EndpointSource
from ddtree.verify.run import VerifyPlan, run_verify
from mutations.planting import Mutation, planted

SAMPLED = Sampling(0.9, top_p=0.9, repetition_penalty=1.2)
PLAN = VerifyPlan(
    prompts=((5, 9, 23), (60, 2, 2, 17)),
    arms=(Arm("chain"), Arm("ddtree", 8, 4)),
    samplings=(Sampling(), SAMPLED),
    max_tokens=12,
    concurrencies=(1, 2),
    dtype="float64",
    block_size=5,
)
SEED_IGNORED = Mutation(
    "the seed is ignored",
    "ddtree.engine.choosing",
    (
        (
            "[SeededSampling(r.sampling, r.seed) for r in requests]",
            "[SeededSampling(r.sampling, 0) for r in requests]",
        ),
    ),
    (),
)


def check(tiny, plan=PLAN, *, scores=True):
    """The procedure on the tiny server."""

    async def run():
        async with ServerClient(tiny.url) as client:
            source = EndpointSource(client)
            return await run_verify(plan, source, source if scores else None, lambda _: None)

    return asyncio.run(run())


def test_a_sound_server_is_exact(tiny):
    report = check(tiny)
    assert report.verdict == "exact", report.headline
    greedy, sampled = report.results
    assert len(greedy.rows) == len(sampled.rows) == 6
    assert sampled.law is not None
    assert sampled.law.passed
    assert greedy.law is None
    assert all(row.losslessness.tokens for row in (*greedy.rows, *sampled.rows))


def test_a_faulty_server_is_not(tiny):
    with planted(SEED_IGNORED):
        report = check(tiny, replace(PLAN, samplings=(SAMPLED,), seed=3))
    assert report.verdict == "not-lossless"
    assert "seed" in report.results[0].rows[0].signature.hint


def test_identical_outputs_need_no_scores(tiny):
    assert check(tiny, replace(PLAN, concurrencies=(1,)), scores=False).verdict == "exact"


def run_command(capsys, monkeypatch, *arguments):
    monkeypatch.setattr("sys.argv", ["ddtree", "verify", *arguments])
    with pytest.raises(SystemExit) as stopped:
        main()
    return stopped.value.code, capsys.readouterr()


@pytest.mark.model
def test_the_command_on_a_server(server_url, capsys, monkeypatch, tmp_path):
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text('"def add(a, b):"\n')
    options = ("--url", server_url, "--prompts", str(prompts), "--max-tokens", "4", "--json")
    options += ("--budget", "8", "--concurrency", "1")
    code, shown = run_command(capsys, monkeypatch, *options)
    found = json.loads(shown.out)
    assert (code, found["verdict"], found["dtype"]) == (0, "exact", "float32")
    assert len(found["results"]) == 3

    async def hides_scores(self, *arguments):
        raise EndpointError("HTTP 404: scoring: not here")

    monkeypatch.setattr(ServerClient, "score", hides_scores)
    code, shown = run_command(capsys, monkeypatch, *options, "--temperature", "0")
    assert (code, json.loads(shown.out)["verdict"]) == (0, "exact")
    assert "differences stay unclassified" in shown.err


def test_a_server_that_is_no_ddtree_server(tiny, capsys, monkeypatch):
    code, shown = run_command(capsys, monkeypatch, "--url", tiny.url)
    assert code == 1
    assert "names no dtype" in shown.err


@pytest.mark.parametrize(("fault", "status"), [(None, 0), (SEED_IGNORED, 3)])
def test_the_command_s_exit_status(tiny, capsys, monkeypatch, tmp_path, fault, status):
    """End to end: the line of arguments, HTTP, scores, the verdict."""
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text('"hello w"\n"abab"\n')
    options = ("--url", tiny.url, "--dtype", "float64", "--prompts", str(prompts))
    options += ("--budget", "8", "--concurrency", "2", "--max-tokens", "12", "--seed", "3")
    options += ("--temperature", "0.9", "--top-p", "0.9", "--logit-bias", "97=3")
    options += ("--bad-word", "b", "--min-tokens", "4", "--stop-token-id", "98", "--json")
    with planted(fault) if fault else contextlib.nullcontext():
        code, shown = run_command(capsys, monkeypatch, *options)
    found = json.loads(shown.out)
    assert (code, found["exit_status"]) == (status, status)
    assert found["headline"].startswith("NOT lossless" if fault else "lossless: exact")
    (result,) = found["results"]
    assert (result["sampling"]["logit_bias"], result["sampling"]["bad_words"]) == (
        [[97, 3.0]],
        ["b"],
    )
    assert result["control"]["positions"]
