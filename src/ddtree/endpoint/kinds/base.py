"""What a kind of server must answer for, so that one client serves all."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, get_args

from ddtree.endpoint.calls import CompletionRequest, ScoredPosition
from ddtree.endpoint.stream import Reader
from ddtree.records.sampling import Sampling

Kind = Literal["ddtree", "sglang", "vllm", "openai"]
KINDS: tuple[Kind, ...] = get_args(Kind)


@dataclass(frozen=True)
class Call:
    """An HTTP call; `named` where its body takes the model's name."""

    path: str
    body: Mapping[str, Any]
    named: bool = True


class Dialect(Protocol):
    """How one kind of server spells requests and answers. Paths start with a slash."""

    @property
    def kind(self) -> Kind:
        """Its name in a configuration."""
        ...

    def completion(self, request: CompletionRequest) -> Call:
        """The streaming call for a request, the model's name left out."""
        ...

    def reader(self, request: CompletionRequest) -> Reader:
        """What reads that call's stream."""
        ...

    def scoring(
        self, token_ids: Sequence[int], score_from: int, rows: int, sampling: Sampling | None
    ) -> Call:
        """The call that scores positions score_from.. ; EndpointError where the kind can't."""
        ...

    def scores(
        self, answer: dict[str, Any], token_ids: Sequence[int], score_from: int, *, sampled: bool
    ) -> list[ScoredPosition]:
        """Its answer. KeyError, IndexError, TypeError or ValueError where something is missing."""
        ...

    @property
    def can_tokenize(self) -> bool:
        """Whether it has /tokenize and /detokenize."""
        ...

    @property
    def cache_reset(self) -> str | None:
        """The path that empties the prefix cache; None where no route does."""
        ...

    @property
    def has_prefix_cache(self) -> bool:
        """Whether prompts may be answered out of a cache at all."""
        ...

    @property
    def info_path(self) -> str:
        """Where it says what it runs."""
        ...

    def describe(self, info: dict[str, Any]) -> dict[str, Any]:
        """What it said there under our own server's names, None for what it doesn't say, and the
        answer itself as `reported`."""
        ...
