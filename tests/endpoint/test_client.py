import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

import pytest
from aiohttp import web

from ddtree.endpoint.calls import CompletionRequest, Deadlines, RequestLabel
from ddtree.endpoint.client import ServerClient
from ddtree.endpoint.mock import MockServer
from ddtree.endpoint.mock_script import MockFaults, MockScript, continuation, top_tokens
from ddtree.endpoint.stream import ERROR_CLASSES, error_class
from ddtree.errors import EndpointError
from ddtree.records.arms import Arm
from ddtree.records.requests import RequestRecord

T = TypeVar("T")
PROMPT = tuple(range(100, 160))
QUICK = Deadlines(first_token_s=5, silence_s=5, request_s=10)


def run(work: Coroutine[Any, Any, T]) -> T:
    return asyncio.run(asyncio.wait_for(work, 20))


async def one(
    script: MockScript, request: CompletionRequest, deadlines: Deadlines = QUICK
) -> tuple[RequestRecord, MockServer]:
    async with (
        MockServer(script) as server,
        ServerClient(server.url, deadlines=deadlines) as client,
    ):
        label = RequestLabel("cell", 1, 2, "p3")
        return await client.stream_completion(request, label), server


def ask(method: str = "ar", max_tokens: int = 20, **script: Any) -> RequestRecord:
    arm = Arm(method, 8, 4) if method == "ddtree" else Arm(method)  # type: ignore[arg-type]
    request = CompletionRequest(PROMPT, max_tokens, arm)
    return run(one(MockScript(**script), request))[0]


def test_record_of_a_good_stream() -> None:
    record = ask("ddtree")
    assert record.error is None
    assert record.token_ids == continuation(PROMPT, 20)
    assert (record.cell, record.attempt, record.block, record.prompt_id) == ("cell", 1, 2, "p3")
    assert (record.prompt_tokens, record.completion_tokens) == (60, 20)
    assert record.finish_reason == "length"
    assert record.stats is not None
    assert record.stats["budget"] == 8
    # Prefill gives 1 token, rounds give 3, 2, 3, 2, ...; the last is cut at 20.
    assert record.chunk_tokens == (1, 3, 2, 3, 2, 3, 2, 3, 1)
    assert record.stats["cut_tokens"] == 1
    assert record.stats["accepted_histogram"] == [0, 4, 4]


def test_chunks_are_not_tokens() -> None:
    record = ask("ddtree", max_tokens=64, first_chunk_rounds=3, rounds_per_chunk=2)
    assert record.chunk_tokens[0] == 1 + 3 + 2 + 3
    assert sum(record.chunk_tokens) == record.completion_tokens == 64
    assert len(record.chunk_tokens) < 32


def test_times_follow_the_script() -> None:
    script = MockScript(prefill_s=0.05, round_s={"chain": 0.01})
    record, server = run(one(script, CompletionRequest(PROMPT, 21, Arm("chain"))))
    sent = server.log[0].chunk_times_s
    assert len(record.chunk_times_s) == len(sent) == 11
    assert record.sent_s <= server.log[0].started_s
    assert all(there <= here for there, here in zip(sent, record.chunk_times_s, strict=True))
    # The mock sleeps at least this long; the upper bound is left to the scheduler.
    assert record.chunk_times_s[0] - record.sent_s >= 0.05
    assert record.chunk_times_s[-1] - record.sent_s >= 0.15
    assert record.end_s is not None
    assert record.end_s >= record.chunk_times_s[-1]


def test_natural_end_of_sequence() -> None:
    record = ask(max_tokens=200, eos_every=10)
    assert record.finish_reason == "stop"
    assert record.token_ids == continuation(PROMPT, 200, eos_every=10)
    assert len(record.token_ids) < 200


FAULTS = [
    (MockFaults(refuse_share=1.0), "http_429", 0),
    (MockFaults(error_share=1.0), "in_band", 0),
    (MockFaults(cut_after_chunks=3), "broken_stream", 3),
    (MockFaults(omit_usage=True), "no_usage", 20),
    (MockFaults(omit_finish=True), "no_finish_reason", 20),
    (MockFaults(usage_offset=-1), "count_mismatch", 20),
    (MockFaults(prompt_offset=1), "prompt_mismatch", 20),
]


