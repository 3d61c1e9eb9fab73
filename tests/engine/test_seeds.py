"""A seed gives the same tokens with every method, alone and in any company."""

import functools
import itertools
import math

import pytest
import torch

from ddtree.engine import Engine, EngineConfig, SamplingParams, Speculation
from ddtree.errors import RequestError
from support.drafts import oracle, with_drafts
from support.law import edited_row, gumbel_of, kept_tokens, processed, sampled_text
from support.tiny import tiny_drafter, tiny_target

COUNT, VOCAB = 16, 61
METHODS = [
    Speculation("ar"),
    Speculation("chain"),
    *(Speculation("ddtree", b, k) for b, k in [(1, 1), (3, 2), (8, 4), (33, 8)]),
]
PROMPT, OTHER = (7, 3, 50, 12, 9), (20, 20, 1)
FILTERS = {"top_k": 12, "top_p": 0.9, "min_p": 0.01}
EDITS = {
    "repetition_penalty": 1.3,
    "presence_penalty": 0.5,
    "frequency_penalty": 0.4,
    "logit_bias": {5: 3.0, 9: -math.inf},
    "bad_words": ((11,), (5, 8), (8, 5)),
    "min_tokens": 6,
    "stop_token_ids": (5, 30, 31),
}
SETTINGS = [
    {"temperature": 0.7},
    {"temperature": 1.0, **FILTERS},
    {"temperature": 1.5, "top_p": 0.7},
    {"temperature": 1.0, **EDITS},
    {"temperature": 1.5, **FILTERS, **EDITS},
    {"temperature": 0.0, **EDITS},
    {"temperature": 0.0},
]


@pytest.fixture(scope="module")
def target():
    # Another seed than elsewhere: flatter distributions, so that sampling has a choice.
    return tiny_target(1)


@pytest.fixture(scope="module")
def alone(target):
    """By setting's number and seed: the request decoded one token at a time, by itself."""
    engine = make_engine(target)
    return {
        (number, seed): engine.generate([PROMPT], params(number, seed), Speculation("ar"))[0]
        for number, seed in itertools.product(range(len(SETTINGS)), (1, 2**62))
    }


def make_engine(target, **config):
    return Engine(target, tiny_drafter(target), EngineConfig(**{"max_context": 64, **config}))


def params(number, seed, **more):
    return SamplingParams(COUNT, seed=seed, **{**SETTINGS[number], **more})


def oracle_engine(target, alone, number, seed, **config):
    """Drafts that hold the tokens to come at most places: long paths are walked."""
    right = oracle({PROMPT: alone[number, seed].output}, 4, VOCAB)

    def propose(request):
        wrong = len(request.output) % 3
        return [(t + (place == 3 - wrong)) % VOCAB for place, t in enumerate(right(request))]

    return with_drafts(make_engine(target, **config), propose)


def next_logits(target, output):
    """Logits [V] after the prompt and `output` by the model's own forward pass."""
    with torch.inference_mode():
        return target.reference_logits(torch.tensor([*PROMPT, *output]))[-1].tolist()


@pytest.mark.parametrize("number", range(len(SETTINGS)))
def test_every_method_gives_the_reference_text(target, alone, number):
    seed = (1, 2**62)[number % 2]
    one = params(number, seed)
    expected = sampled_text(functools.partial(next_logits, target), one, PROMPT, COUNT)
    assert alone[number, seed].output == expected
    engines = (make_engine(target), oracle_engine(target, alone, number, seed))
    for engine, speculation in itertools.product(engines, METHODS[1:]):
        got = engine.generate([PROMPT], one, speculation)[0]
        assert got.output == expected, speculation
        got.stats.check()


def test_good_drafts_are_accepted_when_sampled(target, alone):
    """Equality means little if every round ends at the root."""
    engine = oracle_engine(target, alone, 1, 1)
    request = engine.generate([PROMPT], params(1, 1), Speculation("ddtree", 8, 4))[0]
    assert request.stats.acceptance_length > 2


def test_seeds_matter(alone):
    for number, one in enumerate(SETTINGS):
        same = alone[number, 1].output == alone[number, 2**62].output
        assert same == (one["temperature"] == 0)


def test_mixed_company_changes_nothing(target, alone):
    """Greedy, sampled and penalised requests of all methods share rounds; slots are used again."""
    engine = make_engine(target, slots=8)
    for _ in range(2):
        submitted = []
        for number, seed in alone:
            speculation = METHODS[(number + seed) % len(METHODS)]
            submitted.append(
                ((number, seed), engine.submit(PROMPT, params(number, seed), speculation))
            )
            engine.submit(OTHER, SamplingParams(5, temperature=1.0), METHODS[number % 6])
        while not engine.is_idle:
            engine.step()
        for key, request in submitted:
            assert request.output == alone[key].output
            assert request.finish_reason == alone[key].finish_reason


