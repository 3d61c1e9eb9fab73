"""Outputs whose ends matter: stop tokens, limits, a context that is full."""

import asyncio

import pytest
from planted_engine import VOCABULARY, make_engine, running
from synthetic import output

from ddtree.engine import Engine, EngineConfig, SamplingParams, Speculation
from ddtree.errors import EngineError
from ddtree.records.arms import Arm
from ddtree.records.sampling import Sampling
from ddtree.verify.outputs import compare
from ddtree.verify.run import VerifyPlan, run_verify
from support.tiny import tiny_drafter, tiny_target

EOS = frozenset({9})


def fault(baseline, arm, eos_ids=EOS):
    return compare(baseline, arm, eos_ids).fault


def test_running_through_the_stop_after_a_difference():
    base = output((1,), (2, 3, 4, 5), "length")
    assert "went on after the stop token 9" in fault(base, output((1,), (2, 7, 9, 5), "length"))
    assert fault(base, output((1,), (2, 7, 8, 5), "length")) is None


def test_stopping_without_a_stop_token():
    base = output((1,), (2, 3, 4, 5), "length")
    assert "without a stop token" in fault(base, output((1,), (2, 7), "stop", 4))
    assert fault(base, output((1,), (2, 9), "stop", 4)) is None
    # Where nobody says what stops, nothing can be held against it.
    assert fault(base, output((1,), (2, 7), "stop", 4), frozenset()) is None


def test_a_full_context_ends_all_alike():
    base = output((1,), (2, 3, 4), "length", 8)
    assert fault(base, output((1,), (2, 7, 8), "length", 8)) is None
    assert "under the limit" in fault(base, output((1,), (2, 7), "length", 8))


def test_an_empty_output_is_compared_like_any():
    base = output((1,), (), "stop", 4)
    assert fault(base, output((1,), (3, 9), "stop", 4)) is not None


@pytest.mark.parametrize("prompt", [(5,), (5, 9, 23, 41)])
def test_outputs_that_fill_the_context(prompt):
    """Scored to their last token; a first prompt of one token is as good as any."""
    target = tiny_target(seed=3, vocab_size=VOCABULARY)
    config = EngineConfig(slots=2, max_context=20)
    plan = VerifyPlan(
        prompts=(prompt, (8, 2)),
        arms=(Arm("ddtree", 8, 4),),
        samplings=(Sampling(), Sampling(0.8)),
        max_tokens=64,
        concurrencies=(1, 2),
        dtype="float64",
        block_size=5,
    )
    with running(Engine(target, tiny_drafter(target), config)) as source:
        report = asyncio.run(run_verify(plan, source, source, lambda _: None))
    assert report.verdict == "exact", report.headline
    assert all(result.scored and result.control for result in report.results)
    assert report.results[1].law.positions == (20 - len(prompt)) + 18


def test_logits_that_are_no_numbers_end_the_scoring_and_nothing_else():
    engine = make_engine()
    head = engine.target.model.lm_head.weight
    sound = engine.score((5, 9, 23), 1)
    kept = head[3].clone()
    head[3] = float("nan")
    with pytest.raises(EngineError, match="NaN"):
        engine.score((5, 9, 23), 1)
    head[3] = kept
    assert engine.is_idle
    assert engine.score((5, 9, 23), 1) == sound


@pytest.mark.parametrize("temperature", [1e-300, 1e25, 1e300])
def test_scores_agree_with_the_engine_at_any_temperature(temperature):
    engine = make_engine()
    sampling = SamplingParams(12, temperature=temperature, seed=4)
    request = engine.generate([(5, 9, 23)], sampling, Speculation("ar"))[0]
    scores = engine.score((5, 9, 23, *request.output), 3, sampling=sampling)
    assert [score.sampled.top_ids[0] for score in scores] == request.output
