"""Replays: counts of rounds that were never run equal those of rounds that were."""

import itertools

import pytest
import torch
from replay_checks import (
    ARMS,
    DEPTH,
    FEW,
    GREEDY,
    SAMPLED,
    SAMPLINGS,
    Helped,
    changed,
    check_ends,
    check_windows,
    compare,
    finish,
    make_engine,
    prompt_of,
    replayed,
    run_through,
    told,
)

from ddtree.engine import SamplingParams, Speculation, load_engine, make_replay
from ddtree.engine.params import EngineConfig
from ddtree.errors import RequestError
from mutations.planting import Mutation, planted

KINDS = {
    "anchored": {},
    "causal": {"causal": True},
    "per-query": {"window": 9, "window_kind": "per-query", "layer_windows": (9, 9)},
    "mixed": {"window_kind": "per-query", "layer_windows": (9, None)},
}
TREE = Speculation("ddtree", 8, 4)


@pytest.mark.parametrize("sampling", SAMPLINGS.values(), ids=SAMPLINGS)
@pytest.mark.parametrize("length", [1, 6, 40])
def test_rounds_are_those_of_requests(length, sampling):
    job = run_through(make_engine(), sampling, length)
    taken = [arm.stats.accepted_histogram for arm in job.arms]
    assert max(map(len, taken)) == DEPTH + 1
    assert len({tuple(histogram) for histogram in taken}) > 6
    assert 0 < job.positions <= 23


