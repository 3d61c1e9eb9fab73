"""Scores as a request with sampling fields sees them."""

import pytest
from sampled_checks import COMPLETIONS, LETTERS, PROMPT, choice
from serve_calls import call, post

EXTRA = {"scores", "edges", "before", "share", "best_ids", "best_scores", "best_edges"}
SCORE = {"echo": True, "logprobs": 20, "max_tokens": 0, "score_from": len(PROMPT)}


def scores(server, ids, **fields):
    body = SCORE | {"prompt": PROMPT + ids} | fields
    return post(server.url, COMPLETIONS, body)["choices"][0]["logprobs"]


@pytest.mark.parametrize("rows", [1, 7])
@pytest.mark.parametrize(
    "fields",
    [
        {"temperature": 0.8, "seed": 9},
        {"temperature": 0.8, "seed": 9, "top_k": 30, "top_p": 0.95, "min_p": 0.001},
        {"temperature": 1.2, "seed": 9, "repetition_penalty": 1.5, "logit_bias": LETTERS},
        {"temperature": 0, "frequency_penalty": 1.5, "bad_words": ["a"]},
        {"temperature": 0},
        {"temperature": 1, "seed": 9, "min_tokens": 8, "stop_token_ids": list(range(0, 256, 2))},
    ],
    ids=str,
)
def test_the_best_is_what_was_generated(tiny, fields, rows):
    ids = choice(tiny, **fields)["token_ids"]
    found = scores(tiny, ids, score_rows=rows, **fields)
    for name in EXTRA:
        assert found[name][: len(PROMPT)] == [None] * len(PROMPT)
        assert len(found[name]) == len(PROMPT) + len(ids)
    kept = [
        [token for token, edge in zip(tokens, edges, strict=True) if edge > 0]
        for tokens, edges in zip(
            found["best_ids"][len(PROMPT) :], found["best_edges"][len(PROMPT) :], strict=True
        )
    ]
    assert [tokens[0] for tokens in kept] == ids
    for position in range(len(PROMPT), len(PROMPT) + len(ids)):
        place = found["best_ids"][position].index(found["token_ids"][position])
        assert found["scores"][position] == pytest.approx(found["best_scores"][position][place])
        assert found["edges"][position] == pytest.approx(found["best_edges"][position][place])
        assert 0 < found["share"][position] <= 1
        assert 0 <= found["before"][position] < 1


def test_another_seed_scores_otherwise(tiny):
    ids = choice(tiny, seed=9)["token_ids"]
    found = scores(tiny, ids, temperature=0.9, seed=10)
    assert [best[0] for best in found["best_ids"][len(PROMPT) :]] != ids


def test_without_sampling_fields_there_are_raw_scores_only(tiny):
    found = scores(tiny, [1, 2, 3])
    standard = {"tokens", "token_logprobs", "top_logprobs", "text_offset"}
    assert set(found) == standard | {"token_ids", "token_logits", "top_ids", "top_logits"}
    assert len(found["top_ids"][-1]) == 20
    sampled = scores(tiny, [1, 2, 3], temperature=1, seed=0)
    assert set(sampled) == set(found) | EXTRA
    assert {name: sampled[name] for name in found} == found


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"top_p": 0.9}, "temperature"),
        ({"seed": 0}, "temperature"),
        ({"min_tokens": 0}, "temperature"),
        ({"logit_bias": {"7": 1}}, "temperature"),
        ({"bad_words": ["a"]}, "temperature"),
        ({"stop_token_ids": [7]}, "temperature"),
        ({"temperature": 0.5}, "seed"),
        ({"temperature": 0.5, "seed": -1}, "seed"),
        ({"temperature": 0, "stop_token_ids": [-1]}, "stop_token_ids"),
        ({"temperature": 0, "logit_bias": {"7": 101}}, "logit_bias"),
        ({"n": 2}, "n"),
        ({"stop": "a"}, "stop"),
        ({"stream_options": {}}, "stream_options"),
        ({"stream": True}, "stream"),
        ({"return_stats": True}, "return_stats"),
        ({"speculation": {"method": "ar"}}, "speculation"),
        ({"logprobs": 21}, "logprobs"),
        ({"score_from": 0}, "score_from"),
        ({"max_tokens": 5}, "echo"),
    ],
    ids=str,
)
def test_refusals_name_the_field(tiny, fields, param):
    code, answer = call(tiny.url, COMPLETIONS, SCORE | {"prompt": [*PROMPT, 1, 2]} | fields)
    assert (code, answer["error"]["param"]) == (400, param), answer
