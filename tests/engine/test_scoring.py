"""Teacher-forced scores: the target's own choices at every position."""

import math

import pytest
import torch

from ddtree.engine import Engine, EngineConfig, SamplingParams, Speculation
from ddtree.errors import EngineError, RequestError
from ddtree.records.scores import FAR
from support.ruled_out import rule_out
from support.tiny import tiny_drafter, tiny_target

IDS = torch.randint(61, (20,), generator=torch.Generator().manual_seed(0)).tolist()


@pytest.fixture(scope="module")
def engine():
    target = tiny_target()
    return Engine(target, tiny_drafter(target), EngineConfig(max_context=64, prefill_chunk=4))


@pytest.mark.parametrize("rows", [1, 3, 9, 64])
@pytest.mark.parametrize("first", [1, 4, 7, 19])
def test_scores_equal_the_model_s_own(engine, first, rows):
    scores = engine.score(IDS, first, rows, top=5)
    expected = engine.target.reference_logits(torch.tensor(IDS))[first - 1 : -1]
    assert [s.token_id for s in scores] == IDS[first:]
    for score, logits, token in zip(scores, expected, IDS[first:], strict=True):
        assert score.token_logit == pytest.approx(float(logits[token]), abs=1e-5)
        log_probs = torch.log_softmax(logits, -1)
        assert score.token_logprob == pytest.approx(float(log_probs[token]), abs=1e-5)
        best = logits.topk(5)
        assert score.top_ids == tuple(best.indices.tolist())
        assert score.top_logits == pytest.approx(best.values.tolist(), abs=1e-5)


def test_scoring_beside_a_request(engine):
    """Scores are unmoved by a neighbour that decodes, and the slots come back."""
    alone = engine.score(IDS, 5)
    job = engine.make_score(IDS, 5, 1, 5)
    engine.submit(IDS[:9], speculation=Speculation("ddtree", 8, 4))
    engine.enqueue(job)
    while not engine.is_idle:
        engine.step()
    for one, other in zip(alone, job.scores, strict=True):
        assert one.token_logit == pytest.approx(other.token_logit, abs=1e-9)


@pytest.mark.parametrize(
    ("first", "rows", "field"),
    [(0, 1, "score_from"), (20, 1, "score_from"), (5, 0, "score_rows"), (5, 66, "score_rows")],
)
def test_refused(engine, first, rows, field):
    with pytest.raises(RequestError) as raised:
        engine.make_score(IDS, first, rows, 5)
    assert raised.value.field == field


# Some of IDS are among these, some are not. Fewer than are listed are left.
ALLOWED = IDS[4:12:2]
RULED_OUT = sorted(set(range(61)) - set(ALLOWED))
SAMPLINGS = [
    SamplingParams(temperature=0),
    SamplingParams(temperature=0, frequency_penalty=1.5, bad_words=((ALLOWED[0],),)),
    SamplingParams(temperature=0.9, seed=3),
    SamplingParams(temperature=0.9, seed=3, top_k=3, top_p=0.9, min_p=0.01),
    SamplingParams(temperature=0.9, seed=3, repetition_penalty=1.5, logit_bias={RULED_OUT[0]: 9}),
]


@pytest.fixture(scope="module")
def choosy():
    """An engine whose target allows few tokens."""
    target = tiny_target()
    engine = Engine(target, tiny_drafter(target), EngineConfig(max_context=64))
    rule_out(target, RULED_OUT)
    return engine


@pytest.mark.parametrize("rows", [1, 7])
def test_tokens_that_the_target_rules_out(choosy, rows):
    """The model's own scores, but for minus infinity among logits."""
    expected = choosy.target.reference_logits(torch.tensor(IDS))[3:-1].double()
    scores = choosy.score(IDS, 4, rows, top=6)
    assert {score.token_logit == -FAR for score in scores} == {True, False}
    for score, logits in zip(scores, expected, strict=True):
        log_probs = torch.log_softmax(logits, -1)
        finite = logits.clamp(min=-1e30)
        assert score.token_logit == pytest.approx(float(finite[score.token_id]), abs=1e-5)
        assert score.token_logprob == pytest.approx(float(log_probs[score.token_id]), abs=1e-5)
        best = logits.sort(descending=True, stable=True).indices[:6]
        assert score.top_ids == tuple(best.tolist())
        assert score.top_logits == pytest.approx(finite[best].tolist(), abs=1e-5)
        assert score.top_logits[4:] == (-1e30, -1e30)
        assert score.top_logprobs == pytest.approx(log_probs[best].tolist(), abs=1e-5)
        assert score.top_logprobs[4:] == (-math.inf, -math.inf)


@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_sampled_scores_of_tokens_that_the_target_rules_out(choosy, sampling):
    """They have no share and are never listed; what a request would have chosen is."""
    for score in choosy.score(IDS, 4, 1, top=6, sampling=sampling):
        sampled = score.sampled
        numbers = [sampled.score, sampled.edge, sampled.before, sampled.share]
        assert all(map(math.isfinite, [*numbers, *sampled.top_scores, *sampled.top_edges]))
        assert set(sampled.top_ids) <= set(ALLOWED)
        assert sampled.top_ids
        if score.token_id not in ALLOWED:
            assert (sampled.score, sampled.edge, sampled.share) == (-1e30, -1e30, 0)
    request = choosy.generate([IDS[:4]], sampling, Speculation("ddtree", 8, 6))[0]
    assert set(request.output) <= set(ALLOWED)
    scores = choosy.score([*IDS[:4], *request.output], 4, 1, 6, sampling)
    assert [score.sampled.top_ids[0] for score in scores] == request.output


def test_logits_beyond_the_number_for_infinity_keep_the_order():
    """Masks that are large numbers, beside infinite ones."""
    target = tiny_target()
    engine = Engine(target, tiny_drafter(target), EngineConfig(max_context=64))
    rule_out(target, RULED_OUT[1:])
    rule_out(target, RULED_OUT[:1], -3e38)
    for score in engine.score(IDS, 4, top=6):
        assert score.top_ids[4] == RULED_OUT[0]
        assert score.top_logits[4:] == (-1e30, -1e30)


def test_a_target_that_rules_out_everything_is_refused():
    target = tiny_target()
    engine = Engine(target, tiny_drafter(target), EngineConfig(max_context=64))
    rule_out(target, list(range(61)))
    with pytest.raises(EngineError, match="rule out every token"):
        engine.score(IDS, 4)
    assert engine.is_idle