@pytest.mark.parametrize("sampling", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
@pytest.mark.parametrize("kind", KINDS)
def test_kinds_of_drafters(kind, sampling):
    """Windows shorter than a block don't exist where they move with the row."""
    engine, prompt = make_engine(KINDS[kind], draft_window=30), prompt_of(20)
    helped, sampling = Helped(engine), changed(sampling, seed=3, max_tokens=24)
    helped.learn(prompt, sampling, 24)
    windows = (5, 8, 9, 14, 30, None)
    arms = [Speculation("ddtree", 8, 4, window) for window in windows]
    compare(engine, prompt, sampling, arms)


@pytest.mark.parametrize("windows", [(1,), (3, 8), (2, 9, 9, 30), (1, 5, 9, 14, 40, 100)])
@pytest.mark.parametrize("ring", [9, None])
@pytest.mark.parametrize("kind", KINDS)
def test_drafts_under_several_windows_are_those_of_each(kind, ring, windows):
    """The slow twin drafts for one request at a time."""
    engine = make_engine(KINDS[kind], draft_window=ring)
    for length in (1, 8, 9, 10, 33):
        request = engine.submit(prompt_of(length), SamplingParams(4), TREE)
        while request.state != "decoding":
            engine.step()
        with torch.inference_mode():
            together = engine.drafting.draft_windows(request, windows)
            for window, logits in zip(windows, together, strict=True):
                request.resolved = type(request.resolved)(8, 4, window, 200)
                (alone,) = engine.drafting.draft([request])
                torch.testing.assert_close(logits, alone, rtol=0, atol=1e-6)
        engine.abort(request)


def test_the_drafter_s_limit_is_that_of_a_request():
    """Beyond it rounds go on without drafts: from the middle of an output, or from its start."""
    for length in (10, 29, 45):
        engine, prompt = make_engine({"max_positions": 40}), prompt_of(length)
        Helped(engine).learn(prompt, changed(GREEDY, seed=0), 30)
        job = compare(engine, prompt, SamplingParams(30, seed=0), FEW)
        assert any(arm.stats.undrafted_rounds for arm in job.arms)


def test_the_context_s_end_is_that_of_a_request():
    for length in (30, 35, 37, 38, 39):
        engine, prompt = make_engine(max_context=40), prompt_of(length, seed=length)
        Helped(engine).known[prompt, 0] = [*range(20)]
        compare(engine, prompt, SamplingParams(100, seed=0), FEW)


@pytest.mark.parametrize("chunk", [3, 7])
def test_prompt_and_output_are_read_in_chunks(chunk):
    run_through(make_engine(prefill_chunk=chunk), GREEDY)


def test_an_output_of_another_s():
    """The walk is along what is given, whatever the target says."""
    engine, prompt, output = make_engine(), prompt_of(5), list(range(30, 50))
    Helped(engine).known[prompt, 0] = output
    sampling = SamplingParams(seed=0)
    job = replayed(engine, prompt, output, ARMS, sampling)
    for arm in job.arms:
        assert arm.output == output
        assert arm.finish_reason == "length"
        arm.stats.check()
    accepted = [arm.stats.num_accepted for arm in job.arms]
    assert accepted[0] == 0
    assert max(accepted) > 8


def test_beside_requests():
    """Neither moves the other; steps are shared, slots come back."""
    engine, prompt = make_engine(), prompt_of(20)
    helped = Helped(engine)
    helped.learn(prompt, SamplingParams(seed=0), 24)
    sampling = SamplingParams(24, seed=0)
    alone = compare(engine, prompt, sampling)
    other = prompt_of(33, seed=9)
    wanted = engine.generate([other], sampling, TREE)[0].output
    request = engine.submit(other, sampling, TREE)
    job = make_replay(engine.maker, prompt, alone.output, ARMS, sampling)
    engine.enqueue(job)
    steps = []
    while not engine.is_idle:
        steps.append({type(progress.work) for progress in engine.step()})
    assert sum(len(works) == 2 for works in steps) > 3
    assert request.output == wanted
    assert [told(arm) for arm in job.arms] == [told(arm) for arm in alone.arms]
    assert engine.cache_use().free_slots == 16


def test_replays_and_scores_take_turns():
    engine, prompt = make_engine(), prompt_of(9)
    output = engine.generate([prompt], SamplingParams(12), TREE)[0].output
    replay = make_replay(engine.maker, prompt, output, ARMS)
    score = engine.make_score([*prompt, *output], len(prompt))
    for job in (replay, score):
        engine.enqueue(job)
    order = [engine.step()[0].work for _ in range(10)]
    assert all(one is not other for one, other in itertools.pairwise(order))
    finish(engine)
    assert replay.error is score.error is None


def test_abort_gives_everything_back():
    engine, prompt = make_engine(), prompt_of(20)
    sampling = SamplingParams(24, seed=0)
    output = Helped(engine).learn(prompt, sampling, 24)[:24]
    for steps in (0, 1, 3, 5, 9):
        job = make_replay(engine.maker, prompt, output, ARMS, sampling)
        engine.enqueue(job)
        for _ in range(steps):
            engine.step()
        assert not job.finished
        engine.abort(job)
        assert engine.is_idle
        assert engine.cache_use().free_cells == engine.cache_use().cells
    compare(engine, prompt, sampling)


@pytest.mark.parametrize("culprit", ["target", "drafter"])
def test_broken_numbers_end_the_replay(culprit):
    engine, prompt = make_engine(), prompt_of(9)
    output = engine.generate([prompt], SamplingParams(12), TREE)[0].output
    drafting, target = engine.drafting, engine.target
    if culprit == "drafter":
        draft = drafting.draft_windows
        drafting.draft_windows = lambda request, windows: draft(request, windows) * float("nan")
    else:
        norm = target.model.base_model.norm
        handle = norm.register_forward_hook(lambda module, args, out: out * float("nan"))
    job = make_replay(engine.maker, prompt, output, ARMS)
    engine.enqueue(job)
    finish(engine)
    assert f"the {culprit}'s logits hold NaN" in job.error
    if culprit == "drafter":
        drafting.draft_windows = draft
    else:
        handle.remove()
    assert engine.generate([prompt], SamplingParams(12), TREE)[0].output == output


REFUSED = [
    ({"prompt": ()}, "prompt"),
    ({"prompt": (61,)}, "prompt"),
    ({"output": ()}, "output"),
    ({"output": (1, 61)}, "output"),
    ({"output": (1,) * 100}, "output"),
    ({"arms": ()}, "arms"),
    ({"arms": (TREE, Speculation("ddtree", 65, 4))}, "arms.1.budget"),
    ({"arms": (Speculation("ddtree", 8, 17),)}, "arms.0.topk"),
    ({"arms": (Speculation("chain", draft_window=257),)}, "arms.0.draft_window"),
    ({"sampling": SamplingParams(temperature=0.5)}, "seed"),
]


@pytest.mark.parametrize(("changes", "field"), REFUSED, ids=lambda value: str(value)[:40])
def test_refused(changes, field):
    asked = {"prompt": prompt_of(30), "output": (1, 2), "arms": (TREE,), "sampling": GREEDY}
    with pytest.raises(RequestError) as raised:
        make_replay(make_engine().maker, **(asked | changes))
    assert raised.value.field == field
    assert str(raised.value).startswith(f"{field}: ")


def test_without_a_drafter_there_is_nothing_to_replay():
    target = make_engine().target
    engine = make_engine().__class__(target, None, EngineConfig(max_context=64))
    with pytest.raises(RequestError, match=r"arms.0.method: chain needs a drafter"):
        make_replay(engine.maker, (1,), (2,), (Speculation("chain"),))
    job = make_replay(engine.maker, (1,), (2, 3, 4), (Speculation("ar"),))
    engine.enqueue(job)
    finish(engine)
    assert job.arms[0].stats.accepted_histogram == [2]


@pytest.mark.parametrize("check", [check_windows, check_ends])
def test_check_passes(check):
    check()


REPLAY, WINDOWS = "ddtree.engine.replay", "ddtree.engine.windows"
FEED = "lead.pending = torch.cat(self._features)[self._fed : root]"
BUGS = [
    ("fed a token too late", REPLAY, FEED, FEED.replace("fed : root", "fed - 1 : root - 1")),
    ("features are not fed", REPLAY, FEED, "pass"),
    ("the whole output is fed at once", REPLAY, "[self._fed : root]", "[self._fed :]"),
    ("walks along the tokens before", REPLAY, "output[root + 1 :]", "output[root:]"),
    ("one window for all", REPLAY, "rows = [windows.index", "rows = [0 * windows.index"),
    ("least candidates", REPLAY, "topk = max(", "topk = min("),
    ("a round too short", REPLAY, "arm.length += count + 1", "arm.length += count"),
    ("other windows' blocks are seen", WINDOWS, "& number[:, None, :, None]", ""),
    ("the ring is seen whole", WINDOWS, "limits = self._windows if", "limits = self._lengths if"),
    ("query heads by block", WINDOWS, ".reshape(blocks, heads, rows, dim)", ""),
]
ENDS = [
    ("no continuation", REPLAY, "drafting.block - 2 if", "0 if"),
    ("too short a continuation", REPLAY, "drafting.block - 2 if", "drafting.block - 3 if"),
    ("a continuation without penalties", REPLAY, "if reader.sampling.has_edits:", "if False:"),
    ("penalties forget the output", REPLAY, "reader.edits = edits.to", "edits = edits.to"),
    ("the tail is read again", REPLAY, "self.reader.output[-1:])", "self.reader.output[-2:-1])"),
]


@pytest.mark.parametrize(
    ("check", "bug"),
    [(check_windows, bug) for bug in BUGS] + [(check_ends, bug) for bug in ENDS],
    ids=lambda value: value[0] if isinstance(value, tuple) else "",
)
def test_planted_bug_is_caught(check, bug):
    name, module, old, new = bug
    mutation = Mutation(name, module, ((old, new),), (check,))
    with planted(mutation), pytest.raises((AssertionError, RuntimeError, IndexError)):
        check()


TEXTS = (
    'def fibonacci(n: int) -> int:\n    """Return the n-th Fibonacci number."""\n',
    "The three most important things to know about trees are",
)


@pytest.mark.model
@pytest.mark.parametrize(
    ("text", "temperature"), [(TEXTS[0], 0), (TEXTS[1], 0.8)], ids=["greedy", "sampled"]
)
def test_the_real_pair(smollm2, text, temperature):
    """SmolLM2 and the shipped drafter in float32."""
    config = EngineConfig(slots=5, max_context=64, draft_window="full")
    loaded = load_engine(smollm2, dtype="float32", config=config)
    arms = [Speculation("chain"), Speculation("chain", draft_window=8)]
    arms += [Speculation("ddtree", *arm) for arm in [(4, 2, 8), (16, 4, 64), (64, 8, "full")]]
    prompt = tuple(loaded.tokenizer(text).input_ids)
    job = compare(loaded.engine, prompt, SamplingParams(24, temperature, seed=4), arms)
    assert max(len(arm.stats.accepted_histogram) for arm in job.arms) > 3
