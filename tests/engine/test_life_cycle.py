"""How requests end, what they leave behind, and what is refused."""

import pytest

from ddtree.engine import Engine, EngineConfig, SamplingParams, Speculation
from ddtree.errors import ConfigError, ModelError, RequestError
from support.drafts import oracle, with_drafts
from support.reference import draw_prompt
from support.tiny import tiny_drafter, tiny_target

COUNT = 20
TREE = Speculation("ddtree", 8, 4)


@pytest.fixture(scope="module")
def target():
    return tiny_target()


@pytest.fixture(scope="module")
def case(target):
    prompt, output = draw_prompt(target, 7, COUNT, seed=1)
    return tuple(prompt), output


def make_engine(target, case=None, **config):
    engine = Engine(target, tiny_drafter(target), EngineConfig(**{"max_context": 64, **config}))
    if case is not None:
        with_drafts(engine, oracle(dict([case]), 4, target.shape.vocab_size))
    return engine


@pytest.mark.parametrize("limit", range(1, 13))
def test_max_tokens_inside_an_accepted_run(target, case, limit):
    engine = make_engine(target, case)
    request = engine.generate([case[0]], SamplingParams(limit), TREE)[0]
    assert request.output == case[1][:limit]
    assert request.finish_reason == "length"
    request.stats.check()


@pytest.mark.parametrize("position", range(12))
def test_stop_id_inside_an_accepted_run(target, case, position):
    """The output ends at the first stop id, as it would token by token."""
    stop = case[1][position]
    first = case[1].index(stop)
    engine = make_engine(target, case)
    request = engine.generate([case[0]], SamplingParams(COUNT, stop_token_ids=(stop,)), TREE)[0]
    assert request.output == case[1][: first + 1]
    assert request.finish_reason == "stop"
    request.stats.check()


def test_end_of_sequence_and_ignore_eos(case):
    target = tiny_target(eos_token_id=case[1][5])
    first = case[1].index(case[1][5])
    engine = make_engine(target, case)
    stopped, ignored = (
        engine.generate([case[0]], SamplingParams(COUNT, ignore_eos=ignore), TREE)[0]
        for ignore in (False, True)
    )
    assert stopped.output == case[1][: first + 1]
    assert stopped.finish_reason == "stop"
    assert ignored.output == case[1]


def test_context_limit_ends_with_length(target, case):
    """Prompt and output fill the context exactly, with drafts reaching past it."""
    engine = make_engine(target, case, max_context=16)
    request = engine.generate([case[0]], SamplingParams(1000), TREE)[0]
    assert request.output == case[1][:9]
    assert request.finish_reason == "length"
    longest = engine.generate([list(range(15))], SamplingParams(1000), TREE)[0]
    assert len(longest.output) == 1


def test_a_chain_wider_than_the_largest_budget(target, case):
    """The caches hold a chain's rows at the end of the context too."""
    engine = make_engine(target, case, max_context=12, max_budget=1, max_topk=1, slots=2)
    requests = engine.generate([case[0]] * 2, SamplingParams(1000), Speculation("chain"))
    assert [r.output for r in requests] == [case[1][:5]] * 2


def test_abort_frees_the_slot(target, case):
    engine = make_engine(target, slots=1)
    running = engine.submit(case[0], SamplingParams(COUNT), TREE)
    waiting = engine.submit(case[0], SamplingParams(COUNT), TREE)
    engine.step()
    engine.abort(running)
    engine.abort(waiting)
    engine.abort(waiting)
    assert (running.finish_reason, waiting.finish_reason) == ("abort", "abort")
    assert engine.is_idle
    assert engine.generate([case[0]], SamplingParams(COUNT), TREE)[0].output == case[1]


def test_repeated_requests_in_a_used_slot(target, case):
    """A, B, A: what an earlier request left in the caches is never seen."""
    other, output = draw_prompt(target, 30, COUNT, seed=8)
    engine = make_engine(target, slots=1)
    outputs = [
        engine.generate([prompt], SamplingParams(COUNT), TREE)[0]
        for prompt in (case[0], other, case[0])
    ]
    assert [r.output for r in outputs] == [case[1], output, case[1]]
    assert outputs[0].stats.accepted_histogram == outputs[2].stats.accepted_histogram


def test_ar_feeds_no_drafter(target, case):
    engine = make_engine(target)
    calls = []
    engine.drafting.feed = lambda requests: calls.append(requests)
    engine.target._tap.record = None  # would fail if a feature were taken
    engine.generate([case[0]], SamplingParams(COUNT), Speculation("ar"))
    assert calls == []


def test_narrow_requests_are_padded_to_the_widest(target, case):
    """A step is as wide as its widest live request."""
    widths = []
    engine = Engine(
        target,
        tiny_drafter(target),
        EngineConfig(max_context=64),
        observer=lambda result: widths.append(result.tree.width),
    )
    engine.submit(case[0], SamplingParams(4), Speculation("ddtree", 2, 2))
    engine.step()
    engine.submit(case[0], SamplingParams(COUNT), Speculation("ddtree", 9, 4))
    while not engine.is_idle:
        engine.step()
    assert widths[0] == 2  # the second prompt is prefilled beside it
    assert widths[1] == 9


