"""What requests look like: unknown fields are refused, and so are, by name, those not served."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StrictBool, StrictInt, StrictStr

from ddtree.engine import SamplingParams, Speculation
from ddtree.errors import RequestError

# Fields of OpenAI's interface that are not implemented, with the values that ask for nothing.
NEUTRAL: dict[str, tuple[Any, ...]] = {
    "top_p": (1, 1.0),
    "top_k": (0, -1),
    "min_p": (0, 0.0),
    "n": (1,),
    "best_of": (1,),
    "seed": (),
    "stop": ([], ""),
    "suffix": ("",),
    "presence_penalty": (0, 0.0),
    "frequency_penalty": (0, 0.0),
    "repetition_penalty": (1, 1.0),
    "logit_bias": ({},),
    "response_format": (),
    "tools": ([],),
    "tool_choice": ("none",),
    "min_tokens": (0,),
}

Ids = list[StrictInt]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid")


class SpeculationFields(_Strict):
    """Overrides of the server's default, per request."""

    method: Literal["ar", "chain", "ddtree"] = "ddtree"
    budget: StrictInt | None = None
    topk: StrictInt | None = None
    draft_window: StrictInt | Literal["full"] | None = None

    def to_speculation(self) -> Speculation:
        """The engine's form; RequestError names a field that can't be."""
        return Speculation(self.method, self.budget, self.topk, self.draft_window)


class StreamOptions(_Strict):
    """OpenAI's stream_options."""

    include_usage: StrictBool = False


class GenerationFields(_Strict):
    """What both completion calls share."""

    model: StrictStr | None = None
    temperature: Annotated[float, Field(allow_inf_nan=False)] | None = None
    stream: StrictBool = False
    stream_options: StreamOptions | None = None
    stop_token_ids: Ids = []
    ignore_eos: StrictBool = False
    return_token_ids: StrictBool = False
    return_stats: StrictBool = False
    speculation: SpeculationFields | None = None
    user: Any = Field(None, description="accepted and ignored")
    metadata: Any = Field(None, description="accepted and ignored")
    store: Any = Field(None, description="accepted and ignored")
    top_p: Any = None
    top_k: Any = None
    min_p: Any = None
    n: Any = None
    best_of: Any = None
    seed: Any = None
    stop: Any = None
    suffix: Any = None
    presence_penalty: Any = None
    frequency_penalty: Any = None
    repetition_penalty: Any = None
    logit_bias: Any = None
    response_format: Any = None
    tools: Any = None
    tool_choice: Any = None
    min_tokens: Any = None

    def refuse_unserved(self) -> None:
        """RequestError that names a field asking for what doesn't exist."""
        for name, neutral in NEUTRAL.items():
            value = getattr(self, name)
            if value is not None and (isinstance(value, bool) or value not in neutral):
                raise RequestError(name, f"got {value!r}, which is not implemented; leave it out")

    def sampling(self, max_tokens: int) -> SamplingParams:
        """The engine's form; RequestError names a field that can't be served."""
        self.refuse_unserved()
        return SamplingParams(
            max_tokens=max_tokens,
            temperature=self.temperature or 0.0,
            stop_token_ids=tuple(self.stop_token_ids),
            ignore_eos=self.ignore_eos,
        )

    def to_speculation(self) -> Speculation | None:
        """None asks for the server's default."""
        return None if self.speculation is None else self.speculation.to_speculation()

    @property
    def include_usage(self) -> bool:
        """Whether a stream ends with a usage chunk."""
        return self.stream_options is not None and self.stream_options.include_usage


class CompletionRequest(GenerationFields):
    """POST /v1/completions.

    With `echo`, `logprobs` and `max_tokens: 0` the prompt's tokens from `score_from` on are
    scored instead (`score_rows` rows per pass).
    """

    prompt: StrictStr | Ids
    max_tokens: StrictInt = 16
    echo: StrictBool = False
    logprobs: StrictInt | None = None
    score_from: StrictInt | None = None
    score_rows: StrictInt | None = None

    def asks_for_scores(self) -> bool:
        """Whether to score instead of generate; RequestError for a mixture of both."""
        if self.echo and self.logprobs is not None and self.max_tokens == 0:
            self.refuse_unserved()
            for name in ("temperature", "stream", "speculation", "return_stats", "stop_token_ids"):
                if getattr(self, name):
                    raise RequestError(name, "has no meaning for scoring; leave it out")
            return True
        for name in ("echo", "logprobs", "score_from", "score_rows"):
            if getattr(self, name) not in (None, False):
                raise RequestError(
                    name, "is implemented for scoring only: echo, logprobs and max_tokens 0"
                )
        return False


class ChatMessage(_Strict):
    """One turn; only text content exists."""

    role: Literal["system", "user", "assistant"]
    content: StrictStr


class ChatRequest(GenerationFields):
    """POST /v1/chat/completions."""

    messages: Annotated[list[ChatMessage], Field(min_length=1)]
    max_tokens: StrictInt | None = None
    max_completion_tokens: StrictInt | None = None
    logprobs: StrictBool = False

    def token_limit(self) -> int:
        """Generated tokens at most; a chat has no limit of its own but the context.
        RequestError for what isn't implemented."""
        if self.logprobs:
            raise RequestError("logprobs", "is not implemented for chats; leave it out")
        for value in (self.max_completion_tokens, self.max_tokens):
            if value is not None:
                return value
        return 2**31 - 1


class TokenizeRequest(_Strict):
    """POST /tokenize."""

    model: StrictStr | None = None
    prompt: StrictStr
    add_special_tokens: StrictBool = True


class DetokenizeRequest(_Strict):
    """POST /detokenize."""

    model: StrictStr | None = None
    tokens: Ids
