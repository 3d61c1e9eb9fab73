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
class Message:
    """A turn of a conversation; `role` is system, user or assistant."""

    role: str
    content: str


@dataclass(frozen=True)
class Chat:
    """A conversation, which the server puts into the model's own template.

    `template` are further variables of that template, such as a thinking switch; sent as
    `chat_template_kwargs`, left out when empty.
    """

    messages: tuple[Message, ...]
    template: tuple[tuple[str, Any], ...] = ()


Prompt = str | tuple[int, ...] | Chat


@dataclass(frozen=True)
class CompletionRequest:
    """What to decode, up to `max_tokens` or to one of the `stop` strings.

    Our server decodes with `arm` (None: its default). Where an arm is a launch it says what the
    server was launched for, and rounds are read accordingly; None where that isn't known. With
    `keep_text` the record has the answer's text even where token ids come.
    """

    prompt: Prompt
    max_tokens: int
    arm: Arm | None = None
    ignore_eos: bool = False
    sampling: Sampling = field(default_factory=Sampling)
    stop: tuple[str, ...] = ()
    keep_text: bool = False


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

    `top_ids` and `top_logits` are its best tokens, best first. SGLang and vLLM give logits less
    their log-sum: gaps are the same, the size of a last place is not. `sampled` where the call
    named sampling fields.
    """

    token_id: int
    token_logit: float
    top_ids: tuple[int, ...]
    top_logits: tuple[float, ...]
    sampled: SampledScore | None = None
