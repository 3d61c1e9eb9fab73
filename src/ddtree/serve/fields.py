"""Fields that requests share: types, limits, and what OpenAI has and this server does not."""

import math
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    StrictBool,
    StrictFloat,
    StrictInt,
    StrictStr,
    ValidationInfo,
    field_validator,
    model_validator,
)
from pydantic_core import PydanticCustomError

from ddtree.engine import Speculation
from ddtree.errors import RequestError
from ddtree.records.sampling_limits import Limit

# Fields of OpenAI's interface that are not implemented, with the values that ask for nothing.
Neutral = Mapping[str, tuple[Any, ...]]
NEUTRAL: Neutral = {
    "best_of": (1,),
    "suffix": ("",),
    "response_format": ({"type": "text"},),
    "tools": ([],),
    "tool_choice": ("none", "auto"),
    "functions": ([],),
    "function_call": ("none", "auto"),
    "parallel_tool_calls": (True, False),
    "modalities": (["text"],),
    "audio": (),
    "prediction": (),
    "moderation": (),
    "web_search_options": (),
    "reasoning_effort": ("none",),
    "verbosity": ("medium",),
    "service_tier": ("auto", "default"),
    "prompt_cache_options": (),
    "prompt_cache_retention": ("in_memory",),
}
# Fields that change no answer.
IGNORED = ("user", "metadata", "store", "safety_identifier", "prompt_cache_key")
MAX_STOPS, MAX_STOP_LENGTH = 16, 1000

# As JSON has them: true is no number, and NaN and Infinity, which Python's parser takes, neither.
Number = Annotated[StrictFloat, Field(allow_inf_nan=False)]
Ids = list[Annotated[StrictInt, Field(ge=0)]]
StopString = Annotated[StrictStr, Field(min_length=1, max_length=MAX_STOP_LENGTH)]
StopList = Annotated[list[StopString], Field(max_length=MAX_STOPS)]


def within(limit: Limit) -> Any:
    """A field's constraint; pydantic refuses numbers that are not finite by their type."""
    return Field(
        gt=limit.low if limit.above else None,
        ge=None if limit.above else limit.low,
        le=None if limit.is_open and not limit.whole else limit.high,
    )


def check_neutral(name: str | None, value: Any, neutral: tuple[Any, ...]) -> Any:
    """The value, if it asks for nothing; else an error for pydantic, which knows the place."""
    # True is no 1 here.
    if value is None or any(type(value) is type(one) and value == one for one in neutral):
        return value
    wanted = "".join(f" or send {one!r}" for one in neutral)
    raise PydanticCustomError(
        "not_implemented",
        "{name} is not implemented; leave it out{wanted}",
        {"name": name, "wanted": wanted},
    )


def neutral_validator(neutral: Neutral) -> Any:
    """For a model's body: its fields of these names are checked to ask for nothing."""

    def check(value: Any, info: ValidationInfo) -> Any:
        return check_neutral(info.field_name, value, neutral[str(info.field_name)])

    return field_validator(*neutral)(check)


def neutral_schema(neutral: Neutral) -> Callable[[dict[str, Any]], None]:
    """For a model's `json_schema_extra`: its schema says which values unserved fields may have."""

    def extend(schema: dict[str, Any]) -> None:
        for name, values in neutral.items():
            schema["properties"][name] |= {
                "enum": [None, *values],
                "description": "not implemented; these values ask for nothing",
            }

    return extend


class Strict(BaseModel):
    """Unknown fields are refused."""

    model_config = ConfigDict(extra="forbid")


class Body(Strict):
    """A request's whole body."""

    @model_validator(mode="before")
    @classmethod
    def _holds_text_and_numbers(cls, data: Any) -> Any:
        if isinstance(data, dict):
            check_plain(data)
        return data


class SpeculationFields(Strict):
    """Overrides of the server's default, per request."""

    method: Literal["ar", "chain", "ddtree"] = "ddtree"
    budget: Annotated[StrictInt, Field(ge=0)] | None = None
    topk: Annotated[StrictInt, Field(ge=1)] | None = None
    draft_window: Annotated[StrictInt, Field(ge=1)] | Literal["full"] | None = None

    def to_speculation(self) -> Speculation:
        """The engine's form; RequestError names a field that can't be."""
        return Speculation(self.method, self.budget, self.topk, self.draft_window)


class StreamOptions(Strict):
    """OpenAI's stream_options."""

    include_usage: StrictBool | None = None
    include_obfuscation: StrictBool | None = Field(None, json_schema_extra={"enum": [None, False]})

    @field_validator("include_obfuscation")
    @classmethod
    def _is_off(cls, value: Any) -> Any:
        return check_neutral("include_obfuscation", value, (False,))


class Unserved(Body):
    """OpenAI's fields that are refused unless they ask for nothing, and those that are ignored."""

    user: Any = Field(None, description="accepted and ignored")
    metadata: Any = Field(None, description="accepted and ignored")
    store: Any = Field(None, description="accepted and ignored")
    safety_identifier: Any = Field(None, description="accepted and ignored")
    prompt_cache_key: Any = Field(None, description="accepted and ignored")
    best_of: Any = None
    suffix: Any = None
    response_format: Any = None
    tools: Any = None
    tool_choice: Any = None
    functions: Any = None
    function_call: Any = None
    parallel_tool_calls: Any = None
    modalities: Any = None
    audio: Any = None
    prediction: Any = None
    moderation: Any = None
    web_search_options: Any = None
    reasoning_effort: Any = None
    verbosity: Any = None
    service_tier: Any = None
    prompt_cache_options: Any = None
    prompt_cache_retention: Any = None

    _asks_for_nothing = neutral_validator(NEUTRAL)


def check_plain(body: Mapping[str, Any]) -> None:
    """RequestError that names the field with a string that is no text or a number that is none.

    Python's JSON parser passes lone surrogates, NaN and infinities on; what is ignored must be
    JSON, too. Nothing here recurses: a body may be nested as deep as the parser goes.
    """
    for field, value in body.items():
        if not is_text(field):
            raise RequestError("body", "a field's name holds a lone surrogate, which is no text")
        todo = [value]
        while todo:
            found = todo.pop()
            if isinstance(found, dict):
                todo.extend(found)
                todo.extend(found.values())
            elif isinstance(found, list):
                todo.extend(item for item in found if not isinstance(item, int))
            elif isinstance(found, str) and not is_text(found):
                raise RequestError(field, "holds a lone surrogate, which is no text")
            elif isinstance(found, float) and not math.isfinite(found):
                raise RequestError(field, f"holds {found!r}, which is no JSON number")


def is_text(string: str) -> bool:
    """Whether UTF-8 can hold it: lone surrogates are no text."""
    try:
        string.encode()
    except UnicodeEncodeError:
        return False
    return True
