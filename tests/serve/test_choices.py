"""Choices of one prompt: however one ends, the others end with it."""

import asyncio
import http.client
import json
import sys
import time

import pytest
from sampled_checks import BASE, COMPLETIONS, PROMPT
from serve_calls import call, stream
from starlette.requests import ClientDisconnect
from tiny_server import VOCABULARY, byte_tokenizer, tiny_engine

from ddtree.engine import SamplingParams
from ddtree.errors import RequestError
from ddtree.serve import choices as serving
from ddtree.serve import completions
from ddtree.serve.completions import COMPLETION, Answer, EventStream, Wishes
from ddtree.serve.logprobs import TokenTexts
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
    maker = serving.ChoiceMaker(worker.engine, byte_tokenizer())
    return serving.Choices(worker, maker.make([PROMPT], params, None, count), count)


def started(worker, count, **fields):
    made = choices(worker, count, **fields)
    made.start()
    return made


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
        made = started(worker, 6, **dead_ends())
        with pytest.raises(RequestError, match="left no token"):
            async for _ in made.pieces():
                pass
        await idle(worker)
        return [choice.request.finish_reason for choice in made.items]

    reasons = asyncio.run(run())
    assert "error" in reasons
    assert set(reasons) == {"error", "abort"}


def check_an_abandoned_reader_ends_all(worker):
    async def run():
        made = started(worker, 6, max_tokens=100)  # more than there are slots
        pieces = made.pieces()
        await anext(pieces)
        await pieces.aclose()
        await idle(worker)
        return [choice.request.finish_reason for choice in made.items]

    assert asyncio.run(run()) == ["abort"] * 6


ENDS = [check_a_failing_choice_ends_the_others, check_an_abandoned_reader_ends_all]


@pytest.mark.parametrize("check", ENDS, ids=lambda check: check.__name__)
def test_no_choice_outlives_its_answer(worker, check):
    check(worker)


def test_the_checks_see_a_missing_abort(worker):
    edit = ("                self.worker.abort(choice.ticket)\n", "                pass\n")
    bug = Mutation("nothing is aborted", "ddtree.serve.choices", (edit,), ())
    with planted(bug):
        for check in ENDS:
            with pytest.raises(AssertionError):
                check(worker)


def check_a_stream_never_read_ends_all(worker):
    """The client is gone when the response begins, so that not one event is taken."""

    async def run():
        made = started(worker, 6, max_tokens=100)
        wishes = Wishes(token_ids=False, stats=False, usage=False)
        texts = TokenTexts(byte_tokenizer())
        answer = Answer(made, texts, COMPLETION, "tiny", wishes)

        async def receive():
            return {"type": "http.disconnect"}

        async def send(_):
            raise OSError

        response = EventStream(answer.events(), made.abandon)
        scope = {"type": "http", "asgi": {"spec_version": "2.4"}}
        with pytest.raises(ClientDisconnect):
            await response(scope, receive, send)
        await idle(worker)
        return [choice.request.finish_reason for choice in made.items]

    assert asyncio.run(run()) == ["abort"] * 6


def test_a_stream_never_read_ends_all(worker):
    check_a_stream_never_read_ends_all(worker)
    edit = ("            self._end()\n", "            pass\n")
    with planted(Mutation("nobody ends it", "ddtree.serve.completions", (edit,), ())):
        original = completions.EventStream
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(sys.modules[__name__], "EventStream", original)
            with pytest.raises(AssertionError):
                check_a_stream_never_read_ends_all(worker)


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
