"""An arm: one way of decoding that a run compares with others."""

import math
from dataclasses import dataclass
from typing import Literal, Self

from ddtree.errors import ConfigError

Method = Literal["ar", "chain", "ddtree"]
METHODS: tuple[Method, ...] = ("ar", "chain", "ddtree")

FULL_WINDOW = "full"

Window = int | Literal["full"] | None


def window_size(window: Window) -> float:
    """Sorts draft windows: the checkpoint's own, then by width, "full" last."""
    return math.inf if window == FULL_WINDOW else float(window or 0)


@dataclass(frozen=True)
class Arm:
    """Method and its parameters, as sent in a request's `speculation` field.

    `budget` counts draft nodes without the root and `topk` the candidates kept per depth; both
    belong to `ddtree` alone. `draft_window` counts committed tokens the drafter sees (`ar` has
    none): None asks for the checkpoint's default, "full" for no bound. ConfigError on anything
    else.
    """

    method: Method
    budget: int | None = None
    topk: int | None = None
    draft_window: Window = None

    def __post_init__(self) -> None:
        if self.method not in METHODS:
            raise ConfigError(f"method: got {self.method!r}, expected one of {', '.join(METHODS)}")
        if self.method == "ddtree":
            for name, value in (("budget", self.budget), ("topk", self.topk)):
                if value is None or value < 1:
                    raise ConfigError(f"{name}: ddtree needs an integer >= 1, got {value!r}")
        elif self.budget is not None or self.topk is not None:
            raise ConfigError(f"budget and topk belong to ddtree, not to {self.method}")
        if self.method == "ar" and self.draft_window is not None:
            raise ConfigError(
                f"draft_window: ar drafts nothing, got {self.draft_window!r}; leave it out"
            )
        if isinstance(self.draft_window, int) and self.draft_window < 1:
            raise ConfigError(f"draft_window: expected >= 1 or 'full', got {self.draft_window}")

    @property
    def label(self) -> str:
        """Short name in tables: `ar`, `chain`, `ddtree(16,4)`, `ddtree(16,4) w=256`."""
        name = f"ddtree({self.budget},{self.topk})" if self.method == "ddtree" else self.method
        return name if self.draft_window is None else f"{name} w={self.draft_window}"

    @property
    def size(self) -> tuple[int, int, int, float]:
        """Sorts arms small to large: ar, chain, then trees by budget, topk and draft window."""
        window = window_size(self.draft_window)
        return METHODS.index(self.method), self.budget or 0, self.topk or 0, window

    def to_request(self) -> dict[str, int | str]:
        """The `speculation` object of an HTTP request."""
        fields = {
            "method": self.method,
            "budget": self.budget,
            "topk": self.topk,
            "draft_window": self.draft_window,
        }
        return {name: value for name, value in fields.items() if value is not None}

    @classmethod
    def from_dict(cls, fields: dict[str, object]) -> Self:
        """Inverse of `to_request`; unknown names raise."""
        unknown = set(fields) - {"method", "budget", "topk", "draft_window"}
        if unknown:
            raise ConfigError(f"arm: unknown field {sorted(unknown)[0]!r}")
        return cls(**fields)  # type: ignore[arg-type]