@pytest.mark.parametrize(("faults", "kind", "kept"), FAULTS, ids=[f[1] for f in FAULTS])
def test_fault_becomes_a_failed_record(faults: MockFaults, kind: str, kept: int) -> None:
    record = ask(faults=faults)
    assert record.error is not None
    assert error_class(record.error) == kind
    assert kind in ERROR_CLASSES or kind.startswith("http_")
    assert len(record.token_ids) == sum(record.chunk_tokens) == kept


def test_error_message_is_kept() -> None:
    assert ask(faults=MockFaults(refuse_share=1.0)).error == "http_429: queue is full"
    assert ask(faults=MockFaults(error_share=1.0)).error == "in_band: scripted error"


@pytest.mark.parametrize(
    ("script", "deadlines", "kind"),
    [
        (MockScript(prefill_s=60), Deadlines(0.1, 5, 10), "timeout_first_token"),
        (
            MockScript(faults=MockFaults(stall_after_chunks=2)),
            Deadlines(5, 0.1, 10),
            "timeout_silence",
        ),
        (MockScript(round_s={"ar": 0.03}), Deadlines(5, 5, 0.2), "timeout_total"),
    ],
)
def test_deadlines(script: MockScript, deadlines: Deadlines, kind: str) -> None:
    record, _ = run(one(script, CompletionRequest(PROMPT, 500, Arm("ar")), deadlines))
    assert record.error is not None
    assert error_class(record.error) == kind
    assert record.completion_tokens is None


