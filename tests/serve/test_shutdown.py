"""How a server ends: what is in flight gets its time, and everybody is told."""

import contextlib
import http.client
import json
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from operated import COMPLETIONS, PROMPT, WAIT_S, ask, operated, wait_until
from tiny_server import EOS, VOCABULARY, byte_tokenizer

from ddtree.endpoint.launch import free_port
from ddtree.serve.running import ServeSettings
from mutations.planting import Mutation, planted
from support.tiny import tiny_config, tiny_model

BODY = {"prompt": PROMPT, "max_tokens": 20, "temperature": 0, "ignore_eos": True}
KEY = "a-secret-key"


def check_drain(server):
    """The signal refuses what comes and leaves what is there, waiting requests included."""
    with ThreadPoolExecutor(8) as pool:
        server.step_s = 0.02
        fields = [{"stream": True}, {}] * 3
        answers = [pool.submit(ask, server.url, COMPLETIONS, BODY | f) for f in fields]
        wait_until(lambda: server.worker.in_flight == 6)
        server.server.handle_exit(signal.SIGTERM, None)
        time.sleep(0.25)  # the server's loop looks every 0.1 s, and would have closed the door
        sick = ask(server.url, "/health")
        assert sick.status == 503
        assert sick.json["reason"] == "the server is shutting down"
        for streamed in (False, True):
            reply = ask(server.url, COMPLETIONS, BODY | {"stream": streamed})
            assert reply.status == 503
            assert "shutting down" in reply.error["message"]
        streams, wholes = ([a.result() for a in answers[i::2]] for i in (0, 1))
        (text,) = {reply.json["choices"][0]["text"] for reply in wholes}
        for reply in streams:
            *events, last = reply.events
            assert last == "[DONE]"
            assert "".join(json.loads(e)["choices"][0]["text"] for e in events) == text
    server.thread.join(WAIT_S)
    assert not server.thread.is_alive()


def test_requests_in_flight_get_their_time():
    with operated() as server:
        check_drain(server)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("if not self._worker.in_flight and not self.server_state.tasks:", "if True:"),
        ("self._worker.drain()", "self.should_exit = True"),
    ],
    ids=["nobody is waited for", "uvicorn's own way"],
)
def test_a_closed_door_is_seen(old, new):
    bug = Mutation("haste", "ddtree.serve.running", ((old, new),), ())
    with planted(bug), operated() as server, pytest.raises((AssertionError, OSError)):
        check_drain(server)


def test_a_second_signal_ends_it_at_once():
    """No matter what is in flight, and without stopping the engine first."""
    with operated() as server, ThreadPoolExecutor(1) as pool:
        server.step_s = 0.02
        body = BODY | {"stream": True, "max_tokens": 100}
        answer = pool.submit(ask, server.url, COMPLETIONS, body)
        wait_until(lambda: server.worker.in_flight == 1)
        server.server.handle_exit(signal.SIGINT, None)
        server.server.handle_exit(signal.SIGTERM, None)
        server.thread.join(WAIT_S)
        assert not server.thread.is_alive()
        with pytest.raises((OSError, http.client.HTTPException)):
            answer.result()
        server.worker.stop()
        assert [len(work.output) < 100 for work in server.works] == [True]


def test_what_takes_too_long_is_cancelled():
    """Streams end with an error event, whole answers are a 503, and nothing is left."""
    with operated(settings=ServeSettings(shutdown_timeout_s=0.3)) as server:
        server.step_s = 0.05
        with ThreadPoolExecutor(6) as pool:
            body = BODY | {"max_tokens": 100}
            fields = [{"stream": True}, {}] * 3
            answers = [pool.submit(ask, server.url, COMPLETIONS, body | f) for f in fields]
            wait_until(lambda: server.worker.in_flight == 6)
            server.server.handle_exit(signal.SIGINT, None)
            replies = [answer.result() for answer in answers]
        server.thread.join(WAIT_S)
        assert not server.thread.is_alive()
        assert [reply.status for reply in replies] == [200, 503] * 3
        for stream, whole in zip(replies[::2], replies[1::2], strict=True):
            assert "shutting down" in whole.error["message"]
            assert json.loads(stream.events[-1]) == whole.json
        use = server.worker.engine.cache_use()
        assert (use.free_slots, use.free_cells) == (use.slots, use.cells)
        assert {work.finish_reason for work in server.works} == {"abort"}


