"""The HTTP contract, spoken by a real client to a real server with the real model."""

import json
import urllib.request
from concurrent.futures import ThreadPoolExecutor

import pytest
from serve_calls import call, stream

pytestmark = pytest.mark.model

PROMPT = "def fibonacci(n):\n"
ARMS = [
    {"method": "ar"},
    {"method": "chain"},
    {"method": "ddtree", "budget": 8, "topk": 4},
    {"method": "ddtree", "budget": 20, "topk": 2, "draft_window": 64},
]


def complete(url, **fields):
    body = {"prompt": PROMPT, "max_tokens": 24, "temperature": 0, **fields}
    status, answer = call(url, "/v1/completions", body)
    assert status == 200, answer
    return answer


@pytest.fixture(scope="module")
def baseline(server_url):
    answer = complete(server_url, speculation={"method": "ar"}, return_token_ids=True)
    return answer["choices"][0]


@pytest.mark.parametrize("arm", ARMS, ids=str)
def test_every_method_gives_the_same_answer(server_url, baseline, arm):
    answer = complete(server_url, speculation=arm, return_token_ids=True, return_stats=True)
    assert answer["choices"][0] == baseline
    stats = answer["ddtree"]
    assert stats["token_ids"] == baseline["token_ids"]
    assert (stats["method"], stats["completion_tokens"]) == (arm["method"], 24)
    accepted = sum(a * n for a, n in enumerate(stats["accepted_histogram"]))
    assert 1 + accepted + stats["rounds"] - stats["cut_tokens"] == 24
    if arm["method"] != "ar":
        assert stats["acceptance_length"] > 1.2
        assert stats["draft_window"] == arm.get("draft_window", 512)
    assert answer["usage"] == {
        "prompt_tokens": stats["prompt_tokens"],
        "completion_tokens": 24,
        "total_tokens": stats["prompt_tokens"] + 24,
    }


@pytest.mark.parametrize("arm", ARMS, ids=str)
def test_streamed_answer_is_the_whole_one(server_url, baseline, arm):
    events = stream(
        server_url,
        "/v1/completions",
        {
            "prompt": PROMPT,
            "max_tokens": 24,
            "temperature": 0,
            "speculation": arm,
            "stream_options": {"include_usage": True},
            "return_token_ids": True,
            "return_stats": True,
        },
    )
    *chunks, usage = events
    choices = [event["choices"][0] for event in chunks]
    assert "".join(c["text"] for c in choices) == baseline["text"]
    assert [i for c in choices for i in c["token_ids"]] == baseline["token_ids"]
    assert [c["finish_reason"] for c in choices] == [None] * (len(choices) - 1) + ["length"]
    assert [("ddtree" in e) for e in chunks] == [False] * (len(chunks) - 1) + [True]
    assert usage["choices"] == []
    assert usage["usage"]["completion_tokens"] == 24


