"""Admission, runs of cells, prompts side by side: who gets what, and nothing lost."""

import contextlib
import itertools
import random
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddtree.engine import Engine, EngineConfig, SamplingParams, Speculation
from ddtree.engine.pacing import ChunkPacer, share_out
from ddtree.engine.regions import Regions
from ddtree.errors import ConfigError, RequestError
from support.drafts import oracle, with_drafts
from support.reference import draw_prompt
from support.tiny import tiny_drafter, tiny_target

TREE = Speculation("ddtree", 8, 4)
COUNT = 20


@pytest.fixture(scope="module")
def target():
    return tiny_target()


@dataclass
class Prompt:
    remaining: int


def run(engine):
    """Step to the end; what each step gave, as {request: tokens}."""
    steps = []
    while not engine.is_idle:
        steps.append({p.work: p.tokens for p in engine.step()})
        assert len(steps) < 2000
    return steps


@given(st.lists(st.one_of(st.integers(1, 300), st.just(-1)), max_size=60), st.randoms())
def test_runs_never_overlap_and_all_come_back(calls, rng):
    """Positive numbers take, -1 gives a random run back."""
    regions, held = Regions(1000, 300), {}
    for cells in calls:
        if cells < 0 and held:
            first = rng.choice(list(held))
            regions.give(first)
            del held[first]
        elif cells > 0:
            first = regions.take(cells)
            if first is not None:
                held[first] = regions.taken(first)
                assert cells <= held[first] <= 300
        ends = sorted((first, first + size) for first, size in held.items())
        assert all(first >= 0 and end <= 1000 for first, end in ends)
        assert all(a[1] <= b[0] for a, b in itertools.pairwise(ends))
        assert regions.num_free == 1000 - sum(held.values())
    for first in held:
        regions.give(first)
    assert regions.take(300) == 0
    with pytest.raises(KeyError):
        regions.give(1)


