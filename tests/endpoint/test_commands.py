"""Launch lines by kind, version and arm, and whether a server runs what its line asked for."""

import json
from dataclasses import replace
from typing import Any

import pytest

from ddtree.endpoint import commands
from ddtree.endpoint.commands import ServerAsk, arm_command, arm_environment, check_arm
from ddtree.endpoint.config import EndpointConfig
from ddtree.endpoint.kinds import Kind, dialect_of
from ddtree.endpoint.resolved import differences
from ddtree.errors import ConfigError
from ddtree.records.arms import Arm
from mutations.planting import Mutation, planted

AR, CHAIN = Arm("ar"), Arm("chain", draft_window=256)
TREE = Arm("ddtree", 16, 4, 256)
ASK = ServerAsk("m", "bfloat16", "127.0.0.1", 8000, 32, "d", 8192, 8)
SGLANG = EndpointConfig("sglang")
BASE = (
    *("python3", "-m", "sglang.launch_server", "--model-path", "m", "--host", "127.0.0.1"),
    *("--port", "8000", "--dtype", "bfloat16", "--max-running-requests", "32"),
    *("--context-length", "8192"),
)


def options(line: tuple[str, ...]) -> dict[str, str]:
    """What follows the base."""
    rest = line[len(BASE) :]
    return dict(zip(rest[::2], rest[1::2], strict=True))


def test_sglang_lines() -> None:
    assert arm_command(SGLANG, AR, ASK) == BASE
    chain = arm_command(SGLANG, CHAIN, ASK)
    assert chain[: len(BASE)] == BASE
    assert options(chain) == {
        "--speculative-algorithm": "DFLASH",
        "--speculative-draft-model-path": "d",
        "--speculative-num-draft-tokens": "8",
        "--speculative-draft-window-size": "256",
    }
    assert options(arm_command(SGLANG, TREE, ASK)) == {
        "--speculative-algorithm": "DDTREE",
        "--speculative-draft-model-path": "d",
        "--speculative-num-draft-tokens": "17",
        "--attention-backend": "triton",
        "--page-size": "1",
        "--speculative-draft-window-size": "256",
    }


@pytest.mark.parametrize(
    ("version", "flag"),
    [
        (None, "--speculative-draft-window-size"),
        ("0.5.23", "--speculative-draft-window-size"),
        ("v0.5.15.post1", "--speculative-draft-window-size"),
        ("0.5.14", "--speculative-dflash-draft-window-size"),
        ("0.4.9", "--speculative-dflash-draft-window-size"),
    ],
)
def test_the_windows_flag_follows_the_version(version: str | None, flag: str) -> None:
    config = replace(SGLANG, version=version)
    assert options(arm_command(config, CHAIN, ASK))[flag] == "256"


def test_a_full_window_needs_no_flag_and_a_version_must_be_readable() -> None:
    full = arm_command(SGLANG, Arm("chain", draft_window="full"), ASK)
    assert not any("window" in word for word in full)
    with pytest.raises(ConfigError, match="got 'main', expected three numbers"):
        arm_command(replace(SGLANG, version="main"), CHAIN, ASK)


def test_vllm_lines() -> None:
    config = EndpointConfig("vllm", command=("docker", "run", "v"), options=("--enforce-eager",))
    line = arm_command(config, Arm("chain"), ASK)
    assert line[:4] == ("docker", "run", "v", "m")
    assert line[-1] == "--enforce-eager"
    drafts = json.loads(line[line.index("--speculative-config") + 1])
    assert drafts == {"method": "dflash", "model": "d", "num_speculative_tokens": 7}
    assert "--speculative-config" not in arm_command(config, AR, ASK)
    assert arm_environment(config, AR) == {"VLLM_SERVER_DEV_MODE": "1"}
    own = replace(config, environment=(("VLLM_SERVER_DEV_MODE", "0"),))
    assert arm_environment(own, AR) == {"VLLM_SERVER_DEV_MODE": "0"}
    assert arm_environment(SGLANG, TREE) == {"DDTREE_TOPK": "4"}
    assert arm_environment(SGLANG, CHAIN) == {}
    with pytest.raises(ConfigError, match="needs the drafter's block size"):
        arm_command(config, Arm("chain"), replace(ASK, block_size=None))


def test_our_line() -> None:
    line = arm_command(EndpointConfig(command=("ddtree", "serve")), TREE, ASK)
    assert line[:4] == ("ddtree", "serve", "--model", "m")
    assert line[line.index("--drafter") + 1] == "d"
    assert line[line.index("--max-budget") + 1] == "16"
    assert line[line.index("--max-topk") + 1] == "4"
    assert line[line.index("--draft-window") + 1] == "256"


@pytest.mark.parametrize(
    ("kind", "arm", "message"),
    [
        ("vllm", TREE, r"ddtree\(16,4\) w=256: vLLM verifies no trees"),
        ("vllm", CHAIN, "vLLM has no draft window"),
        ("sglang", TREE, r"lacks the plugin that adds it \(ddtree.sglang_plugin\)"),
    ],
)
def test_arms_that_a_kind_cannot_run_are_refused(
    kind: Kind, arm: Arm, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commands, "_has_plugin", lambda: False)
    with pytest.raises(ConfigError, match=message):
        check_arm(EndpointConfig(kind), arm)


def test_arms_that_a_kind_can_run_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commands, "_has_plugin", lambda: True)
    for kind, arms in {"ddtree": (AR, TREE), "sglang": (AR, CHAIN, TREE), "vllm": (AR,)}.items():
        for arm in arms:
            check_arm(EndpointConfig(kind), arm)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="chain w=256 needs a drafter's folder"):
        arm_command(SGLANG, CHAIN, replace(ASK, drafter=None))
    with pytest.raises(ConfigError, match="can't be launched"):
        arm_command(EndpointConfig("openai", url="http://a"), AR, ASK)


