"""The servers of a run: the one under test, and one without a drafter for the control."""

import asyncio
import hashlib
import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self

from ddtree.bench.spec import BenchSpec
from ddtree.endpoint.calls import Deadlines
from ddtree.endpoint.client import ServerClient
from ddtree.endpoint.launch import LaunchPlan, ServerProcess, free_port
from ddtree.errors import ConfigError, EndpointError
from ddtree.records.arms import Arm
from ddtree.records.provenance import Provenance

_HOST = "127.0.0.1"
# Never fewer verify rows than a drafter's block is long: grading scores that many at once.
_LEAST_MAX_BUDGET = 64
# What of /server_info could change a result, beside the model and the drafter.
_SETTINGS = (
    *("device", "rounds", "threads", "omp_wait_policy", "slots", "max_context", "prefill_chunk"),
    *("block_size", "draft_window", "window_kind", "coupled_drafting", "torch", "transformers"),
)


class Server(Protocol):
    """A server that is ready."""

    @property
    def url(self) -> str:
        """Where it listens."""
        ...

    @property
    def pids(self) -> tuple[int, ...]:
        """Process ids whose trees are the server's own."""
        ...

    def check_alive(self) -> None:
        """EndpointError once it has died."""
        ...

    async def stop(self) -> None:
        """End it; nothing of it is left."""
        ...


class Backend(Protocol):
    """Starts servers."""

    async def start(self, *, drafter: bool) -> Server:
        """A server that has generated; EndpointError when it can't."""
        ...


@dataclass(frozen=True)
class LaunchedServer:
    """A `ddtree serve` process."""

    process: ServerProcess

    @property
    def url(self) -> str:
        """Where it listens."""
        return self.process.plan.url

    @property
    def pids(self) -> tuple[int, ...]:
        """The server process."""
        return (self.process.pid,)

    def check_alive(self) -> None:
        """EndpointError with the end of its log once it has exited."""
        self.process.check_alive()

    async def stop(self) -> None:
        """End it and all it started."""
        await asyncio.to_thread(self.process.stop)


@dataclass(frozen=True)
class ServeBackend:
    """Launches `ddtree serve` for a spec; logs go to the run folder.

    `environment` is the servers' whole environment, what the specification adds apart.
    """

    spec: BenchSpec
    folder: Path
    environment: Mapping[str, str]

    async def start(self, *, drafter: bool) -> LaunchedServer:
        """Launch on a free port and wait until it generates."""
        port = free_port(_HOST)
        name = "server" if drafter else "server-no-drafter"
        plan = LaunchPlan(
            command=self._command(port, drafter),
            environment={**self.environment, **dict(self.spec.endpoint.environment)},
            host=_HOST,
            port=port,
            log_path=self.folder / "logs" / f"{name}.log",
            ready_s=self.spec.deadlines.ready_s,
        )
        process = ServerProcess(plan)
        try:
            await process.wait_ready()
        except BaseException:
            process.stop()
            raise
        return LaunchedServer(process)

    def _command(self, port: int, drafter: bool) -> list[str]:
        command = [*(self.spec.endpoint.command or (sys.executable, "-m", "ddtree", "serve"))]
        command += [
            "--model",
            self.spec.model,
            "--port",
            str(port),
            "--host",
            _HOST,
            "--dtype",
            self.spec.dtype,
        ]
        command += ["--slots", str(max(self.spec.concurrencies)), *_maxima(self.spec)]
        command += self.spec.endpoint.options
        # Passes over prompts must not depend on the clock, nor a stop on who is still served.
        command += ["--max-stall-ms", "0", "--shutdown-timeout", "3"]
        chosen = self.spec.drafter if drafter else "none"
        return command if chosen is None else [*command, "--drafter", chosen]


def _maxima(spec: BenchSpec) -> list[str]:
    """Options that let the server serve every arm; nothing for what no arm names."""
    budgets = [arm.budget for arm in spec.arms if arm.budget is not None]
    topks = [arm.topk for arm in spec.arms if arm.topk is not None]
    windows = {arm.draft_window for arm in spec.arms if arm.draft_window is not None}
    options = []
    if budgets:
        options += ["--max-budget", str(max(*budgets, _LEAST_MAX_BUDGET))]
    if topks:
        options += ["--max-topk", str(max(topks))]
    if windows:
        widest = max((w for w in windows if isinstance(w, int)), default=0)
        options += ["--draft-window", "full" if "full" in windows else str(widest)]
    return options


def client_of(spec: BenchSpec, url: str) -> ServerClient:
    """A client for one of the run's servers, with the specification's deadlines."""
    limits, endpoint = spec.deadlines, spec.endpoint
    return ServerClient(
        url,
        endpoint.model,
        Deadlines(limits.first_token_s, limits.silence_s, limits.request_s),
        endpoint.api_key,
        endpoint.kind,
        endpoint.local_tokenizer(),
    )


