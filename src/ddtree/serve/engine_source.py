"""An engine in this process as the losslessness procedure wants it, without HTTP."""

from collections.abc import Sequence
from dataclasses import dataclass

from transformers import PreTrainedTokenizerBase as Tokenizer

from ddtree.engine import SamplingParams, Score, Speculation
from ddtree.errors import EngineError
from ddtree.records.sampling import Sampling
from ddtree.records.sampling_limits import UNLIMITED
from ddtree.serve.prompts import banned_ids
from ddtree.serve.worker import EngineWorker
from ddtree.verify.endpoint_source import sampled_position
from ddtree.verify.outputs import Output
from ddtree.verify.scoring import Position
from ddtree.verify.source import Call

_TOP, _SAMPLED_TOP = 5, 20


@dataclass(frozen=True)
class EngineSource:
    """Generates and scores on a started worker's engine. `tokenizer` None can't encode text."""

    worker: EngineWorker
    tokenizer: Tokenizer | None = None

    async def encode(self, text: str) -> tuple[int, ...]:
        """Token ids of a prompt."""
        assert self.tokenizer is not None  # for the type checker: callers with text have one
        return tuple(self.tokenizer(text).input_ids)

    async def generate(self, call: Call) -> Output:
        """The output of one request; EngineError when it failed."""
        request = self.worker.engine.make_request(
            call.prompt, self._params(call.sampling, call.max_tokens), to_speculation(call)
        )
        await self.worker.submit(request).finish()
        if request.failure is not None:
            raise EngineError(f"{call.arm.label}: {request.failure}")
        return Output(
            call.prompt,
            tuple(request.output),
            request.finish_reason,
            request.limit,
            call.sampling,
            tuple(request.ranks),
        )

    async def score(
        self, token_ids: Sequence[int], score_from: int, rows: int, sampling: Sampling
    ) -> tuple[Position, ...]:
        """Positions score_from.. of the text."""
        plain = sampling.is_plain
        job = self.worker.engine.make_score(
            token_ids,
            score_from,
            rows,
            _TOP if plain else _SAMPLED_TOP,
            None if plain else self._params(sampling, UNLIMITED),
        )
        await self.worker.submit(job).finish()
        if job.error is not None:
            raise EngineError(job.error)
        return tuple(map(_position, job.scores))

    def _params(self, sampling: Sampling, max_tokens: int) -> SamplingParams:
        """The engine's form, words as token ids."""
        changed = sampling.to_request()
        if sampling.bad_words:
            assert self.tokenizer is not None  # for the type checker: callers with text have one
            changed["bad_words"] = tuple(banned_ids(self.tokenizer, sampling.bad_words))
        changed["logit_bias"] = dict(sampling.logit_bias)
        changed["stop_token_ids"] = sampling.stop_token_ids
        return SamplingParams(max_tokens=max_tokens, **changed)


def to_speculation(call: Call) -> Speculation:
    """The engine's form of an arm."""
    arm = call.arm
    return Speculation(arm.method, arm.budget, arm.topk, arm.draft_window)


def _position(score: Score) -> Position:
    if score.sampled is None:
        return Position(score.token_id, score.token_logit, score.top_ids, score.top_logits)
    return sampled_position(score.token_id, score.top_logits[0], score.sampled)
