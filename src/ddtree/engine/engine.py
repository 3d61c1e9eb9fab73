"""The embedded engine: requests in, tokens out, many at once.

`step` is the whole schedule: admit waiting requests to free slots, advance one prompt by one
chunk, run one round for everything that decodes. Callers drive it (`generate`) or a server's
thread does.
"""

import bisect
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ddtree.engine.choosing import make_edits
from ddtree.engine.drafting import Drafting
from ddtree.engine.loop import RoundLoop, RoundResult, synchronize_of
from ddtree.engine.making import RequestMaker
from ddtree.engine.params import EngineConfig, Speculation
from ddtree.engine.pool import KVPool
from ddtree.engine.probe import check_pair, probe_target
from ddtree.engine.request import Request, TokenLogprob
from ddtree.engine.sampling_params import SamplingParams
from ddtree.engine.scoring import Score, ScoreJob
from ddtree.engine.timing import StageClock
from ddtree.errors import ConfigError, EngineError
from ddtree.models.drafter import Drafter
from ddtree.models.target import Target

RoundObserver = Callable[[RoundResult], None]


@dataclass(frozen=True)
class Progress:
    """Tokens that work gained in one step (a scoring job gains none); `finished` when it is
    over."""

    work: Request | ScoreJob
    tokens: tuple[int, ...]
    finished: bool


