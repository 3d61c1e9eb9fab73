"""Arms' servers as real processes, and what is checked before any of them is started."""

import json
import os
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from aiohttp import web
from arm_mocks import AR, CHAIN, TREE, arm_spec, blocks_of, group_of, measure, states
from mock_backend import Notes, run

from ddtree.bench import watch
from ddtree.bench.arm_backend import LaunchArms, RunningArms, check_arms, server_ask
from ddtree.bench.session import Connection, identify
from ddtree.endpoint.config import EndpointConfig
from ddtree.endpoint.mock import MockServer
from ddtree.errors import ConfigError, EndpointError
from ddtree.records import provenance
from support.processes import nothing_left_running

# Takes SGLang's options and reports them as resolved; whatever else it is given is refused.
SERVER = """
import argparse, asyncio
from ddtree.endpoint.mock import serve_forever
from ddtree.endpoint.mock_script import MockScript
from ddtree.endpoint.mock_talk import MockTalk

parser = argparse.ArgumentParser()
for name in ("model-path", "host", "dtype", "speculative-algorithm"):
    parser.add_argument("--" + name)
parser.add_argument("--speculative-draft-model-path")
for name in ("port", "max-running-requests", "context-length", "speculative-num-draft-tokens"):
    parser.add_argument("--" + name, type=int)
found = vars(parser.parse_args())
print("started for", found["speculative_algorithm"], flush=True)
method = "chain" if found["speculative_algorithm"] else "ar"
talk = MockTalk("sglang", method=method, reported={**found, "version": "0.5.15"})
asyncio.run(serve_forever(MockScript(), found["port"], talk))
"""


def test_arms_are_launched_measured_and_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch, "STEP_LIMIT", 1e9)
    script = tmp_path / "server.py"
    script.write_text(SERVER)
    endpoint = EndpointConfig("sglang", command=(sys.executable, str(script)))
    drafter = tmp_path / "drafter"
    drafter.mkdir()
    (drafter / "config.json").write_text(json.dumps({"dflash_config": {"block_size": 8}}))
    spec = arm_spec(arms=(AR, CHAIN), endpoint=endpoint, drafter=str(drafter))
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": os.pathsep.join(sys.path)}
    backend = LaunchArms(spec, tmp_path, environment)
    with nothing_left_running():
        run(measure(tmp_path, spec, [group_of(spec)], backend, Notes()), seconds=60)
    assert set(states(tmp_path).values()) == {"ok"}
    assert all(len(blocks_of(tmp_path, arm)) == 2 for arm in (AR, CHAIN))
    assert (tmp_path / "logs" / "server-chain.log").read_text() == "started for DFLASH\n"
    # One server for the first block, one for the second.
    assert (tmp_path / "logs" / "server-ar.log").read_text() == "started for None\n" * 2


def test_what_a_server_is_asked_for(tmp_path: Path) -> None:
    spec = arm_spec(contexts=(60, 1024), concurrencies=(1, 8), max_tokens=100)
    ask = server_ask(spec, TREE, 9)
    assert (ask.slots, ask.port, ask.drafter, ask.block_size) == (8, 9, "d", None)
    assert ask.max_context == 1024 + 100 + 4 + 256
    assert server_ask(spec, AR, 9).drafter is None
    # Prompts of a file as they are: the model's own limit.
    assert server_ask(replace(spec, contexts=(0,)), AR, 9).max_context is None
    broken = tmp_path / "config.json"
    broken.write_text("{")
    with pytest.raises(ConfigError, match=r"drafter: .*can't be read"):
        server_ask(replace(spec, drafter=str(tmp_path)), CHAIN, 9)


def test_arms_without_a_server_are_refused_before_the_run() -> None:
    with pytest.raises(ConfigError, match="vLLM verifies no trees"):
        check_arms(arm_spec(endpoint=EndpointConfig("vllm")))
    with pytest.raises(ConfigError, match="block size"):
        check_arms(arm_spec(endpoint=EndpointConfig("vllm"), arms=(AR, CHAIN)))
    with pytest.raises(ConfigError, match="needs a drafter"):
        check_arms(arm_spec(arms=(AR, CHAIN), drafter=None))
    urls = EndpointConfig("openai", urls=(("ar", "http://a"),))
    with pytest.raises(ConfigError, match="urls: none for 'chain'"):
        check_arms(arm_spec(endpoint=urls, arms=(AR, CHAIN)))
    one = EndpointConfig("openai", url="http://a")
    with pytest.raises(ConfigError, match="decodes with one arm, the run has ar, chain"):
        check_arms(arm_spec(endpoint=one, arms=(AR, CHAIN)))
    check_arms(arm_spec(endpoint=one, arms=(AR,)))
    check_arms(arm_spec(arms=(AR, CHAIN)))


def test_our_own_server_by_url() -> None:
    async def work() -> None:
        async with MockServer() as server:
            spec = arm_spec(endpoint=EndpointConfig(url=server.url))
            backend = RunningArms(spec)
            async with Connection(backend, spec) as connection:
                assert connection.client.url == server.url
                assert connection.pids == ()
                connection.check_alive()
            with pytest.raises(ConfigError, match="control: false"):
                await backend.start(drafter=False)
        # It is not ours to end, and its end shows in the next start.
        spec = replace(spec, deadlines=replace(spec.deadlines, ready_s=0.1))
        with pytest.raises(EndpointError, match="doesn't generate: connect"):
            await RunningArms(spec).start(drafter=True)

    run(work())


def test_a_key_that_is_refused_is_not_waited_for() -> None:
    async def refuse(_: web.Request) -> web.Response:
        return web.json_response({"error": {"message": "bad key"}}, status=401)

    async def work() -> None:
        app = web.Application()
        app.add_routes([web.post("/proxy/v1/completions", refuse)])
        runner = web.AppRunner(app)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        url = f"http://127.0.0.1:{runner.addresses[0][1]}/proxy/v1"
        spec = arm_spec(endpoint=EndpointConfig("openai", url=url))
        with pytest.raises(EndpointError, match="http_401: bad key"):
            await RunningArms(spec).start_arm(AR)
        await runner.cleanup()

    run(work())


def test_identity_follows_the_endpoint() -> None:
    here = provenance.collect((), {}, {})
    spec = arm_spec()
    first = identify(spec, {"version": "0.5.15"}, here)
    assert first.version == "0.5.15"
    assert first == identify(spec, {"version": "0.5.15"}, here)
    faster = EndpointConfig("sglang", options=("--attention-backend", "fa3"))
    other = identify(replace(spec, endpoint=faster), {"version": "0.5.15"}, here)
    assert first.settings != other.settings
    keyed = EndpointConfig("sglang", api_key_env="K", api_key="secret")
    assert "secret" not in str(identify(replace(spec, endpoint=keyed), {}, here))
