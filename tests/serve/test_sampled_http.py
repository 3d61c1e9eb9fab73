"""Sampling over HTTP: seeds, choices, edits, log-probabilities, and what is refused."""

import pytest
from sampled_checks import BASE, CHECKS, COMPLETIONS, LETTERS, PROMPT, choice
from serve_calls import call, post
from tiny_server import EOS, VOCABULARY, tiny_engine

from ddtree.engine import SamplingParams


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_promises(tiny, check):
    check(tiny)


@pytest.fixture(scope="module")
def engine():
    """The server's twin, asked without HTTP."""
    return tiny_engine()


BIAS = {int(token): value for token, value in LETTERS.items()}
WANTED = {"temperature": 0.9, "seed": 4}
EDITS = {"temperature": 0.0, "logit_bias": BIAS}


@pytest.mark.parametrize(
    ("base", "fields", "engine_fields"),
    [
        (WANTED, {"temperature": 0.3}, None),
        (WANTED, {"temperature": 0}, None),
        (WANTED, {"top_p": 0.2}, None),
        (WANTED, {"top_k": 2}, None),
        (WANTED, {"min_p": 0.7}, None),
        (WANTED, {"seed": 2**63 - 1}, None),
        (EDITS, {"repetition_penalty": 2.0}, None),
        (EDITS, {"presence_penalty": -2.0}, None),
        (EDITS, {"frequency_penalty": 1.5}, None),
        (EDITS, {"logit_bias": {97: -100, 98: 100}}, None),
        (
            EDITS,
            {"bad_words": ["b", "cc"]},
            {"bad_words": ((98,), (32, 98), (99, 99), (32, 99, 99))},
        ),
        (EDITS, {"bad_words": [" a"]}, {"bad_words": ((258,),)}),
        (WANTED | {"stop_token_ids": tuple(range(0, 256, 2))}, {"min_tokens": 9}, None),
        (WANTED, {"stop_token_ids": tuple(range(0, 256, 2))}, None),
        (WANTED | {"logit_bias": {EOS: 100}}, {"ignore_eos": True}, None),
    ],
    ids=lambda value: str(value)[:50],
)
def test_every_field_reaches_the_engine(tiny, engine, base, fields, engine_fields):
    """The engine's own answer with the field, which differs from the one without."""

    def own(params):
        return engine.generate([PROMPT], SamplingParams(max_tokens=20, **params))[0].output

    body = base | fields
    if "logit_bias" in body:
        body["logit_bias"] = {str(token): value for token, value in body["logit_bias"].items()}
    expected = own(base | (fields if engine_fields is None else engine_fields))
    assert choice(tiny, **body)["token_ids"] == expected != own(base)


@pytest.mark.parametrize("given", [{}, {"temperature": None}])
@pytest.mark.parametrize(
    ("path", "prompt"),
    [
        (COMPLETIONS, {"prompt": "ab"}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "ab"}]}),
    ],
)
def test_sampling_is_the_default(tiny, path, prompt, given):
    body = prompt | given | {"max_tokens": 2, "return_stats": True}
    stats = [post(tiny.url, path, body)["ddtree"] for _ in range(2)]
    assert [s["temperature"] for s in stats] == [1.0, 1.0]
    assert stats[0]["seed"] != stats[1]["seed"]
    greedy = post(tiny.url, path, body | {"temperature": 0})["ddtree"]
    assert (greedy["temperature"], greedy["seed"]) == (0, None)