def test_requests_without_a_seed_get_seeds_of_their_own(target):
    engine = make_engine(target)
    speculation = Speculation("ddtree", 8, 4)
    drawn = engine.generate([PROMPT] * 6, SamplingParams(8, temperature=1.0), speculation)
    assert len({r.seed for r in drawn}) == 6
    assert len({tuple(r.output) for r in drawn}) > 1
    for request in drawn:
        assert request.summary()["seed"] == request.seed
        again = SamplingParams(8, temperature=1.0, seed=request.seed)
        assert engine.generate([PROMPT], again, Speculation("ar"))[0].output == request.output


# ---- log-probabilities -------------------------------------------------------------------------


@pytest.mark.parametrize("number", [0, 1, 4, 5, 6])
@pytest.mark.parametrize("top", [0, 3, 20])
def test_logprobs_are_the_raw_ones_of_every_token(target, alone, number, top):
    one = params(number, 1, logprobs=top)
    plain, tree = (
        engine.generate([PROMPT], one, speculation)[0]
        for engine, speculation in (
            (make_engine(target), Speculation("ar")),
            (oracle_engine(target, alone, number, 1), Speculation("ddtree", 8, 4)),
        )
    )
    with torch.inference_mode():
        logits = target.reference_logits(torch.tensor([*PROMPT, *tree.output]))
    raw = torch.log_softmax(logits, -1)[len(PROMPT) - 1 : -1]
    for request in (plain, tree):
        assert [entry.token_id for entry in request.logprobs] == request.output
        for entry, row in zip(request.logprobs, raw, strict=True):
            assert entry.logprob == pytest.approx(float(row[entry.token_id]), abs=1e-5)
            best = row.topk(top)
            assert [i for i, _ in entry.top] == best.indices.tolist()
            assert [v for _, v in entry.top] == pytest.approx(best.values.tolist(), abs=1e-5)


@pytest.mark.parametrize("limit", range(1, 8))
def test_logprobs_end_where_the_text_does(target, alone, limit):
    """Cut inside an accepted run by the limit, and by a stop token."""
    output = alone[1, 1].output
    for more in ({}, {"stop_token_ids": (output[limit],)}):
        engine = oracle_engine(target, alone, 1, 1)
        one = SamplingParams(COUNT if more else limit, seed=1, logprobs=1, **SETTINGS[1], **more)
        request = engine.generate([PROMPT], one, Speculation("chain"))[0]
        expected = output[: output.index(output[limit]) + 1] if more else output[:limit]
        assert request.output == expected
        assert [entry.token_id for entry in request.logprobs] == expected


def test_no_logprobs_unless_asked_for(alone):
    assert all(request.logprobs == [] for request in alone.values())


# ---- edits and their ends ----------------------------------------------------------------------


def test_bans_hold_inside_accepted_runs(alone):
    for number in (3, 4, 5):
        for seed in (1, 2**62):
            output = alone[number, seed].output
            assert not {9, 11} & set(output)
            assert not {(5, 8), (8, 5)} & set(itertools.pairwise(output))
            assert not {5, 30, 31} & set(output[:6])


def test_edits_change_the_text(alone):
    assert alone[6, 1].output != alone[5, 1].output
    assert alone[3, 1].output != alone[0, 1].output


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_request_that_bans_everything_fails_alone(target, alone, temperature):
    """At the third token, inside an accepted run: one token is left, and not three times."""
    bias = {token: -math.inf for token in range(VOCAB) if token != 4}
    one = SamplingParams(COUNT, temperature, seed=1, logit_bias=bias, bad_words=((4, 4, 4),))
    engine = make_engine(target, slots=2)
    for speculation in (Speculation("ar"), Speculation("ddtree", 8, 4)):
        with_drafts(engine, lambda request: [4] * 4)
        broken = engine.submit(PROMPT, one, speculation)
        sound = engine.submit(PROMPT, params(1, 1), speculation)
        while not engine.is_idle:
            engine.step()
        assert broken.finish_reason == "error"
        for field in ("logit_bias", "bad_words", "min_tokens"):
            assert field in broken.error
        assert sound.output == alone[1, 1].output


def test_everything_banned_for_the_first_token(target):
    bias = {token: -math.inf for token in range(VOCAB)}
    request = make_engine(target).generate([PROMPT], SamplingParams(3, logit_bias=bias))[0]
    assert (request.finish_reason, request.output) == ("error", [])
    assert "logit_bias" in request.error


def test_extreme_temperatures(target, alone):
    engine = make_engine(target)
    tree = Speculation("ddtree", 8, 4)
    for temperature in (1e-6, 1e-310):
        one = SamplingParams(COUNT, temperature, seed=3)
        assert engine.generate([PROMPT], one, tree)[0].output == alone[6, 1].output
    for filters in ({}, {"top_p": 0.5}, FILTERS):
        hot = SamplingParams(COUNT, 1e9, seed=3, **filters)
        texts = [engine.generate([PROMPT], hot, one)[0].output for one in (METHODS[0], tree)]
        assert texts[0] == texts[1]
    assert len(set(texts[0])) > 1


