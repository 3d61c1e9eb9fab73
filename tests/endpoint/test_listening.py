"""Reading in the call that brings the data, against reading in a task: the same records."""

import asyncio
import json
from dataclasses import replace

import pytest

from ddtree.endpoint import client as client_module
from ddtree.endpoint.calls import CompletionRequest, Deadlines
from ddtree.endpoint.client import ServerClient
from ddtree.endpoint.listening import ListeningHandler
from ddtree.records.requests import RequestRecord

STATS = {
    "rounds": 2,
    "accepted_histogram": [2],
    "completion_tokens": 3,
    "token_ids": [7, 8, 9],
}


def event(data: object) -> bytes:
    return b"data: " + json.dumps(data).encode() + b"\n\n"


def chunk(ids: list[int], **more: object) -> bytes:
    choice = {"index": 0, "text": "x", "token_ids": ids, "finish_reason": None} | more
    return event({"choices": [choice], "usage": None})


LAST = event(
    {
        "choices": [{"index": 0, "text": "", "token_ids": [9], "finish_reason": "length"}],
        "ddtree": STATS,
    }
)
USAGE = event({"choices": [], "usage": {"prompt_tokens": 2, "completion_tokens": 3}})
WHOLE = [chunk([7]), chunk([8]), LAST, USAGE, b"data: [DONE]\n\n"]
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n"

STREAMS = {
    "whole": WHOLE,
    "no done": WHOLE[:-1],
    "one piece": [b"".join(WHOLE)],
    "byte by byte": [bytes([byte]) for byte in b"".join(WHOLE)],
    "more after done": [*WHOLE, chunk([10])],
    "cut in an event": [*WHOLE[:2], LAST[:30]],
    "not UTF-8": [WHOLE[0], b"data: \xff\n\n", *WHOLE[1:]],
    "not JSON": [WHOLE[0], b"data: {\n\n", *WHOLE[1:]],
    "NaN and lone surrogates": [chunk([7], text="\ud83d", logprobs=float("nan")), *WHOLE[1:]],
    "an error in band": [WHOLE[0], event({"error": {"message": "no"}})],
    "tokens after the end": [*WHOLE[:3], chunk([11]), *WHOLE[3:]],
    "empty": [],
}
ENDS = ("chunked", "length", "closed", "cut")


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("name", STREAMS)
def test_same_records_as_reading_in_a_task(
    name: str, end: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    fast = asyncio.run(record_of(STREAMS[name], end))
    assert fast.chunk_times_s == tuple(sorted(fast.chunk_times_s))

    async def never(*_: object) -> None: ...

    monkeypatch.setattr(client_module, "listen", never)
    slow = asyncio.run(record_of(STREAMS[name], end))
    assert timeless(fast) == timeless(slow)
    if name in ("whole", "byte by byte", "one piece", "more after done"):
        assert fast.error is None
        assert fast.token_ids == (7, 8, 9)


def test_connections_can_be_listened_to(monkeypatch: pytest.MonkeyPatch) -> None:
    # aiohttp has no public way to ask for this: another release may ignore ours.
    heard = []
    told = ListeningHandler.data_received

    def data_received(self: ListeningHandler, data: bytes) -> None:
        told(self, data)
        heard.append(self.listener is not None)

    monkeypatch.setattr(ListeningHandler, "data_received", data_received)
    record = asyncio.run(record_of(WHOLE, "chunked"))
    assert record.error is None
    assert sum(heard) >= len(WHOLE) - 1


def test_silence_is_noticed_while_listening() -> None:
    record = asyncio.run(record_of(WHOLE[:1], "silent"))
    assert record.token_ids == (7,)
    assert (record.error or "").startswith("timeout_silence")


def test_cancelling_stops_the_listener() -> None:
    async def scenario() -> None:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(record_of(WHOLE[:1], "silent", silence_s=30), 0.3)

    asyncio.run(scenario())


def timeless(record: RequestRecord) -> RequestRecord:
    ended = None if record.end_s is None else 0.0
    times = (0.0,) * len(record.chunk_times_s)
    return replace(record, sent_s=0.0, end_s=ended, chunk_times_s=times)


async def record_of(pieces: list[bytes], end: str, silence_s: float = 0.5) -> RequestRecord:
    """The client's record of a stream sent in pieces, and ended in one of several ways."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        served.append(asyncio.current_task())
        try:
            await send(reader, writer)
        except (ConnectionError, asyncio.CancelledError):
            pass
        finally:
            writer.transport.abort()

    async def send(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        size = sum(map(len, pieces))
        form = {
            "chunked": b"transfer-encoding: chunked\r\n\r\n",
            "length": b"content-length: %d\r\n\r\n" % size,
            "cut": b"content-length: %d\r\n\r\n" % (size + 10),
        }.get(end, b"connection: close\r\n\r\n")
        writer.write(HEAD + form)
        for piece in pieces:
            await writer.drain()
            # Let each piece be a read of its own.
            await asyncio.sleep(0.0005)
            writer.write(b"%x\r\n%s\r\n" % (len(piece), piece) if end == "chunked" else piece)
        if end == "chunked":
            writer.write(b"0\r\n\r\n")
        if end == "silent":
            await writer.drain()
            await asyncio.sleep(5)
        writer.close()
        await writer.wait_closed()

    served: list[asyncio.Task[None] | None] = []
    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    limits = Deadlines(first_token_s=2.0, silence_s=silence_s, request_s=60.0)
    try:
        async with ServerClient(f"http://127.0.0.1:{port}", deadlines=limits) as client:
            return await client.stream_completion(CompletionRequest((1, 2), 3))
    finally:
        for task in filter(None, served):
            task.cancel()
        await asyncio.gather(*filter(None, served))
        server.close()
