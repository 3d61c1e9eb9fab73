"""Prompts in all their forms as token ids."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from transformers import PreTrainedTokenizerBase as Tokenizer

from ddtree.errors import ModelError, RequestError
from ddtree.models.text import TextStream, encode_chat
from ddtree.serve.messages import ChatMessage


@dataclass(frozen=True)
class Prompt:
    """Token ids, and the text they were sent as, if they were."""

    ids: list[int]
    text: str | None = None

    def spelled(self, tokenizer: Tokenizer) -> str:
        """Its text; special tokens among ids have none, as in answers."""
        return decoded(tokenizer, self.ids) if self.text is None else self.text


class TextLimit:
    """Refuses a text that no encoding makes fit a context, before the work of encoding it."""

    def __init__(self, tokenizer: Tokenizer, max_context: int) -> None:
        # A vocabulary's entry is at least as long as the text it stands for.
        self._characters = max_context * max(map(len, tokenizer.get_vocab()))
        self._max_context = max_context

    def check(self, field: str, characters: int) -> None:
        """RequestError that names `field`."""
        if characters > self._characters:
            raise RequestError(
                field,
                f"has {characters} characters, which are more than {self._max_context} tokens "
                "whatever they say; the context has no more",
            )


def read_prompts(
    tokenizer: Tokenizer, prompt: str | Sequence[str] | Sequence[int] | Sequence[Sequence[int]]
) -> list[Prompt]:
    """The prompts of a completion call, in order."""
    if isinstance(prompt, str):
        return [Prompt(encode(tokenizer, prompt), prompt)]
    if all(isinstance(part, int) for part in prompt):
        return [Prompt(list(prompt))]  # type: ignore[arg-type]
    return [
        Prompt(encode(tokenizer, part), part) if isinstance(part, str) else Prompt(list(part))  # type: ignore[arg-type]
        for part in prompt
    ]


def read_chat(
    tokenizer: Tokenizer,
    messages: Sequence[ChatMessage],
    variables: Mapping[str, object] | None = None,
) -> Prompt:
    """A conversation by the model's own chat template, ready for the assistant's turn."""
    turns = [message.for_template() for message in messages]
    try:
        return Prompt(encode_chat(tokenizer, turns, variables))
    except ModelError as error:
        raise RequestError("messages", str(error)) from None


def encode(tokenizer: Tokenizer, text: str, *, add_special_tokens: bool = True) -> list[int]:
    """Token ids of a text."""
    ids: list[int] = tokenizer(text, add_special_tokens=add_special_tokens).input_ids
    return ids


def banned_ids(tokenizer: Tokenizer, words: Sequence[str]) -> list[tuple[int, ...]]:
    """Words as ids: each as it stands, and behind a space where that is spelled with other ids."""
    texts = [text for word in words for text in (word, " " + word.lstrip())]
    ids = [tuple(encode(tokenizer, text, add_special_tokens=False)) for text in texts]
    return list(dict.fromkeys(ids))


def decoded(tokenizer: Tokenizer, ids: Sequence[int]) -> str:
    """The text of ids, special tokens left out."""
    stream = TextStream(tokenizer)
    return stream.push(ids) + stream.finish()
