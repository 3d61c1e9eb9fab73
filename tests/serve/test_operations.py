"""What stands before the engine: keys, limits, clients that don't read."""

import contextlib
import http.client
import json
import socket
import struct
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from operated import COMPLETIONS, PROMPT, WAIT_S, ask, operated, wait_until

from ddtree.errors import ConfigError
from ddtree.serve.guards import Guards
from ddtree.serve.running import ServeSettings
from mutations.planting import Mutation, planted

BODY = {"prompt": PROMPT, "max_tokens": 5, "temperature": 0, "return_token_ids": True}
KEYS = ("first-key", "second-key")
LIMIT = 2000


def ids(reply):
    assert reply.status == 200, reply.body
    return reply.json["choices"][0]["token_ids"]


def test_a_full_queue_is_a_429():
    """Whole and streamed, one and several; those inside are served."""
    with operated(max_queue=1) as server, ThreadPoolExecutor(5) as pool:
        server.gate.clear()
        inside = [pool.submit(ask, server.url, COMPLETIONS, BODY) for _ in range(4)]
        wait_until(lambda: server.worker.in_flight == 4)
        several = {"n": 2, "temperature": 1.0}
        assert ask(server.url, COMPLETIONS, BODY | several).status == 429
        inside.append(pool.submit(ask, server.url, COMPLETIONS, BODY))
        wait_until(lambda: server.worker.in_flight == 5)
        for fields in ({}, {"stream": True}, several):
            reply = ask(server.url, COMPLETIONS, BODY | fields)
            assert (reply.status, reply.headers["retry-after"]) == (429, "1")
            assert reply.error["type"] == "rate_limit_exceeded"
            assert "the queue is full" in reply.error["message"]
        too_many = ask(server.url, COMPLETIONS, BODY | several | {"n": 6})
        assert (too_many.status, too_many.error["param"]) == (400, "n")
        server.gate.set()
        assert len({tuple(ids(reply.result())) for reply in inside}) == 1
        assert server.metrics()["ddtree_requests_refused_total/429"] == 4
        assert ask(server.url, COMPLETIONS, BODY).status == 200


def test_health_tells_a_hang():
    with operated() as server, ThreadPoolExecutor(1) as pool:
        server.worker.stall_s = 0.2
        assert ask(server.url, "/health").json == {"status": "ok"}
        server.gate.clear()
        answer = pool.submit(ask, server.url, COMPLETIONS, BODY)
        wait_until(lambda: ask(server.url, "/health").status == 503)
        sick = ask(server.url, "/health").json
        assert sick["status"] == "unhealthy"
        assert "no sign of life" in sick["reason"]
        server.gate.set()
        assert answer.result().status == 200
        wait_until(lambda: ask(server.url, "/health").status == 200)


def check_keys(server):
    """Each of the keys opens everything; without one only what watches the server is open."""
    for path in (
        "/v1/models",
        "/server_info",
        "/openapi.json",
        "/nowhere",
        COMPLETIONS,
        "/health/",
    ):
        body = BODY if path == COMPLETIONS else None
        for headers in (
            {},
            {"authorization": "Bearer"},
            {"authorization": "Bearer first-kez"},
            {"authorization": "Bearer first-key second-key"},
            {"authorization": "Basic first-key"},
            {"authorization": "first-key"},
            {"x-api-key": "first-key"},
        ):
            reply = ask(server.url, path, body, headers)
            assert (reply.status, reply.headers.get("www-authenticate")) == (401, "Bearer")
            assert reply.error["code"] == "invalid_api_key"
            assert "first-ke" not in reply.body
    for key in KEYS:
        headers = {"authorization": f"bearer  {key}"}
        assert ask(server.url, "/v1/models", headers=headers).status == 200
        assert len(ids(ask(server.url, COMPLETIONS, BODY, headers))) == 5
        assert key not in ask(server.url, "/server_info", headers=headers).body
    assert ask(server.url, "/health").status == 200
    assert server.metrics()["ddtree_requests_refused_total/401"] == 6 * 7


def test_keys():
    with operated(limits=Guards(KEYS)) as server:
        check_keys(server)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("hmac.compare_digest(key, known)", "known.startswith(key)"),
        ('scheme.lower() == b"bearer"', "True"),
        ('scope["path"] in OPEN_PATHS:', 'scope["path"].startswith(OPEN_PATHS):'),
    ],
)
def test_an_open_door_is_seen(old, new):
    bug = Mutation("an open door", "ddtree.serve.guards", ((old, new),), ())
    with planted(bug), operated(limits=Guards(KEYS)) as server, pytest.raises(AssertionError):
        check_keys(server)


