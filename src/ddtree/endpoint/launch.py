"""A server process from start to stop: own session, log file, ready only when it generates.

Nothing is left behind: `stop` ends the whole process group, any descendant that left it, and what
lost its parent on the way, which still carries the launch's mark in its environment. When this
process dies without stopping its server, a guard process ends the group; it knows nothing of
descendants that left the group.
"""

import asyncio
import contextlib
import os
import secrets
import shlex
import signal
import socket
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

import psutil

from ddtree.endpoint.calls import CompletionRequest, Deadlines
from ddtree.endpoint.client import ServerClient
from ddtree.endpoint.kinds import Kind
from ddtree.errors import EndpointError
from ddtree.records.arms import Arm

_POLL_S = 0.2
# Variable by which a launch's processes are known, whatever became of their parents.
_MARK = "DDTREE_LAUNCH"
_LOG_LINES = 15
_READY_TOKENS = 8
# What no waiting changes.
REFUSALS = ("http_400", "http_401", "http_403", "http_404", "http_422")
_READY_PROMPT = "def add(a, b):\n    return"
# Measured requests carry ids, and a server may run without a tokenizer.
READY_IDS = tuple(range(100, 108))


@dataclass(frozen=True)
class LaunchPlan:
    """How to start a server. `environment` is the child's whole environment.

    `model` is the name that requests ask for, None for a server that needs none; `kind` and
    `api_key` are how it is talked to. `ready_s` is how long it may take to generate, `grace_s` to
    end after SIGTERM.
    """

    command: Sequence[str]
    environment: Mapping[str, str]
    host: str
    port: int
    log_path: Path
    model: str | None = None
    ready_s: float = 180.0
    grace_s: float = 10.0
    kind: Kind = "ddtree"
    api_key: str | None = None

    @property
    def url(self) -> str:
        """Where the server will listen."""
        return f"http://{self.host}:{self.port}"


def free_port(host: str = "127.0.0.1") -> int:
    """A port nothing listens on at the moment of asking."""
    with socket.socket() as probe:
        probe.bind((host, 0))
        return int(probe.getsockname()[1])


