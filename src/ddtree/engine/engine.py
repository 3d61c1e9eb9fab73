"""The embedded engine: requests in, tokens out, many at once.

`step` is the whole schedule: admit waiting requests, advance prompts by one pass, run one round
for everything that decodes. Callers drive it (`generate`) or a server's thread does.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from torch import Tensor
from transformers import PreTrainedTokenizerBase as Tokenizer

from ddtree.engine.assembly import Room, fixed_runner, means_for, rounds_for
from ddtree.engine.choosing import make_edits
from ddtree.engine.drafting import Drafting
from ddtree.engine.fixed.launches import Prepared
from ddtree.engine.fixed.runner import FixedRunner, serves
from ddtree.engine.job import Job
from ddtree.engine.loop import Outcome, RoundLoop, RoundResult, synchronize_of
from ddtree.engine.making import RequestMaker
from ddtree.engine.pacing import ChunkPacer, share_out
from ddtree.engine.params import EngineConfig, Speculation
from ddtree.engine.pool import KVPool
from ddtree.engine.probe import check_pair, probe_target
from ddtree.engine.regions import Regions
from ddtree.engine.request import Request, TokenLogprob
from ddtree.engine.sampling_params import SamplingParams
from ddtree.engine.scheduler import CacheUse, Scheduler, Work
from ddtree.engine.scoring import Score, ScoreJob
from ddtree.engine.sizes import resolve_sizes
from ddtree.engine.timing import Pulse, StageClock
from ddtree.errors import EngineError
from ddtree.models.drafter import Drafter
from ddtree.models.target import Target

RoundObserver = Callable[[RoundResult], None]


@dataclass(frozen=True)
class Progress:
    """Tokens that work gained in one step (a job gains none); `finished` when it is over."""

    work: Work
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
        tokenizer: Tokenizer | None = None,
    ) -> None:
        """Probes the target (ModelError if it fails) and checks that the drafter belongs to it.
        `observer` sees every round; without `tokenizer` stop strings are refused."""
        self.config = config or EngineConfig()
        self.target = target
        if drafter is not None:
            check_pair(target, drafter)
        probe_target(target)
        shape = target.shape
        sizes = resolve_sizes(
            shape.max_positions, None if drafter is None else drafter.config, self.config
        )
        self.sizes = sizes
        heads = (shape.num_kv_heads, shape.head_dim)
        self.rounds = rounds_for(target, self.config.rounds)
        fixed = self.rounds != "ragged"
        cells = sizes.cells + (sizes.widest_round if fixed else 0)
        self.pool = KVPool(shape.num_layers, cells, heads, target.dtype, target.device)
        slots, coupled = self.config.slots, self.config.coupled_drafting
        # Nobody's rows fill batches of a fixed shape, and write somewhere too.
        runs = slots + int(fixed)
        self.drafting = (
            None
            if drafter is None
            else Drafting(drafter, target, runs, sizes.ring, coupled=coupled)
        )
        self.scheduler = Scheduler(
            slots,
            Regions(sizes.cells, sizes.longest),
            sizes.widest_round,
            even=sizes.cells == slots * sizes.longest,
        )
        means = means_for(target, self.drafting) if fixed else None
        self.loop = RoundLoop(
            target,
            self.drafting,
            self.pool,
            StageClock(synchronize_of(target.device)),
            None if means is None else means.decoder,
        )
        self.fixed: FixedRunner | None = None
        if means is not None:
            room = Room(self.pool, sizes, slots)
            self.fixed = fixed_runner(target, self.drafting, room, means, self.rounds == "graphs")
        self.observers: list[RoundObserver] = [] if observer is None else [observer]
        self._pacer = ChunkPacer(self.config.prefill_chunk, self.config.max_stall_s)
        self._job_last = False
        self.maker = RequestMaker(target, self.drafting, self.config, sizes, tokenizer)

    @property
    def max_context(self) -> int:
        """Tokens a request may hold, prompt and output."""
        return self.sizes.max_context

    @property
    def widest_round(self) -> int:
        """Rows of the widest round a request can ask for."""
        return self.sizes.widest_round

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
        return not self.scheduler.waiting and not self.scheduler.running

    @property
    def num_running(self) -> int:
        """Requests that hold a slot."""
        return len(self.scheduler.running)

    @property
    def num_waiting(self) -> int:
        """Requests that wait for one."""
        return len(self.scheduler.waiting)

    @property
    def pulse(self) -> Pulse:
        """When work last went on, within a pass too."""
        return self.loop.pulse

    def cache_use(self) -> CacheUse:
        """Slots and cells taken now."""
        return self.scheduler.use

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

    def prepare(self, speculations: Sequence[Speculation] = ()) -> Prepared | None:
        """Record the rounds of requests with these or no wishes, which otherwise the first of them
        waits for; None where nothing is recorded."""
        if self.fixed is None or self.rounds != "graphs":
            return None
        plain = (Speculation("ar"), self.default_speculation())
        return self.fixed.prepare({self.maker.resolve(one) for one in (*plain, *speculations)})

    def enqueue(self, work: Work) -> None:
        """Let work wait for a slot and room."""
        self.scheduler.enqueue(work)

    def step(self) -> list[Progress]:
        """Admit, advance prompts or one job by one pass, run one round for what decodes;
        what each gained.

        A prompt's first token and its first round never fall into one step: they would reach a
        client together, and the round's tokens would seem to have taken no time.
        """
        self.scheduler.admit()
        decoding = self.scheduler.decoding()
        allowance = self._pacer.allowance(stalls=bool(decoding))
        prompts, jobs = self.scheduler.prefilling(), self.scheduler.jobs()
        # One pass beside the round, so that decoding requests wait for no more than one.
        self._job_last = bool(jobs) and not (prompts and self._job_last)
        if self._job_last:
            progress = [self._advance(jobs[0], allowance)]
        else:
            progress = self._prefill(prompts, allowance)
        return progress + self._rounds(decoding)

    def _rounds(self, decoding: Sequence[Request]) -> list[Progress]:
        """One round for requests that decode; of fixed rounds the one before it is read."""
        fixed = self.fixed
        if fixed is None:
            return self._ragged(decoding)
        if decoding and serves(decoding) and not self.observers and not fixed.stalled:
            outcome = fixed.advance(decoding)
            return [] if outcome is None else self._apply(outcome)
        outcome = fixed.drain()
        progress = [] if outcome is None else self._apply(outcome)
        return progress + self._ragged([r for r in decoding if r.finish_reason is None])

    def _ragged(self, decoding: Sequence[Request]) -> list[Progress]:
        """One round of the ragged loop, which observers see."""
        if not decoding:
            return []
        result = self.loop.run_round(decoding)
        for observe in self.observers:
            observe(result)
        return self._apply(result)

    def abort(self, work: Work) -> None:
        """End work now, wherever it is; nothing happens if it is over."""
        if not self.scheduler.holds(work):
            return
        if isinstance(work, Request):
            work.finish_reason = "abort"
        self._release(work)

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

    def _advance(self, job: Job, allowance: int) -> Progress:
        try:
            job.advance(self.loop, allowance)
        except EngineError as error:
            job.error, job.finished = str(error), True
            self._clear(job)
        if job.finished:
            self._release(job)
        else:
            self.scheduler.rotate(job)
        return Progress(job, (), job.finished)

    def _prefill(self, prompts: Sequence[Request], allowance: int) -> list[Progress]:
        """One pass over the prompts' next chunks; a prompt's last one yields its first token."""
        shares = zip(prompts, share_out(prompts, allowance), strict=True)
        chunks = [(r, r.prompt[r.length :][:count]) for r, count in shares if count]
        if not chunks:
            return []
        start = time.perf_counter()
        part = self.loop.prefill(chunks)
        self._pacer.record(sum(len(ids) for _, ids in chunks), time.perf_counter() - start)
        broken = [r for (r, _), sound in zip(chunks, part.sound, strict=True) if not sound]
        progress = [self._fail(request, "target") for request in broken]
        rows = [n for n, (r, _) in enumerate(chunks) if not r.remaining and part.sound[n]]
        return progress + self._first_tokens([chunks[row][0] for row in rows], part.hidden[rows])

    def _first_tokens(self, through: Sequence[Request], hidden: Tensor) -> list[Progress]:
        """Of requests whose prompt is all there, its last row's hidden states being [n, E]."""
        if not through:
            return []
        for request in through:
            self._prepare(request)
        firsts = self.loop.first_tokens(through, hidden)
        return [
            self._extend(request, [first.token], first.logprobs)
            if first.fault is None
            else self._fail(request, first.fault)
            for request, first in zip(through, firsts, strict=True)
        ]

    def _prepare(self, request: Request) -> None:
        """Edits, from a prompt that is all there."""
        if request.sampling.has_edits:
            vocabulary = self.target.shape.vocab_size
            edits = make_edits(request.sampling, request.prompt, request.stop_ids, vocabulary)
            request.edits = edits.to(self.target.device)

    def _apply(self, result: Outcome) -> list[Progress]:
        """Extend outputs by a round's tokens; finish what is over."""
        progress = []
        for row, request in enumerate(result.requests):
            if row in result.faults:
                progress.append(self._fail(request, result.faults[row]))
                continue
            tokens = result.tokens[row]
            request.add_round(
                result.ranks[row], result.nodes[row], result.num_nodes[row], result.stage_seconds
            )
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
            self._clear(request)
        self._release(request)
        return Progress(request, (), True)

    def _clear(self, work: Work) -> None:
        """Zero what broken logits' owner wrote: a masked NaN would still spoil who comes next."""
        self.pool.clear(work.base, work.room)
        if self.drafting is not None:
            self.drafting.clear(work.slot)

    def _release(self, work: Work) -> None:
        """Give slot and cells back; cells need no clearing, lengths guard them."""
        if isinstance(work, Request):
            work.pending = work.edits = work.text = None
        self.scheduler.remove(work)
