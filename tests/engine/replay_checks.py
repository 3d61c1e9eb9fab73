"""What a replay must satisfy: it says of each arm what a request with that arm says of itself.

The code under test is looked up at each call, so that a bug planted there is what gets checked.
"""

import torch

from ddtree import engine as engine_api
from ddtree.engine import SamplingParams, Speculation
from ddtree.models.coupling_file import Calibration, DepthWeights
from support.tiny import tiny_drafter, tiny_target

DEPTH, VOCABULARY = 4, 61
WEIGHTS = DepthWeights((1.3, 1.2, 1.1, 1.0), (1.1, 0.9, 0.7, 0.5), (1.0, 0.5, 0.0, -0.5))
WINDOWS = (1, 3, 8, "full")
ARMS = (
    Speculation("ar"),
    *(Speculation("chain", draft_window=window) for window in WINDOWS),
    *(Speculation("ddtree", 8, 4, window) for window in WINDOWS),
    *(Speculation("ddtree", b, k, 3) for b, k in [(0, 2), (1, 1), (1, 8), (4, 1), (3, 2), (64, 8)]),
)
FEW = ARMS[1::3]
GREEDY = SamplingParams()
SAMPLED = SamplingParams(temperature=0.9, seed=2**40 + 7)
PENALISED = SamplingParams(temperature=0.7, seed=5, frequency_penalty=1.2, repetition_penalty=1.3)
SAMPLINGS = {"greedy": GREEDY, "sampled": SAMPLED, "penalised": PENALISED}


def prompt_of(length, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return tuple(torch.randint(VOCABULARY, (length,), generator=generator).tolist())


def make_engine(drafter=None, **config):
    """An engine whose drafts at temperatures above 0 look at the noise."""
    target = tiny_target()
    made = tiny_drafter(target, **(drafter or {}))
    made.calibration = Calibration((0.1,), (WEIGHTS,))
    fields = {"slots": 16, "max_context": 120, "prefill_chunk": 16}
    return engine_api.Engine(target, made, engine_api.EngineConfig(**{**fields, **config}))


def changed(sampling, **changes):
    """Other limits for the same draws."""
    return SamplingParams(**{**vars(sampling), **changes})


class Helped:
    """An engine whose drafter's own logits are raised by up to 24 at the target's tokens, more or
    less by position and depth, so that all numbers of accepted tokens come up."""

    def __init__(self, engine):
        self.engine, self.known = engine, {}
        drafting = engine.drafting
        draft, draft_windows = drafting.draft, drafting.draft_windows
        drafting.draft = lambda requests: self._raised(requests, draft(requests))
        drafting.draft_windows = lambda request, windows: self._raised(
            [request] * len(windows), draft_windows(request, windows)
        )
        self._by = 24 * torch.rand(200, DEPTH, generator=torch.Generator().manual_seed(1)) ** 2

    def _raised(self, requests, logits):
        logits = logits.clone()
        for row, request in enumerate(requests):
            following = self.known.get((request.prompt, request.seed), [])[len(request.output) :]
            for depth, token in enumerate(following[:DEPTH]):
                logits[row, depth, token] += self._by[len(request.output), depth]
        return logits

    def learn(self, prompt, sampling, count):
        """The target's tokens, as many as a request may come to see."""
        plain = changed(sampling, max_tokens=count + DEPTH + 1, stop_token_ids=())
        request = self.engine.make_request(prompt, plain, Speculation("ar"))
        self.engine.enqueue(request)
        finish(self.engine)
        self.known[prompt, sampling.seed or request.seed] = request.output
        return request.output


def finish(engine):
    while not engine.is_idle:
        engine.step()


def told(request):
    """All that a request says of its rounds."""
    return {k: v for k, v in request.summary().items() if k not in ("stage_seconds", *_TIMES)}


_TIMES = ("decode_tokens_per_s", "seed")


def replayed(engine, prompt, output, arms, sampling):
    """The job, run to its end."""
    job = engine_api.make_replay(engine.maker, prompt, output, arms, sampling)
    engine.enqueue(job)
    finish(engine)
    assert (job.error, job.finished, job.slot) == (None, True, -1)
    return job


def compare(engine, prompt, sampling, arms=ARMS):
    """Each arm for real, then all of them replayed; the job."""
    real = [engine.submit(prompt, sampling, arm) for arm in arms]
    finish(engine)
    job = replayed(engine, prompt, real[0].output, arms, sampling)
    for arm, request, again in zip(arms, real, job.arms, strict=True):
        assert told(again) == told(request), arm
        again.stats.check()
    return job


def run_through(engine, sampling, length=20, count=24):
    """One prompt, its drafts helped: windows smaller and larger than its context; the job."""
    helped, prompt = Helped(engine), prompt_of(length)
    sampling = changed(sampling, seed=sampling.seed or 0, max_tokens=count)
    helped.learn(prompt, sampling, count)
    return compare(engine, prompt, sampling)


def check_windows():
    """A ring that has gone round, and one that has not."""
    for ring in (9, None):
        for sampling in (GREEDY, SAMPLED):
            engine = make_engine(draft_window=ring)
            arms = [arm for arm in ARMS if arm.draft_window != "full" or ring is None]
            helped, prompt = Helped(engine), prompt_of(20)
            helped.learn(prompt, changed(sampling, seed=sampling.seed or 0), 24)
            asked = changed(sampling, seed=sampling.seed or 0, max_tokens=24)
            compare(engine, prompt, asked, arms)


def check_ends():
    """Outputs of every length: the last round is cut at every place, at the limit and at a stop."""
    for sampling in (GREEDY, PENALISED):
        engine, prompt = make_engine(), prompt_of(7, seed=3)
        helped = Helped(engine)
        asked = changed(sampling, seed=sampling.seed or 0)
        known = helped.learn(prompt, asked, 16)
        beyond = 0
        for count in (1, 2, 3, 5, 8, 11, 13):
            job = compare(engine, prompt, changed(asked, max_tokens=count), FEW)
            beyond += sum(arm.stats.cut_tokens > 1 for arm in job.arms)
            if known[count - 1] not in known[: count - 1]:
                stopped = changed(asked, max_tokens=40, stop_token_ids=(known[count - 1],))
                compare(engine, prompt, stopped, FEW)
        assert beyond > 4