class ServerProcess:
    """A server, launched by the constructor. EndpointError when it can't be.

    `async with ServerProcess(plan) as server` waits until it is ready and stops it at the end;
    without that, call `wait_ready` and, whatever happens, `stop`.
    """

    def __init__(self, plan: LaunchPlan) -> None:
        self.plan = plan
        _require_free(plan.host, plan.port)
        self._mark = secrets.token_hex(16)
        plan.log_path.parent.mkdir(parents=True, exist_ok=True)
        with plan.log_path.open("ab") as log:
            try:
                self._process = subprocess.Popen(
                    list(plan.command),
                    env={**plan.environment, _MARK: self._mark},
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
            except OSError as error:
                raise EndpointError(f"can't start {plan.command[0]}: {error}") from None
        self._guard = _start_guard(self._process.pid, plan.grace_s)

    @property
    def pid(self) -> int:
        """Process id, which is also the id of the server's process group."""
        return self._process.pid

    def check_alive(self) -> None:
        """EndpointError with the last lines of the log once the process has exited."""
        code = self._process.poll()
        if code is not None:
            how = f"signal {-code}" if code < 0 else f"status {code}"
            raise EndpointError(
                f"server process {self.pid} exited with {how}; end of {self.plan.log_path}:\n"
                + self.log_tail()
            )

    def log_tail(self, lines: int = _LOG_LINES) -> str:
        """The last lines of the server's log."""
        text = self.plan.log_path.read_text(errors="replace")
        return "\n".join(text.splitlines()[-lines:]) or "(empty log)"

    async def wait_ready(self) -> None:
        """Return once the server has generated 8 tokens.

        EndpointError if it exits, is late, or refuses the request as such (waiting won't help). A
        health answer alone proves nothing about the engine, so none is asked for.
        """
        end = time.monotonic() + self.plan.ready_s
        last_error = "no answer yet"
        while (left := end - time.monotonic()) > 0:
            self.check_alive()
            last_error = await _try_generate(self.plan, left)
            if not last_error:
                return
            if last_error.startswith(REFUSALS):
                raise EndpointError(f"server at {self.plan.url} refuses to generate: {last_error}")
            await asyncio.sleep(_POLL_S)
        self.check_alive()
        raise EndpointError(
            f"server at {self.plan.url} generated nothing within {self.plan.ready_s:g} s "
            f"({last_error}); end of {self.plan.log_path}:\n{self.log_tail()}"
        )

    def stop(self) -> None:
        """End the process group: SIGTERM, after the grace period SIGKILL. Safe to call twice."""
        family = _family(self.pid, self._mark)
        _signal_group(self.pid, family, signal.SIGTERM)
        if not self._gone(family, self.plan.grace_s):
            family += _family(self.pid, self._mark)
            _signal_group(self.pid, family, signal.SIGKILL)
            if not self._gone(family, self.plan.grace_s):
                raise EndpointError(f"server process {self.pid} survived SIGKILL")
        _dismiss_guard(self._guard)

    def _gone(self, family: list[psutil.Process], seconds: float) -> bool:
        end = time.monotonic() + seconds
        while True:
            leader_gone = self._process.poll() is not None
            if leader_gone and not any(_lives(p) for p in [*family, *_group_members(self.pid)]):
                return True
            if time.monotonic() > end:
                return False
            time.sleep(0.02)

    async def __aenter__(self) -> Self:
        try:
            await self.wait_ready()
        except BaseException:
            self.stop()
            raise
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()


async def _try_generate(plan: LaunchPlan, seconds: float) -> str:
    deadlines = Deadlines(first_token_s=seconds, silence_s=seconds, request_s=seconds)
    if plan.kind == "ddtree":
        request = CompletionRequest(_READY_PROMPT, _READY_TOKENS, Arm("ar"), ignore_eos=True)
    else:
        # Which arm this is a launch of need not be known.
        request = CompletionRequest(READY_IDS, _READY_TOKENS, ignore_eos=True)
    client = ServerClient(plan.url, plan.model, deadlines, plan.api_key, plan.kind)
    async with client:
        record = await client.stream_completion(request)
    if record.error is None and record.completion_tokens != _READY_TOKENS:
        return f"{record.completion_tokens} tokens instead of {_READY_TOKENS}"
    return record.error or ""


def _require_free(host: str, port: int) -> None:
    with socket.socket() as probe:
        # A port in TIME_WAIT can be listened on, as the server itself will do.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            raise EndpointError(
                f"port {port} on {host} is taken ({error}); choose another or stop what uses it"
            ) from None


def _start_guard(group: int, grace_s: float) -> subprocess.Popen[bytes]:
    """A shell in a session of its own that ends `group` once this process is gone.

    It reads from a pipe that this process holds open and never writes to: the read returns when
    the pipe closes, which it does however this process ends. SIGTERM comes first, SIGKILL after
    the grace period.
    """
    script = (
        f"read _; kill -TERM -{group}; sleep {shlex.quote(f'{grace_s:g}')}; kill -KILL -{group}"
    )
    return subprocess.Popen(
        ["/bin/sh", "-c", script],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


def _dismiss_guard(guard: subprocess.Popen[bytes]) -> None:
    # Killed before its pipe closes: it must not signal a group id that may be used anew.
    guard.kill()
    guard.wait()
    if guard.stdin is not None:
        guard.stdin.close()


def _family(pid: int, mark: str) -> list[psutil.Process]:
    """Descendants of `pid` as of now, itself excluded, and processes that carry the mark."""
    found = []
    with contextlib.suppress(psutil.NoSuchProcess):
        found = psutil.Process(pid).children(recursive=True)
    for process in psutil.process_iter():
        # A parent that died has left no other trace of whose child this is.
        with contextlib.suppress(psutil.Error, OSError):
            if process.pid != pid and process.environ().get(_MARK) == mark:
                found.append(process)
    return found


def _group_members(group: int) -> list[psutil.Process]:
    members = []
    for process in psutil.process_iter():
        with contextlib.suppress(ProcessLookupError, PermissionError):
            if os.getpgid(process.pid) == group:
                members.append(process)
    return members


def _lives(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def _signal_group(group: int, family: list[psutil.Process], number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(group, number)
    for process in family:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.send_signal(number)