@pytest.mark.parametrize("temperature", [0.7, 0.0])
def test_odd_logits_end_a_sampled_request_where_its_walk_meets_them(target, alone, temperature):
    one = SamplingParams(COUNT, temperature, seed=1, frequency_penalty=0.1)
    expected = make_engine(target).generate([PROMPT], one, Speculation("ar"))[0].output
    for on_root in (False, True):
        engine = with_drafts(make_engine(target), lambda request: [60, 60, 60, 60])
        head = engine.target.head

        def broken(hidden, head=head, on_root=on_root):
            logits = head(hidden)
            if logits.dim() == 3 and logits.shape[1] > 5:  # a tree's rows
                logits[:, 0 if on_root else -1] = float("nan")
            return logits

        engine.target.head = broken
        request = engine.generate([PROMPT], one, Speculation("ddtree", 8, 4))[0]
        engine.target.head = head
        assert request.finish_reason == ("error" if on_root else "length")
        assert request.output == (expected[:1] if on_root else expected)


# ---- refusals ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("field", "values"),
    [
        ("max_tokens", [0, -1, 1.0, True, None, "3"]),
        ("temperature", [-0.1, math.inf, math.nan, None, "1", True]),
        ("top_k", [-2, 1.5, True, None]),
        ("top_p", [0, 0.0, -0.1, 1.1, math.nan, None]),
        ("min_p", [-0.1, 1.1, math.nan, None]),
        ("seed", [-1, 2**63, 1.0, True]),
        ("repetition_penalty", [0.0, -1.0, 2.1, math.nan, math.inf]),
        ("presence_penalty", [-2.1, 2.1, math.nan]),
        ("frequency_penalty", [-2.1, 2.1, math.nan]),
        ("min_tokens", [-1, 129, 1.0, None]),
        ("logprobs", [-1, 21, 1.5, True]),
        ("bad_words", [((),), ((1,), ())]),
    ],
)
def test_values_out_of_range_name_their_field(field, values):
    for value in values:
        with pytest.raises(RequestError) as raised:
            SamplingParams(**{field: value})
        assert raised.value.field == field


@pytest.mark.parametrize("value", [math.nan, math.inf, 100.5, -100.5])
def test_a_bias_out_of_range_names_its_token(value):
    with pytest.raises(RequestError) as raised:
        SamplingParams(logit_bias={1: 0.0, 7: value})
    assert raised.value.field == "logit_bias[7]"


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *(("logit_bias", {token: 1.0}) for token in (-1, VOCAB)),
        *(("bad_words", ((1, token),)) for token in (-1, VOCAB)),
    ],
)
def test_ids_outside_the_vocabulary_are_refused(target, field, value):
    for refuse in (
        lambda one: make_engine(target).submit(PROMPT, one),
        lambda one: make_engine(target).make_score(PROMPT, 1, sampling=one),
    ):
        with pytest.raises(
            RequestError, match=f"token id .* outside the vocabulary of {VOCAB}"
        ) as e:
            refuse(SamplingParams(**{field: value}))
        assert e.value.field == field


# ---- scores ------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", range(len(SETTINGS)))
def test_scores_choose_the_generated_tokens(target, alone, number):
    """The best score among kept tokens is the drawn token's; mass before it and its share by
    numpy."""
    output, one = alone[number, 1].output, params(number, 1)
    scores = make_engine(target).score([*PROMPT, *output], len(PROMPT), top=20, sampling=one)
    with torch.inference_mode():
        logits = target.reference_logits(torch.tensor([*PROMPT, *output]))[len(PROMPT) - 1 : -1]
    assert [score.token_id for score in scores] == output
    for place, score in enumerate(scores):
        sampled, token = score.sampled, output[place]
        edited = edited_row(logits[place].tolist(), one, PROMPT, output[:place], one.stop_token_ids)
        p = processed(edited, one)
        better = [t for t, v in enumerate(edited) if (-v, t) < (-edited[token], token)]
        listed = dict(zip(sampled.top_ids, sampled.top_edges, strict=True))
        assert next(t for t, edge in listed.items() if edge > 0) == token
        assert sampled.score == sampled.top_scores[sampled.top_ids.index(token)]
        assert list(sampled.top_scores) == sorted(sampled.top_scores, reverse=True)
        assert sampled.edge > 0
        assert sampled.share == pytest.approx(p[token], abs=1e-5)
        assert sampled.before == pytest.approx(sum(p[t] for t in better), abs=1e-5)
        expected = edited[token] + one.temperature * gumbel_of(1, len(PROMPT) + place, token)
        assert sampled.score == pytest.approx(expected, abs=1e-5)
        if one.temperature > 0:
            kept = kept_tokens(edited, one)[0]
            assert {t for t, edge in listed.items() if edge > 0} <= set(kept)


@pytest.mark.parametrize("rows", [3, 9])
def test_scores_do_not_depend_on_the_rows_of_a_pass(target, alone, rows):
    ids, one = [*PROMPT, *alone[4, 1].output], params(4, 1)
    engine = make_engine(target)
    alone_, together = (engine.score(ids, len(PROMPT), n, sampling=one) for n in (1, rows))
    for a, b in zip(alone_, together, strict=True):
        assert a.sampled.top_ids == b.sampled.top_ids
        assert a.sampled.score == pytest.approx(b.sampled.score, abs=1e-9)
