import asyncio
import os
import signal
import socket
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from ddtree.endpoint.calls import CompletionRequest, Deadlines
from ddtree.endpoint.client import ServerClient
from ddtree.endpoint.launch import LaunchPlan, ServerProcess, free_port
from ddtree.errors import EndpointError
from ddtree.records.arms import Arm
from support.processes import nothing_left_running

MOCK = """
import asyncio, subprocess, sys
from ddtree.endpoint.mock import serve_forever
from ddtree.endpoint.mock_script import MockFaults, MockScript
print("mock starts", flush=True)
{before}
asyncio.run(serve_forever(MockScript(faults=MockFaults({faults})), {port}))
"""


def plan(folder: Path, source: str, port: int, **changes: float) -> LaunchPlan:
    return LaunchPlan(
        command=[sys.executable, "-c", source],
        environment={"PATH": os.environ["PATH"], "PYTHONPATH": os.pathsep.join(sys.path)},
        host="127.0.0.1",
        port=port,
        log_path=folder / "logs" / "server.log",
        **{"ready_s": 20.0, "grace_s": 3.0, **changes},
    )


def mock_plan(folder: Path, before: str = "", faults: str = "", **changes: float) -> LaunchPlan:
    port = free_port()
    return plan(folder, MOCK.format(before=before, faults=faults, port=port), port, **changes)


def gone(pid: int) -> bool:
    return not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE


def eventually(check: object, seconds: float = 10.0) -> bool:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if check():  # type: ignore[operator]
            return True
        time.sleep(0.05)
    return False


def test_start_generate_stop_leaves_nothing(tmp_path: Path) -> None:
    child = "subprocess.Popen(['sleep', '600'], start_new_session=True)"

    async def work() -> list[psutil.Process]:
        async with ServerProcess(mock_plan(tmp_path, before=child)) as server:
            family = psutil.Process(server.pid).children(recursive=True)
            assert os.getpgid(server.pid) == server.pid != os.getpgid(0)
            async with ServerClient(server.plan.url) as client:
                record = await client.stream_completion(CompletionRequest((1, 2), 5, Arm("ar")))
            assert record.error is None
            return [psutil.Process(server.pid), *family]

    with nothing_left_running():
        processes = asyncio.run(work())
    assert len(processes) == 2
    assert all(gone(process.pid) for process in processes)


def test_sigterm_ignored_then_killed(tmp_path: Path) -> None:
    before = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)"

    async def work() -> int:
        stubborn = mock_plan(tmp_path, before=before, grace_s=0.3)
        # aiohttp installs no SIGTERM handler, so the process ignores the first signal.
        async with ServerProcess(stubborn) as server:
            return server.pid

    assert gone(asyncio.run(work()))


def test_crash_at_start_shows_the_log(tmp_path: Path) -> None:
    source = "import sys; print('loading'); sys.exit('no such model: smol')"

    async def work() -> None:
        async with ServerProcess(plan(tmp_path, source, free_port())):
            pytest.fail("a dead server was called ready")

    with pytest.raises(EndpointError, match=r"(?s)status 1.*no such model: smol"):
        asyncio.run(work())


def test_crash_in_a_request(tmp_path: Path) -> None:
    async def work() -> None:
        # Request 1 is the readiness generation.
        async with ServerProcess(mock_plan(tmp_path, faults="exit_at_request=2")) as server:
            server.check_alive()
            async with ServerClient(server.plan.url) as client:
                record = await client.stream_completion(CompletionRequest((1, 2), 5, Arm("ar")))
            assert record.error is not None
            assert record.error.startswith("broken_stream")
            assert eventually(lambda: server._process.poll() is not None)
            server.check_alive()

    with pytest.raises(EndpointError, match=r"(?s)status 3.*mock starts"):
        asyncio.run(work())


def test_a_server_that_only_listens_is_not_ready(tmp_path: Path) -> None:
    port = free_port()
    source = f"import http.server as h; h.test(h.SimpleHTTPRequestHandler, port={port})"

    async def work() -> None:
        async with ServerProcess(plan(tmp_path, source, port, ready_s=2.0)):
            pytest.fail("a server that can't generate was called ready")

    with pytest.raises(EndpointError, match=r"generated nothing within 2 s \(http_501"):
        asyncio.run(work())


