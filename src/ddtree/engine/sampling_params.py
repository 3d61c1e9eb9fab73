"""How a request's tokens are chosen, checked field by field."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from ddtree.errors import RequestError
from ddtree.records.sampling_limits import BIAS, LARGEST, Limit, problems

# Best tokens whose log-probabilities a request may ask for, beside the chosen one's.
MAX_LOGPROBS = 20
# Every step compares its last tokens with all of them.
MAX_BAD_WORDS, MAX_BAD_WORD_IDS = 1024, 64
MAX_STOP_IDS = 1024


@dataclass(frozen=True)
class SamplingParams:
    """Greedy by default; a temperature above 0 samples from the target's own distribution.

    max_tokens: generated tokens at most, the stop token included. temperature, then top_k (0 or
    -1 keeps all), top_p in (0, 1], min_p in [0, 1] shape the distribution, in this order. seed:
    keys the noise, so that a seed gives the same tokens with every method; None draws one.
    repetition_penalty (1 none) sees prompt and output, presence_penalty and frequency_penalty the
    output. logit_bias: token id to what is added to its logit, -inf bans it. bad_words: token
    sequences that must not come out. min_tokens: generated tokens before a stop token may come.
    stop_token_ids are added to the model's own end-of-sequence ids, which `ignore_eos` switches
    off. stop: strings that end the output once they are complete in its text, from `min_tokens`
    on. logprobs: None, or how many of the best tokens' raw log-probabilities to keep beside the
    chosen token's.
    """

    max_tokens: int = 128
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int | None = None
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    bad_words: tuple[tuple[int, ...], ...] = ()
    min_tokens: int = 0
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    stop: tuple[str, ...] = ()
    logprobs: int | None = None

    def __post_init__(self) -> None:
        _check("max_tokens", Limit(1, LARGEST, whole=True), self.max_tokens)
        for name, problem in problems(self):
            raise RequestError(name, problem)
        _check("min_tokens", Limit(0, self.max_tokens, whole=True), self.min_tokens)
        if self.logprobs is not None:
            _check("logprobs", Limit(0, MAX_LOGPROBS, whole=True), self.logprobs)
        for token, value in self.logit_bias.items():
            if value != -math.inf:
                _check(f"logit_bias[{token}]", BIAS, value)
        self._check_lists()

    def _check_lists(self) -> None:
        if any(not isinstance(text, str) or not text for text in self.stop):
            raise RequestError("stop", f"got {list(self.stop)!r}, expected strings, none empty")
        for name, most in (("bad_words", MAX_BAD_WORDS), ("stop_token_ids", MAX_STOP_IDS)):
            if len(getattr(self, name)) > most:
                raise RequestError(name, f"got {len(getattr(self, name))}, expected {most} at most")
        longest = max(map(len, self.bad_words), default=0)
        if longest > MAX_BAD_WORD_IDS:
            raise RequestError(
                "bad_words", f"got one of {longest} tokens, expected {MAX_BAD_WORD_IDS} at most"
            )
        if any(len(word) == 0 for word in self.bad_words):
            raise RequestError("bad_words", "holds an empty sequence, which nothing can avoid")

    @property
    def has_edits(self) -> bool:
        """Whether logits are edited before a token is chosen, by what depends on the path."""
        plain = (self.repetition_penalty, self.presence_penalty, self.frequency_penalty)
        return bool(plain != (1, 0, 0) or self.logit_bias or self.bad_words or self.min_tokens)

    @property
    def is_plain(self) -> bool:
        """Whether the argmax of the raw logits is the token."""
        return self.temperature == 0 and not self.has_edits


def _check(name: str, limit: Limit, value: object) -> None:
    if (problem := limit.problem(value)) is not None:
        raise RequestError(name, problem)