def test_keep_alive_comments_do_not_hide_a_stall() -> None:
    async def pings(http: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(http)
        for _ in range(200):
            await response.write(b": ping\n\n")
            await asyncio.sleep(0.02)
        return response

    record = run(against(pings, Deadlines(0.2, 5, 10)))
    assert record.error is not None
    assert error_class(record.error) == "timeout_first_token"


async def against(handler: Any, deadlines: Deadlines = QUICK, max_tokens: int = 5) -> RequestRecord:
    app = web.Application()
    app.add_routes([web.post("/v1/completions", handler)])
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    try:
        async with ServerClient(url, "m", deadlines) as client:
            return await client.stream_completion(CompletionRequest((5, 6), max_tokens))
    finally:
        await runner.cleanup()


def fixed(*events: str) -> Any:
    async def handler(_: web.Request) -> web.Response:
        return web.Response(text="".join(f"data: {event}\n\n" for event in events))

    return handler


TOKENS = '{"choices":[{"index":0,"text":"ab","token_ids":[1,2],"finish_reason":null}]}'
LAST = (
    '{"choices":[{"index":0,"text":"","token_ids":[],"finish_reason":"stop"}],'
    '"ddtree":{"completion_tokens":2,"token_ids":[1,2]}}'
)
USAGE = '{"choices":[],"usage":{"prompt_tokens":2,"completion_tokens":2,"total_tokens":4}}'


@pytest.mark.parametrize(
    ("events", "kind"),
    [
        ((TOKENS, LAST, USAGE, "[DONE]"), None),
        ((TOKENS, LAST, USAGE), None),
        ((TOKENS, LAST, "{not json"), "bad_stream"),
        ((TOKENS.replace("[1,2]", "null"), LAST, USAGE), "bad_stream"),
        ((LAST, TOKENS, USAGE), "bad_stream"),
        ((TOKENS, LAST.replace('"token_ids":[1,2]', '"token_ids":[1,3]'), USAGE), "count_mismatch"),
        ((TOKENS, LAST.replace("stop", "abort"), USAGE), "no_finish_reason"),
        ((TOKENS, LAST.split(',"ddtree"')[0] + "}", USAGE), "no_stats"),
        ((TOKENS.replace("[1,2]", '[1,"x"]'), LAST, USAGE), "protocol"),
        ((TOKENS.replace("[1,2]", "[1,2.5]"), LAST, USAGE), "protocol"),
        ((TOKENS.replace("[1,2]", "[1,true]"), LAST, USAGE), "protocol"),
        ((TOKENS.replace("[1,2]", "7"), LAST, USAGE), "protocol"),
        (('{"choices":["text"]}', LAST, USAGE), "protocol"),
        (('{"choices":{"index":0}}', LAST, USAGE), "protocol"),
        ((TOKENS, LAST, '{"choices":[],"usage":5}'), "protocol"),
        ((TOKENS, LAST.replace('"ddtree":{', '"ddtree":[],"x":{'), USAGE), "protocol"),
        (("[DONE]",), "no_finish_reason"),
        ((), "no_finish_reason"),
    ],
)
def test_hand_made_streams(events: tuple[str, ...], kind: str | None) -> None:
    record = run(against(fixed(*events)))
    assert (record.error and error_class(record.error)) == kind


def test_more_tokens_than_asked_is_a_failure() -> None:
    record = run(against(fixed(TOKENS, LAST, USAGE), max_tokens=1))
    assert record.error is not None
    assert error_class(record.error) == "count_mismatch"


def test_nobody_listening() -> None:
    async def work() -> RequestRecord:
        async with ServerClient("http://127.0.0.1:9", "m", QUICK) as client:
            return await client.stream_completion(CompletionRequest((1,), 1))

    record = run(work())
    assert record.error is not None
    assert error_class(record.error) == "connect"


@pytest.mark.parametrize("concurrency", [8, 150])
def test_no_connection_limit(concurrency: int) -> None:
    async def work() -> int:
        script = MockScript(prefill_s=1.0, slots=concurrency)
        async with MockServer(script) as server, ServerClient(server.url, "m", QUICK) as client:
            request = CompletionRequest(PROMPT, 3, Arm("ar"))
            records = await asyncio.gather(
                *(client.stream_completion(request) for _ in range(concurrency))
            )
            assert all(record.error is None for record in records)
            return server.peak_in_flight

    assert run(work()) == concurrency


def test_score_tokenize_and_info() -> None:
    async def work() -> None:
        async with MockServer() as server, ServerClient(server.url, "m", QUICK) as client:
            ids = (*PROMPT, *continuation(PROMPT, 3), 4)
            scores = await client.score(ids, 60)
            assert [s.token_id for s in scores] == list(ids[60:])
            assert [s.top_ids[0] == s.token_id for s in scores] == [True, True, True, False]
            assert scores[3].top_ids == top_tokens(ids[:63])
            assert scores[0].token_logit == scores[0].top_logits[0] > scores[3].token_logit
            tokens = await client.tokenize("def f(x): return x")
            assert len(tokens) == 8
            assert await client.detokenize(tokens) == "def f(x): return x"
            assert (await client.server_info())["block_size"] == 8

    run(work())


def test_json_calls_raise_with_the_servers_words() -> None:
    async def refuse(_: web.Request) -> web.Response:
        return web.json_response({"error": {"message": "no such engine"}}, status=503)

    async def work() -> None:
        app = web.Application()
        app.add_routes([web.get("/server_info", refuse), web.post("/v1/completions", fixed("x"))])
        runner = web.AppRunner(app)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        async with ServerClient(url, "m", QUICK) as client:
            with pytest.raises(EndpointError, match="HTTP 503: no such engine"):
                await client.server_info()
            with pytest.raises(EndpointError, match="not JSON"):
                await client.score((1, 2), 1)
        await runner.cleanup()

    run(work())


def test_even_spread_of_scripted_failures() -> None:
    async def work() -> list[str | None]:
        script = MockScript(faults=MockFaults(refuse_share=0.3))
        async with MockServer(script) as server, ServerClient(server.url, "m", QUICK) as client:
            request = CompletionRequest(PROMPT, 2, Arm("ar"))
            return [(await client.stream_completion(request)).error for _ in range(10)]

    assert sum(error is not None for error in run(work())) == 3
