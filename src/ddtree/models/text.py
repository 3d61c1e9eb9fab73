"""Token ids as text, piece by piece."""

from collections.abc import Sequence

from jinja2 import TemplateError
from transformers import PreTrainedTokenizerBase as Tokenizer

from ddtree.errors import ModelError, RequestError

# What a decoder puts for bytes that are no complete character yet.
_INCOMPLETE = "\ufffd"
# Prompt ids to decode behind: enough to hold a whole character of several ids.
_CONTEXT = 8


class TextStream:
    """Text of a growing list of ids, special tokens left out.

    A piece is held back while its last character is incomplete, so that no character is ever
    split; `finish` gives up what is left. The pieces joined are the whole text.

    `prompt` is what the ids follow: some decoders drop the space that opens a text, so ids are
    decoded behind what came before them.
    """

    def __init__(self, tokenizer: Tokenizer, prompt: Sequence[int] = ()) -> None:
        self._tokenizer = tokenizer
        self._ids = list(prompt[-_CONTEXT:])
        self._start = 0  # decoding starts here
        self._emitted = len(self._ids)  # ids before this one have been given out

    def push(self, ids: Sequence[int]) -> str:
        """Add ids; returns the text that can't change any more."""
        self._ids.extend(ids)
        text = self._pending()
        if text.endswith(_INCOMPLETE):
            return ""
        if text:
            self._start = self._emitted
        self._emitted = len(self._ids)
        return text

    def finish(self) -> str:
        """The text held back, incomplete characters included."""
        text = self._pending()
        self._start = self._emitted = len(self._ids)
        return text

    def _pending(self) -> str:
        known = self._decode(self._ids[self._start : self._emitted])
        return self._decode(self._ids[self._start :])[len(known) :]

    def _decode(self, ids: list[int]) -> str:
        text: str = self._tokenizer.decode(
            ids, skip_special_tokens=True, clean_up_tokenization_spaces=False
        )
        return text


def encode_chat(tokenizer: Tokenizer, messages: Sequence[dict[str, str]]) -> list[int]:
    """A conversation as ids by the model's own chat template, ready for the assistant's turn."""
    if not tokenizer.chat_template:
        raise ModelError("this model has no chat template; send plain text instead")
    try:
        text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    except TemplateError as error:
        raise RequestError("messages", f"the model's chat template refuses them: {error}") from None
    ids: list[int] = tokenizer(text, add_special_tokens=False).input_ids
    return ids
