"""How a run samples: the sampling fields of a request, as every server spells them."""

import math
from dataclasses import dataclass, fields, replace
from typing import Self

from ddtree.errors import ConfigError


@dataclass(frozen=True)
class Sampling:
    """Greedy by default. `top_k` 0 keeps all; `seed` None leaves it to the server.

    ConfigError on values no server takes.
    """

    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    seed: int | None = None

    def __post_init__(self) -> None:
        limits = {
            "temperature": (0.0, math.inf),
            "top_p": (0.0, 1.0),
            "top_k": (0, math.inf),
            "min_p": (0.0, 1.0),
            "repetition_penalty": (0.0, 2.0),
            "presence_penalty": (-2.0, 2.0),
            "frequency_penalty": (-2.0, 2.0),
        }
        for name, (low, high) in limits.items():
            value = getattr(self, name)
            positive = name in ("top_p", "repetition_penalty")
            if not low <= value <= high or math.isinf(value) or (positive and value == 0):
                raise ConfigError(
                    f"{name}: got {value!r}, expected {'above' if positive else 'at least'} {low:g}"
                    + ("" if math.isinf(high) else f" and at most {high:g}")
                )

    @property
    def is_plain(self) -> bool:
        """Whether the token is the argmax of the raw logits."""
        return not self._changes()

    @property
    def label(self) -> str:
        """`greedy`, `T=0.7 top_p=0.95`; the seed is left out."""
        changes = self._changes()
        head = f"T={changes.pop('temperature'):g}" if self.temperature > 0 else "greedy"
        return " ".join([head, *(f"{name}={value:g}" for name, value in changes.items())])

    def with_seed(self, seed: int) -> Self:
        """The same with a seed; greedy requests have none."""
        return replace(self, seed=seed) if self.temperature > 0 else self

    def to_request(self) -> dict[str, float | int]:
        """The fields of an HTTP request: `temperature` always, since a server's default is not 0,
        others where they ask for something."""
        seed = {} if self.seed is None else {"seed": self.seed}
        return {"temperature": self.temperature, **self._changes(), **seed}

    def _changes(self) -> dict[str, float | int]:
        """Fields that ask for something, the seed left out."""
        return {
            field.name: getattr(self, field.name)
            for field in fields(self)
            if field.name != "seed" and getattr(self, field.name) != field.default
        }
