"""What a request gets that asks for no speculation of its own."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ddtree.engine import Engine, Speculation
from ddtree.errors import ConfigError, RequestError
from ddtree.records.arms import Arm
from ddtree.records.schedule import FALLBACK, Schedule


@dataclass(frozen=True)
class DefaultSpeculation:
    """`schedule` chooses by request; without one `fixed` counts, and None is the engine's own."""

    schedule: Schedule | None = None
    fixed: Speculation | None = None

    def choose(self, prompt_tokens: int, running: int, temperature: float) -> Speculation | None:
        """For a request of so many tokens; `running` counts it and the requests beside it."""
        if self.schedule is None:
            return self.fixed
        return _speculation(self.schedule.choose(prompt_tokens, running, temperature))

    def check(self, engine: Engine, model: str, source: str = "schedule") -> None:
        """Hold everything that may be chosen against the engine; ConfigError names what can't."""
        if self.fixed is not None:
            _check(engine, self.fixed, "default speculation")
        if self.schedule is None:
            return
        if self.schedule.model != model:
            raise ConfigError(
                f"{source}: made for the model {self.schedule.model!r}, this server has {model!r}; "
                "measure this one, or serve that"
            )
        for number, entry in enumerate(self.schedule.entries):
            _check(engine, _speculation(entry.arm), f"{source}: entry {number}")

    def to_dict(self) -> Mapping[str, Any] | None:
        """The schedule as /server_info shows it, with what it falls back to; None without one."""
        if self.schedule is None:
            return None
        return self.schedule.to_dict() | {"fallback": FALLBACK.to_request()}


def _speculation(arm: Arm) -> Speculation:
    return Speculation(arm.method, arm.budget, arm.topk, arm.draft_window)


def _check(engine: Engine, speculation: Speculation, where: str) -> None:
    try:
        engine.maker.resolve(speculation)
    except RequestError as error:
        raise ConfigError(f"{where}: {error}") from None
