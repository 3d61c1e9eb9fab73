"""The embedded engine: requests in, tokens out, many at once.

`step` is the whole schedule: admit waiting requests to free slots, advance one prompt by one
chunk, run one round for everything that decodes. Callers drive it (`generate`) or a server's
thread does.
"""

import bisect
import itertools
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ddtree.engine.drafting import Drafting
from ddtree.engine.loop import RoundLoop, RoundResult, synchronize_of
from ddtree.engine.params import (
    DEFAULT_BUDGET,
    DEFAULT_TOPK,
    EngineConfig,
    SamplingParams,
    Speculation,
)
from ddtree.engine.pool import KVPool
from ddtree.engine.probe import check_pair, probe_target
from ddtree.engine.request import Request, ResolvedSpeculation
from ddtree.engine.scoring import Score, ScoreJob
from ddtree.engine.timing import StageClock
from ddtree.errors import ConfigError, RequestError
from ddtree.models.drafter import Drafter
from ddtree.models.target import Target
from ddtree.records.rounds import GenerationStats

# Best tokens a scored position can list: enough for any verdict, small in an answer.
MAX_SCORED = 20

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
        self._numbers = itertools.count()

    @property
    def draft_window(self) -> int | None:
        """Committed tokens the drafter can see at most; None without a drafter."""
        return None if self.drafting is None else self.drafting.ring

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

    def enqueue(self, work: Request | ScoreJob) -> None:
        """Let work wait for a slot."""
        self._waiting.append(work)

    def make_request(
        self,
        prompt: Sequence[int],
        sampling: SamplingParams | None = None,
        speculation: Speculation | None = None,
    ) -> Request:
        """A request for a prompt of token ids; RequestError names the field that can't be served.

        Reads what is fixed at start only, so any thread may call it.
        """
        sampling = sampling or SamplingParams()
        speculation = speculation or self.default_speculation()
        self._check_prompt(prompt)
        stop_ids = frozenset(sampling.stop_token_ids)
        return Request(
            number=next(self._numbers),
            prompt=tuple(prompt),
            sampling=sampling,
            speculation=speculation,
            resolved=self.resolve(speculation),
            stop_ids=stop_ids if sampling.ignore_eos else stop_ids | self.target.eos_ids,
            limit=min(sampling.max_tokens, self.max_context - len(prompt)),
            stats=GenerationStats(prompt_tokens=len(prompt)),
        )

    def make_score(self, ids: Sequence[int], first: int, rows: int, top: int) -> ScoreJob:
        """Scoring of ids[first:], see `ScoreJob`; any thread may call it."""
        self._check_prompt(ids)
        if not 1 <= first < len(ids):
            raise RequestError("score_from", f"got {first}, expected 1 to {len(ids) - 1}")
        if not 0 <= top <= MAX_SCORED:
            raise RequestError("logprobs", f"got {top}, expected 0 to {MAX_SCORED}")
        if not 1 <= rows <= self.widest_round:
            raise RequestError("score_rows", f"got {rows}, expected 1 to {self.widest_round}")
        return ScoreJob(tuple(ids), first, rows, top, self.config.prefill_chunk)

    def default_speculation(self) -> Speculation:
        """What a request gets that asks for nothing: ddtree where there is a drafter, else ar."""
        if self.drafting is None:
            return Speculation("ar")
        return Speculation(
            "ddtree",
            min(DEFAULT_BUDGET, self.config.max_budget),
            min(DEFAULT_TOPK, self.config.max_topk),
        )

    def resolve(self, speculation: Speculation) -> ResolvedSpeculation:
        """Fill in defaults and hold a request's speculation against the engine's maxima."""
        if speculation.method == "ar":
            return ResolvedSpeculation(0, 1, 1)
        if self.drafting is None:
            raise RequestError(
                "speculation.method",
                f"{speculation.method} needs a drafter and none is loaded; send method ar or start "
                "with a drafter",
            )
        window = self._resolve_window(speculation)
        if speculation.method == "chain":
            return ResolvedSpeculation(self.drafting.block - 1, 1, window)
        default = self.default_speculation()
        budget = default.budget if speculation.budget is None else speculation.budget
        topk = default.topk if speculation.topk is None else speculation.topk
        assert budget is not None  # for the type checker: ddtree's default names both
        assert topk is not None
        for name, value, largest in (
            ("budget", budget, self.config.max_budget),
            ("topk", topk, self.config.max_topk),
        ):
            if value > largest:
                raise RequestError(
                    f"speculation.{name}", f"got {value}, the engine was started for {largest}"
                )
        # Rows for nodes that no tree of this topk can have would be verified for nothing.
        possible = sum(topk**depth for depth in range(1, self.drafting.block))
        return ResolvedSpeculation(min(budget, possible), topk, window)

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

    def score(self, ids: Sequence[int], first: int, rows: int = 1, top: int = 5) -> list[Score]:
        """Score ids[first:] to the end."""
        job = self.make_score(ids, first, rows, top)
        self.enqueue(job)
        while not job.finished:
            self.step()
        return job.scores

    def _admit(self) -> None:
        while self._waiting and self._free:
            request = self._waiting.popleft()
            request.slot = self._free.pop(0)
            if isinstance(request, Request):
                request.state = "prefilling"
            self._running.append(request)

    def _score(self, job: ScoreJob) -> Progress:
        job.advance(self.loop)
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
        choice = self.loop.choose(hidden)
        if bool(choice.invalid):
            return [self._fail(request, "target")]
        return [self._extend(request, [int(choice.tokens)])]

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
            request.stats.add_round(len(tokens) - 1, result.num_nodes[row], result.stage_seconds)
            progress.append(self._extend(request, tokens))
        return progress

    def _extend(self, request: Request, tokens: list[int]) -> Progress:
        kept = request.take(tokens)
        if request.finish_reason is not None:
            request.stats.check()
            self._release(request)
        return Progress(request, tuple(kept), request.finish_reason is not None)

    def _fail(self, request: Request, culprit: str) -> Progress:
        request.finish_reason = "error"
        request.error = (
            f"the {culprit}'s logits hold NaN or infinity: its checkpoint or dtype is unusable "
            "here; nothing after this token can be trusted"
        )
        self._release(request)
        return Progress(request, (), True)

    def _release(self, request: Request | ScoreJob) -> None:
        """Give the slot back; its cells need no clearing, lengths guard them."""
        if isinstance(request, Request):
            request.state = "finished"
            request.pending = None
        request_slot, request.slot = request.slot, -1
        if request_slot >= 0:
            self._running.remove(request)
            bisect.insort(self._free, request_slot)

    def check_ids(self, field: str, ids: Sequence[int]) -> None:
        """RequestError that names `field` for an id outside the vocabulary."""
        vocab = self.target.shape.vocab_size
        bad = next((i for i in ids if not 0 <= i < vocab), None)
        if bad is not None:
            raise RequestError(field, f"token id {bad} is outside the vocabulary of {vocab}")

    def _check_prompt(self, prompt: Sequence[int]) -> None:
        if not prompt:
            raise RequestError("prompt", "is empty; at least one token is needed")
        self.check_ids("prompt", prompt)
        if len(prompt) >= self.max_context:
            raise RequestError(
                "prompt",
                f"has {len(prompt)} tokens; with at least one generated token the limit is "
                f"{self.max_context} in all",
            )

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
        return Drafting(drafter, self.target, self.config.slots, ring)

    def _resolve_window(self, speculation: Speculation) -> int:
        assert self.drafting is not None  # for the type checker: callers checked
        window, ring = speculation.draft_window, self.drafting.ring
        if window is None:
            return ring
        wanted = self.max_context if window == "full" else min(window, self.max_context)
        if wanted > ring:
            raise RequestError(
                "speculation.draft_window", f"got {window}, the engine was started for {ring}"
            )
        return wanted