REFUSED = [
    ("temperature", [-0.1, True, "1", 10**400]),
    ("top_p", [0, 1.01, -1, True, "0.5"]),
    ("top_k", [-2, 1.5, True, "3"]),
    ("min_p", [-0.1, 1.1, False]),
    ("seed", [-1, 2**63, 1.0, True, "7"]),
    ("repetition_penalty", [0, -1, 2.5, True]),
    ("presence_penalty", [-2.1, 2.1, True]),
    ("frequency_penalty", [-2.1, 2.1, "0"]),
    (
        "logit_bias",
        [
            {"7": 101},
            {"7": -101},
            {"7": True},
            {"7": "1"},
            {"x": 1},
            {"07": 1},
            {"-1": 1},
            {str(VOCABULARY): 1},
            [7],
        ],
    ),
    ("bad_words", [[""], "ab", [1], ["\ud800"], ["ab", ""]]),
    ("min_tokens", [-1, 21, True, 2**70]),
    ("stop_token_ids", [[-1], [VOCABULARY]]),
    ("ignore_eos", [1, "yes"]),
    ("n", [0, 129, True, 1.5]),
    ("logprobs", [-1, 21, True, 1.0]),
]


@pytest.mark.parametrize(
    ("field", "value"),
    [(field, value) for field, values in REFUSED for value in values],
    ids=lambda value: repr(value)[:30],
)
def test_refusals_name_the_field(tiny, field, value):
    code, answer = call(tiny.url, COMPLETIONS, BASE | {field: value})
    assert code == 400, answer
    assert answer["error"]["param"].partition(".")[0] == field
    assert answer["error"]["message"].startswith(field)
    if field == "logit_bias":
        assert answer["error"]["param"] == field


@pytest.mark.parametrize("value", ["NaN", "Infinity", "-Infinity", "1e999"])
@pytest.mark.parametrize("field", ["temperature", "top_p", "presence_penalty", "logit_bias"])
def test_what_is_no_number_is_refused(tiny, field, value):
    value = f'{{"7": {value}}}' if field == "logit_bias" else value
    raw = f'{{"prompt": "a", "{field}": {value}}}'.encode()
    code, answer = call(tiny.url, COMPLETIONS, raw=raw)
    assert (code, answer["error"]["param"]) == (400, field)


def test_equal_choices_are_refused(tiny):
    code, answer = call(tiny.url, COMPLETIONS, BASE | {"temperature": 0, "n": 3})
    assert (code, answer["error"]["param"]) == (400, "n")
    assert "all choices are the same" in answer["error"]["message"]
    assert len(post(tiny.url, COMPLETIONS, BASE | {"temperature": 0, "n": 1})["choices"]) == 1


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ({"logprobs": True, "top_logprobs": -1}, "top_logprobs"),
        ({"logprobs": 3}, "logprobs"),
    ],
)
def test_chat_refuses_by_name(tiny, fields, param):
    body = {"messages": [{"role": "user", "content": "x"}], "max_tokens": 2}
    code, answer = call(tiny.url, "/v1/chat/completions", body | fields)
    assert (code, answer["error"]["param"]) == (400, param)


def test_chat_logprobs_have_bytes_where_there_is_text(tiny):
    body = {"messages": [{"role": "user", "content": "x"}], "max_tokens": 30, "seed": 1}
    answer = post(
        tiny.url,
        "/v1/chat/completions",
        body | {"logprobs": True, "top_logprobs": 3, "return_token_ids": True},
    )
    found = answer["choices"][0]
    entries = found["logprobs"]["content"]
    assert len(entries) == len(found["token_ids"]) == answer["usage"]["completion_tokens"]
    for entry, token in zip(entries, found["token_ids"], strict=True):
        assert len(entry["top_logprobs"]) == 3
        best = [top["logprob"] for top in entry["top_logprobs"]]
        assert best == sorted(best, reverse=True)
        assert entry["logprob"] <= best[0] + 1e-9
        assert entry["bytes"] == ([token] if token < 128 else None)
    bare = post(tiny.url, "/v1/chat/completions", body | {"logprobs": True})["choices"][0]
    assert {len(entry["top_logprobs"]) for entry in bare["logprobs"]["content"]} == {0}
    without = post(tiny.url, "/v1/chat/completions", body)["choices"][0]
    assert without["logprobs"] is None


def test_the_server_outlives_all_that(tiny):
    assert call(tiny.url, "/health") == (200, {"status": "ok"})
    answer = post(tiny.url, COMPLETIONS, BASE | {"ignore_eos": True})
    assert answer["usage"]["completion_tokens"] == 20