@pytest.mark.parametrize("keys", [("",), (" ",), ("a\nb",), ("schlüssel",)])
def test_keys_that_no_header_carries_are_refused(keys):
    with pytest.raises(ConfigError, match="api_keys"):
        Guards(keys)


@pytest.fixture(scope="module")
def narrow():
    """A server with a small limit for bodies."""
    with operated(limits=Guards(max_body_bytes=LIMIT, body_timeout_s=0.3)) as server:
        yield server


def padded(size):
    """A good body of exactly so many bytes."""
    text = json.dumps(BODY).encode()
    return text + b" " * (size - len(text))


def chunked(server, size):
    """Status and error of a body sent in chunks, whose length nobody declares."""
    client = http.client.HTTPConnection("127.0.0.1", server.port, timeout=WAIT_S)
    parts = (padded(size)[i : i + 500] for i in range(0, size, 500))
    headers = {"content-type": "application/json"}
    client.request("POST", COMPLETIONS, parts, headers, encode_chunked=True)
    answer = client.getresponse()
    found = answer.status, json.loads(answer.read()).get("error")
    client.close()
    return found


def test_bodies_up_to_the_limit(narrow):
    assert len(ids(ask(narrow.url, COMPLETIONS, padded(LIMIT)))) == 5
    assert chunked(narrow, LIMIT) == (200, None)
    reply = ask(narrow.url, COMPLETIONS, padded(LIMIT + 1))
    assert reply.status == 413
    assert f"larger than {LIMIT} bytes" in reply.error["message"]
    assert chunked(narrow, LIMIT + 1) == (413, reply.error)
    assert len(ids(ask(narrow.url, COMPLETIONS, BODY))) == 5


@contextlib.contextmanager
def begun(server, rest):
    """A completion call whose head ends in `rest`, and what of the body is in it."""
    with socket.create_connection(("127.0.0.1", server.port), timeout=WAIT_S) as client:
        head = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
        client.sendall(head + rest)
        yield client


def test_a_declared_length_is_refused_unsent(narrow):
    """Who asks first, as curl does, is spared the sending."""
    with begun(narrow, b"expect: 100-continue\r\ncontent-length: 1000000000000\r\n\r\n") as client:
        assert client.recv(12) == b"HTTP/1.1 413"


def test_nothing_is_held_of_what_is_too_much(narrow):
    """An endless body is answered at the limit, and what still comes is thrown away."""
    with begun(narrow, b"transfer-encoding: chunked\r\n\r\n") as client:
        chunk = b"10000\r\n" + b" " * 65536 + b"\r\n"
        for _ in range(20):
            client.sendall(chunk)
        assert client.recv(12) == b"HTTP/1.1 413"
        for connection in narrow.server.server_state.connections:
            cycle = connection.cycle
            assert cycle is None or len(cycle.body) <= 2 * 65536
        assert ask(narrow.url, "/health").status == 200


def test_a_body_that_does_not_arrive(narrow):
    with begun(narrow, b'content-length: 100\r\n\r\n{"prompt": ') as client:
        assert client.recv(12) == b"HTTP/1.1 408"


def listener():
    """A listening socket with little room for what clients don't fetch."""
    found = socket.socket()
    found.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    found.bind(("127.0.0.1", 0))
    return found


@contextlib.contextmanager
def stubborn(server, fields):
    """A client that has asked for a long answer and reads nothing by itself."""
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    client.connect(("127.0.0.1", server.port))
    wordy = {"n": 3, "temperature": 1.0, "max_tokens": 60, "logprobs": 20, "ignore_eos": True}
    body = json.dumps(BODY | wordy | fields).encode()
    client.sendall(
        b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
        b"content-length: %d\r\n\r\n" % len(body) + body
    )
    with client:
        yield client


def check_given_up(server):
    """Its three requests end, long before they would have; a neighbour gets all of its answer,
    and the connection is cut."""
    server.step_s = 0.015
    with stubborn(server, {"stream": True}) as client:
        neighbour = ask(server.url, COMPLETIONS, BODY | {"max_tokens": 40})
        assert len(ids(neighbour)) == 40
        server.wait_idle()
        server.step_s = 0.0
        ends = [work.finish_reason for work in server.works]
        assert sorted(ends) == ["abort", "abort", "abort", "length"]
        wait_until(lambda: connections(server, client) == 0)
    use = server.worker.engine.cache_use()
    assert (use.free_slots, use.free_cells) == (use.slots, use.cells)


