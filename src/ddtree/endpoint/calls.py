"""What is asked of a server and what it answers, apart from the stream itself."""

from dataclasses import dataclass, field
from typing import Any

from ddtree.records.arms import Arm
from ddtree.records.sampling import Sampling
from ddtree.records.scores import SampledScore


@dataclass(frozen=True)
class Deadlines:
    """Seconds from sending to the first token, between chunks with tokens, and for the whole."""

    first_token_s: float = 120.0
    silence_s: float = 60.0
    request_s: float = 600.0


@dataclass(frozen=True)
class CompletionRequest:
    """What to decode, up to `max_tokens`; `arm` None leaves the server's default."""

    prompt: str | tuple[int, ...]
    max_tokens: int
    arm: Arm | None = None
    ignore_eos: bool = False
    sampling: Sampling = field(default_factory=Sampling)

    def body(self) -> dict[str, Any]:
        """The JSON body of POST /v1/completions, the model's name left out."""
        body: dict[str, Any] = {
            "prompt": self.prompt if isinstance(self.prompt, str) else list(self.prompt),
            "max_tokens": self.max_tokens,
            **self.sampling.to_request(),
            "stream": True,
            "stream_options": {"include_usage": True},
            "return_token_ids": True,
            "return_stats": True,
            "ignore_eos": self.ignore_eos,
        }
        if self.arm is not None:
            body["speculation"] = self.arm.to_request()
        return body


@dataclass(frozen=True)
class RequestLabel:
    """Where a request belongs in a run."""

    cell: str = ""
    attempt: int = 0
    block: int = 0
    prompt_id: str = ""


@dataclass(frozen=True)
class ScoredPosition:
    """The target's raw scores for one position, given the tokens before it.

    `top_ids` and `top_logits` are its best tokens, best first. `sampled` where the call named
    sampling fields.
    """

    token_id: int
    token_logit: float
    top_ids: tuple[int, ...]
    top_logits: tuple[float, ...]
    sampled: SampledScore | None = None
