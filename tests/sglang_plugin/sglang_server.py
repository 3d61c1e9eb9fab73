"""Start, ask and stop a real SGLang server on this CPU."""

import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

STUBS = Path(__file__).parent / "stub"
# Plugins beside DDTREE's, for `paths` below: what SGLang lacks on a CPU, and planted faults.
ON_CPU, FAULTY = (Path(__file__).parent / name for name in ("cpu", "fault"))
READY = "Uvicorn running on"
_TO_NCCL_PORT = 400
"""From a server's port to its process group's: below the system's own choices, past all tests'."""
_STARTUP_S = 120
CPU_ENVIRONMENT = {
    "SGLANG_USE_CPU_ENGINE": "1",
    "TRITON_INTERPRET": "1",
    "SGLANG_NATIVE_MOVE_KV_CACHE": "1",
    "HF_HUB_OFFLINE": "1",
    "OMP_NUM_THREADS": "2",
    "OMP_WAIT_POLICY": "passive",
    "GOMP_SPINCOUNT": "0",
}
CPU_FLAGS = [
    "--device",
    "cpu",
    "--dtype",
    "bfloat16",
    "--grammar-backend",
    "none",
    "--sampling-backend",
    "pytorch",
    "--mem-fraction-static",
    "0.1",
    "--max-total-tokens",
    "8192",
    "--skip-server-warmup",
    "--skip-tokenizer-init",
    "--random-seed",
    "1",
    "--disable-radix-cache",
    # Idle schedulers would poll, and take the processor from the one that is asked.
    "--sleep-on-idle",
]
CPU_ATTENTION = ["--attention-backend", "ddtree_torch"]


@dataclass(frozen=True)
class Answer:
    """What a request gave. status: of HTTP. ids and meta are empty where it isn't 200."""

    status: int
    ids: tuple[int, ...]
    meta: Mapping[str, Any]
    text: str


@dataclass(frozen=True)
class Server:
    """A running server and the file with what it printed."""

    process: subprocess.Popen[bytes]
    port: int
    log: Path

    def post(self, path: str, body: Mapping[str, Any]) -> tuple[int, str]:
        """Status and text of an answer."""
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}{path}",
            json.dumps(body).encode(),
            {"content-type": "application/json"},
        )
        try:
            with urllib.request.urlopen(request, timeout=120) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()

    def get(self, path: str) -> Any:
        """A JSON answer."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=60) as answer:
            return json.load(answer)

    def ask(self, prompt: Sequence[int], fields: Mapping[str, Any] = {}, **sampling: Any) -> Answer:
        """One request; greedy, and not ended by the end token, unless `sampling` says so."""
        params = {"temperature": 0, "ignore_eos": True, **sampling}
        body = {"input_ids": list(prompt), "sampling_params": params, **fields}
        status, text = self.post("/generate", body)
        if status != 200:
            return Answer(status, (), {}, text)
        answer = json.loads(text)
        return Answer(status, tuple(answer["output_ids"]), answer["meta_info"], text)

    def ask_all(
        self, prompts: Sequence[Sequence[int]], at_once: int, **sampling: Any
    ) -> list[Answer]:
        """A greedy answer to each prompt, `at_once` of them running at a time."""
        with ThreadPoolExecutor(at_once) as pool:
            return list(pool.map(lambda prompt: self.ask(prompt, **sampling), prompts))


@dataclass(frozen=True)
class Shape:
    """A DDTREE server's sizes, as its flags and environment say them."""

    name: str
    rows: int
    block: int
    topk: int
    window: int | None = None

    @property
    def environment(self) -> dict[str, str]:
        """Wishes, ranks among them."""
        return {"DDTREE_TOPK": str(self.topk), "DDTREE_RANKS": "1"}


BELOW = Shape("below", rows=4, block=8, topk=2)
AT = Shape("at", rows=8, block=8, topk=3, window=16)
ABOVE = Shape("above", rows=17, block=8, topk=4)


@dataclass(frozen=True)
class Pair:
    """Two folders with config.json and model.safetensors."""

    target: Path
    drafter: Path


def tree_flags(pair: Pair, shape: Shape) -> list[str]:
    """The flags of a DDTREE server."""
    flags = ["--speculative-algorithm", "DDTREE"]
    flags += ["--speculative-draft-model-path", str(pair.drafter)]
    flags += ["--speculative-num-draft-tokens", str(shape.rows)]
    flags += ["--speculative-dflash-block-size", str(shape.block)]
    if shape.window is not None:
        flags += ["--speculative-draft-window-size", str(shape.window)]
    return flags


def launch(
    pair: Pair,
    port: int,
    log: Path,
    flags: Sequence[str],
    environment: Mapping[str, str],
    paths: Sequence[Path] = (),
) -> Server:
    """Start a server on this CPU, without waiting for it. paths: put before other Python paths."""
    folders = os.pathsep.join(str(path) for path in (*paths, STUBS))
    given = {**CPU_ENVIRONMENT, "PYTHONPATH": folders, **environment}
    # SGLang knows no backend of a plugin that isn't loaded, not even to be overridden.
    attention = [] if "--attention-backend" in flags else CPU_ATTENTION
    # Two processes of tests must not ask each other's servers.
    port += 100 * int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    return start(pair.target, port, log, [*CPU_FLAGS, *attention, *flags], given)


def start(
    target: Path, port: int, log: Path, flags: Sequence[str], environment: Mapping[str, str]
) -> Server:
    """Start a server of `target` on whatever machine the flags and the environment are for."""
    inherited = {n: v for n, v in os.environ.items() if not n.startswith("DDTREE_")}
    command = [sys.executable, "-m", "sglang.launch_server", "--model-path", str(target)]
    # Left alone, SGLang asks the system for a free one and binds it seconds later: by then
    # another server started beside it may hold it.
    command += ["--port", str(port), "--nccl-port", str(port + _TO_NCCL_PORT), *flags]
    with log.open("wb") as out:
        process = subprocess.Popen(
            command,
            env={**inherited, **environment},
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    return Server(process, port, log)


def await_ready(server: Server, within_s: float = _STARTUP_S) -> None:
    """Return when the server serves; RuntimeError with the end of its log if it can't."""
    end = time.monotonic() + within_s
    while time.monotonic() < end:
        text = server.log.read_text(errors="replace")
        if READY in text:
            return
        if server.process.poll() is not None or "Received sigquit" in text:
            break
        time.sleep(0.2)
    raise RuntimeError(f"no server on port {server.port}:\n{server.log.read_text()[-3000:]}")


def stop(server: Server) -> None:
    """End the server and the processes it started."""
    with suppress(ProcessLookupError):
        os.killpg(server.process.pid, signal.SIGKILL)
    server.process.wait()


@contextmanager
def serving(
    pair: Pair,
    port: int,
    log: Path,
    flags: Sequence[str] = (),
    environment: Mapping[str, str] = {},
    paths: Sequence[Path] = (),
) -> Iterator[Server]:
    """A server that is ready, ended afterwards."""
    with attended(launch(pair, port, log, flags, environment, paths)) as (server,):
        yield server


@contextmanager
def attended(*servers: Server) -> Iterator[tuple[Server, ...]]:
    """Servers that were launched side by side: ready, ended afterwards."""
    try:
        for server in servers:
            await_ready(server)
        yield servers
    finally:
        for server in servers:
            stop(server)
