"""A target whose logits are minus infinity for most ids: answers hold documented numbers."""

import asyncio
import math

import pytest
import torch
from sampled_checks import ARMS, CHAT, COMPLETIONS
from serve_calls import post, stream
from tiny_server import VOCABULARY, byte_tokenizer, served, tiny_engine

from ddtree.endpoint.client import ServerClient
from ddtree.records.arms import Arm
from ddtree.records.sampling import Sampling
from ddtree.verify.endpoint_source import EndpointSource
from ddtree.verify.run import VerifyPlan, run_verify
from support.ruled_out import rule_out

ALLOWED = [97, 98, 99]
# The target allows the ids at these places from the second token on.
IDS = [104, 97, 98, 7, 99, 105, 97]
SCORED = [True, True, False, True, False, True]
SAMPLED = {"temperature": 0.9, "seed": 4, "top_p": 0.95}
LEAST = -9999.0


@pytest.fixture(scope="module")
def choosy():
    """(url, target)."""
    engine = tiny_engine()
    rule_out(engine.target, sorted(set(range(VOCABULARY)) - set(ALLOWED)))
    with served(engine, byte_tokenizer()) as url:
        yield url, engine.target


def reference(target, ids):
    """[S - 1, V] log-probabilities of the token after each."""
    logits = target.reference_logits(torch.tensor(ids))[:-1]
    return torch.log_softmax(logits.double(), -1)


@pytest.mark.parametrize("sampling", [{}, {"temperature": 0}, SAMPLED], ids=str)
def test_scoring(choosy, sampling):
    url, target = choosy
    body = {"prompt": IDS, "echo": True, "logprobs": 5, "max_tokens": 0, "score_from": 1}
    found = post(url, COMPLETIONS, body | sampling)["choices"][0]["logprobs"]
    expected = reference(target, IDS)
    for place, (allowed, row) in enumerate(zip(SCORED, expected, strict=True), 1):
        logprob = found["token_logprobs"][place]
        wanted = float(row[IDS[place]]) if allowed else LEAST
        assert logprob == pytest.approx(wanted, abs=1e-5)
        assert (found["token_logits"][place] == -1e30) != allowed
        assert found["top_logits"][place][3:] == [-1e30, -1e30]
        best = row.topk(3).values.tolist()
        named = found["top_logprobs"][place]
        assert sorted(named.values(), reverse=True)[:3] == pytest.approx(best, abs=1e-5)
        assert set(sorted(named.values())[:-3]) == {LEAST}
        if sampling:
            numbers = [found[name][place] for name in ("scores", "edges", "share")]
            assert (numbers == [-1e30, -1e30, 0]) != allowed
            assert set(found["best_ids"][place]) <= set(ALLOWED)


def test_the_client_reads_the_scores_back(choosy):
    url, target = choosy
    expected = target.reference_logits(torch.tensor(IDS))[:-1].clamp(min=-1e30)

    async def ask(sampling):
        async with ServerClient(url) as client:
            return await client.score(tuple(IDS), 1, sampling=sampling)

    for sampling in (None, Sampling(0.9, top_p=0.95, seed=4)):
        for position, row in zip(asyncio.run(ask(sampling)), expected, strict=True):
            token = position.token_id
            assert position.token_logit == pytest.approx(float(row[token]), abs=1e-5)
            tops = [float(row[i]) for i in position.top_ids]
            assert list(position.top_logits) == pytest.approx(tops, abs=1e-5)
            if sampling is not None:
                assert (position.sampled.edge > -1e30) == (token in ALLOWED)


def test_verify(choosy):
    url, _ = choosy
    plan = VerifyPlan(
        prompts=((5, 9, 23),),
        arms=(Arm("ddtree", 8, 4),),
        samplings=(Sampling(), Sampling(0.9, top_p=0.9)),
        max_tokens=12,
        concurrencies=(1,),
        dtype="float64",
        block_size=5,
    )

    async def run():
        async with ServerClient(url) as client:
            source = EndpointSource(client)
            return await run_verify(plan, source, source, lambda _: None)

    report = asyncio.run(run())
    assert report.verdict == "exact", report.headline
    assert all(result.scored and result.control for result in report.results)


@pytest.mark.parametrize("arm", ARMS, ids=lambda arm: arm["method"])
@pytest.mark.parametrize("sampling", [{"temperature": 0}, SAMPLED], ids=str)
def test_generation(choosy, arm, sampling):
    """Log-probabilities of all that may come, then the number for minus infinity; streamed too."""
    url, target = choosy
    fields = {"max_tokens": 10, "speculation": arm, "return_token_ids": True} | sampling
    plain = {"prompt": IDS, "logprobs": 6} | fields
    choice = post(url, COMPLETIONS, plain)["choices"][0]
    ids, found = choice["token_ids"], choice["logprobs"]
    assert set(ids) <= set(ALLOWED)
    expected = reference(target, IDS + ids)[len(IDS) - 1 :]
    for place, (token, row) in enumerate(zip(ids, expected, strict=True)):
        assert found["token_logprobs"][place] == pytest.approx(float(row[token]), abs=1e-5)
        values = list(found["top_logprobs"][place].values())
        assert values[:3] == pytest.approx(row.topk(3).values.tolist(), abs=1e-5)
        assert values[3:] == [LEAST] * 3
    chat = {"messages": [{"role": "user", "content": "x"}], "logprobs": True, "top_logprobs": 6}
    (answer,) = post(url, CHAT, chat | fields)["choices"]
    for entry in answer["logprobs"]["content"]:
        assert [e["logprob"] for e in entry["top_logprobs"]][3:] == [LEAST] * 3
    pieces = [event["choices"][0] for event in stream(url, COMPLETIONS, plain)]
    streamed = [value for piece in pieces for value in piece["logprobs"]["token_logprobs"]]
    assert streamed == pytest.approx(found["token_logprobs"], abs=1e-6)
    tops = [top for piece in pieces for top in piece["logprobs"]["top_logprobs"]]
    assert all(math.isfinite(value) for top in tops for value in top.values())