@given(st.lists(st.integers(1, 1000), max_size=8), st.integers(1, 600))
def test_shares(remaining, allowance):
    prompts = [Prompt(n) for n in remaining]
    shares = share_out(prompts, allowance)
    assert sum(shares) == min(allowance, sum(remaining))
    assert all(
        0 <= share <= prompt.remaining for share, prompt in zip(shares, prompts, strict=True)
    )
    if prompts:
        assert shares[0] >= min(remaining[0], allowance // 2)


def test_a_short_prompt_passes_a_long_one():
    assert share_out([Prompt(8000), Prompt(60)], 512) == [452, 60]
    assert share_out([Prompt(8000), Prompt(7000), Prompt(30)], 512) == [256, 226, 30]


def test_passes_are_cut_to_the_time_others_may_wait():
    pacer = ChunkPacer(512, 0.5)
    assert pacer.allowance(stalls=False) == 512
    assert pacer.allowance(stalls=True) == 64  # before anything is known
    pacer.record(64, 0.128)
    assert pacer.allowance(stalls=True) == 250
    pacer.record(250, 5.0)
    assert pacer.allowance(stalls=True) == 25
    pacer.record(4, 1.0)  # too short to tell
    assert pacer.allowance(stalls=True) == 25
    pacer.record(25, 100.0)
    assert pacer.allowance(stalls=True) == 16
    assert pacer.allowance(stalls=False) == 512
    assert ChunkPacer(512, None).allowance(stalls=True) == 512


def test_decoding_requests_wait_for_cut_passes_only(target):
    """While one decodes, a prompt comes in passes of what is affordable; alone in whole chunks."""
    config = EngineConfig(slots=2, max_context=200, prefill_chunk=64, max_stall_s=1e-9)
    engine = Engine(target, tiny_drafter(target), config)
    decoding = engine.submit([1, 2, 3], SamplingParams(50), Speculation("ar"))
    engine.step()
    late = engine.submit([4] * 100, SamplingParams(3), Speculation("ar"))
    lengths = []
    while late.state in ("waiting", "prefilling"):
        gained = {p.work: p.tokens for p in engine.step()}
        assert len(gained[decoding]) == 1
        lengths.append(late.length)
    assert lengths == [64, 80, 96, 100]


def test_short_prompts_do_not_wait_for_long_ones(target):
    """A short prompt that arrives while a long one prefills gets its token in the next step, the
    long one goes on meanwhile, and outputs are their own."""
    long_prompt, long_output = draw_prompt(target, 200, 4, seed=21)
    short_prompt, short_output = draw_prompt(target, 5, 4, seed=22)
    config = EngineConfig(slots=2, max_context=250, prefill_chunk=20)
    engine = Engine(target, tiny_drafter(target), config)
    slow = engine.submit(long_prompt, SamplingParams(4), TREE)
    engine.step()
    quick = engine.submit(short_prompt, SamplingParams(4), TREE)
    before = slow.length
    gained = {p.work: p.tokens for p in engine.step()}
    assert len(gained[quick]) == 1
    assert slow.length == before + 15
    run(engine)
    assert (slow.output, quick.output) == (long_output, short_output)


def test_equal_streams_go_at_one_speed(target):
    """Eight at once: in every step in which one gains, all do."""
    prompt, output = draw_prompt(target, 6, COUNT, seed=3)
    engine = Engine(target, tiny_drafter(target), EngineConfig(slots=8, max_context=64))
    with_drafts(engine, oracle({tuple(prompt): output}, 4, target.shape.vocab_size))
    requests = [engine.submit(prompt, SamplingParams(COUNT), TREE) for _ in range(8)]
    for gained in run(engine):
        assert not gained or [len(gained[r]) for r in requests] == [len(gained[requests[0]])] * 8
    assert all(r.output == output for r in requests)


def test_many_at_once_equal_each_alone(target):
    """64 requests of all methods, greedy and sampled, in 64 slots against each by itself."""
    rng = random.Random(0)
    kinds = (Speculation("ar"), Speculation("chain"), TREE, Speculation("ddtree", 20, 3, 7))
    asked = [
        (
            [rng.randrange(61) for _ in range(rng.choice((1, 5, 17, 40)))],
            SamplingParams(rng.randint(1, 24), temperature=rng.choice((0.0, 0.9)), seed=number),
            kinds[number % 4],
        )
        for number in range(64)
    ]
    alone = Engine(target, tiny_drafter(target), EngineConfig(slots=1, max_context=80))
    expected = [alone.generate([p], s, how)[0].output for p, s, how in asked]
    for config in (
        EngineConfig(slots=64, max_context=80, prefill_chunk=50),
        EngineConfig(slots=64, max_context=80, prefill_chunk=50, cache_tokens=1500),
    ):
        engine = Engine(target, tiny_drafter(target), config)
        free = engine.cache_use()
        requests = [engine.submit(*one) for one in asked]
        run(engine)
        assert [r.output for r in requests] == expected
        assert engine.cache_use() == free


def test_room_decides_admission(target):
    """A request starts once there are cells for all it may hold; nobody overtakes the first in
    line; what can never fit is refused."""
    config = EngineConfig(slots=8, max_context=200, max_budget=15, cache_tokens=400)
    engine = Engine(target, tiny_drafter(target), config)
    assert engine.max_context == 200
    first = engine.submit([1] * 100, SamplingParams(60), TREE)  # 176 cells, in a run of 192
    second = engine.submit([1] * 150, SamplingParams(40), TREE)  # 206 in a run of 216
    small = engine.submit([1], SamplingParams(1), TREE)
    engine.step()
    assert [r.state for r in (first, second, small)] == ["decoding", "waiting", "waiting"]
    assert engine.cache_use().free_cells == 400 - 192
    run(engine)
    assert {r.finish_reason for r in (first, second, small)} == {"length"}
    assert engine.cache_use().free_cells == 400
    with pytest.raises(RequestError, match="prompt"):
        engine.submit([1] * 200)
    tight = Engine(target, None, EngineConfig(cache_tokens=100, max_budget=15))
    assert tight.max_context == 84
    with pytest.raises(ConfigError, match="cache_tokens"):
        Engine(target, None, EngineConfig(cache_tokens=17, max_budget=15))


ENDS = (
    "finish",
    "stop",
    "length 1",
    "abort waiting",
    "abort prefilling",
    "abort decoding",
    "error",
)


def break_drafts(engine):
    """A set of requests whose drafts become NaN."""
    original, broken = engine.drafting.draft, set()

    def draft(requests):
        logits = original(requests)
        for row, request in enumerate(requests):
            if request in broken:
                logits[row] = float("nan")
        return logits

    engine.drafting.draft = draft
    return broken


def ending_request(engine, rng, end):
    """A random request that is to end in this way."""
    prompt = [rng.randrange(61) for _ in range(rng.randint(1, 70))]
    limit = 1 if end == "length 1" else rng.randint(8, 30)
    stops = tuple(range(0, 61, 3)) if end == "stop" else ()
    sampling = SamplingParams(limit, stop_token_ids=stops)
    return engine.submit(prompt, sampling, rng.choice((TREE, Speculation("chain"))))


@pytest.mark.parametrize(("cache_tokens", "count", "least"), [(None, 500, 20), (700, 100, 4)])
def test_every_way_of_ending_gives_all_back(target, cache_tokens, count, least):
    """500 mixed requests, some more where room is short: all slots and cells are free again."""
    rng = random.Random(5)
    config = EngineConfig(slots=5, max_context=120, max_budget=20, cache_tokens=cache_tokens)
    engine = Engine(target, tiny_drafter(target), config)
    broken, free = break_drafts(engine), engine.cache_use()
    seen, live = dict.fromkeys(ENDS, 0), {}
    for number in range(count):
        end = ENDS[number % len(ENDS)]
        request = ending_request(engine, rng, end)
        live[request] = end
        if end == "error":
            broken.add(request)
        for _ in range(rng.randint(0, 3)):
            engine.step()
        for other, wish in list(live.items()):
            if wish == f"abort {other.state}":
                engine.abort(other)
            if other.finish_reason is not None:
                seen[wish] += other.finish_reason in wish or wish in ("finish", "stop")
                del live[other]
    run(engine)
    assert engine.cache_use() == free
    assert all(number > least for wish, number in seen.items() if "prefilling" not in wish), seen


@contextlib.contextmanager
def poisoned(target, token):
    """While open, this token's embedding is no number."""

    def embed(module, args, out):
        out[args[0] == token] = float("nan")
        return out

    handle = target._embedding.register_forward_hook(embed)
    try:
        yield
    finally:
        handle.remove()


def engine_without_poison(target, drawn, **config):
    """Drafts are the true texts, which hold no poison, and a token that is in none of them."""
    engine = Engine(target, tiny_drafter(target), EngineConfig(**config))
    outputs = {tuple(prompt): output for prompt, output in drawn}
    with_drafts(engine, oracle(outputs, 4, target.shape.vocab_size))
    used = {token for prompt, output in drawn for token in prompt + output}
    return engine, next(i for i in range(60, 5, -1) if i not in used)


def test_a_broken_request_leaves_nothing_behind(target):
    """A target that gives NaN for one request: who comes next into its cells, beside a longer
    neighbour whose columns are read along, decodes what it would alone."""
    drawn = [draw_prompt(target, n, COUNT, seed=n) for n in (6, 25)]
    engine, poison = engine_without_poison(target, drawn, slots=2, max_context=64)
    with poisoned(target, poison):
        bad = engine.submit([poison] * 30, SamplingParams(COUNT), TREE)
        run(engine)
        assert bad.finish_reason == "error"
        assert bool(engine.pool._cells.isfinite().all())
        assert bool(engine.drafting.pool._cells.isfinite().all())
        good = [engine.submit(prompt, SamplingParams(COUNT), TREE) for prompt, _ in drawn]
        run(engine)
        assert [r.output for r in good] == [output for _, output in drawn]


def test_a_broken_prompt_ends_with_the_chunk_that_broke(target):
    """Not when it is all there, and its neighbours in the pass and the pool go on."""
    drawn = [draw_prompt(target, n, COUNT, seed=n) for n in (6, 25)]
    engine, poison = engine_without_poison(
        target, drawn, slots=3, max_context=100, prefill_chunk=30, cache_tokens=400
    )
    with poisoned(target, poison):
        first = engine.submit(drawn[0][0], SamplingParams(COUNT), TREE)
        bad = engine.submit([1] * 5 + [poison] + [1] * 60, SamplingParams(COUNT), TREE)
        last = engine.submit(drawn[1][0], SamplingParams(COUNT), TREE)
        run(engine)
    assert (bad.finish_reason, bad.output) == ("error", [])
    assert bad.length < len(bad.prompt)
    assert [first.output, last.output] == [output for _, output in drawn]
    job = engine.make_score([1, 2, poison, 3, 4], 4)
    engine.enqueue(job)
    with poisoned(target, poison):
        run(engine)
    assert "NaN" in job.error
    assert bool(engine.pool._cells.isfinite().all())


def test_scoring_jobs_take_turns(target):
    engine = Engine(target, None, EngineConfig(slots=2, max_context=64))
    jobs = [engine.make_score(list(range(20)), 4) for _ in range(2)]
    for job in jobs:
        engine.enqueue(job)
    for _ in range(20):
        engine.step()
        assert abs(len(jobs[0].scores) - len(jobs[1].scores)) <= 1
    run(engine)
    assert jobs[0].scores == jobs[1].scores
