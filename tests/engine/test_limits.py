"""Up to every limit and across it: exact to the last token, then `length`."""

import pytest

from ddtree.engine import Engine, EngineConfig, SamplingParams, Speculation
from ddtree.errors import ConfigError, RequestError
from support.drafts import oracle, with_drafts
from support.reference import draw_prompt
from support.tiny import tiny_drafter, tiny_target

CONTEXT, BLOCK = 64, 5
METHODS = (Speculation("ar"), Speculation("chain"), Speculation("ddtree", 8, 4))


@pytest.fixture(scope="module")
def target():
    return tiny_target()


@pytest.fixture(scope="module")
def text(target):
    """Prompt and greedy continuation to the end of the longest context."""
    prompt, output = draw_prompt(target, 3, CONTEXT + 20, seed=11)
    return prompt + output


@pytest.mark.parametrize("method", METHODS, ids=lambda s: s.method)
@pytest.mark.parametrize("length", [3, CONTEXT - BLOCK, CONTEXT - 3, CONTEXT - 2, CONTEXT - 1])
def test_generation_runs_into_the_context_s_end(target, text, method, length):
    engine = Engine(target, tiny_drafter(target), EngineConfig(max_context=CONTEXT))
    with_drafts(engine, oracle({tuple(text[:length]): text[length:]}, BLOCK - 1, 61))
    request = engine.generate([text[:length]], SamplingParams(10**6), method)[0]
    assert request.output == text[length:CONTEXT]
    assert request.finish_reason == "length"
    assert engine.cache_use().free_slots == engine.config.slots


@pytest.mark.parametrize("length", [CONTEXT, CONTEXT + 1])
def test_a_prompt_that_leaves_no_room_is_refused(target, text, length):
    engine = Engine(target, None, EngineConfig(max_context=CONTEXT))
    with pytest.raises(RequestError, match=rf"has {length} tokens.*{CONTEXT}"):
        engine.make_request(text[:length])


LIMIT = 40  # of the drafter, below the target's


@pytest.mark.parametrize("method", METHODS[1:], ids=lambda s: s.method)
@pytest.mark.parametrize("window", [9, LIMIT, "full"])
@pytest.mark.parametrize(
    "length", [4, LIMIT - BLOCK - 1, LIMIT - BLOCK, LIMIT - BLOCK + 1, LIMIT - 1, LIMIT, LIMIT + 1]
)
def test_beyond_the_drafter_s_limit_requests_go_on_without_drafts(
    target, text, length, window, method
):
    drafter = tiny_drafter(target, max_positions=LIMIT)
    config = EngineConfig(max_context=CONTEXT, draft_window=window, prefill_chunk=7)
    roots = []
    engine = Engine(target, drafter, config)
    original = engine.drafting.draft

    def draft(requests):
        roots.extend(r.root_position for r in requests)
        return original(requests)

    engine.drafting.draft = draft
    drafter.rotary.register_forward_hook(
        lambda module, args, out: (
            roots.append(int(args[1].max())) if args[1].shape[1] == BLOCK else None
        )
    )
    request = engine.generate([text[:length]], SamplingParams(10**6), method)[0]
    assert request.output == text[length:CONTEXT]
    assert request.finish_reason == "length"
    assert max(roots, default=0) < LIMIT
    stats = request.stats
    assert 0 < stats.undrafted_rounds <= stats.rounds
    assert request.summary()["undrafted_rounds"] == stats.undrafted_rounds
    drafted = length <= LIMIT - BLOCK
    assert bool(roots) == drafted == (stats.undrafted_rounds < stats.rounds)
    # Every round whose block still fits drafts.
    if drafted:
        committed = length + 1 + stats.num_accepted + (stats.rounds - stats.undrafted_rounds)
        assert committed - 1 > LIMIT - BLOCK


def test_drafts_end_for_one_while_others_go_on(target, text):
    """A long and a short request in one batch."""
    drafter = tiny_drafter(target, max_positions=LIMIT)
    engine = Engine(target, drafter, EngineConfig(max_context=CONTEXT))
    requests = engine.generate([text[:LIMIT], text[:4]], SamplingParams(20), METHODS[2])
    assert [r.output for r in requests] == [text[LIMIT : LIMIT + 20], text[4:24]]
    assert requests[0].stats.undrafted_rounds == requests[0].stats.rounds == 19
    assert requests[1].stats.undrafted_rounds == 0


def test_windows_beyond_the_drafter_s_limit_are_refused(target, text):
    drafter = tiny_drafter(target, max_positions=LIMIT)
    with pytest.raises(ConfigError, match=f"draft_window: got {LIMIT + 1}.*{LIMIT}"):
        Engine(target, drafter, EngineConfig(max_context=CONTEXT, draft_window=LIMIT + 1))
    engine = Engine(target, drafter, EngineConfig(max_context=CONTEXT, draft_window="full"))
    assert engine.draft_window == LIMIT
    for window, shown in ((LIMIT, LIMIT), ("full", LIMIT)):
        made = engine.make_request(text[:3], None, Speculation("chain", draft_window=window))
        assert made.resolved.window == shown
    with pytest.raises(RequestError, match=r"speculation.draft_window: got 41.*limit is 40"):
        engine.make_request(text[:3], None, Speculation("chain", draft_window=LIMIT + 1))


def test_the_last_draft_sees_and_fills_the_drafter_s_last_position(target, text):
    """A block fits up to the limit itself, not one position less."""
    drafter = tiny_drafter(target, max_positions=LIMIT)
    engine = Engine(target, drafter, EngineConfig(max_context=CONTEXT))
    seen = []
    drafter.rotary.register_forward_hook(lambda module, args, out: seen.append(int(args[1].max())))
    engine.generate([text[: LIMIT - BLOCK]], SamplingParams(3), METHODS[1])
    assert max(seen) == LIMIT - 1