def test_a_broken_drafter_fails_its_request_alone(target, case):
    """NaN logits end the request that drafts; its neighbour goes on."""
    engine = make_engine(target)
    original = engine.drafting.draft
    engine.drafting.draft = lambda requests: original(requests) * float("nan")
    broken = engine.submit(case[0], SamplingParams(COUNT), TREE)
    sound = engine.submit(case[0], SamplingParams(COUNT), Speculation("ar"))
    while not engine.is_idle:
        engine.step()
    assert broken.finish_reason == "error"
    assert "drafter" in broken.error
    assert sound.output == case[1]


@pytest.mark.parametrize(
    ("speculation", "field"),
    [
        ({"method": "magic"}, "speculation.method"),
        ({"method": "chain", "budget": 3}, "speculation.budget"),
        ({"method": "ar", "topk": 3}, "speculation.topk"),
        ({"method": "ar", "draft_window": 3}, "speculation.draft_window"),
        ({"budget": -1}, "speculation.budget"),
        ({"budget": True}, "speculation.budget"),
        ({"budget": 65}, "speculation.budget"),
        ({"topk": 0}, "speculation.topk"),
        ({"topk": 17}, "speculation.topk"),
        ({"draft_window": 0}, "speculation.draft_window"),
        ({"draft_window": "all"}, "speculation.draft_window"),
        ({"draft_window": 33}, "speculation.draft_window"),
    ],
)
def test_refused_speculation_names_its_field(target, speculation, field):
    engine = make_engine(target, draft_window=32)
    with pytest.raises(RequestError) as raised:
        engine.submit([1], speculation=Speculation(**speculation))
    assert raised.value.field == field


@pytest.mark.parametrize("prompt", [[], [61], [-1], [0] * 64])
def test_refused_prompts(target, prompt):
    with pytest.raises(RequestError, match="prompt"):
        make_engine(target).submit(prompt)


def test_refused_sampling(target):
    with pytest.raises(RequestError, match="temperature"):
        SamplingParams(temperature=-0.7)
    with pytest.raises(RequestError, match="max_tokens"):
        SamplingParams(max_tokens=0)


def test_no_drafter(target, case):
    engine = Engine(target, None, EngineConfig(max_context=64))
    with pytest.raises(RequestError, match="needs a drafter"):
        engine.submit(case[0], speculation=TREE)
    assert engine.generate([case[0]], SamplingParams(COUNT))[0].output == case[1]


@pytest.mark.parametrize(
    "config", [{"slots": 0}, {"max_context": 1}, {"max_context": 257}, {"draft_window": -1}]
)
def test_refused_sizes(target, config):
    with pytest.raises(ConfigError):
        make_engine(target, **config)


def test_defaults_fit_small_maxima(target, case):
    engine = make_engine(target, max_budget=3, max_topk=2)
    request = engine.generate([case[0]], SamplingParams(COUNT))[0]
    assert (request.resolved.budget, request.resolved.topk) == (3, 2)
    assert request.output == case[1]


def test_a_budget_no_tree_can_fill_costs_no_rows(target, case):
    """topk 1 has one node a depth, whatever the budget."""
    assert make_engine(target).maker.resolve(Speculation("ddtree", 64, 1)).budget == 4
    assert make_engine(target).maker.resolve(Speculation("ddtree", 64, 2)).budget == 30


def test_budget_zero_is_ar(target, case):
    engine = make_engine(target)
    zero = engine.submit(case[0], SamplingParams(COUNT), Speculation("ddtree", 0, 4))
    tree = engine.submit(case[0], SamplingParams(COUNT), TREE)
    while not engine.is_idle:
        engine.step()
    assert zero.output == tree.output == case[1]
    assert zero.stats.accepted_histogram == [COUNT - 1]


def test_odd_logits_count_only_where_the_walk_went(target, case):
    """NaN at a rejected node changes nothing; at the root it ends the request."""
    for on_root in (False, True):
        engine = make_engine(target)
        head = engine.target.head

        def broken(hidden, head=head, on_root=on_root):
            logits = head(hidden)
            if logits.dim() == 3 and logits.shape[1] > 5:  # a tree's rows
                logits[:, 0 if on_root else -1] = float("nan")
            return logits

        engine.target.head = broken
        with_drafts(engine, lambda request: [1, 1, 1, 1])
        request = engine.generate([case[0]], SamplingParams(COUNT), TREE)[0]
        engine.target.head = head
        if on_root:
            assert request.finish_reason == "error"
        else:
            assert request.output == case[1]


def test_a_drafter_of_other_layers_is_refused(target):
    drafter = tiny_drafter(target, target_layer_ids=(0, 1))
    with pytest.raises(ModelError, match="layers"):
        Engine(target, drafter, EngineConfig(max_context=64))


def test_no_memory_is_a_clear_error(target):
    with pytest.raises(ConfigError, match="slots"):
        Engine(target, None, EngineConfig(slots=2**40, max_context=64))
