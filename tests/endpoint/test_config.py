from typing import Any

import pytest

from ddtree.endpoint.config import EndpointConfig, parse_endpoint
from ddtree.errors import ConfigError
from ddtree.records.arms import Arm

FULL = {
    "kind": "sglang",
    "command": "/opt/sglang/bin/python -m sglang.launch_server",
    "options": ["--disable-radix-cache", "--log-level", "warning"],
    "environment": {"CUDA_VISIBLE_DEVICES": "0"},
    "version": "0.5.15",
    "tokenizer": "/models/tokenizer.json",
    "model": "name",
}


def test_a_whole_configuration_and_back() -> None:
    config = parse_endpoint(FULL)
    assert config.command == ("/opt/sglang/bin/python", "-m", "sglang.launch_server")
    assert config.launches
    assert config.arm_is_launch
    assert parse_endpoint(config.to_dict()) == config
    assert parse_endpoint({}) == EndpointConfig()
    assert EndpointConfig().to_dict() == {"kind": "ddtree"}


def test_urls_by_arm() -> None:
    config = parse_endpoint(
        {"kind": "openai", "urls": {"ar": "http://a:1", "ddtree(8,4) w=64": "https://b/v"}}
    )
    assert not config.launches
    assert config.url_of(Arm("ddtree", 8, 4, 64)) == "https://b/v"
    with pytest.raises(ConfigError, match=r"urls: none for 'chain'; there are ar, ddtree\(8,4\)"):
        config.url_of(Arm("chain"))
    assert parse_endpoint({"url": "http://a:1"}).url_of(Arm("chain")) == "http://a:1"
    assert parse_endpoint(config.to_dict()) == config


def test_the_key_is_read_from_the_mapping_alone_and_shown_nowhere() -> None:
    data = {"kind": "openai", "url": "http://a", "api_key_env": "MY_KEY"}
    config = parse_endpoint(data, {"MY_KEY": "secret"})
    assert config.api_key == "secret"
    assert "secret" not in repr(config)
    assert config.to_dict() == data
    assert parse_endpoint(data).api_key is None
    # A specification with and without its key at hand is the same specification.
    assert parse_endpoint(data) == config
    for environment in ({}, {"MY_KEY": ""}):
        with pytest.raises(ConfigError, match="variable MY_KEY is not set"):
            parse_endpoint(data, environment)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"kind": "tgi"}, "endpoint.kind: got 'tgi', expected one of ddtree, sglang, vllm, openai"),
        ({"port": 1}, "endpoint.port: unknown key; known are kind, url"),
        ({"url": "localhost:8000"}, "endpoint.url: .*got 'localhost:8000'"),
        ({"kind": "vllm", "urls": {"ar": "x"}}, r"endpoint.urls.ar: "),
        ({"url": 5}, "endpoint.url: .*got 5"),
        ({"kind": "openai"}, "openai can't be launched"),
        ({"kind": "sglang", "url": "http://a", "urls": {"ar": "http://a"}}, "exclude each other"),
        ({"urls": {"ar": "http://a"}}, "kind ddtree serves every arm"),
        ({"url": "http://a", "options": "--x"}, "there is none to start"),
        ({"command": "a 'b"}, "endpoint.command: .*can't be split"),
    ],
)
def test_what_cannot_be_used_is_named(data: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse_endpoint(data)
