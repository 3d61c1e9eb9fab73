"""The turns of a conversation."""

from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, StrictStr

from ddtree.serve.fields import Neutral, Strict, neutral_schema, neutral_validator

# Fields that are not implemented; clients that send an answer back send some of them empty.
NEUTRAL: Neutral = {
    "name": (),
    "refusal": (),
    "audio": (),
    "annotations": ([],),
    "tool_calls": ([],),
    "tool_call_id": (),
    "function_call": (),
}


class TextPart(Strict):
    """A part of a message's content."""

    type: Literal["text"]
    text: StrictStr


class ChatMessage(Strict):
    """One turn; only text content exists. A developer's turn is a system's."""

    model_config = ConfigDict(json_schema_extra=neutral_schema(NEUTRAL))

    role: Literal["system", "developer", "user", "assistant"]
    content: StrictStr | Annotated[list[TextPart], Field(min_length=1)]
    name: Any = None
    refusal: Any = None
    audio: Any = None
    annotations: Any = None
    tool_calls: Any = None
    tool_call_id: Any = None
    function_call: Any = None

    _asks_for_nothing = neutral_validator(NEUTRAL)

    @property
    def length(self) -> int:
        """Characters of its content."""
        return len(self.for_template()["content"])

    def for_template(self) -> dict[str, str]:
        """As chat templates know it: parts of content are joined with nothing between them."""
        text = self.content
        if not isinstance(text, str):
            text = "".join(part.text for part in text)
        return {"role": "system" if self.role == "developer" else self.role, "content": text}