class Engine:
    """A target, optionally a drafter, and the caches of `config.slots` requests.

    Not thread-safe: one thread calls `submit`, `step` and `abort`.
    """

    def __init__(
        self,
        target: Target,
        drafter: Drafter | None = None,
        config: EngineConfig | None = None,
        observer: RoundObserver | None = None,
    ) -> None:
        """Probes the target (ModelError if it fails) and checks that the drafter belongs to it.
        `observer` sees every round."""
        self.config = config or EngineConfig()
        self.target = target
        if drafter is not None:
            check_pair(target, drafter)
        self.max_context = self._resolve_context()
        probe_target(target)
        shape = target.shape
        # Rows of the widest round a request can ask for; a chain is as wide as the block.
        block = 0 if drafter is None else drafter.config.block_size
        self.widest_round = max(self.config.max_budget + 1, block)
        self.pool = KVPool(
            shape.num_layers,
            self.config.slots,
            self.max_context + self.widest_round,
            (shape.num_kv_heads, shape.head_dim),
            target.dtype,
            target.device,
        )
        self.drafting = None if drafter is None else self._make_drafting(drafter)
        clock = StageClock(synchronize_of(target.device))
        self.loop = RoundLoop(target, self.drafting, self.pool, clock)
        self._observer = observer
        self._waiting: deque[Request | ScoreJob] = deque()
        self._running: list[Request | ScoreJob] = []
        self._free = list(range(self.config.slots))
        self.maker = RequestMaker(
            target, self.drafting, self.config, self.max_context, self.widest_round
        )

    @property
    def draft_window(self) -> int | None:
        """Committed tokens the drafter can see at most; None without a drafter."""
        return None if self.drafting is None else self.drafting.ring

    @property
    def coupled_drafting(self) -> bool:
        """Whether sampled requests' candidates may look at the noise: asked for, and calibrated."""
        return self.drafting is not None and self.drafting.is_coupled

    @property
    def block_size(self) -> int | None:
        """The drafter's block, anchor included; None without a drafter."""
        return None if self.drafting is None else self.drafting.block

    @property
    def is_idle(self) -> bool:
        """Nothing waits or runs."""
        return not self._waiting and not self._running

    @property
    def num_running(self) -> int:
        """Requests that hold a slot."""
        return len(self._running)

    @property
    def num_waiting(self) -> int:
        """Requests that wait for one."""
        return len(self._waiting)

    @property
    def window_kind(self) -> str | None:
        """How the window moves within a block; None without a drafter."""
        return None if self.drafting is None else self.drafting.drafter.config.window_kind

    def submit(
        self,
        prompt: Sequence[int],
        sampling: SamplingParams | None = None,
        speculation: Speculation | None = None,
    ) -> Request:
        """`make_request` and `enqueue`."""
        request = self.make_request(prompt, sampling, speculation)
        self.enqueue(request)
        return request

    def make_request(
        self,
        prompt: Sequence[int],
        sampling: SamplingParams | None = None,
        speculation: Speculation | None = None,
    ) -> Request:
        """See `RequestMaker.make_request`; any thread may call it."""
        return self.maker.make_request(prompt, sampling, speculation)

    def make_score(
        self,
        ids: Sequence[int],
        first: int,
        rows: int = 1,
        top: int = 5,
        sampling: SamplingParams | None = None,
    ) -> ScoreJob:
        """See `RequestMaker.make_score`; any thread may call it."""
        return self.maker.make_score(ids, first, rows, top, sampling)

    def default_speculation(self) -> Speculation:
        """See `RequestMaker.default_speculation`."""
        return self.maker.default_speculation()

    def check_ids(self, field: str, ids: Sequence[int]) -> None:
        """RequestError that names `field` for an id outside the vocabulary."""
        self.maker.check_ids(field, ids)

    def enqueue(self, work: Request | ScoreJob) -> None:
        """Let work wait for a slot."""
        self._waiting.append(work)

    def step(self) -> list[Progress]:
        """Admit, advance one prompt and one scoring job by one pass, run one round for what
        decodes; what each request gained.

        A prompt's first token and its first round never fall into one step: they would reach a
        client together, and the round's tokens would seem to have taken no time.
        """
        self._admit()
        requests = [r for r in self._running if isinstance(r, Request)]
        jobs = [job for job in self._running if isinstance(job, ScoreJob)]
        decoding = sorted(
            (r for r in requests if r.state == "decoding"), key=lambda request: request.slot
        )
        progress = [self._score(job) for job in jobs[:1]]
        for request in [r for r in requests if r.state == "prefilling"][:1]:
            progress += self._advance(request)
        if decoding:
            progress += self._apply(self.loop.run_round(decoding))
        return progress

    def abort(self, request: Request | ScoreJob) -> None:
        """End a request now, wherever it is; nothing happens if it is over."""
        if request in self._waiting:
            self._waiting.remove(request)
        elif request not in self._running:
            return
        if isinstance(request, Request):
            request.finish_reason = "abort"
        self._release(request)

    def generate(
        self,
        prompts: Sequence[Sequence[int]],
        sampling: SamplingParams | None = None,
        speculation: Speculation | None = None,
    ) -> list[Request]:
        """Decode prompts of token ids to the end, as many at once as there are slots."""
        requests = [self.submit(prompt, sampling, speculation) for prompt in prompts]
        while not self.is_idle:
            self.step()
        return requests

    def score(
        self,
        ids: Sequence[int],
        first: int,
        rows: int = 1,
        top: int = 5,
        sampling: SamplingParams | None = None,
    ) -> list[Score]:
        """Score ids[first:] to the end; EngineError where the target gives no usable logits."""
        job = self.make_score(ids, first, rows, top, sampling)
        self.enqueue(job)
        while not job.finished:
            self.step()
        if job.error is not None:
            raise EngineError(job.error)
        return job.scores

    def _admit(self) -> None:
        while self._waiting and self._free:
            request = self._waiting.popleft()
            request.slot = self._free.pop(0)
            if isinstance(request, Request):
                request.state = "prefilling"
            self._running.append(request)

    def _score(self, job: ScoreJob) -> Progress:
        try:
            job.advance(self.loop)
        except EngineError as error:
            job.error, job.finished = str(error), True
        if job.finished:
            self._release(job)
        return Progress(job, (), job.finished)

    def _advance(self, request: Request) -> list[Progress]:
        """One prefill chunk; the last one yields the first token."""
        chunk = request.prompt[request.length :][: self.config.prefill_chunk]
        hidden = self.loop.prefill(request, chunk)
        if request.length < len(request.prompt):
            return []
        request.state = "decoding"
        if request.sampling.has_edits:
            vocabulary = self.target.shape.vocab_size
            edits = make_edits(request.sampling, request.prompt, request.stop_ids, vocabulary)
            request.edits = edits.to(self.target.device)
        first = self.loop.first_token(request, hidden)
        if first.fault is not None:
            return [self._fail(request, first.fault)]
        return [self._extend(request, [first.token], first.logprobs)]

    def _apply(self, result: RoundResult) -> list[Progress]:
        """Extend outputs by a round's tokens; finish what is over."""
        if self._observer is not None:
            self._observer(result)
        progress = []
        for row, request in enumerate(result.requests):
            if row in result.faults:
                progress.append(self._fail(request, result.faults[row]))
                continue
            tokens = result.tokens[row]
            request.ranks.append(tuple(result.ranks[row]))
            request.stats.add_round(len(tokens) - 1, result.num_nodes[row], result.stage_seconds)
            progress.append(self._extend(request, tokens, result.logprobs[row]))
        return progress

    def _extend(
        self, request: Request, tokens: list[int], logprobs: Sequence[TokenLogprob]
    ) -> Progress:
        kept = request.take(tokens)
        request.logprobs.extend(logprobs[: len(kept)])
        if request.finish_reason is not None:
            request.stats.check()
            self._release(request)
        return Progress(request, tuple(kept), request.finish_reason is not None)

    def _fail(self, request: Request, culprit: str) -> Progress:
        request.finish_reason = "error"
        if culprit == "bans":
            request.error_field = "logit_bias"
            request.error = (
                "logit_bias, bad_words and min_tokens together left no token; relax one of them"
            )
        else:
            request.error = (
                f"the {culprit}'s logits hold NaN or infinity: its checkpoint or dtype is "
                "unusable here; nothing after this token can be trusted"
            )
        self._release(request)
        return Progress(request, (), True)

    def _release(self, request: Request | ScoreJob) -> None:
        """Give the slot back; its cells need no clearing, lengths guard them."""
        if isinstance(request, Request):
            request.state = "finished"
            request.pending = request.edits = None
        request_slot, request.slot = request.slot, -1
        if request_slot >= 0:
            self._running.remove(request)
            bisect.insort(self._free, request_slot)

    def _resolve_context(self) -> int:
        limit = self.target.shape.max_positions
        wanted = limit if self.config.max_context is None else self.config.max_context
        if wanted > limit:
            raise ConfigError(f"max_context: got {wanted}, the target's limit is {limit}")
        return wanted

    def _make_drafting(self, drafter: Drafter) -> Drafting:
        """The drafter's context: as large as asked for, or as the checkpoint was trained with."""
        window = self.config.draft_window
        if window is None:
            window = drafter.config.window or "full"
        ring = self.max_context if window == "full" else min(window, self.max_context)
        coupled = self.config.coupled_drafting
        return Drafting(drafter, self.target, self.config.slots, ring, coupled=coupled)
