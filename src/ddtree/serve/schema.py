"""What requests look like: unknown fields are refused, and so are, by name, those not served."""

import re
from collections.abc import Sequence
from dataclasses import fields
from typing import Annotated, Any

from pydantic import (
    ConfigDict,
    Discriminator,
    Field,
    StrictBool,
    StrictInt,
    StrictStr,
    Tag,
)

from ddtree.engine import SamplingParams, Speculation
from ddtree.engine.sampling_params import MAX_LOGPROBS, MAX_STOP_IDS
from ddtree.errors import RequestError
from ddtree.records.sampling_limits import BIAS, LIMITS, UNLIMITED
from ddtree.serve.fields import (
    NEUTRAL,
    Body,
    Ids,
    Number,
    SpeculationFields,
    StopList,
    StopString,
    StreamOptions,
    Unserved,
    neutral_schema,
    within,
)
from ddtree.serve.messages import ChatMessage

# Fields that go to the engine as they are.
SAMPLING = tuple(
    field.name
    for field in fields(SamplingParams)
    if field.name not in ("max_tokens", "logit_bias", "bad_words", "logprobs", "stop")
)
DEFAULT_TEMPERATURE = 1.0
# OpenAI's default for completions; a chat has no limit of its own but the context.
DEFAULT_MAX_TOKENS = 16
# Answers in one call: each takes a slot and prefills its prompt anew.
MAX_CHOICES = 128

# Variables of the model's chat template that a conversation may set.
TemplateVariables = Annotated[
    dict[StrictStr, StrictBool | StrictInt | StrictStr], Field(max_length=16)
]

# Each is looked for as it stands and behind a space.
MAX_BAD_WORDS, MAX_BAD_WORD_LENGTH = 256, 64
BadWord = Annotated[StrictStr, Field(min_length=1, max_length=MAX_BAD_WORD_LENGTH)]
# Characters of a text to be told in tokens, ids of one to be told in text.
MAX_TEXT, MAX_IDS = 2**22, 2**20

_TOKEN_ID = r"0|[1-9][0-9]{0,9}"


class SamplingFields(Body):
    """How the target's tokens are drawn; ranges that depend on the model are the engine's."""

    model: StrictStr | None = None
    temperature: Annotated[Number, within(LIMITS["temperature"])] | None = None
    top_p: Annotated[Number, within(LIMITS["top_p"])] | None = None
    top_k: Annotated[StrictInt, within(LIMITS["top_k"])] | None = None
    min_p: Annotated[Number, within(LIMITS["min_p"])] | None = None
    seed: Annotated[StrictInt, within(LIMITS["seed"])] | None = None
    repetition_penalty: Annotated[Number, within(LIMITS["repetition_penalty"])] | None = None
    presence_penalty: Annotated[Number, within(LIMITS["presence_penalty"])] | None = None
    frequency_penalty: Annotated[Number, within(LIMITS["frequency_penalty"])] | None = None


class GenerationFields(Unserved, SamplingFields):
    """What both completion calls share."""

    model_config = ConfigDict(json_schema_extra=neutral_schema(NEUTRAL))

    logit_bias: dict[StrictStr, Annotated[Number, within(BIAS)]] | None = Field(
        None, json_schema_extra={"propertyNames": {"pattern": f"^({_TOKEN_ID})$"}}
    )
    bad_words: Annotated[list[BadWord], Field(max_length=MAX_BAD_WORDS)] | None = None
    min_tokens: Annotated[StrictInt, within(LIMITS["min_tokens"])] | None = None
    stop: StopString | StopList | None = None
    stop_token_ids: Annotated[Ids, Field(max_length=MAX_STOP_IDS)] | None = None
    ignore_eos: StrictBool | None = None
    n: Annotated[StrictInt, Field(ge=1, le=MAX_CHOICES)] | None = None
    stream: StrictBool | None = None
    stream_options: StreamOptions | None = None
    return_token_ids: StrictBool | None = None
    return_stats: StrictBool | None = None
    speculation: SpeculationFields | None = None

    def sampling(
        self, max_tokens: int, banned: Sequence[Sequence[int]], logprobs: int | None
    ) -> SamplingParams:
        """The engine's form, `banned` being `bad_words` as ids; RequestError names a field that
        can't be served."""
        given = {name: getattr(self, name) for name in SAMPLING}
        chosen: dict[str, Any] = {"temperature": DEFAULT_TEMPERATURE}
        chosen |= {name: value for name, value in given.items() if value is not None}
        chosen["stop_token_ids"] = tuple(self.stop_token_ids or ())
        return SamplingParams(
            max_tokens=max_tokens,
            logit_bias=self._bias(),
            bad_words=tuple(map(tuple, banned)),
            logprobs=logprobs,
            stop=self.stops(),
            **chosen,
        )

    def stops(self) -> tuple[str, ...]:
        """Strings that end an answer."""
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ())

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

    def include_usage(self) -> bool:
        """Whether a stream ends with a usage chunk; RequestError for options of no stream."""
        if self.stream_options is None:
            return False
        if not self.stream:
            raise RequestError("stream_options", "needs stream: true; give both or neither")
        return bool(self.stream_options.include_usage)

    def _bias(self) -> dict[int, float]:
        bias = self.logit_bias or {}
        for key in bias:
            # Another spelling of a number could name a token twice.
            if not re.fullmatch(_TOKEN_ID, key):
                raise RequestError("logit_bias", f"got the key {key!r}, expected a token id")
        return {int(key): value for key, value in bias.items()}


