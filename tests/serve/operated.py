"""A tiny model behind all that stands before an engine in production, on a thread or a process."""

import contextlib
import json
import socket
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from prometheus_client.parser import text_string_to_metric_families
from tiny_server import byte_tokenizer, tiny_engine

import ddtree.serve
from ddtree.endpoint.launch import free_port
from ddtree.serve import guards, running
from support.drafts import with_drafts

COMPLETIONS = "/v1/completions"
PROMPT = [104, 101, 108, 108, 111, 32, 119]
WAIT_S = 20


@dataclass
class Operated:
    """Where it listens, what is behind it; `works` are all that the engine was given."""

    url: str
    worker: ddtree.serve.EngineWorker
    server: running.DrainingServer
    thread: threading.Thread
    known: dict[tuple[int, ...], list[int]] = field(default_factory=dict)
    works: list = field(default_factory=list)
    step_s: float = 0.0
    gate: threading.Event = field(default_factory=threading.Event)

    @property
    def port(self) -> int:
        """Where it listens."""
        return int(self.url.rpartition(":")[2])

    def metrics(self) -> dict[str, float]:
        """Samples by name, a label's value behind it: ddtree_rounds_total/ar."""
        with urllib.request.urlopen(self.url + "/metrics", timeout=WAIT_S) as answer:
            families = text_string_to_metric_families(answer.read().decode())
            return {
                "/".join([sample.name, *sample.labels.values()]): sample.value
                for family in families
                for sample in family.samples
            }

    def wait_idle(self) -> None:
        """Until everything has ended."""
        wait_until(lambda: self.worker.in_flight == 0)

    def _watch(self) -> None:
        engine = self.worker.engine
        step, enqueue = engine.step, engine.enqueue

        def slow():
            time.sleep(self.step_s)
            self.gate.wait(WAIT_S)
            return step()

        def keep(work):
            self.works.append(work)
            enqueue(work)

        engine.step, engine.enqueue = slow, keep

    def _propose(self, request) -> list[int]:
        """Two right tokens, where the output is known, then two that are probably wrong."""
        following = self.known.get(request.prompt, [])[len(request.output) :]
        return ([*following[:2], 1, 1, 1, 1])[:4]


@contextlib.contextmanager
def operated(
    max_queue: int | None = None,
    limits: guards.Guards | None = None,
    settings: running.ServeSettings | None = None,
    sockets: list[socket.socket] | None = None,
) -> Iterator[Operated]:
    """A server on a thread, its gate open, stopped at the end if it still runs."""
    engine = tiny_engine()
    worker = ddtree.serve.EngineWorker(engine, max_queue)
    info = ddtree.serve.ServerInfo("tiny", {})
    app = ddtree.serve.create_app(worker, byte_tokenizer(), info, limits)
    port = sockets[0].getsockname()[1] if sockets else free_port()
    settings = settings or running.ServeSettings()
    settings = running.ServeSettings(
        port=port,
        shutdown_timeout_s=settings.shutdown_timeout_s,
        write_timeout_s=settings.write_timeout_s,
    )
    server = running.DrainingServer(app, worker, settings)
    thread = threading.Thread(target=server.run, args=(sockets,))
    found = Operated(f"http://127.0.0.1:{port}", worker, server, thread)
    with_drafts(engine, found._propose)
    found._watch()
    found.gate.set()
    thread.start()
    try:
        wait_until(lambda: server.started or not thread.is_alive())
        assert thread.is_alive()
        yield found
    finally:
        found.gate.set()
        server.should_exit = True
        thread.join(WAIT_S)


@dataclass(frozen=True)
class Reply:
    """A raw answer: what came, whatever the status."""

    status: int
    headers: dict[str, str]
    body: str

    @property
    def json(self):
        """The body, decoded."""
        return json.loads(self.body)

    @property
    def error(self):
        """The error in OpenAI's shape."""
        assert set(self.json) == {"error"}
        assert set(self.json["error"]) == {"message", "type", "param", "code"}
        return self.json["error"]

    @property
    def events(self):
        """Events of a stream, undecoded."""
        return [line.removeprefix("data: ") for line in self.body.split("\n\n") if line]


def ask(url: str, path: str, body=None, headers=None) -> Reply:
    """A call of a route; `body` is sent as JSON, or as it is if it is bytes."""
    data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
    request = urllib.request.Request(
        url + path, data, {"content-type": "application/json"} | (headers or {})
    )
    try:
        with urllib.request.urlopen(request, timeout=WAIT_S) as answer:
            return Reply(answer.status, dict(answer.headers), answer.read().decode())
    except urllib.error.HTTPError as error:
        with error:
            return Reply(error.code, dict(error.headers), error.read().decode())


def wait_until(
    condition: Callable[[], object], seconds: float = WAIT_S, pause_s: float = 0.005
) -> None:
    """Look again and again; AssertionError if it takes too long."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(pause_s)