def test_the_plugin_is_looked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    for module, there in (("ddtree.endpoint", True), ("ddtree.nowhere", False)):
        monkeypatch.setattr(commands, "_PLUGIN", module)
        assert commands._has_plugin() is there


RESOLVED = {
    "model_path": "m",
    "dtype": "bfloat16",
    "max_running_requests": 32,
    "context_length": 8192,
    "speculative_algorithm": "DDTREE",
    "speculative_draft_model_path": "d",
    "speculative_num_draft_tokens": 17,
    "internal_states": [{"ddtree": {"budget": 16, "topk": 4, "block": 8, "window": 256}}],
    "speculative_draft_window_size": 256,
    "version": "0.5.15",
}


def found(kind: Kind, arm: Arm, reported: dict[str, Any], ask: ServerAsk = ASK) -> tuple[str, ...]:
    return differences(kind, arm, ask, dialect_of(kind).describe(reported))


def test_a_server_that_runs_what_it_was_asked_to() -> None:
    assert found("sglang", TREE, RESOLVED) == ()
    chain = RESOLVED | {"speculative_algorithm": "dflash", "speculative_num_draft_tokens": 8}
    assert found("sglang", CHAIN, chain) == ()
    assert found("sglang", CHAIN, chain | {"speculative_num_draft_tokens": 16}) == (
        "speculative_num_draft_tokens: asked for 8, the server runs 16",
    )
    # Before it was renamed.
    old = {k: v for k, v in chain.items() if k != "speculative_draft_window_size"}
    assert found("sglang", CHAIN, old | {"speculative_dflash_draft_window_size": 256}) == ()
    assert found("sglang", AR, RESOLVED | {"speculative_algorithm": None}) == ()
    # SGLang's own number also covers the drafter's block.
    assert found("sglang", TREE, RESOLVED | {"speculative_num_draft_tokens": 32}) == ()
    # "auto" is a choice left to the checkpoint, not another type.
    assert found("sglang", TREE, RESOLVED | {"dtype": "auto"}) == ()


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        (
            {"speculative_draft_window_size": None},
            "draft_window: asked for 256, the server runs None",
        ),
        (
            {"speculative_draft_window_size": 512},
            "draft_window: asked for 256, the server runs 512",
        ),
        (
            {"internal_states": [{"ddtree": {"budget": 16, "topk": 1}}]},
            "ddtree.topk: asked for 4, the server runs 1",
        ),
        (
            {"internal_states": [{"ddtree": {"budget": 15, "topk": 4}}]},
            "ddtree.budget: asked for 16, the server runs 15",
        ),
        (
            {"speculative_algorithm": "EAGLE"},
            "speculative_algorithm: asked for DDTREE, the server runs EAGLE",
        ),
        ({"dtype": "float16"}, "dtype: asked for bfloat16, the server runs float16"),
        ({"max_running_requests": 16}, "slots: asked for at least 32, the server runs 16"),
        ({"context_length": 4096}, "max_context: asked for at least 8192, the server runs 4096"),
        (
            {"speculative_draft_model_path": "e"},
            "speculative_draft_model_path: asked for d, the server runs e",
        ),
    ],
)
def test_every_silent_change_is_named(changes: dict[str, Any], text: str) -> None:
    assert found("sglang", TREE, RESOLVED | changes) == (text,)


def test_a_baseline_that_drafts_is_none() -> None:
    assert found("sglang", AR, RESOLVED)[0].startswith("speculative_algorithm: asked for None")
    spec = {"method": "dflash", "model": "d", "num_speculative_tokens": 7}
    config: dict[str, Any] = {"vllm_config": {"speculative_config": spec}}
    assert found("vllm", Arm("chain"), config) == ()
    assert found("vllm", AR, config)[0].startswith("speculative_config: asked for None")
    fewer = {"vllm_config": {"speculative_config": spec | {"num_speculative_tokens": 3}}}
    assert found("vllm", Arm("chain"), fewer) == (
        "speculative_config.num_speculative_tokens: asked for 7, the server runs 3",
    )
    assert "VLLM_SERVER_DEV_MODE" in found("vllm", AR, {})[0]


def test_our_server_must_allow_the_arm() -> None:
    info = {"dtype": "bfloat16", "slots": 32, "max_context": 8192, "max_topk": 4}
    info |= {"max_budget": 16, "draft_window": 256}
    assert found("ddtree", TREE, info) == ()
    assert found("ddtree", TREE, info | {"max_budget": 8, "draft_window": 64}) == (
        "max_budget: asked for at least 16, the server runs 8",
        "draft_window: asked for at least 256, the server runs 64",
    )


def hides_the_window() -> None:
    assert found("sglang", TREE, RESOLVED | {"speculative_draft_window_size": None})


def hides_a_drafting_baseline() -> None:
    assert found("sglang", AR, RESOLVED)


BUGS = [
    Mutation(
        "the window is not compared",
        "ddtree.endpoint.resolved",
        (("    if sees != window:\n", "    if False:\n"),),
        (hides_the_window,),
        hides_a_drafting_baseline,
    ),
    Mutation(
        "the baseline's algorithm is not looked at",
        "ddtree.endpoint.resolved",
        (
            (
                "    algorithm = {",
                "    if arm.method == 'ar':\n        return []\n    algorithm = {",
            ),
        ),
        (hides_a_drafting_baseline,),
        hides_the_window,
    ),
]


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
def test_planted_blindness_is_seen(bug: Mutation) -> None:
    for check in bug.caught_by:
        check()
        with planted(bug), pytest.raises(bug.error):
            check()
    assert bug.harmless_to is not None
    with planted(bug):
        bug.harmless_to()