def _form_of(prompt: object) -> str | None:
    """Which of its forms a prompt means to have."""
    if not isinstance(prompt, list):
        return "text" if isinstance(prompt, str) else None
    first = prompt[0] if prompt else 0
    return "texts" if isinstance(first, str) else "lists" if isinstance(first, list) else "ids"


PromptForms = Annotated[
    Annotated[StrictStr, Tag("text")]
    | Annotated[list[StrictStr], Field(min_length=1, max_length=MAX_CHOICES), Tag("texts")]
    | Annotated[Ids, Field(min_length=1), Tag("ids")]
    | Annotated[
        list[Annotated[Ids, Field(min_length=1)]],
        Field(min_length=1, max_length=MAX_CHOICES),
        Tag("lists"),
    ],
    Discriminator(
        _form_of,
        custom_error_type="prompt_form",
        custom_error_message="expected a string, a list of token ids, or a list of either",
    ),
]


class CompletionRequest(GenerationFields):
    """POST /v1/completions.

    With `echo`, `logprobs` and `max_tokens: 0` the prompt's tokens from `score_from` on are
    scored instead (`score_rows` rows per pass).
    """

    prompt: PromptForms
    max_tokens: Annotated[StrictInt, Field(ge=0)] | None = None
    echo: StrictBool | None = None
    logprobs: Annotated[StrictInt, Field(ge=0, le=MAX_LOGPROBS)] | None = None
    score_from: Annotated[StrictInt, Field(ge=1)] | None = None
    score_rows: Annotated[StrictInt, Field(ge=1)] | None = None

    def texts(self) -> list[str]:
        """Prompts that are texts."""
        prompts = [self.prompt] if isinstance(self.prompt, str) else self.prompt
        return [prompt for prompt in prompts if isinstance(prompt, str)]

    def asks_for_scores(self) -> bool:
        """Whether to score instead of generate; RequestError for a mixture of both."""
        if self.echo and self.logprobs is not None:
            if self.max_tokens != 0:
                raise RequestError(
                    "echo",
                    "with logprobs is implemented for max_tokens 0 only: score the prompt in a "
                    "request of its own, or leave out one of the two",
                )
            for name in ("stream", "stream_options", "speculation", "return_stats", "n", "stop"):
                value = getattr(self, name)
                if _asks(value) and not (name == "n" and value == 1):
                    raise RequestError(name, "has no meaning for scoring; leave it out")
            return True
        for name in ("score_from", "score_rows"):
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


class ChatRequest(GenerationFields):
    """POST /v1/chat/completions."""

    messages: Annotated[list[ChatMessage], Field(min_length=1)]
    chat_template_kwargs: TemplateVariables | None = None
    max_tokens: Annotated[StrictInt, Field(ge=1)] | None = None
    max_completion_tokens: Annotated[StrictInt, Field(ge=1)] | None = None
    logprobs: StrictBool | None = None
    top_logprobs: Annotated[StrictInt, Field(ge=0, le=MAX_LOGPROBS)] | None = None

    def num_logprobs(self) -> int | None:
        """Best tokens to list beside each chosen one, None for no log-probabilities."""
        if self.top_logprobs is not None and not self.logprobs:
            raise RequestError("top_logprobs", "needs logprobs: true; give both or neither")
        return (self.top_logprobs or 0) if self.logprobs else None


class TokenizeRequest(Body):
    """POST /tokenize."""

    model: StrictStr | None = None
    prompt: Annotated[StrictStr, Field(max_length=MAX_TEXT)]
    add_special_tokens: StrictBool = True


class DetokenizeRequest(Body):
    """POST /detokenize."""

    model: StrictStr | None = None
    tokens: Annotated[Ids, Field(max_length=MAX_IDS)]


def _asks(value: object) -> bool:
    """Whether a field asks for something: 0 does, false and what is empty don't."""
    return value is not False and (isinstance(value, int | float) or bool(value))