def test_concurrent_requests_of_all_methods(server_url, baseline):
    """More requests than slots, each with its own answer."""
    limits = [24, 7, 1, 13]

    def ask(number):
        limit = limits[number % 4]
        answer = complete(
            server_url,
            speculation=ARMS[number // 2 % 4],
            max_tokens=limit,
            return_token_ids=True,
        )
        return answer["choices"][0]["token_ids"], limit

    with ThreadPoolExecutor(8) as pool:
        for ids, limit in pool.map(ask, range(16)):
            assert ids == baseline["token_ids"][:limit]
    status, info = call(server_url, "/server_info")
    assert (status, info["running"], info["waiting"]) == (200, 0, 0)


def test_prompt_as_ids(server_url, baseline):
    _, tokens = call(server_url, "/tokenize", {"prompt": PROMPT})
    assert tokens["max_model_len"] == 512
    answer = complete(server_url, prompt=tokens["tokens"], return_token_ids=True)
    assert answer["choices"][0] == baseline
    assert answer["usage"]["prompt_tokens"] == tokens["count"]
    _, text = call(server_url, "/detokenize", {"tokens": tokens["tokens"]})
    assert text["prompt"] == PROMPT


def test_stop_token_ends_the_answer_and_stays_out_of_the_text(server_url, baseline):
    ids = baseline["token_ids"]
    stop = ids[9]
    first = ids.index(stop)
    for arm in ARMS:
        choice = complete(
            server_url, stop_token_ids=[stop], speculation=arm, return_token_ids=True
        )["choices"][0]
        assert choice["token_ids"] == ids[: first + 1]
        assert choice["finish_reason"] == "stop"
        assert baseline["text"].startswith(choice["text"])


def test_stop_strings_end_the_answer_the_same_for_every_method(server_url, baseline):
    text = baseline["text"]
    stop = text[len(text) // 2 :][:3]
    for arm in ARMS:
        choice = complete(server_url, stop=[stop], speculation=arm, return_token_ids=True)[
            "choices"
        ][0]
        assert (choice["text"], choice["finish_reason"]) == (text[: text.index(stop)], "stop")
        count = len(choice["token_ids"])
        assert choice["token_ids"] == baseline["token_ids"][:count]
    body = {"prompt": PROMPT, "max_tokens": 24, "temperature": 0, "stop": stop}
    events = stream(server_url, "/v1/completions", body)
    assert "".join(e["choices"][0]["text"] for e in events) == text[: text.index(stop)]


def test_chat(server_url):
    message = {"role": "user", "content": "Say hello."}
    body = {"messages": [message], "max_tokens": 12, "temperature": 0}
    _, whole = call(server_url, "/v1/chat/completions", body)
    assert whole["object"] == "chat.completion"
    message = whole["choices"][0]["message"]
    assert message["role"] == "assistant"
    events = stream(server_url, "/v1/chat/completions", body)
    assert events[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert {e["object"] for e in events} == {"chat.completion.chunk"}
    text = "".join(e["choices"][0]["delta"]["content"] for e in events)
    assert text == message["content"] != ""


def test_sampled_tokens_and_their_texts(server_url):
    """A seed's tokens come from every method; tokens' texts, spaces included, make the text."""
    fields = {"temperature": 0.8, "top_p": 0.9, "seed": 12, "logprobs": 2, "return_token_ids": True}
    answers = [complete(server_url, speculation=arm, **fields)["choices"][0] for arm in ARMS[:3]]
    first = answers[0]
    assert all(answer["token_ids"] == first["token_ids"] for answer in answers)
    entries = first["logprobs"]
    assert "".join(entries["tokens"]) == first["text"]
    assert any(token.startswith(" ") for token in entries["tokens"])
    places = [len("".join(entries["tokens"][:i])) for i in range(24)]
    assert entries["text_offset"] == places


def test_scores_are_those_of_decoding(server_url, baseline):
    """The baseline's own tokens are the best ones at every position."""
    _, tokens = call(server_url, "/tokenize", {"prompt": PROMPT})
    ids = tokens["tokens"] + baseline["token_ids"]
    for rows in (1, 9):
        answer = complete(
            server_url,
            prompt=ids,
            echo=True,
            logprobs=5,
            max_tokens=0,
            score_from=tokens["count"],
            score_rows=rows,
        )
        scores = answer["choices"][0]["logprobs"]
        assert scores["token_ids"] == ids
        assert scores["top_ids"][: tokens["count"]] == [None] * tokens["count"]
        top = [best[0] for best in scores["top_ids"][tokens["count"] :]]
        assert top == baseline["token_ids"]
        for logit, best in zip(scores["token_logits"], scores["top_logits"], strict=True):
            assert logit is None or logit == best[0]
        assert all(p < 0 for p in scores["token_logprobs"] if p is not None)


def test_information(server_url):
    assert call(server_url, "/health") == (200, {"status": "ok"})
    assert call(server_url, "/v1/models")[1]["data"][0]["id"] == "smollm2-135m"
    _, info = call(server_url, "/server_info")
    assert (info["dtype"], info["slots"], info["max_context"]) == ("float32", 4, 512)
    assert (info["max_budget"], info["max_topk"], info["block_size"]) == (64, 16, 8)
    assert (info["draft_window"], info["window_kind"]) == (512, "anchored")


@pytest.mark.parametrize(
    ("body", "status", "param"),
    [
        ({"prompt": "a", "stop": ["x", ""]}, 400, "stop"),
        ({"prompt": "a", "echo": True, "logprobs": 1}, 400, "echo"),
        ({"prompt": "a", "max_tokens": 513}, 400, "max_tokens"),
        ({"prompt": "a", "surprise": 1}, 400, "surprise"),
        ({"prompt": "a", "max_tokens": 0}, 400, "max_tokens"),
        ({"prompt": "a", "max_tokens": "many"}, 400, "max_tokens"),
        ({"prompt": ""}, 400, "prompt"),
        ({"prompt": []}, 400, "prompt"),
        ({"prompt": [49152]}, 400, "prompt"),
        ({"prompt": [1] * 512}, 400, "prompt"),
        ({"prompt": "\ud800"}, 400, "prompt"),
        ({"prompt": "a", "model": "gpt"}, 404, "model"),
        ({"prompt": "a", "speculation": {"budget": 65}}, 400, "speculation.budget"),
        ({"prompt": "a", "speculation": {"topk": 17}}, 400, "speculation.topk"),
        ({"prompt": "a", "speculation": {"draft_window": 513}}, 200, None),
        ({"prompt": "a", "speculation": {"method": "ar", "topk": 1}}, 400, "speculation.topk"),
        ({"prompt": "a", "speculation": {"width": 1}}, 400, "speculation.width"),
        ({}, 400, "prompt"),
    ],
    ids=lambda value: str(value)[:60],
)
def test_refusals_name_the_field(server_url, body, status, param):
    code, answer = call(server_url, "/v1/completions", body)
    assert code == status, answer
    if param is not None:
        assert answer["error"]["param"] == param
        assert param in answer["error"]["message"]


@pytest.mark.parametrize(
    "raw", [b"{nope", b"\xff\xfe", b"[1]", b'{"prompt": "a", "temperature": NaN}']
)
def test_broken_bodies(server_url, raw):
    code, answer = call(server_url, "/v1/completions", raw=raw)
    assert code == 400
    assert answer["error"]["type"] == "invalid_request_error"


def test_refusals_leave_the_server_serving(server_url, baseline):
    assert complete(server_url, return_token_ids=True)["choices"][0] == baseline


def test_a_client_that_goes_away_frees_its_slot(server_url):
    body = json.dumps({"prompt": PROMPT, "max_tokens": 400, "ignore_eos": True, "stream": True})
    request = urllib.request.Request(
        server_url + "/v1/completions",
        data=body.encode(),
        headers={"content-type": "application/json"},
    )
    answers = [urllib.request.urlopen(request, timeout=60) for _ in range(4)]
    for answer in answers:
        answer.readline()
        answer.close()
    # All four slots were taken; this waits for one of them.
    assert complete(server_url, max_tokens=4)["usage"]["completion_tokens"] == 4
    for _ in range(200):
        if call(server_url, "/server_info")[1]["running"] == 0:
            return
    raise AssertionError("a slot is still taken")
