"""What requests look like: unknown fields are refused, and so are, by name, those not served."""

import re
from collections.abc import Sequence
from dataclasses import fields
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StrictBool, StrictFloat, StrictInt, StrictStr

from ddtree.engine import SamplingParams, Speculation
from ddtree.engine.sampling_params import MAX_LOGPROBS
from ddtree.errors import RequestError

# Fields of OpenAI's interface that are not implemented, with the values that ask for nothing.
NEUTRAL: dict[str, tuple[Any, ...]] = {
    "best_of": (1,),
    "stop": ([], ""),
    "suffix": ("",),
    "response_format": (),
    "tools": ([],),
    "tool_choice": ("none",),
}
# Fields that go to the engine as they are.
SAMPLING = tuple(
    field.name
    for field in fields(SamplingParams)
    if field.name not in ("max_tokens", "logit_bias", "bad_words", "logprobs")
)
DEFAULT_TEMPERATURE = 1.0
# Answers to one prompt: each takes a slot and prefills the prompt anew.
MAX_CHOICES = 16
# A chat has no limit of its own but the context.
UNLIMITED = 2**31 - 1

# As JSON has them: true is no number, and NaN and Infinity, which Python's parser takes, neither.
Number = Annotated[StrictFloat, Field(allow_inf_nan=False)]
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
    """What both completion calls share; ranges are the engine's."""

    model: StrictStr | None = None
    temperature: Number | None = None
    top_p: Number | None = None
    top_k: StrictInt | None = None
    min_p: Number | None = None
    seed: StrictInt | None = None
    repetition_penalty: Number | None = None
    presence_penalty: Number | None = None
    frequency_penalty: Number | None = None
    logit_bias: dict[StrictStr, Number] | None = None
    bad_words: list[StrictStr] | None = None
    min_tokens: Annotated[StrictInt, Field(le=UNLIMITED)] | None = None
    stop_token_ids: Ids | None = None
    ignore_eos: StrictBool | None = None
    n: Annotated[StrictInt, Field(ge=1, le=MAX_CHOICES)] | None = None
    stream: StrictBool = False
    stream_options: StreamOptions | None = None
    return_token_ids: StrictBool = False
    return_stats: StrictBool = False
    speculation: SpeculationFields | None = None
    user: Any = Field(None, description="accepted and ignored")
    metadata: Any = Field(None, description="accepted and ignored")
    store: Any = Field(None, description="accepted and ignored")
    best_of: Any = None
    stop: Any = None
    suffix: Any = None
    response_format: Any = None
    tools: Any = None
    tool_choice: Any = None

    def refuse_unserved(self) -> None:
        """RequestError that names a field asking for what doesn't exist."""
        for name, neutral in NEUTRAL.items():
            value = getattr(self, name)
            if value is not None and (isinstance(value, bool) or value not in neutral):
                raise RequestError(name, f"got {value!r}, which is not implemented; leave it out")

    def sampling(
        self, max_tokens: int, banned: Sequence[Sequence[int]], logprobs: int | None
    ) -> SamplingParams:
        """The engine's form, `banned` being `bad_words` as ids; RequestError names a field that
        can't be served."""
        self.refuse_unserved()
        given = {name: getattr(self, name) for name in SAMPLING}
        chosen: dict[str, Any] = {"temperature": DEFAULT_TEMPERATURE}
        chosen |= {name: value for name, value in given.items() if value is not None}
        chosen["stop_token_ids"] = tuple(self.stop_token_ids or ())
        return SamplingParams(
            max_tokens=max_tokens,
            logit_bias=self._bias(),
            bad_words=tuple(map(tuple, banned)),
            logprobs=logprobs,
            **chosen,
        )

    def choices(self) -> int:
        """How many answers; RequestError where all would be the same."""
        count = 1 if self.n is None else self.n
        if count > 1 and self.temperature == 0:
            raise RequestError(
                "n",
                f"got {count}, but at temperature 0 all choices are the same; leave it out or give "
                "a temperature",
            )
        return count

    def to_speculation(self) -> Speculation | None:
        """None asks for the server's default."""
        return None if self.speculation is None else self.speculation.to_speculation()

    @property
    def include_usage(self) -> bool:
        """Whether a stream ends with a usage chunk."""
        return self.stream_options is not None and self.stream_options.include_usage

    def _bias(self) -> dict[int, float]:
        bias = self.logit_bias or {}
        for key in bias:
            # Another spelling of a number could name a token twice.
            if not re.fullmatch(r"0|[1-9][0-9]{0,9}", key):
                raise RequestError("logit_bias", f"got the key {key!r}, expected a token id")
        return {int(key): value for key, value in bias.items()}


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
            for name in ("stream", "speculation", "return_stats", "n"):
                value = getattr(self, name)
                if _asks(value) and not (name == "n" and value == 1):
                    raise RequestError(name, "has no meaning for scoring; leave it out")
            return True
        for name in ("echo", "score_from", "score_rows"):
            if _asks(getattr(self, name)):
                raise RequestError(
                    name, "is implemented for scoring only: echo, logprobs and max_tokens 0"
                )
        return False

    def score_sampling(self, banned: Sequence[Sequence[int]]) -> SamplingParams | None:
        """What scores are to include; None without any sampling field.

        RequestError unless the fields say exactly what a request would have done: a default or a
        drawn seed would give scores of something else.
        """
        names = (*SAMPLING, "logit_bias", "bad_words")
        given = [name for name in names if _asks(getattr(self, name))]
        if not given:
            return None
        if self.temperature is None:
            raise RequestError(
                "temperature", f"is needed beside {given[0]}: scores have no default; give it"
            )
        if self.temperature > 0 and self.seed is None:
            raise RequestError(
                "seed", "is needed above temperature 0: scores hold a named seed's noise"
            )
        return self.sampling(UNLIMITED, banned, None)


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
    top_logprobs: Annotated[StrictInt, Field(ge=0, le=MAX_LOGPROBS)] | None = None

    def token_limit(self) -> int:
        """Generated tokens at most."""
        for value in (self.max_completion_tokens, self.max_tokens):
            if value is not None:
                return value
        return UNLIMITED

    def num_logprobs(self) -> int | None:
        """Best tokens to list beside each chosen one, None for no log-probabilities."""
        if self.top_logprobs is not None and not self.logprobs:
            raise RequestError("top_logprobs", "needs logprobs: true; give both or neither")
        return (self.top_logprobs or 0) if self.logprobs else None


class TokenizeRequest(_Strict):
    """POST /tokenize."""

    model: StrictStr | None = None
    prompt: StrictStr
    add_special_tokens: StrictBool = True


class DetokenizeRequest(_Strict):
    """POST /detokenize."""

    model: StrictStr | None = None
    tokens: Ids


def _asks(value: object) -> bool:
    """Whether a field asks for something: 0 does, false and what is empty don't."""
    return value is not False and (isinstance(value, int | float) or bool(value))
