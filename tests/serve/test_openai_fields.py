"""OpenAI's fields that are not implemented: neutral values pass, others are refused by name."""

import pytest
from openai.types import completion_create_params
from openai.types.chat import completion_create_params as chat_create_params
from sampled_checks import BASE, CHAT, COMPLETIONS
from serve_calls import call, post

from ddtree.serve.fields import IGNORED, NEUTRAL
from ddtree.serve.schema import ChatRequest, CompletionRequest

BODIES = {
    COMPLETIONS: BASE | {"max_tokens": 1},
    CHAT: {"messages": [{"role": "user", "content": "x"}], "max_tokens": 1},
}
ASKING = {
    "best_of": 2,
    "suffix": "x",
    "response_format": {"type": "json_object"},
    "tools": [{"type": "function", "function": {"name": "f"}}],
    "tool_choice": "required",
    "functions": [{"name": "f"}],
    "function_call": {"name": "f"},
    "parallel_tool_calls": "yes",
    "modalities": ["text", "audio"],
    "audio": {"voice": "alloy", "format": "wav"},
    "prediction": {"type": "content", "content": "x"},
    "moderation": {"model": "omni-moderation-latest"},
    "web_search_options": {},
    "reasoning_effort": "high",
    "verbosity": "low",
    "service_tier": "flex",
    "prompt_cache_options": {"mode": "explicit"},
    "prompt_cache_retention": "24h",
}


@pytest.mark.parametrize("path", [COMPLETIONS, CHAT])
@pytest.mark.parametrize("name", NEUTRAL)
def test_what_asks_for_something_is_refused_by_name(tiny, path, name):
    code, answer = call(tiny.url, path, BODIES[path] | {name: ASKING[name]})
    assert (code, answer["error"]["param"]) == (400, name)
    assert f"{name} is not implemented; leave it out" in answer["error"]["message"]


def test_what_asks_for_nothing_is_accepted(tiny):
    for path, body in BODIES.items():
        post(tiny.url, path, body | dict.fromkeys(NEUTRAL))
        most = max(map(len, NEUTRAL.values()))
        for place in range(most):
            values = {name: v[place] for name, v in NEUTRAL.items() if place < len(v)}
            post(tiny.url, path, body | values)


def test_ignored_fields_change_nothing(tiny):
    for path, body in BODIES.items():
        body = body | {"seed": 1, "max_tokens": 8}
        plain = post(tiny.url, path, body)["choices"]
        for value in ("x", 7, True, None, {"a": [1, {"b": None}]}):
            assert post(tiny.url, path, body | dict.fromkeys(IGNORED, value))["choices"] == plain


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (CompletionRequest, completion_create_params.CompletionCreateParamsBase),
        (ChatRequest, chat_create_params.CompletionCreateParamsBase),
    ],
)
def test_every_field_of_openai_s_has_been_decided_on(ours, theirs):
    assert set(theirs.__annotations__) - set(ours.model_fields) == set()