def connections(server, client):
    """How many of the server's are still this client's."""
    own = client.getsockname()
    held = list(server.server.server_state.connections)
    return sum(connection.client == own for connection in held)


IMPATIENT = ServeSettings(write_timeout_s=0.3)


def test_a_client_that_stops_reading_is_given_up(impatient):
    check_given_up(impatient)


def test_endless_patience_is_seen():
    edit = ("        else:\n            self.transport.abort()", "        else:\n            pass")
    bug = Mutation("no end", "ddtree.serve.protocol", (edit,), ())
    with planted(bug), listener() as sock, operated(settings=IMPATIENT, sockets=[sock]) as server:
        with pytest.raises(AssertionError):
            check_given_up(server)
        server.server.force_exit = True
        server.server.config.timeout_graceful_shutdown = 0


@pytest.fixture
def impatient():
    """A server that gives up soon, and has little room for what nobody fetches."""
    with listener() as sock, operated(settings=IMPATIENT, sockets=[sock]) as server:
        yield server


def test_an_answer_nobody_fetches_is_given_up(impatient):
    """Its requests are over; the connection must not be held for it."""
    with stubborn(impatient, {}) as client:
        wait_until(lambda: impatient.works and impatient.worker.in_flight == 0)
        assert [work.finish_reason for work in impatient.works] == ["length"] * 3
        wait_until(lambda: connections(impatient, client) == 0)


@pytest.mark.parametrize("said", [b"", b"POST /v1/comp", b"GET /health HTTP/1.1\r\nhost: x\r\n"])
def test_a_client_that_says_half_of_what_it_wants_is_given_up(impatient, said):
    with socket.create_connection(("127.0.0.1", impatient.port)) as client:
        client.sendall(said)
        client.settimeout(10)
        assert client.recv(1) == b""


def test_a_client_that_takes_its_time_between_requests(impatient):
    """A second request on a connection, after a pause and in two halves."""
    request = b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n"
    with socket.create_connection(("127.0.0.1", impatient.port)) as client:
        client.settimeout(10)
        for part in (request, request[:9], request[9:]):
            client.sendall(part)
            answer = b""
            while part != request[:9] and not answer.endswith(b"}"):
                answer += client.recv(4096)
            assert not answer or answer.startswith(b"HTTP/1.1 200")
            time.sleep(IMPATIENT.write_timeout_s / 3)


def test_calls_that_fail_in_the_server_are_counted(impatient):
    """500 is made outside of what counts refusals."""
    impatient.worker.engine.maker.make_request = lambda *_: 1 / 0
    try:
        assert ask(impatient.url, COMPLETIONS, BODY).status == 500
    finally:
        del impatient.worker.engine.maker.make_request
    assert impatient.metrics()["ddtree_requests_refused_total/500"] == 1


def test_a_call_larger_than_the_server_names_what_asks_for_so_many():
    with operated(max_queue=2) as server:
        for fields, param in (({"n": 7, "temperature": 1}, "n"), ({"prompt": ["a"] * 7}, "prompt")):
            reply = ask(server.url, COMPLETIONS, BODY | fields)
            assert (reply.status, reply.json["error"]["param"]) == (400, param)


def test_a_slow_reader_gets_everything():
    """Takes longer than the patience in all, but never for one piece."""
    # On a busy machine a reader may stand still for some tenths of a second.
    settings = ServeSettings(write_timeout_s=1.0)
    with (
        listener() as sock,
        operated(settings=settings, sockets=[sock]) as server,
        stubborn(server, {"stream": True}) as client,
    ):
        got, start = b"", time.monotonic()
        while not got.endswith(b"[DONE]\n\n\r\n0\r\n\r\n"):
            piece = client.recv(4096)
            assert piece, "cut off"
            got += piece
            time.sleep(0.06)
        assert time.monotonic() - start > 2 * settings.write_timeout_s
        assert [work.finish_reason for work in server.works] == ["length"] * 3


def test_a_client_that_resets_the_connection():
    with operated() as server:
        server.step_s = 0.02
        with stubborn(server, {"stream": True}) as client:
            wait_until(lambda: server.worker.engine.num_running == 3)
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        server.wait_idle()
        assert [work.finish_reason for work in server.works] == ["abort"] * 3
