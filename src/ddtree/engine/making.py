"""Requests and scoring jobs out of what callers ask for, held against the engine's limits.

Reads what is fixed at start only, so any thread may call it.
"""

import itertools
import secrets
from collections.abc import Sequence

from transformers import PreTrainedTokenizerBase as Tokenizer

from ddtree.engine.choosing import SeededSampling
from ddtree.engine.drafting import Drafting
from ddtree.engine.params import DEFAULT_BUDGET, DEFAULT_TOPK, EngineConfig, Speculation
from ddtree.engine.request import Request, ResolvedSpeculation
from ddtree.engine.sampling_params import SamplingParams
from ddtree.engine.scoring import ScoreJob
from ddtree.engine.sizes import Sizes
from ddtree.errors import RequestError
from ddtree.models.target import Target
from ddtree.models.text import TextStream
from ddtree.records.rounds import GenerationStats
from ddtree.records.sampling_limits import SEED_BITS

# Best tokens a scored position can list: enough for any verdict, small in an answer.
MAX_SCORED = 20


class RequestMaker:
    """Checks and resolves; RequestError names the field that can't be served."""

    def __init__(
        self,
        target: Target,
        drafting: Drafting | None,
        config: EngineConfig,
        sizes: Sizes,
        tokenizer: Tokenizer | None,
    ) -> None:
        self._vocabulary, self._eos_ids = target.shape.vocab_size, target.eos_ids
        self._drafting, self._config, self._tokenizer = drafting, config, tokenizer
        self._max_context, self._widest_round = sizes.max_context, sizes.widest_round
        self._numbers = itertools.count()

    def make_request(
        self,
        prompt: Sequence[int],
        sampling: SamplingParams | None = None,
        speculation: Speculation | None = None,
    ) -> Request:
        """A request for a prompt of token ids, with a seed of its own if none is named."""
        sampling = sampling or SamplingParams()
        speculation = speculation or self.default_speculation()
        self._check_prompt(prompt)
        self._check_sampling(sampling)
        return Request(
            number=next(self._numbers),
            prompt=tuple(prompt),
            sampling=sampling,
            speculation=speculation,
            resolved=self.resolve(speculation),
            seed=_seeded(sampling).seed,
            stop_ids=self._stop_ids(sampling),
            limit=min(sampling.max_tokens, self._max_context - len(prompt)),
            text=self._text(sampling, prompt),
            stats=GenerationStats(prompt_tokens=len(prompt)),
        )

    def make_score(
        self,
        ids: Sequence[int],
        first: int,
        rows: int = 1,
        top: int = 5,
        sampling: SamplingParams | None = None,
    ) -> ScoreJob:
        """Scoring of ids[first:], see `ScoreJob`, with `sampling` as if ids[:first] were the
        prompt."""
        self._check_prompt(ids, to_come=0)
        if not 1 <= first < len(ids):
            raise RequestError("score_from", f"got {first}, expected 1 to {len(ids) - 1}")
        if not 0 <= top <= MAX_SCORED:
            raise RequestError("logprobs", f"got {top}, expected 0 to {MAX_SCORED}")
        if not 1 <= rows <= self._widest_round:
            raise RequestError("score_rows", f"got {rows}, expected 1 to {self._widest_round}")
        scoring, stop_ids = None, frozenset[int]()
        if sampling is not None:
            self._check_sampling(sampling)
            scoring, stop_ids = _seeded(sampling), self._stop_ids(sampling)
        return ScoreJob(tuple(ids), first, rows, top, self._config.prefill_chunk, scoring, stop_ids)

    def default_speculation(self) -> Speculation:
        """What a request gets that asks for nothing: ddtree where there is a drafter, else ar."""
        if self._drafting is None:
            return Speculation("ar")
        return Speculation(
            "ddtree",
            min(DEFAULT_BUDGET, self._config.max_budget),
            min(DEFAULT_TOPK, self._config.max_topk),
        )

    def resolve(self, speculation: Speculation) -> ResolvedSpeculation:
        """Fill in defaults and hold a request's speculation against the engine's maxima."""
        if speculation.method == "ar":
            return ResolvedSpeculation(0, 1, 1, 0)
        if self._drafting is None:
            raise RequestError(
                "speculation.method",
                f"{speculation.method} needs a drafter and none is loaded; send method ar or start "
                "with a drafter",
            )
        window, last = self._resolve_window(speculation), self._drafting.last_root
        if speculation.method == "chain":
            return ResolvedSpeculation(self._drafting.block - 1, 1, window, last)
        default = self.default_speculation()
        budget = default.budget if speculation.budget is None else speculation.budget
        topk = default.topk if speculation.topk is None else speculation.topk
        assert budget is not None  # for the type checker: ddtree's default names both
        assert topk is not None
        for name, value, largest in (
            ("budget", budget, self._config.max_budget),
            ("topk", topk, self._config.max_topk),
        ):
            if value > largest:
                raise RequestError(
                    f"speculation.{name}", f"got {value}, the engine was started for {largest}"
                )
        # Rows for nodes that no tree of this topk can have would be verified for nothing.
        possible = sum(topk**depth for depth in range(1, self._drafting.block))
        return ResolvedSpeculation(min(budget, possible), topk, window, last)

    def _text(self, sampling: SamplingParams, prompt: Sequence[int]) -> TextStream | None:
        """What finds stop strings."""
        if not sampling.stop:
            return None
        if self._tokenizer is None:
            raise RequestError("stop", "needs a tokenizer and the engine was made without one")
        return TextStream(self._tokenizer, prompt, sampling.stop, sampling.min_tokens)

    def _stop_ids(self, sampling: SamplingParams) -> frozenset[int]:
        own = frozenset(sampling.stop_token_ids)
        return own if sampling.ignore_eos else own | self._eos_ids

    def check_ids(self, field: str, ids: Sequence[int]) -> None:
        """RequestError that names `field` for an id outside the vocabulary."""
        vocab = self._vocabulary
        bad = next((i for i in ids if not 0 <= i < vocab), None)
        if bad is not None:
            raise RequestError(field, f"token id {bad} is outside the vocabulary of {vocab}")

    def _check_sampling(self, sampling: SamplingParams) -> None:
        self.check_ids("logit_bias", list(sampling.logit_bias))
        self.check_ids("stop_token_ids", sampling.stop_token_ids)
        for word in sampling.bad_words:
            self.check_ids("bad_words", word)

    def _check_prompt(self, prompt: Sequence[int], to_come: int = 1) -> None:
        """`to_come`: tokens that must still fit behind it."""
        if not prompt:
            raise RequestError("prompt", "is empty; at least one token is needed")
        self.check_ids("prompt", prompt)
        if len(prompt) + to_come > self._max_context:
            raise RequestError(
                "prompt",
                f"has {len(prompt)} tokens; with {to_come} generated at least the limit is "
                f"{self._max_context} in all",
            )

    def _resolve_window(self, speculation: Speculation) -> int:
        assert self._drafting is not None  # for the type checker: callers checked
        config, wanted = self._drafting.drafter.config, speculation.draft_window
        if wanted is None:
            wanted = self._config.draft_window
        elif wanted != "full" and (fault := config.check_window(wanted)) is not None:
            raise RequestError("speculation.draft_window", fault)
        window = config.resolve_window(wanted, self._max_context)
        if window.ring > self._drafting.ring:
            raise RequestError(
                "speculation.draft_window",
                f"got {wanted}, the engine was started for {self._drafting.ring}",
            )
        return window.tokens


def _seeded(sampling: SamplingParams) -> SeededSampling:
    """With the seed named, or one drawn now."""
    seed = secrets.randbits(SEED_BITS) if sampling.seed is None else sampling.seed
    return SeededSampling(sampling, seed)