class Connection:
    """One server with its client, restartable. Use as an async context manager."""

    def __init__(self, backend: Backend, spec: BenchSpec, *, drafter: bool = True) -> None:
        self._backend = backend
        self._spec = spec
        self._drafter = drafter
        self._server: Server | None = None
        self._client: ServerClient | None = None

    @property
    def client(self) -> ServerClient:
        """Client of the running server; EndpointError when it could not be started again."""
        if self._client is None:
            raise EndpointError("the server is stopped: its last start failed, see its log")
        return self._client

    @property
    def pids(self) -> tuple[int, ...]:
        """The server's processes, none when it is stopped."""
        return self._server.pids if self._server is not None else ()

    def check_alive(self) -> None:
        """EndpointError once the server has died."""
        if self._server is None:
            raise EndpointError("the server is stopped: its last start failed, see its log")
        self._server.check_alive()

    @property
    def alone(self) -> bool:
        """False: no arm's server ends for another's."""
        return False

    async def of(self, arm: Arm) -> Self:
        """Itself: this server decodes with any arm."""
        return self

    async def revive(self, arm: Arm) -> None:
        """Restart; without this server nothing can be run at all."""
        await self.restart()

    async def restart(self) -> None:
        """Stop what is left of the server and start a fresh one."""
        await self._close()
        await self._start()

    async def __aenter__(self) -> Self:
        await self._start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._close()

    async def _start(self) -> None:
        self._server = await self._backend.start(drafter=self._drafter)
        self._client = await client_of(self._spec, self._server.url).__aenter__()

    async def _close(self) -> None:
        if self._client is not None:
            await self._client.__aexit__(None, None, None)
            self._client = None
        if self._server is not None:
            await self._server.stop()
            self._server = None


@dataclass(frozen=True)
class ServerIdentity:
    """What of a server could change a result, as it states it itself."""

    model_sha256: str
    drafter_sha256: str | None
    version: str
    settings: tuple[tuple[str, str], ...]


def identify(spec: BenchSpec, info: dict[str, Any], code: Provenance) -> ServerIdentity:
    """From /server_info, and from this installation, which a launched server runs as well.

    A model or drafter given as a path here is hashed file by file. Where an arm is a launch the
    specification tells, and of `info` the version: what differs between arms is the arm itself.
    """
    if spec.endpoint.arm_is_launch:
        return _identify_endpoint(spec, info, code)
    drafter = info.get("drafter")
    return ServerIdentity(
        model_sha256=_fingerprint(str(info.get("target") or info.get("model"))),
        drafter_sha256=None if drafter is None else _fingerprint(str(drafter)),
        version=str(info.get("version")),
        settings=(
            *((name, str(info.get(name))) for name in _SETTINGS),
            ("git_revision", str(None if code.git is None else code.git.revision)),
            *_here(code),
        ),
    )


def _identify_endpoint(spec: BenchSpec, info: dict[str, Any], code: Provenance) -> ServerIdentity:
    endpoint = spec.endpoint
    return ServerIdentity(
        model_sha256=_fingerprint(spec.model),
        drafter_sha256=None if spec.drafter is None else _fingerprint(spec.drafter),
        version=str(endpoint.version or info.get("version")),
        settings=(("endpoint", json.dumps(endpoint.to_dict(), sort_keys=True)), *_here(code)),
    )


def _here(code: Provenance) -> tuple[tuple[str, str], ...]:
    return ("source_sha256", str(code.source_sha256)), ("cpu", str(code.cpu))


def check_fits(spec: BenchSpec, info: dict[str, Any]) -> None:
    """ConfigError naming the setting that the server can't serve."""
    needs = {
        "contexts + max_tokens": (max(spec.contexts) + spec.max_tokens, "max_context"),
        "concurrencies": (max(spec.concurrencies), "slots"),
        "budget": (max((arm.budget or 0 for arm in spec.arms), default=0), "max_budget"),
        "topk": (max((arm.topk or 0 for arm in spec.arms), default=0), "max_topk"),
        "draft_window": (_widest_window(spec, info.get("max_context")), "draft_window"),
    }
    for name, (needed, limit) in needs.items():
        allowed = info.get(limit)
        if allowed is not None and needed > allowed:
            raise ConfigError(f"{name}: the run needs {needed}, the server's {limit} is {allowed}")
    dtype = info.get("dtype")
    # Other kinds may leave the choice to the checkpoint and not say what became of it.
    if dtype != spec.dtype and not (dtype is None and spec.endpoint.arm_is_launch):
        raise ConfigError(f"dtype: the run asks for {spec.dtype}, the server runs {dtype}")


def _widest_window(spec: BenchSpec, max_context: int | None) -> int:
    """The largest window an arm asks for, in tokens; no window is larger than the context."""
    limit = max_context or max(spec.contexts) + spec.max_tokens
    windows = [arm.draft_window for arm in spec.arms if arm.draft_window is not None]
    return max((limit if w == "full" else min(w, limit) for w in windows), default=0)


def _fingerprint(name: str) -> str:
    digest = hashlib.sha256(json.dumps(Path(name).name).encode())
    path = Path(name).expanduser()
    files = sorted(p for p in path.rglob("*") if p.is_file()) if path.is_dir() else [path]
    for file in files:
        if file.is_file():
            with file.open("rb") as handle:
                digest.update(hashlib.file_digest(handle, "sha256").digest())
    return digest.hexdigest()
