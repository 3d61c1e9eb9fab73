"""A real server with the real model, shared by the tests of this folder."""

import asyncio
import os
import sys

import pytest
from tiny_server import tiny_server

from ddtree.endpoint.launch import LaunchPlan, ServerProcess, free_port


@pytest.fixture(scope="session")
def server_url(tmp_path_factory, smollm2):
    """`ddtree serve` in float32 on a free port, up when it has generated something."""
    port = free_port()
    command = [sys.executable, "-m", "ddtree", "serve", "--port", str(port), "--dtype", "float32"]
    command += ["--slots", "4", "--max-context", "512", "--prefill-chunk", "64"]
    log = tmp_path_factory.mktemp("serve") / "server.log"
    plan = LaunchPlan(
        command,
        {k: v for k, v in os.environ.items() if k != "DDTREE_API_KEY"},
        "127.0.0.1",
        port,
        log,
    )
    process = ServerProcess(plan)
    try:
        asyncio.run(process.wait_ready())
        yield plan.url
    finally:
        process.stop()


@pytest.fixture(scope="session")
def tiny():
    """A server with the tiny model, shared by the tests of this folder."""
    with tiny_server() as server:
        yield server
