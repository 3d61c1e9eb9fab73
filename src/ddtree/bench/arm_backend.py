"""Servers of other kinds for a run's arms: launched one by one, or reached where they run."""

import asyncio
import json
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ddtree.bench.session import LaunchedServer, ServeBackend, Server, client_of
from ddtree.bench.spec import OWN_LENGTH, BenchSpec
from ddtree.endpoint.calls import CompletionRequest
from ddtree.endpoint.client import ServerClient
from ddtree.endpoint.commands import ServerAsk, arm_command, arm_environment, check_arm
from ddtree.endpoint.launch import READY_IDS, REFUSALS, LaunchPlan, ServerProcess, free_port
from ddtree.endpoint.resolved import differences
from ddtree.errors import ConfigError, EndpointError
from ddtree.records.arms import Arm

_HOST = "127.0.0.1"
# Room for what a server counts besides prompt and output: a round's rows.
_SPARE_TOKENS = 256
_POLL_S = 0.5
_PROBE = CompletionRequest(READY_IDS, 1, ignore_eos=True)


def backend_for(
    spec: BenchSpec, folder: Path, environment: Mapping[str, str]
) -> "ServeBackend | LaunchArms | RunningArms":
    """What has the servers of a specification; `environment` is that of those it launches.

    ConfigError for what such servers can't do.
    """
    endpoint = spec.endpoint
    if not endpoint.arm_is_launch:
        return ServeBackend(spec, folder, environment) if endpoint.launches else RunningArms(spec)
    check_arms(spec)
    if spec.control:
        raise ConfigError(
            f"control: a server of kind {endpoint.kind} without a drafter is what ar runs on "
            "already; set control: false"
        )
    if spec.sentinel_every:
        raise ConfigError(
            f"sentinel_every: with kind {endpoint.kind} each block has a server of ar's own, which "
            "shows the drift; leave it out"
        )
    return LaunchArms(spec, folder, environment) if endpoint.launches else RunningArms(spec)


def check_arms(spec: BenchSpec) -> None:
    """ConfigError naming the arm for which the endpoint has, or can have, no server."""
    if spec.endpoint.launches:
        for arm in spec.arms:
            check_arm(spec.endpoint, arm)
        for arm in spec.arms:
            arm_command(spec.endpoint, arm, server_ask(spec, arm, 0))
    else:
        for arm in spec.arms:
            spec.endpoint.url_of(arm)
    if spec.endpoint.url is not None and len(spec.arms) > 1 and spec.endpoint.arm_is_launch:
        raise ConfigError(
            f"endpoint.url: one server of kind {spec.endpoint.kind} decodes with one arm, the run "
            "has " + ", ".join(arm.label for arm in spec.arms) + "; give urls by arm"
        )


def server_ask(spec: BenchSpec, arm: Arm, port: int) -> ServerAsk:
    """What an arm's server is started for: the largest of everything in the specification."""
    longest = max(spec.contexts)
    return ServerAsk(
        model=spec.model,
        dtype=spec.dtype,
        host=_HOST,
        port=port,
        slots=max(spec.concurrencies),
        drafter=None if arm.method == "ar" else spec.drafter,
        max_context=None
        if longest == OWN_LENGTH
        else longest + spec.max_tokens + (arm.budget or 0) + _SPARE_TOKENS,
        block_size=_block_size(spec.drafter),
    )


@dataclass(frozen=True)
class LaunchArms:
    """Launches an arm's server; logs go to the run folder.

    `environment` is the servers' whole environment, what the kind and the specification add apart.
    """

    spec: BenchSpec
    folder: Path
    environment: Mapping[str, str]

    async def start_arm(self, arm: Arm) -> Server:
        """Launch on a free port and wait until it generates."""
        endpoint, port = self.spec.endpoint, free_port(_HOST)
        check_arm(endpoint, arm)
        name = re.sub(r"[^a-z0-9]+", "-", arm.label).strip("-")
        process = ServerProcess(
            LaunchPlan(
                command=arm_command(endpoint, arm, server_ask(self.spec, arm, port)),
                environment={**self.environment, **arm_environment(endpoint, arm)},
                host=_HOST,
                port=port,
                log_path=self.folder / "logs" / f"server-{name}.log",
                model=endpoint.model,
                ready_s=self.spec.deadlines.ready_s,
                kind=endpoint.kind,
                api_key=endpoint.api_key,
            )
        )
        try:
            await process.wait_ready()
        except BaseException:
            process.stop()
            raise
        return LaunchedServer(process)


@dataclass(frozen=True)
class RunningServer:
    """A server somebody else started: it is asked, never ended."""

    url: str
    pids: tuple[int, ...] = ()

    def check_alive(self) -> None:
        """Nothing: its process isn't known here, so its requests tell."""

    async def stop(self) -> None:
        """Nothing: it goes on running."""


@dataclass(frozen=True)
class RunningArms:
    """The servers of the specification's URLs; one of kind ddtree serves every arm."""

    spec: BenchSpec

    async def start(self, *, drafter: bool) -> Server:
        """The server that serves every arm; ConfigError where one without a drafter is wanted."""
        if not drafter:
            raise ConfigError(
                "control: a server without a drafter is compared with one that has it, and "
                "endpoint.url names one server; set control: false"
            )
        return await self.start_arm(Arm("ar"))

    async def start_arm(self, arm: Arm) -> Server:
        """The arm's server once it has generated a token; EndpointError when it doesn't in time."""
        url = self.spec.endpoint.url_of(arm)
        end = time.monotonic() + self.spec.deadlines.ready_s
        while True:
            async with client_of(self.spec, url) as client:
                # Which arm it is need not be known to see that it answers.
                record = await client.stream_completion(_PROBE)
            if record.error is None:
                return RunningServer(url)
            if record.error.startswith(REFUSALS) or time.monotonic() > end:
                raise EndpointError(f"server at {url} doesn't generate: {record.error}")
            await asyncio.sleep(_POLL_S)


async def check_resolved(
    spec: BenchSpec, arm: Arm, client: ServerClient, note: Callable[[str], None]
) -> None:
    """EndpointError naming what an arm's server runs otherwise than it was asked to.

    A server that somebody else started, and that doesn't tell, is noted instead.
    """
    endpoint = spec.endpoint
    if endpoint.kind == "openai":
        note(f"{arm.label}: nothing is known of what the server at {client.url} runs")
        return
    ask = server_ask(spec, arm, 0)
    try:
        info: dict[str, Any] = await client.server_info()
    except EndpointError as error:
        if endpoint.launches:
            raise
        note(f"{arm.label}: what the server runs can't be read back ({error})")
        return
    if not endpoint.launches:
        # It may know the drafter by another path.
        ask = replace(ask, drafter=None)
    found = differences(endpoint.kind, arm, ask, info)
    if found:
        raise EndpointError(
            f"the server for {arm.label} does not run what it was asked to: {'; '.join(found)}"
        )


def _block_size(drafter: str | None) -> int | None:
    """What a drafter's config.json states, where the drafter is a folder here."""
    if drafter is None:
        return None
    path = Path(drafter).expanduser() / "config.json"
    if not path.is_file():
        return None
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
        nested = config.get("dflash_config") or {}
        size = config.get("block_size", nested.get("block_size"))
    except (ValueError, AttributeError) as error:
        raise ConfigError(f"drafter: {path} can't be read ({error})") from None
    return size if type(size) is int else None
