"""Token ids as text, piece by piece."""

import inspect
import re
from collections.abc import Mapping, Sequence

from jinja2 import TemplateError
from transformers import PreTrainedTokenizerBase as Tokenizer

from ddtree.errors import ModelError, RequestError

# What a decoder puts for bytes that are no complete character yet.
_INCOMPLETE = "\ufffd"
# Prompt ids to decode behind: enough to hold a whole character of several ids.
_CONTEXT = 8
# Stands for a user's turn in a rendered template.
_MARK = "\x02turn\x03"
# Bytes of a character in UTF-8 at most, each of which may be an id; and ids after which bytes that
# make no character are given up.
_LONGEST_CHARACTER, _PATIENCE = 4, 16


class StopStrings:
    """Finds the first of several strings to come to its end in a growing text.

    Text is given out as soon as no stop can begin in it any more. The outcome does not depend on
    how the text is cut into pieces.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(stops)
        self._longest = max(map(len, self._stops), default=0)
        self._held = ""
        self.found = False

    def push(self, text: str, *, armed: bool = True) -> str:
        """Add text; returns what is certain to stand before any stop. Stops that end in text
        added unarmed don't count."""
        known, text = len(self._held), self._held + text
        ends = []
        for stop in self._stops if armed else ():
            at = text.find(stop, max(0, known - len(stop) + 1))
            if at >= 0:
                ends.append((at + len(stop), at))
        if ends:
            self.found, self._held = True, ""
            return text[: min(ends)[1]]
        safe = len(text) - self._possible(text)
        self._held = text[safe:]
        return text[:safe]

    def finish(self) -> str:
        """What was held back, when no more text comes."""
        text, self._held = self._held, ""
        return text

    def _possible(self, text: str) -> int:
        """Characters at the end of `text` with which a stop may have begun."""
        for size in range(min(self._longest - 1, len(text)), 0, -1):
            start = text[-size:]
            if any(len(stop) > size and stop.startswith(start) for stop in self._stops):
                return size
        return 0


class TextStream:
    """Text of a growing list of ids, special tokens left out, up to the first stop string.

    Text is held back while its last character is incomplete, so that no character is ever split,
    and while a stop may have begun; `finish` gives up what is left. The pieces joined are the
    whole text, however the ids were grouped. Stops that end within the first `min_tokens` ids
    don't count.

    `prompt` is what the ids follow: some decoders drop the space that opens a text, so ids are
    decoded behind what came before them.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        prompt: Sequence[int] = (),
        stops: Sequence[str] = (),
        min_tokens: int = 0,
    ) -> None:
        self._tokenizer = tokenizer
        self._ids = list(prompt[-_CONTEXT:])
        # Decoding starts at an id behind which all text is out; enough of it is decoded again to
        # give the next ids their context.
        self._start, self._complete = 0, len(self._ids)
        # Characters of what is decoded again; one that the prompt leaves open ends in the ids.
        self._given = len(self._decode(self._ids).rstrip(_INCOMPLETE))
        self._stops = StopStrings(stops)
        self._unarmed = min_tokens

    @property
    def stopped(self) -> bool:
        """Whether a stop string is complete; no text comes after it."""
        return self._stops.found

    def push(self, ids: Sequence[int]) -> str:
        """Add ids; returns the text that can't change any more."""
        return "".join([self._push(token) for token in ids])

    def finish(self) -> str:
        """The text held back, incomplete characters included."""
        if self.stopped:
            return ""
        rest = self._decode(self._ids[self._start :])[self._given :]
        self._given += len(rest)
        return self._stops.finish() + rest

    def _push(self, token: int) -> str:
        if self.stopped:
            return ""
        self._ids.append(token)
        self._unarmed -= 1
        text = self._decode(self._ids[self._start :])
        certain = len(text.rstrip(_INCOMPLETE))
        is_stuck = len(self._ids) - self._complete > _PATIENCE
        if is_stuck:
            # Bytes that are no text: what stands before a character's worth stays as it is.
            certain = max(certain, len(text) - _LONGEST_CHARACTER)
        fresh = text[self._given : certain]
        self._given = max(self._given, certain)
        if is_stuck or (fresh and certain == len(text)):
            open_characters = len(text) - certain
            behind = len(self._ids) - _PATIENCE // 2 if is_stuck else self._complete
            self._start, self._complete = behind, len(self._ids)
            self._given = len(self._decode(self._ids[behind:])) - open_characters
        return self._stops.push(fresh, armed=self._unarmed < 0)

    def _decode(self, ids: list[int]) -> str:
        text: str = self._tokenizer.decode(
            ids, skip_special_tokens=True, clean_up_tokenization_spaces=False
        )
        return text


def encode_chat(
    tokenizer: Tokenizer,
    messages: Sequence[dict[str, str]],
    variables: Mapping[str, object] | None = None,
) -> list[int]:
    """A conversation as ids by the model's own chat template, ready for the assistant's turn.

    `variables` are further ones of the template, a thinking switch say. RequestError for one that
    the template does not read: it would change nothing, in silence.
    """
    if not tokenizer.chat_template:
        raise ModelError("this model has no chat template; send plain text instead")
    _check_variables(tokenizer, variables or {})
    try:
        text = tokenizer.apply_chat_template(
            messages, tokenize=False, add_generation_prompt=True, **(variables or {})
        )
    except TemplateError as error:
        raise RequestError("messages", f"the model's chat template refuses them: {error}") from None
    ids: list[int] = tokenizer(text, add_special_tokens=False).input_ids
    return ids


def _check_variables(tokenizer: Tokenizer, variables: Mapping[str, object]) -> None:
    taken = {*inspect.signature(tokenizer.apply_chat_template).parameters, "messages"}
    for name in variables:
        read = re.search(rf"\b{re.escape(name)}\b", str(tokenizer.chat_template))
        if name in taken or not read:
            raise RequestError(
                "chat_template_kwargs", f"the model's chat template has no variable {name!r} to set"
            )


def chat_format(tokenizer: Tokenizer) -> tuple[str, str] | None:
    """What the chat template puts before and after a single user's turn, special tokens included,
    up to where the assistant begins; None without a template that does so."""
    if not tokenizer.chat_template:
        return None
    turn = {"role": "user", "content": _MARK}
    try:
        text = tokenizer.apply_chat_template([turn], tokenize=False, add_generation_prompt=True)
    except TemplateError:
        return None
    before, mark, after = str(text).partition(_MARK)
    return (before, after) if mark else None
