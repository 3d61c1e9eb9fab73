"""What answers look like, for the OpenAPI document; tests hold real answers against it."""

from typing import Annotated, Any, Literal

from pydantic import Field

from ddtree.serve.fields import Strict

FinishReason = Literal["stop", "length"]
Stats = Annotated[
    dict[str, Any] | None, Field(description="rounds, acceptance, token ids, seconds by stage")
]


class Error(Strict):
    """OpenAI's error; `param` names the field."""

    message: str
    type: str
    param: str | None
    code: str | None


class ErrorAnswer(Strict):
    """Every refusal and failure."""

    error: Error


class Usage(Strict):
    """Tokens of all choices; each prompt counts once."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int


class CompletionLogprobs(Strict):
    """Lists with one element per token. From `token_ids` on: scoring only."""

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]
    token_ids: list[int] | None = None
    token_logits: list[float | None] | None = None
    top_ids: list[list[int] | None] | None = None
    top_logits: list[list[float] | None] | None = None
    scores: list[float | None] | None = None
    edges: list[float | None] | None = None
    before: list[float | None] | None = None
    share: list[float | None] | None = None
    best_ids: list[list[int] | None] | None = None
    best_scores: list[list[float] | None] | None = None
    best_edges: list[list[float] | None] | None = None


class CompletionChoice(Strict):
    """An answer of a completion."""

    index: int
    text: str
    finish_reason: FinishReason
    logprobs: CompletionLogprobs | None
    token_ids: list[int] | None = None
    ddtree: Stats = None


class Completion(Strict):
    """The answer of /v1/completions."""

    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: Usage
    ddtree: Stats = None


class Alternative(Strict):
    """A token; `bytes` null for a part of a character."""

    token: str
    logprob: float
    bytes: list[int] | None


class ChatLogprob(Alternative):
    """A generated token and the best ones in its place."""

    top_logprobs: list[Alternative]


class ChatLogprobs(Strict):
    """One entry per generated token."""

    content: list[ChatLogprob]


class AssistantMessage(Strict):
    """The assistant's turn."""

    role: Literal["assistant"]
    content: str


class ChatChoice(Strict):
    """An answer of a chat."""

    index: int
    message: AssistantMessage
    finish_reason: FinishReason
    logprobs: ChatLogprobs | None
    token_ids: list[int] | None = None
    ddtree: Stats = None


class ChatCompletion(Strict):
    """The answer of /v1/chat/completions."""

    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    choices: list[ChatChoice]
    usage: Usage
    ddtree: Stats = None


class Model(Strict):
    """The model served."""

    id: str
    object: Literal["model"]
    created: int
    owned_by: str


class Models(Strict):
    """The answer of /v1/models."""

    object: Literal["list"]
    data: list[Model]


class Tokens(Strict):
    """The answer of /tokenize."""

    tokens: list[int]
    count: int
    max_model_len: int


class Text(Strict):
    """The answer of /detokenize."""

    prompt: str


class Health(Strict):
    """The answer of /health."""

    status: Literal["ok"]


class Unhealthy(Strict):
    """The answer of /health where the engine can't be relied on."""

    status: Literal["unhealthy"]
    reason: str