def test_a_server_that_refuses_is_not_waited_for(tmp_path: Path) -> None:
    port = free_port()
    source = (
        "from aiohttp import web\n"
        "web.run_app(web.Application(), host='127.0.0.1', print=None, port=" + str(port) + ")"
    )

    async def work() -> None:
        async with ServerProcess(plan(tmp_path, source, port, ready_s=60.0)):
            pytest.fail("a server that refuses was called ready")

    with pytest.raises(EndpointError, match="refuses to generate: http_404"):
        asyncio.run(work())


def test_taken_port_is_an_error(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(EndpointError, match=f"port {port} .* is taken"):
            ServerProcess(plan(tmp_path, "pass", port))


def test_missing_program(tmp_path: Path) -> None:
    missing = LaunchPlan(["/nowhere/ddtree"], {}, "127.0.0.1", free_port(), tmp_path / "log")
    with pytest.raises(EndpointError, match="can't start /nowhere/ddtree"):
        ServerProcess(missing)


def test_server_ends_when_its_client_is_killed(tmp_path: Path) -> None:
    script = tmp_path / "client.py"
    port = free_port()
    source = MOCK.format(before="", faults="", port=port)
    script.write_text(
        "import sys, time\nfrom pathlib import Path\n"
        "from ddtree.endpoint.launch import LaunchPlan, ServerProcess\n"
        f"plan = LaunchPlan([sys.executable, '-c', {source!r}], {{'PYTHONPATH': "
        f"{os.pathsep.join(sys.path)!r}}}, '127.0.0.1', {port}, Path({str(tmp_path)!r}) / "
        "'log', grace_s=1.0)\n"
        "print(ServerProcess(plan).pid, flush=True)\ntime.sleep(600)\n"
    )
    with subprocess.Popen(
        [sys.executable, str(script)],
        stdout=subprocess.PIPE,
        env={"PATH": os.environ["PATH"], "PYTHONPATH": os.pathsep.join(sys.path)},
    ) as client:
        assert client.stdout is not None
        server_pid = int(client.stdout.readline())
        assert psutil.pid_exists(server_pid)
        os.kill(client.pid, signal.SIGKILL)
        client.wait()
    assert eventually(lambda: gone(server_pid))


def test_deadlines_default_is_finite() -> None:
    limits = Deadlines()
    assert 0 < limits.silence_s <= limits.first_token_s <= limits.request_s


TALKING = MOCK.replace(
    "MockScript(faults=MockFaults({faults})), {port}",
    "MockScript(faults=MockFaults({faults})), {port}, MockTalk({kind!r})",
).replace("print(", "from ddtree.endpoint.mock_talk import MockTalk\nprint(")


@pytest.mark.parametrize("kind", ["sglang", "vllm", "openai"])
def test_ready_in_each_kinds_dialect(tmp_path: Path, kind: str) -> None:
    port = free_port()
    source = TALKING.format(before="", faults="", port=port, kind=kind)
    talking = replace(plan(tmp_path, source, port), kind=kind)  # type: ignore[arg-type]

    async def work() -> int:
        async with ServerProcess(talking) as server:
            return server.pid

    assert gone(asyncio.run(work()))


def test_another_kind_of_server_is_not_ready(tmp_path: Path) -> None:
    port = free_port()
    source = TALKING.format(before="", faults="", port=port, kind="openai")
    other = replace(plan(tmp_path, source, port), kind="sglang")

    async def work() -> None:
        async with ServerProcess(other):
            pytest.fail("a server without /generate was called ready")

    with pytest.raises(EndpointError, match="refuses to generate: http_404"):
        asyncio.run(work())


def test_orphans_of_a_server_that_died_are_ended(tmp_path: Path) -> None:
    note = tmp_path / "orphan"
    # The child leaves the group, and its parent dies before anybody looks.
    source = (
        "import subprocess, sys\n"
        "child = subprocess.Popen(['sleep', '600'], start_new_session=True)\n"
        f"open({str(note)!r}, 'w').write(str(child.pid))\n"
        "sys.exit(1)"
    )
    server = ServerProcess(plan(tmp_path, source, free_port()))
    assert eventually(lambda: server._process.poll() is not None)
    orphan = int(note.read_text())
    assert not gone(orphan)
    server.stop()
    assert gone(orphan)