def test_a_hang_is_left_behind():
    """The engine does not come back from a step: requests hear of the end all the same."""
    settings = ServeSettings(shutdown_timeout_s=0.1)
    with operated(settings=settings) as server, ThreadPoolExecutor(1) as pool:
        stop = server.worker.stop
        server.worker.stop = lambda: stop(0.1)
        server.gate.clear()
        answer = pool.submit(ask, server.url, COMPLETIONS, BODY)
        wait_until(lambda: server.worker.in_flight == 1)
        server.server.handle_exit(signal.SIGTERM, None)
        assert answer.result().status == 503
        server.thread.join(WAIT_S)
        assert not server.thread.is_alive()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A tiny model with a context of thousands, as files."""
    path = tmp_path_factory.mktemp("tiny")
    config = tiny_config(vocab_size=VOCABULARY, eos_token_id=EOS, max_position_embeddings=8192)
    tiny_model(config).save_pretrained(path)
    byte_tokenizer().save_pretrained(path)
    return path


@contextlib.contextmanager
def command(folder, *options):
    """`ddtree serve` with the tiny model, killed at the end if it still runs: process, URL."""
    port = free_port()
    argv = [sys.executable, "-m", "ddtree", "serve", "--model", str(folder), "--drafter", "none"]
    argv += ["--dtype", "float32", "--threads", "1", "--slots", "2", "--port", str(port), *options]
    environment = os.environ | {"DDTREE_API_KEY": KEY}
    with subprocess.Popen(argv, stderr=subprocess.PIPE, text=True, env=environment) as process:
        try:
            yield process, f"http://127.0.0.1:{port}"
        finally:
            process.kill()


def serves(process, url):
    """Whether it answers yet."""
    assert process.poll() is None, process.stderr.read()
    with contextlib.suppress(OSError):
        return ask(url, "/health").status == 200
    return False


def test_a_signal_lets_the_command_end_in_order(folder):
    """The real command: its options arrive, its key is told to nobody, its status is 0."""
    auth = {"authorization": f"Bearer {KEY}"}
    body = BODY | {"stream": True, "max_tokens": 500}
    options = ["--max-queue", "7", "--max-body-bytes", "5000", "--shutdown-timeout", "60"]
    options += ["--write-timeout", "9", "--cache-tokens", "9000", "--max-stall-ms", "80"]
    with command(folder, *options) as (process, url), ThreadPoolExecutor(1) as pool:
        wait_until(lambda: serves(process, url), seconds=120, pause_s=0.2)
        assert ask(url, COMPLETIONS, body).status == 401
        assert ask(url, COMPLETIONS, b" " * 5001, auth).status == 413
        info = ask(url, "/server_info", headers=auth)
        assert KEY not in info.body
        expected = {"max_queue": 7, "max_body_bytes": 5000, "api_key_required": True}
        expected |= {"shutdown_timeout_s": 60.0, "write_timeout_s": 9.0}
        expected |= {"cache_tokens": 9000, "max_stall_s": 0.08, "rounds": "ragged"}
        assert info.json | expected == info.json
        answer = pool.submit(ask, url, COMPLETIONS, body, auth)
        wait_until(lambda: ask(url, "/server_info", headers=auth).json["running"])
        process.send_signal(signal.SIGTERM)
        assert answer.result().events[-1] == "[DONE]"
        assert process.wait(WAIT_S) == 0
        printed = process.stderr.read()
        assert KEY not in printed
        assert all(f"  {name}: {value}\n" in printed for name, value in expected.items())
