"""Whatever comes, the answer is a 4xx in OpenAI's shape that names the field, and nobody else is
harmed."""

import collections
import contextlib
import http.client
import json

import pytest
from sampled_checks import BASE, CHAT, COMPLETIONS, PROMPT, choice
from serve_calls import call
from tiny_server import VOCABULARY, tiny_server

from mutations.planting import Mutation, planted

SURROGATE = "a\ud800b"
MESSAGES = [{"role": "user", "content": "x"}]
DEEP = "[" * 500 + "]" * 500


@pytest.fixture(scope="module", autouse=True)
def unharmed(tiny):
    """The same answer before and after, and every slot free."""
    before = choice(tiny, seed=5)
    yield
    assert choice(tiny, seed=5) == before
    _, info = call(tiny.url, "/server_info")
    assert (info["running"], info["waiting"]) == (0, 0)
    assert call(tiny.url, "/health") == (200, {"status": "ok"})


def refused(server, path, param, status=400, **sent):
    code, answer = call(server.url, path, **sent)
    assert code == status, answer
    assert set(answer) == {"error"}
    error = answer["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert (error["type"], error["param"]) == ("invalid_request_error", param), error
    assert error["message"].startswith((param or "body").split(".")[0])


BROKEN = [
    b"",
    b"{nope",
    b"[1]",
    b"7",
    b"null",
    b'"prompt"',
    b'{"prompt": "a"} x',
    b'{"prompt": "a",}',
    b"\xff\xfe",
    b'{"prompt": "\xff"}',
    b'{"prompt": "\xed\xa0\x80"}',  # a surrogate as bytes
    '{"prompt": "a"}'.encode("utf-16"),
    '{"prompt": "a"}'.encode("utf-32"),
    b'\xef\xbb\xbf{"prompt": "a"}',
    b"[" * 100_000,
    b'{"user": ' + b"[" * 5000 + b"]" * 5000 + b', "prompt": "a"}',
    b'{"prompt": "a", "seed": ' + b"9" * 5000 + b"}",
]


@pytest.mark.parametrize("path", [COMPLETIONS, CHAT, "/tokenize", "/detokenize"])
@pytest.mark.parametrize("raw", BROKEN, ids=lambda raw: repr(raw[:24]))
def test_what_is_no_json_object(tiny, path, raw):
    refused(tiny, path, None, raw=raw)


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", None])
def test_a_body_that_is_not_said_to_be_json(tiny, kind):
    connection = http.client.HTTPConnection(tiny.url.removeprefix("http://"), timeout=20)
    headers = {} if kind is None else {"content-type": kind}
    connection.request("POST", COMPLETIONS, b'{"prompt": "a"}', headers)
    with connection.getresponse() as answer:
        assert answer.status == 415
        error = json.loads(answer.read())["error"]
    connection.close()
    assert error["type"] == "invalid_request_error"
    assert "application/json" in error["message"]


@pytest.mark.parametrize(
    ("verb", "path", "status"),
    [
        ("GET", "/nowhere", 404),
        ("POST", "/v1/embeddings", 404),
        ("GET", "/v1/models/other", 404),
        ("GET", "/v1/models/a/b", 404),
        ("GET", COMPLETIONS, 405),
        ("DELETE", "/v1/models", 405),
        ("PUT", CHAT, 405),
    ],
)
def test_routes_that_do_not_exist(tiny, verb, path, status):
    connection = http.client.HTTPConnection(tiny.url.removeprefix("http://"), timeout=20)
    connection.request(verb, path, b"{}" if verb == "POST" else None)
    with connection.getresponse() as answer:
        assert answer.status == status
        assert (status == 405) == ("allow" in answer.headers)
        error = json.loads(answer.read())["error"]
    connection.close()
    assert error["type"] == "invalid_request_error"


PROMPTS = [
    "",
    [],
    [[]],
    [[1], []],
    ["a", ""],
    ["a", 1],
    [1, "a"],
    [[1], "a"],
    [[1], [2, "a"]],
    [True],
    [1, False],
    [1.0],
    [None],
    None,
    7,
    {"text": "a"},
    [-1],
    [VOCABULARY],
    [2**70],
    [[1], [VOCABULARY]],
    SURROGATE,
    ["a", SURROGATE],
    "x" * 128,
    [1] * 128,
    ["a", "x" * 128],
]


@pytest.mark.parametrize("prompt", PROMPTS, ids=lambda value: repr(value)[:30])
def test_prompts(tiny, prompt):
    refused(tiny, COMPLETIONS, "prompt", body={"prompt": prompt})


ANYWHERE = [
    ("model", "gpt", 404),
    ("model", 7, 400),
    ("model", SURROGATE, 400),
    ("surprise", 1, 400),
    ("Prompt", "a", 400),
    ("max_tokens", -1, 400),
    ("max_tokens", 129, 400),
    ("max_tokens", 2**31, 400),
    ("max_tokens", 10**400, 400),
    ("max_tokens", 8.0, 400),
    ("max_tokens", "8", 400),
    ("max_tokens", True, 400),
    ("temperature", [], 400),
    ("stream", "yes", 400),
    ("stream", 1, 400),
    ("stream_options", {}, 400),
    ("stream_options", {"include_usage": True}, 400),
    ("stream_options.include_usage", 1, 400),
    ("stream_options.include_obfuscation", True, 400),
    ("stream_options.surprise", 1, 400),
    ("speculation", "ddtree", 400),
    ("speculation.method", "eagle", 400),
    ("speculation.method", SURROGATE, 400),
    ("speculation.width", 1, 400),
    ("speculation.budget", -1, 400),
    ("speculation.budget", 65, 400),
    ("speculation.budget", True, 400),
    ("speculation.budget", 2**80, 400),
    ("speculation.topk", 0, 400),
    ("speculation.topk", 17, 400),
    ("speculation.draft_window", 0, 400),
    ("speculation.draft_window", "half", 400),
    ("speculation.draft_window", 1.5, 400),
    ("stop", "", 400),
    ("stop", ["a", ""], 400),
    ("stop", ["a"] * 17, 400),
    ("stop", "x" * 1001, 400),
    ("stop", [1], 400),
    ("stop", 7, 400),
    ("stop", {"a": 1}, 400),
    ("stop", SURROGATE, 400),
    ("stop", ["a", SURROGATE], 400),
    ("bad_words", [SURROGATE], 400),
    ("bad_words", ["a"] * 257, 400),
    ("bad_words", ["x" * 65], 400),
    ("prompt", ["a"] * 129, 400),
    ("prompt", [[1]] * 129, 400),
    ("prompt", "x" * 100_000, 400),
    ("logit_bias", {SURROGATE: 1}, 400),
    ("logit_bias", {"a.b": 1}, 400),
    ("stop_token_ids", [True], 400),
    ("stop_token_ids", [2**70], 400),
    ("stop_token_ids", [1] * 1025, 400),
    ("user", SURROGATE, 400),
    ("metadata", {"deep": [{"er": SURROGATE}]}, 400),
    ("metadata", {SURROGATE: 1}, 400),
    ("store", float("nan"), 400),
    ("metadata", {"x": [float("inf")]}, 400),
    ("tools", [{"type": "function"}], 400),
    ("tools", json.loads(DEEP), 400),
    ("n", 2**70, 400),
    ("return_stats", "x", 400),
]


def nested(name, value):
    outer, _, inner = name.partition(".")
    return {outer: {inner: value} if inner else value}


@pytest.mark.parametrize("path", [COMPLETIONS, CHAT])
@pytest.mark.parametrize(("name", "value", "status"), ANYWHERE, ids=lambda value: repr(value)[:30])
def test_fields_of_both_calls(tiny, path, name, value, status):
    body = {"prompt": PROMPT} if path == COMPLETIONS else {"messages": MESSAGES}
    holder = name.partition(".")[0] if value == SURROGATE else name
    refused(tiny, path, holder, status, body=body | nested(name, value))


def test_a_name_that_is_no_text(tiny):
    refused(tiny, COMPLETIONS, "body", body={"prompt": "a", SURROGATE: 1})


def turn(content="x", **fields):
    return [{"role": "user", "content": content} | fields]


@pytest.mark.parametrize(
    ("messages", "param"),
    [
        ([], "messages"),
        (None, "messages"),
        ("hello", "messages"),
        ({"role": "user", "content": "x"}, "messages"),
        (["hello"], "messages"),
        ([{"role": "user"}], "messages.0.content"),
        ([{"content": "x"}], "messages.0.role"),
        (turn(role="robot"), "messages.0.role"),
        (turn(role="tool"), "messages.0.role"),
        (MESSAGES + turn(role=None), "messages.1.role"),
        (turn(7), "messages.0.content"),
        (turn(None), "messages.0.content"),
        (turn([]), "messages.0.content"),
        (turn(["x"]), "messages.0.content"),
        (turn([{"type": "text"}]), "messages.0.content.0.text"),
        (turn([{"type": "text", "text": 1}]), "messages.0.content.0.text"),
        (turn([{"type": "image_url", "image_url": {}}]), "messages.0.content.0.type"),
        (turn([{"type": "input_audio", "text": "x"}]), "messages.0.content.0.type"),
        (turn(SURROGATE), "messages"),
        (turn([{"type": "text", "text": SURROGATE}]), "messages"),
        (turn(surprise=1), "messages.0.surprise"),
        (turn(name="bob"), "messages.0.name"),
        (turn(tool_calls=[{"id": "1"}]), "messages.0.tool_calls"),
        (turn(tool_call_id="1"), "messages.0.tool_call_id"),
        (turn("x" * 200), "messages"),
    ],
    ids=lambda value: repr(value)[:40],
)
def test_messages(tiny, messages, param):
    refused(tiny, CHAT, param, body={"messages": messages, "max_tokens": 1})


@pytest.mark.parametrize(
    ("path", "fields", "param"),
    [
        (COMPLETIONS, {}, "prompt"),
        (CHAT, {}, "messages"),
        (COMPLETIONS, {"prompt": "a", "messages": MESSAGES}, "messages"),
        (COMPLETIONS, {"prompt": "a", "max_tokens": 0}, "max_tokens"),
        (COMPLETIONS, {"prompt": "a", "echo": 1}, "echo"),
        (COMPLETIONS, {"prompt": "a", "echo": True, "max_tokens": 0}, "max_tokens"),
        (COMPLETIONS, {"prompt": "a", "echo": True, "logprobs": 1}, "echo"),
        (COMPLETIONS, {"prompt": "a", "score_from": 1}, "score_from"),
        (CHAT, {"messages": MESSAGES, "max_completion_tokens": 129}, "max_completion_tokens"),
        (CHAT, {"messages": MESSAGES, "max_completion_tokens": 0}, "max_completion_tokens"),
        (CHAT, {"messages": MESSAGES, "echo": True}, "echo"),
        ("/tokenize", {"prompt": ["a"]}, "prompt"),
        ("/tokenize", {"prompt": SURROGATE}, "prompt"),
        ("/tokenize", {"prompt": "a", "add_special_tokens": 1}, "add_special_tokens"),
        ("/detokenize", {"tokens": [VOCABULARY]}, "tokens"),
        ("/detokenize", {"tokens": [-1]}, "tokens"),
        ("/detokenize", {"tokens": ["a"]}, "tokens"),
    ],
    ids=str,
)
def test_fields_of_one_call(tiny, path, fields, param):
    refused(tiny, path, param, body=fields)


def test_a_refusal_while_streaming_has_a_status(tiny):
    refused(tiny, COMPLETIONS, "stop", body=BASE | {"stream": True, "stop": ""})


def test_a_bug_of_ours_has_the_same_shape(tiny, monkeypatch):
    def broken(*_):
        raise ZeroDivisionError("private")

    monkeypatch.setattr("ddtree.serve.generation.read_prompts", broken)
    code, answer = call(tiny.url, COMPLETIONS, BASE)
    assert (code, answer["error"]["type"]) == (500, "server_error")
    assert answer["error"]["message"] == "internal error: ZeroDivisionError"


# A bug, and a call that is then answered otherwise.
PLANTED = [
    (
        "encodings are guessed",
        ("ddtree.serve.bodies", ".decode())", ")"),
        (COMPLETIONS, None, {"raw": '{"prompt": "a"}'.encode("utf-16")}),
    ),
    (
        "deep bodies are a failure",
        ("ddtree.serve.bodies", "except RecursionError:", "except ZeroDivisionError:"),
        (COMPLETIONS, None, {"raw": b"[" * 100_000}),
    ),
    (
        "what is ignored isn't looked at",
        ("ddtree.serve.fields", "todo = [value]", "todo = [value] if field != 'user' else []"),
        (COMPLETIONS, "user", {"body": {"prompt": "a", "user": SURROGATE}}),
    ),
    (
        "forms are part of the name",
        ("ddtree.serve.errors", "            continue\n", "            pass\n"),
        (CHAT, "messages.0.content", {"body": {"messages": turn(7)}}),
    ),
    (
        "what can never be is tried",
        ("ddtree.serve.generation", "asked > context", "asked > 2 * context"),
        (COMPLETIONS, "max_tokens", {"body": {"prompt": "a", "max_tokens": 129}}),
    ),
    (
        "true is one",
        ("ddtree.serve.fields", "type(value) is type(one) and value == one", "value == one"),
        (COMPLETIONS, "best_of", {"body": {"prompt": "a", "best_of": True}}),
    ),
]


def test_planted_bugs_are_seen():
    edits = collections.defaultdict(tuple)
    for _, (module, old, new), _ in PLANTED:
        edits[module] += ((old, new),)
    with contextlib.ExitStack() as stack:
        for module, changes in edits.items():
            stack.enter_context(planted(Mutation("several", module, changes, ())))
        server = stack.enter_context(tiny_server())
        for name, _, (path, param, sent) in PLANTED:
            try:
                refused(server, path, param, **sent)
            except AssertionError:
                continue
            raise AssertionError(name)
