"""Choices of one prompt: however one ends, the others end with it."""

import asyncio
import http.client
import json
import time

import pytest
from sampled_checks import BASE, COMPLETIONS, PROMPT
from serve_calls import call, stream
from tiny_server import VOCABULARY, byte_tokenizer, tiny_engine

from ddtree.engine import SamplingParams
from ddtree.errors import RequestError
from ddtree.serve import choices as serving
from ddtree.serve.worker import EngineWorker
from mutations.planting import Mutation, planted


@pytest.fixture
def worker():
    worker = EngineWorker(tiny_engine())
    worker.start()
    yield worker
    worker.stop()


def choices(worker, count, **fields):
    params = SamplingParams(temperature=1.0, seed=1, **fields)
    return serving.make_choices(worker.engine, byte_tokenizer(), PROMPT, params, None, count)


async def idle(worker):
    await asyncio.to_thread(wait_until, lambda: worker.engine.is_idle)


def dead_ends():
    """Fields that leave no token after an 'a', which is improbable: c, c, c, a, nothing."""
    a, c = 97, 99
    return {
        "stop_token_ids": tuple(t for t in range(VOCABULARY) if t not in (a, c)),
        "min_tokens": 100,
        "max_tokens": 100,
        "bad_words": ((a, a), (a, c)),
        "logit_bias": {a: -4.0},
    }


def check_a_failing_choice_ends_the_others(worker):
    async def run():
        made = choices(worker, 6, **dead_ends())
        with pytest.raises(RequestError, match="left no token"):
            async for _ in serving.Choices(worker, made).pieces():
                pass
        await idle(worker)
        return [choice.request.finish_reason for choice in made]

    reasons = asyncio.run(run())
    assert "error" in reasons
    assert set(reasons) == {"error", "abort"}


def check_an_abandoned_reader_ends_all(worker):
    async def run():
        made = choices(worker, 6, max_tokens=100)  # more than there are slots
        pieces = serving.Choices(worker, made).pieces()
        await anext(pieces)
        await pieces.aclose()
        await idle(worker)
        return [choice.request.finish_reason for choice in made]

    assert asyncio.run(run()) == ["abort"] * 6


ENDS = [check_a_failing_choice_ends_the_others, check_an_abandoned_reader_ends_all]


@pytest.mark.parametrize("check", ENDS, ids=lambda check: check.__name__)
def test_no_choice_outlives_its_answer(worker, check):
    check(worker)


def test_the_checks_see_a_missing_abort(worker):
    edit = ("                    self.worker.abort(choice.ticket)\n", "                    pass\n")
    bug = Mutation("nothing is aborted", "ddtree.serve.choices", (edit,), ())
    with planted(bug):
        for check in ENDS:
            with pytest.raises(AssertionError):
                check(worker)


def test_what_is_never_read_never_runs(worker):
    async def run():
        pieces = serving.Choices(worker, choices(worker, 2)).pieces()
        await pieces.aclose()

    asyncio.run(run())
    assert worker.engine.is_idle


def test_a_failure_is_told_once(tiny):
    """All tokens but one wait for the end, and that one is a banned word."""
    waiting = [token for token in range(VOCABULARY) if token != 98]
    fields = {"n": 3, "min_tokens": 5, "stop_token_ids": waiting, "bad_words": ["b"]}
    code, answer = call(tiny.url, COMPLETIONS, BASE | fields)
    assert (code, answer["error"]["param"]) == (400, "logit_bias")
    assert "left no token" in answer["error"]["message"]
    *_, event = stream(tiny.url, COMPLETIONS, BASE | fields, last=None)
    assert "left no token" in event["error"]["message"]
    assert event["error"]["type"] == "invalid_request_error"
    assert call(tiny.url, "/health") == (200, {"status": "ok"})


@pytest.mark.parametrize("streamed", [False, True])
def test_a_client_that_goes_away_ends_all(tiny, monkeypatch, streamed):
    wait_until(lambda: tiny.engine.is_idle)  # what another test left behind is aborted by then
    aborted, abort, step = [], tiny.engine.abort, tiny.engine.step

    def watch(work):
        aborted.append(work)
        abort(work)

    def unhurried():
        # The requests must outlive the client's going, which takes a moment to be noticed.
        time.sleep(0.05)
        return step()

    monkeypatch.setattr(tiny.engine, "abort", watch)
    monkeypatch.setattr(tiny.engine, "step", unhurried)
    body = {"n": 4, "max_tokens": 100, "ignore_eos": True, "stream": streamed}
    client = http.client.HTTPConnection(tiny.url.removeprefix("http://"), timeout=20)
    headers = {"content-type": "application/json"}
    client.request("POST", COMPLETIONS, json.dumps(BASE | body), headers)
    if streamed:
        client.getresponse().readline()
    wait_until(lambda: tiny.engine.num_running == 4)
    client.close()
    wait_until(lambda: len(set(map(id, aborted))) == 4)
    wait_until(lambda: tiny.engine.is_idle)


def wait_until(holds):
    end = time.monotonic() + 20
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.01)
