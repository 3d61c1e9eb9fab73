"""A run's choices as somebody who deploys them needs them: how sure, what comes close, how to start
it, and as a schedule that `ddtree serve` obeys."""

import dataclasses
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ddtree.bench.recommend import is_candidate
from ddtree.endpoint.commands import ServerAsk, arm_command
from ddtree.endpoint.config import EndpointConfig
from ddtree.endpoint.kinds import Kind
from ddtree.errors import ConfigError
from ddtree.records.arms import Arm
from ddtree.records.schedule import Schedule, ScheduleEntry
from ddtree.records.settings import Setting
from ddtree.records.summary import CellSummary, Choice, Interval, RunSummary

_OURS: Kind = "ddtree"
_KINDS: tuple[Kind, ...] = (_OURS, "sglang")
_HOST, _PORTS = "127.0.0.1", {_OURS: 8000, "sglang": 30000}


@dataclass(frozen=True)
class RunnerUp:
    """The fastest other candidate: its speed-up, and how much less that is as a share (below 0
    where it is the faster one, within the tie band, and the choice the smaller)."""

    arm: Arm
    speedup: float
    behind: float
    text: str


@dataclass(frozen=True)
class Advice:
    """One setting's choice; `launch` holds the command line by kind of server, or why there is
    none.
    """

    setting: Setting
    arm: Arm
    speedup: float
    interval: Interval | None
    reason: str
    runner_up: RunnerUp | None
    launch: dict[str, str]


def advise(summary: RunSummary) -> tuple[Advice, ...]:
    """The verdict's choices in order; what is invalid or not lossless is in none of them."""
    return tuple(_advice(summary, choice) for choice in summary.verdict.choices)


def schedule_of(summary: RunSummary) -> Schedule:
    """The choices of closed loops as a schedule: a server can't see at which rate requests will
    come. ConfigError where there is none, or for another kind of server's run.
    """
    if summary.endpoint != _OURS:
        raise ConfigError(
            f"schedule: the run measured a server of kind {summary.endpoint}, whose round times "
            "are not this server's; run the benchmark on `ddtree serve`"
        )
    entries = tuple(
        ScheduleEntry(c.context, c.concurrency, c.temperature, c.arm, c.speedup)
        for c in summary.verdict.choices
        if not c.rate and c.context
    )
    if not entries:
        raise ConfigError("schedule: the run has no choice to write: " + summary.verdict.headline)
    return Schedule(_served_name(summary), entries)


def advice_text(summary: RunSummary, advice: Sequence[Advice]) -> str:
    """For a terminal."""
    lines = [summary.verdict.headline]
    for one in advice:
        lines += ["", f"{one.setting.name}: {one.arm.label}, {_speed(one)}", f"  {one.reason}"]
        if one.runner_up is not None:
            lines.append(f"  {one.runner_up.text}")
        lines += [f"  {kind}: {line}" for kind, line in one.launch.items()]
    return "\n".join(lines)


def advice_dict(summary: RunSummary, advice: Sequence[Advice]) -> dict[str, Any]:
    """For a program."""
    return {
        "model": summary.model,
        "dtype": summary.dtype,
        "headline": summary.verdict.headline,
        "overall": None if summary.verdict.arm is None else summary.verdict.arm.to_request(),
        "choices": [
            dataclasses.asdict(one)
            | {"arm": one.arm.to_request(), "label": one.arm.label, "runner_up": _runner(one)}
            for one in advice
        ],
        "warnings": list(summary.verdict.warnings),
    }


def _advice(summary: RunSummary, choice: Choice) -> Advice:
    group = [cell for cell in summary.cells if cell.setting == choice.setting]
    chosen = next(cell for cell in group if cell.arm == choice.arm)
    return Advice(
        setting=choice.setting,
        arm=choice.arm,
        speedup=choice.speedup,
        interval=chosen.speedup_interval,
        reason=choice.reason,
        runner_up=_second(choice, group),
        launch={kind: _line(summary, choice, kind) for kind in _KINDS},
    )


def _second(choice: Choice, group: Sequence[CellSummary]) -> RunnerUp | None:
    """None where `ar` is chosen, whose reason names the best of the others, or alone."""
    if choice.arm.method == "ar":
        return None
    others = [c for c in group if is_candidate(c) and c.arm != choice.arm and c.speedup]
    if not others:
        return None
    best = max(others, key=lambda cell: cell.speedup or 0.0)
    speedup = best.speedup or 0.0
    behind = 1 - speedup / choice.speedup
    near = f"within {behind:.1%}" if behind >= 0 else f"{-behind:.1%} faster, a tie"
    text = f"second best {best.arm.label} at {speedup:.2f}x, {near}"
    return RunnerUp(best.arm, speedup, behind, text + _nodes(best.arm, choice.arm))


def _nodes(other: Arm, chosen: Arm) -> str:
    if other.budget is None or chosen.budget is None or other.budget == chosen.budget:
        return ""
    return f", {other.budget} nodes instead of {chosen.budget}"


def _line(summary: RunSummary, choice: Choice, kind: Kind) -> str:
    """A command, or why there is none."""
    server = summary.provenance.get("server") or {}
    drafter = summary.spec.get("drafter")
    ask = ServerAsk(
        model=summary.model,
        dtype=summary.dtype,
        host=_HOST,
        port=_PORTS[kind],
        slots=choice.concurrency,
        drafter=drafter,
        block_size=server.get("block_size"),
    )
    if kind == _OURS:
        config = EndpointConfig(kind, command=("ddtree", "serve"))
        return shlex.join([*arm_command(config, choice.arm, ask), *_own_options(choice.arm)])
    # A name of this package's zoo means nothing elsewhere; its files do.
    ask = dataclasses.replace(
        ask,
        model=server.get("target") or summary.model,
        drafter=server.get("drafter") or drafter,
    )
    try:
        return shlex.join(arm_command(EndpointConfig(kind), choice.arm, ask))
    except ConfigError as error:
        return f"no line: {error}"


def _own_options(arm: Arm) -> list[str]:
    options = ["--method", arm.method]
    if arm.budget is not None:
        options += ["--budget", str(arm.budget), "--topk", str(arm.topk)]
    return options


def _served_name(summary: RunSummary) -> str:
    """The name under which the run's server served its model: a folder's own, not its path."""
    server = summary.provenance.get("server") or {}
    return str(server.get("model") or summary.model)


def _speed(one: Advice) -> str:
    if one.interval is None:
        return f"{one.speedup:.2f}x"
    return f"{one.speedup:.2f}x ({one.interval.low:.2f} to {one.interval.high:.2f})"


def _runner(one: Advice) -> dict[str, Any] | None:
    if one.runner_up is None:
        return None
    return dataclasses.asdict(one.runner_up) | {
        "arm": one.runner_up.arm.to_request(),
        "label": one.runner_up.arm.label,
    }
