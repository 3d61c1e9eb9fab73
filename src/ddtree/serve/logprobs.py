"""Log-probabilities of generated tokens in OpenAI's two spellings."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from transformers import PreTrainedTokenizerBase as Tokenizer

from ddtree.engine import TokenLogprob

# What a decoder puts for bytes that are no complete character.
_INCOMPLETE = "\ufffd"
# Stands for minus infinity, which JSON doesn't have; OpenAI's and vLLM's number.
_LEAST = -9999.0


class TokenTexts:
    """Texts of single ids, special tokens included; a server has one for its tokenizer."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        # Some decoders drop the space that opens a text, so an id is decoded behind another.
        self._anchor: list[int] = tokenizer("a", add_special_tokens=False).input_ids[-1:]
        self._skip = len(self._decode(self._anchor))
        self._known: dict[int, str] = {}

    def __call__(self, token: int) -> str:
        """The id's text; of a part of a character U+FFFD."""
        if token not in self._known:
            self._known[token] = self._decode([*self._anchor, token])[self._skip :]
        return self._known[token]

    def _decode(self, ids: list[int]) -> str:
        text: str = self._tokenizer.decode(ids, clean_up_tokenization_spaces=False)
        return text


@dataclass(frozen=True)
class Entry:
    """A token and the offset in its text, in characters, where it begins."""

    scores: TokenLogprob
    offset: int


# From entries to an answer's `logprobs`.
Spelling = Callable[[Sequence[Entry], TokenTexts], dict[str, Any]]


def legacy_logprobs(entries: Sequence[Entry], texts: TokenTexts) -> dict[str, Any]:
    """The completion call's object: lists with one element per token."""
    return {
        "tokens": [texts(entry.scores.token_id) for entry in entries],
        "token_logprobs": [_finite(entry.scores.logprob) for entry in entries],
        "top_logprobs": [_by_text(entry.scores, texts) for entry in entries],
        "text_offset": [entry.offset for entry in entries],
    }


def chat_logprobs(entries: Sequence[Entry], texts: TokenTexts) -> dict[str, Any]:
    """The chat call's object."""

    def one(token: int, logprob: float) -> dict[str, Any]:
        text = texts(token)
        # A part of a character has no text, so it has no bytes of a text either.
        whole = None if _INCOMPLETE in text else list(text.encode())
        return {"token": text, "logprob": _finite(logprob), "bytes": whole}

    return {
        "content": [
            one(entry.scores.token_id, entry.scores.logprob)
            | {"top_logprobs": [one(*pair) for pair in entry.scores.top]}
            for entry in entries
        ]
    }


def _by_text(scores: TokenLogprob, texts: TokenTexts) -> dict[str, float]:
    """The best tokens and the chosen one by text. The chosen one has its plain text; others whose
    text is taken are told apart by their ids."""
    chosen = scores.token_id
    taken, named = {texts(chosen)}, {}
    listed = [token for token, _ in scores.top]
    ranked = scores.top if chosen in listed else (*scores.top, (chosen, scores.logprob))
    for token, logprob in ranked:
        text = texts(token)
        if token != chosen and text in taken:
            text = f"{text} [id {token}]"
        taken.add(text)
        named[text] = _finite(logprob)
    return named


def _finite(logprob: float) -> float:
    return max(logprob, _LEAST)
