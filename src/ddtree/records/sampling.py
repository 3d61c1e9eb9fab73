"""How a run samples: the sampling fields of a request, as every server spells them."""

from dataclasses import dataclass, fields, replace
from typing import Any, Self

from ddtree.errors import ConfigError
from ddtree.records.sampling_limits import BIAS, TOKEN_ID, Limit, problems

# Values of a field that a label spells out.
_LISTED = 4


@dataclass(frozen=True)
class Sampling:
    """Greedy by default. `top_k` 0 keeps all, -1 is stored as 0; `seed` None leaves it to the
    server.

    logit_bias: (token id, what is added to its logit), kept in order of ids, each once. bad_words:
    texts that must not come out. min_tokens: tokens before a stop token may come. stop_token_ids
    are added to the model's own. ConfigError names a field with a value that no server takes.
    """

    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    seed: int | None = None
    logit_bias: tuple[tuple[int, float], ...] = ()
    bad_words: tuple[str, ...] = ()
    min_tokens: int = 0
    stop_token_ids: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        for name, problem in problems(self):
            raise ConfigError(f"{name}: {problem}")
        for token, value in self.logit_bias:
            _check("logit_bias", TOKEN_ID, token)
            _check(f"logit_bias[{token}]", BIAS, value)
        if len(dict(self.logit_bias)) < len(self.logit_bias):
            raise ConfigError(f"logit_bias: got {list(self.logit_bias)}, expected each token once")
        for token in self.stop_token_ids:
            _check("stop_token_ids", TOKEN_ID, token)
        if not all(isinstance(word, str) and word for word in self.bad_words):
            raise ConfigError(f"bad_words: got {list(self.bad_words)}, expected texts, none empty")
        # One spelling of one way of sampling: equal values have equal results, files' lists too.
        object.__setattr__(self, "top_k", max(self.top_k, 0))
        object.__setattr__(self, "logit_bias", tuple(sorted(map(tuple, self.logit_bias))))
        object.__setattr__(self, "bad_words", tuple(self.bad_words))
        object.__setattr__(self, "stop_token_ids", tuple(self.stop_token_ids))

    @property
    def is_plain(self) -> bool:
        """Whether the token is the argmax of the raw logits, wherever the text may end."""
        return not self._changes().keys() - {"stop_token_ids"}

    @property
    def label(self) -> str:
        """`greedy`, `T=0.7 top_p=0.95`; the seed is left out."""
        changes = self._changes()
        head = f"T={changes.pop('temperature'):g}" if self.temperature > 0 else "greedy"
        return " ".join([head, *(f"{name}={_short(value)}" for name, value in changes.items())])

    def with_seed(self, seed: int) -> Self:
        """The same with a seed; greedy requests have none."""
        return replace(self, seed=seed) if self.temperature > 0 else self

    def to_request(self) -> dict[str, Any]:
        """The fields of an HTTP request: `temperature` always, since a server's default is not 0,
        others where they ask for something."""
        seed = {} if self.seed is None else {"seed": self.seed}
        found = {"temperature": self.temperature, **self._changes(), **seed}
        if self.logit_bias:
            found["logit_bias"] = {str(token): value for token, value in self.logit_bias}
        return {k: list(v) if isinstance(v, tuple) else v for k, v in found.items()}

    def _changes(self) -> dict[str, Any]:
        """Fields that ask for something, the seed left out."""
        return {
            field.name: getattr(self, field.name)
            for field in fields(self)
            if field.name != "seed" and getattr(self, field.name) != field.default
        }


def _check(name: str, limit: Limit, value: object) -> None:
    if (problem := limit.problem(value)) is not None:
        raise ConfigError(f"{name}: {problem}")


def _short(value: object) -> str:
    """A number as it is, a text quoted, a bias as token:value; a few with commas, many counted."""
    if isinstance(value, tuple):
        if len(value) > _LISTED:
            return f"[{len(value)}]"
        return ",".join(
            f"{one[0]}:{one[1]:g}" if isinstance(one, tuple) else _short(one) for one in value
        )
    return f"{value:g}" if isinstance(value, int | float) else repr(value)
