"""Conversations and texts that are kept: what is sent by kind, and what is read back."""

import json
from typing import Any

import pytest

from ddtree.endpoint.calls import Chat, CompletionRequest, Message
from ddtree.endpoint.kinds import KINDS, Kind, dialect_of
from ddtree.endpoint.stream import StreamState
from ddtree.records.requests import RequestRecord
from ddtree.records.sampling import Sampling

CHAT = Chat((Message("user", "hi"),), (("enable_thinking", False),))


@pytest.mark.parametrize("kind", KINDS)
def test_a_conversation_goes_to_the_chat_route(kind: Kind) -> None:
    request = CompletionRequest(CHAT, 8, sampling=Sampling(temperature=0.5, seed=3), stop=("x",))
    call = dialect_of(kind).completion(request)
    assert call.path == "/v1/chat/completions"
    assert call.named
    body = dict(call.body)
    assert body["messages"] == [{"role": "user", "content": "hi"}]
    assert body["chat_template_kwargs"] == {"enable_thinking": False}
    assert body["stop"] == ["x"]
    assert body["max_tokens"] == 8
    assert body["seed"] == 3
    assert "prompt" not in body
    json.dumps(body)


@pytest.mark.parametrize("kind", KINDS)
def test_template_and_stop_are_left_out_when_empty(kind: Kind) -> None:
    body = dialect_of(kind).completion(CompletionRequest(Chat(CHAT.messages), 8)).body
    assert "chat_template_kwargs" not in body
    assert "stop" not in body


@pytest.mark.parametrize("kind", KINDS)
def test_stop_strings_of_a_completion(kind: Kind) -> None:
    body = dialect_of(kind).completion(CompletionRequest("hi", 8, stop=("\nclass",))).body
    fields = body["sampling_params"] if kind == "sglang" else body
    assert fields["stop"] == ["\nclass"]


def read(kind: Kind, payloads: list[dict[str, Any]], request: CompletionRequest) -> RequestRecord:
    state = StreamState(request.prompt, request.max_tokens, 0.0, dialect_of(kind).reader(request))
    for second, payload in enumerate(payloads, 1):
        state.event(json.dumps(payload), float(second))
    state.ended(9.0)
    state.check_complete()
    return state.record("", 0, 0, "")


def delta(finish: str | None = None, **fields: object) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": fields, "finish_reason": finish}], "usage": None}


USAGE = {"choices": [], "usage": {"prompt_tokens": 4, "completion_tokens": 3}}


@pytest.mark.parametrize("name", ["reasoning_content", "reasoning"])
@pytest.mark.parametrize("kind", ["sglang", "vllm", "openai"])
def test_thinking_is_kept_apart_and_counts_as_tokens(kind: Kind, name: str) -> None:
    request = CompletionRequest(CHAT, 8, keep_text=True)
    chunks = [
        delta(**{name: "well "}),
        delta(content="a "),
        delta("stop", content="b"),
        USAGE,
    ]
    record = read(kind, chunks, request)
    assert record.error is None
    assert (record.text, record.thinking) == ("a b", "well ")
    assert sum(record.chunk_tokens) == 3
    # The time to first token is that of the first thought.
    assert record.chunk_times_s[0] == 1.0


def test_text_beside_ids_is_kept_on_request_alone() -> None:
    chunks = [
        {"choices": [{"index": 0, "text": "a ", "token_ids": [7], "finish_reason": None}]},
        {
            "choices": [{"index": 0, "text": "b", "token_ids": [8, 9], "finish_reason": "stop"}],
            "ddtree": {"completion_tokens": 3, "rounds": 2, "accepted_histogram": [1, 1]},
        },
        USAGE,
    ]
    for keep, text in ((True, "a b"), (False, None)):
        record = read("ddtree", chunks, CompletionRequest((1, 2, 3, 4), 8, keep_text=keep))
        assert record.error is None
        assert record.token_ids == (7, 8, 9)
        assert record.counted == "ids"
        assert (record.text, record.thinking) == (text, None)


@pytest.mark.parametrize("whole", [True, False])
def test_text_of_sglangs_own_route_is_kept_once(whole: bool) -> None:
    texts, ids = ["a ", "b"], [[7], [8]]
    payloads = []
    for i in range(2):
        payloads.append(
            {
                "text": "".join(texts[: i + 1]) if whole else texts[i],
                "output_ids": [7, 8][: i + 1] if whole else ids[i],
                "meta_info": {
                    "prompt_tokens": 2,
                    "completion_tokens": i + 1,
                    "finish_reason": {"type": "length"} if i else None,
                },
            }
        )
    record = read("sglang", payloads, CompletionRequest((1, 2), 2, keep_text=True))
    assert record.error is None
    assert (record.text, record.token_ids) == ("a b", (7, 8))


def test_thinking_survives_the_log() -> None:
    request = CompletionRequest(CHAT, 8, keep_text=True)
    record = read("openai", [delta(reasoning="x"), delta("stop", content="y"), USAGE], request)
    assert RequestRecord.from_json(record.to_json()) == record
