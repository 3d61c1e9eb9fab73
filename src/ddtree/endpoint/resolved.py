"""Does a server run what it was started for? A flag that is ignored silently shows here alone."""

from collections.abc import Mapping
from typing import Any

from ddtree.endpoint.commands import ServerAsk
from ddtree.endpoint.kinds import Kind
from ddtree.records.arms import FULL_WINDOW, Arm

_SGLANG_WINDOWS = ("speculative_draft_window_size", "speculative_dflash_draft_window_size")


def differences(kind: Kind, arm: Arm, ask: ServerAsk, info: Mapping[str, Any]) -> tuple[str, ...]:
    """`name: asked for X, the server runs Y` for everything that came out otherwise.

    `info` is `ServerClient.server_info`'s. What a server doesn't say of itself can't be held
    against it, except for what an arm is: a missing draft window or algorithm is a difference.
    """
    found = _common(ask, info)
    reported = info.get("reported") or {}
    if kind == "sglang":
        found += _sglang(arm, ask, reported)
    elif kind == "vllm":
        found += _vllm(arm, ask, reported)
    elif kind == "ddtree":
        found += _ddtree(arm, info)
    return tuple(found)


def _common(ask: ServerAsk, info: Mapping[str, Any]) -> list[str]:
    exact = {"dtype": ask.dtype}
    least = {"slots": ask.slots, "max_context": ask.max_context}
    found = [
        _text(name, asked, info[name])
        for name, asked in exact.items()
        if info.get(name) not in (None, asked)
    ]
    for name, asked in least.items():
        has = info.get(name)
        if asked is not None and isinstance(has, int) and has < asked:
            found.append(_text(name, f"at least {asked}", has))
    return found


def _ddtree(arm: Arm, info: Mapping[str, Any]) -> list[str]:
    found = []
    for name, asked in (("max_budget", arm.budget), ("max_topk", arm.topk)):
        has = info.get(name)
        if asked is not None and (has is None or has < asked):
            found.append(_text(name, f"at least {asked}", has))
    has = info.get("draft_window")
    if isinstance(arm.draft_window, int) and has is not None and has < arm.draft_window:
        found.append(_text("draft_window", f"at least {arm.draft_window}", has))
    return found


def _sglang(arm: Arm, ask: ServerAsk, reported: Mapping[str, Any]) -> list[str]:
    algorithm = {"ar": None, "chain": "DFLASH", "ddtree": "DDTREE"}[arm.method]
    runs = reported.get("speculative_algorithm")
    if (runs.upper() if isinstance(runs, str) else runs) != algorithm:
        return [_text("speculative_algorithm", algorithm, runs)]
    if algorithm is None:
        return []
    asked: dict[str, Any] = {"speculative_draft_model_path": ask.drafter}
    has = dict(reported)
    if arm.method == "chain":
        asked["speculative_num_draft_tokens"] = ask.block_size
    else:
        # What the plugin resolved; SGLang's own number of draft tokens also covers the block.
        asked |= {"ddtree.budget": arm.budget, "ddtree.topk": arm.topk}
        state: dict[str, Any] = next(iter(reported.get("internal_states") or ()), {})
        has |= {f"ddtree.{name}": value for name, value in (state.get("ddtree") or {}).items()}
    found = [
        _text(name, value, has.get(name))
        for name, value in asked.items()
        if value is not None and has.get(name) != value
    ]
    window = None if arm.draft_window == FULL_WINDOW else arm.draft_window
    sees = next((reported[n] for n in _SGLANG_WINDOWS if reported.get(n) is not None), None)
    if sees != window:
        found.append(_text("draft_window", window, sees))
    return found


def _vllm(arm: Arm, ask: ServerAsk, reported: Mapping[str, Any]) -> list[str]:
    config = reported.get("vllm_config")
    if not isinstance(config, dict):
        return ["vllm_config: the server doesn't tell what it runs; set VLLM_SERVER_DEV_MODE=1"]
    drafts = config.get("speculative_config") or {}
    if arm.method == "ar":
        return [_text("speculative_config", None, drafts)] if drafts else []
    asked = {
        "method": "dflash",
        "model": ask.drafter,
        "num_speculative_tokens": None if ask.block_size is None else ask.block_size - 1,
    }
    return [
        _text(f"speculative_config.{name}", value, drafts.get(name))
        for name, value in asked.items()
        if value is not None and drafts.get(name) != value
    ]


def _text(name: str, asked: object, has: object) -> str:
    return f"{name}: asked for {asked}, the server runs {has}"
