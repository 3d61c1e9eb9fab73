"""The launch line of a server, by kind, version and arm. Nothing is started here."""

import importlib.util
import json
import re
import sys
from dataclasses import dataclass

from ddtree.endpoint.config import EndpointConfig
from ddtree.errors import ConfigError
from ddtree.records.arms import FULL_WINDOW, Arm

_PLUGIN = "ddtree.sglang_plugin"
# Before this one SGLang called the draft window by its first user's name.
_WINDOW_RENAMED = (0, 5, 15)


@dataclass(frozen=True)
class ServerAsk:
    """What a server is started for.

    `slots`: requests decoded at once. `max_context`: prompt and output tokens of one, None for the
    model's limit. `block_size` is the drafter's, None where it isn't known here.
    """

    model: str
    dtype: str
    host: str
    port: int
    slots: int
    drafter: str | None = None
    max_context: int | None = None
    block_size: int | None = None


def check_arm(config: EndpointConfig, arm: Arm) -> None:
    """ConfigError, with the reason, where the kind can't be launched for the arm."""
    if config.kind == "vllm" and arm.method == "ddtree":
        raise ConfigError(f"arms: {arm.label}: vLLM verifies no trees; use kind ddtree or sglang")
    if config.kind == "vllm" and arm.draft_window is not None:
        raise ConfigError(f"arms: {arm.label}: vLLM has no draft window; leave draft_window out")
    if config.kind == "sglang" and arm.method == "ddtree" and not _has_plugin():
        raise ConfigError(
            f"arms: {arm.label}: SGLang has no DDTREE of its own, and this installation lacks the "
            f"plugin that adds it ({_PLUGIN}); use kind ddtree, or the arms ar and chain"
        )


def arm_command(config: EndpointConfig, arm: Arm, ask: ServerAsk) -> tuple[str, ...]:
    """The command that starts an arm's server; its user's own options come last.

    ConfigError for the kind openai, and where something that the arm needs isn't known.
    """
    if config.kind == "sglang":
        line = _sglang(config, arm, ask)
    elif config.kind == "vllm":
        line = _vllm(config, arm, ask)
    elif config.kind == "ddtree":
        line = _ddtree(config, arm, ask)
    else:
        raise ConfigError("endpoint: kind openai can't be launched; give url or urls")
    return (*line, *config.options)


def arm_environment(config: EndpointConfig, arm: Arm) -> dict[str, str]:
    """Variables that the arm's launch needs, and those of the configuration over them."""
    own = {}
    if config.kind == "vllm":
        # Without it vLLM has neither /reset_prefix_cache nor /server_info.
        own["VLLM_SERVER_DEV_MODE"] = "1"
    if config.kind == "sglang" and arm.method == "ddtree":
        # Plugins can't add flags, and SGLang has none for candidates a depth.
        own["DDTREE_TOPK"] = str(arm.topk)
    return own | dict(config.environment)


def _ddtree(config: EndpointConfig, arm: Arm, ask: ServerAsk) -> list[str]:
    line = [*(config.command or (sys.executable, "-m", "ddtree", "serve"))]
    line += ["--model", ask.model, "--host", ask.host, "--port", str(ask.port)]
    line += ["--dtype", ask.dtype, "--slots", str(ask.slots)]
    if ask.drafter is not None:
        line += ["--drafter", ask.drafter]
    if ask.max_context is not None:
        line += ["--max-context", str(ask.max_context)]
    if arm.budget is not None:
        line += ["--max-budget", str(arm.budget), "--max-topk", str(arm.topk)]
    if arm.draft_window is not None:
        line += ["--draft-window", str(arm.draft_window)]
    return line


def _sglang(config: EndpointConfig, arm: Arm, ask: ServerAsk) -> list[str]:
    line = [*(config.command or ("python3", "-m", "sglang.launch_server"))]
    line += ["--model-path", ask.model, "--host", ask.host, "--port", str(ask.port)]
    line += ["--dtype", ask.dtype, "--max-running-requests", str(ask.slots)]
    if ask.max_context is not None:
        line += ["--context-length", str(ask.max_context)]
    if arm.method == "ar":
        return line
    tokens = ask.block_size
    line += ["--speculative-algorithm", "DFLASH" if arm.method == "chain" else "DDTREE"]
    line += ["--speculative-draft-model-path", _drafter(arm, ask)]
    if arm.budget is not None:
        # Rows verified: the nodes and the root.
        tokens = arm.budget + 1
        # What a tree's mask needs; elsewhere SGLang's own choice is the fairest.
        line += ["--attention-backend", "triton", "--page-size", "1"]
    if tokens is not None:
        line += ["--speculative-num-draft-tokens", str(tokens)]
    if arm.draft_window not in (None, FULL_WINDOW):
        line += [sglang_window_flag(config.version), str(arm.draft_window)]
    return line


def _vllm(config: EndpointConfig, arm: Arm, ask: ServerAsk) -> list[str]:
    line = [*(config.command or ("vllm", "serve")), ask.model]
    line += ["--host", ask.host, "--port", str(ask.port)]
    line += ["--dtype", ask.dtype, "--max-num-seqs", str(ask.slots)]
    if ask.max_context is not None:
        line += ["--max-model-len", str(ask.max_context)]
    if arm.method != "chain":
        return line
    if ask.block_size is None:
        raise ConfigError(f"arms: {arm.label}: vLLM needs the drafter's block size, none is known")
    drafts = {
        "method": "dflash",
        "model": _drafter(arm, ask),
        "num_speculative_tokens": ask.block_size - 1,
    }
    return [*line, "--speculative-config", json.dumps(drafts)]


def sglang_window_flag(version: str | None) -> str:
    """SGLang's option for the draft window; ConfigError for a version that can't be read."""
    if version is None or _numbers(version) >= _WINDOW_RENAMED:
        return "--speculative-draft-window-size"
    return "--speculative-dflash-draft-window-size"


def _numbers(version: str) -> tuple[int, ...]:
    found = re.match(r"v?(\d+)\.(\d+)\.(\d+)", version)
    if found is None:
        raise ConfigError(f"endpoint.version: got {version!r}, expected three numbers: 0.5.15")
    return tuple(int(number) for number in found.groups())


def _drafter(arm: Arm, ask: ServerAsk) -> str:
    if ask.drafter is None:
        raise ConfigError(f"drafter: {arm.label} needs a drafter's folder or name; none is given")
    return ask.drafter


def _has_plugin() -> bool:
    return importlib.util.find_spec(_PLUGIN) is not None
