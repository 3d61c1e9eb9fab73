"""What a caller asks for: how to speculate, how large the engine is."""

from dataclasses import dataclass
from typing import Literal

from ddtree.errors import ConfigError, RequestError
from ddtree.records.arms import METHODS, Method

DraftWindow = int | Literal["full"]
Rounds = Literal["auto", "ragged", "stepped", "graphs"]

DEFAULT_BUDGET = 8
DEFAULT_TOPK = 4


@dataclass(frozen=True)
class Speculation:
    """How a request drafts.

    ar: no drafts. chain: the drafter's best token at each depth (budget = block_size - 1,
    topk = 1, set by the engine). ddtree: the `budget` most probable prefixes, `topk` candidates
    a depth. `draft_window`: committed tokens the drafter sees; None takes the engine's default.
    """

    method: Method = "ddtree"
    budget: int | None = None
    topk: int | None = None
    draft_window: DraftWindow | None = None

    def __post_init__(self) -> None:
        if self.method not in METHODS:
            raise RequestError(
                "speculation.method", f"got {self.method!r}, expected one of {', '.join(METHODS)}"
            )
        for name, value in (("budget", self.budget), ("topk", self.topk)):
            if value is None:
                continue
            if self.method != "ddtree":
                raise RequestError(
                    f"speculation.{name}", f"belongs to ddtree; leave it out for {self.method}"
                )
            if isinstance(value, bool) or not isinstance(value, int) or value < 0:
                raise RequestError(
                    f"speculation.{name}", f"got {value!r}, expected an integer of at least 0"
                )
        if self.topk == 0:
            raise RequestError("speculation.topk", "got 0, expected at least 1")
        _check_window("speculation.draft_window", self.draft_window)
        if self.method == "ar" and self.draft_window is not None:
            raise RequestError("speculation.draft_window", "ar drafts nothing; leave it out")


@dataclass(frozen=True)
class EngineConfig:
    """Sizes fixed at start.

    slots: requests decoded at once. max_context: prompt + output tokens a request may hold, None
    for the target's own limit. cache_tokens: tokens that the target's keys and values have room
    for, None for `slots` requests of the longest context; with fewer, a request starts once there
    is room for its prompt and all it may generate. max_budget, max_topk: the largest a request may
    ask for. prefill_chunk: prompt tokens per forward pass at most. max_stall_s: seconds that
    decoding requests may wait for a pass over prompts, which is cut to fit; None never cuts, so
    that passes depend on nothing but what was asked. draft_window: default and largest window; None
    takes the checkpoint's. coupled_drafting: at temperatures above 0 candidates are ranked by the
    chance to be drawn, given the noise of the draw, where the drafter is calibrated for it; outputs
    are the same without. rounds: "ragged" passes over what requests hold, the host in between;
    "stepped" rounds of a fixed shape, the host one round behind, kernel by kernel; "graphs" the
    same, each replayed as one CUDA graph; "auto" graphs on a GPU, ragged on a CPU and in float64,
    for which there are no kernels.
    """

    slots: int = 4
    max_context: int | None = None
    cache_tokens: int | None = None
    max_budget: int = 64
    max_topk: int = 16
    prefill_chunk: int = 512
    max_stall_s: float | None = None
    draft_window: DraftWindow | None = None
    coupled_drafting: bool = True
    rounds: Rounds = "auto"

    def __post_init__(self) -> None:
        for name in ("slots", "max_budget", "max_topk", "prefill_chunk"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name}: got {getattr(self, name)}, expected at least 1")
        if self.max_context is not None and self.max_context < 2:
            raise ConfigError(f"max_context: got {self.max_context}, expected at least 2")
        if self.cache_tokens is not None and self.cache_tokens < 1:
            raise ConfigError(f"cache_tokens: got {self.cache_tokens}, expected at least 1")
        if self.max_stall_s is not None and not self.max_stall_s > 0:
            raise ConfigError(f"max_stall_s: got {self.max_stall_s}, expected more than 0")
        try:
            _check_window("draft_window", self.draft_window)
        except RequestError as error:
            raise ConfigError(str(error)) from None


def _check_window(name: str, window: DraftWindow | None) -> None:
    if window is None or window == "full":
        return
    if isinstance(window, bool) or not isinstance(window, int) or window < 1:
        raise RequestError(name, f"got {window!r}, expected an integer of at least 1 or 'full'")
