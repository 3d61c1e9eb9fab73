"""Teacher-forced scores: the target's own choices at every position."""

import pytest
import torch

from ddtree.engine import Engine, EngineConfig, Speculation
from ddtree.errors import RequestError
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
