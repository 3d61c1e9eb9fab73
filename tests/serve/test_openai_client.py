"""OpenAI's own Python package drives the server; it holds every answer against its own types."""

import asyncio

import openai
import pytest
from openai import AsyncOpenAI, OpenAI
from sampled_checks import PROMPT
from scripted import scripted_server
from tiny_server import byte_tokenizer, served, tiny_engine

from ddtree.serve.guards import Guards

FIELDS = {"model": "tiny", "temperature": 0.9, "seed": 3, "max_tokens": 12}
MESSAGES = [{"role": "system", "content": "short"}, {"role": "user", "content": "hello"}]


def connect(kind, url, key="none", strict=True):
    url = f"{url}/v1"
    return kind(base_url=url, api_key=key, max_retries=0, _strict_response_validation=strict)


@pytest.fixture(scope="module")
def client(tiny):
    with connect(OpenAI, tiny.url) as client:
        yield client


def test_models(client):
    (model,) = client.models.list().data
    assert model.id == "tiny"
    assert client.models.retrieve("tiny") == model
    with pytest.raises(openai.NotFoundError) as caught:
        client.models.retrieve("gpt")
    assert (caught.value.code, caught.value.param) == ("model_not_found", "model")


def test_completions(client):
    answer = client.completions.create(prompt=["hello", "you"], n=2, logprobs=2, **FIELDS)
    assert [choice.index for choice in answer.choices] == [0, 1, 2, 3]
    for choice in answer.choices:
        assert len(choice.logprobs.tokens) == len(choice.logprobs.token_logprobs)
    tokens = sum(len(choice.logprobs.tokens) for choice in answer.choices)
    assert answer.usage.completion_tokens == tokens
    again = client.completions.create(prompt="hello", **FIELDS, echo=True)
    assert again.choices[0].text == "hello" + answer.choices[0].text
    ids = client.completions.create(prompt=[PROMPT], **FIELDS)
    assert ids.usage.prompt_tokens == len(PROMPT)


def test_chat(client):
    whole = client.chat.completions.create(
        messages=MESSAGES, n=2, logprobs=True, top_logprobs=2, **FIELDS
    )
    for choice in whole.choices:
        assert all(len(entry.top_logprobs) == 2 for entry in choice.logprobs.content)
    told = [*MESSAGES, whole.choices[0].message, {"role": "user", "content": "and?"}]
    assert client.chat.completions.create(messages=told, **FIELDS).choices[0].message.content
    raw = client.chat.completions.with_raw_response.create(messages=MESSAGES, **FIELDS)
    assert raw.status_code == 200
    assert raw.parse().choices[0].message == whole.choices[0].message


def test_streams(client, tiny):
    """Completion chunks aren't held against the package's types, where each has an end."""
    whole = client.chat.completions.create(messages=MESSAGES, **FIELDS)
    options = {"stream": True, "stream_options": {"include_usage": True}}
    *chunks, last = client.chat.completions.create(messages=MESSAGES, **FIELDS, **options)
    text = "".join(chunk.choices[0].delta.content for chunk in chunks)
    assert text == whole.choices[0].message.content
    assert (last.choices, last.usage) == ([], whole.usage)
    assert {chunk.usage for chunk in chunks} == {None}
    plain = client.completions.create(prompt="hello", **FIELDS)
    with connect(OpenAI, tiny.url, strict=False) as lenient:
        events = list(lenient.completions.create(prompt="hello", stream=True, **FIELDS))
        assert "".join(event.choices[0].text for event in events) == plain.choices[0].text
        with lenient.chat.completions.stream(messages=MESSAGES, **FIELDS) as stream:
            stream.until_done()
            final = stream.get_final_completion()
    assert final.choices[0].message.content == whole.choices[0].message.content


def test_a_stream_may_be_left(client, tiny):
    fields = FIELDS | {"max_tokens": 120}
    with client.chat.completions.create(messages=MESSAGES, stream=True, **fields) as stream:
        next(iter(stream))
    assert client.chat.completions.create(messages=MESSAGES, **FIELDS).choices


def test_many_at_once(tiny):
    async def run():
        async with connect(AsyncOpenAI, tiny.url) as client:
            ask = client.chat.completions.create
            first = await ask(messages=MESSAGES, **FIELDS)
            others = await asyncio.gather(*(ask(messages=MESSAGES, **FIELDS) for _ in range(8)))
            stream = await ask(messages=MESSAGES, stream=True, **FIELDS)
            pieces = [chunk.choices[0].delta.content async for chunk in stream]
            return first.choices, [other.choices for other in others], "".join(pieces)

    first, others, text = asyncio.run(run())
    assert others == [first] * 8
    assert text == first[0].message.content


def test_our_own_fields(client):
    texts = []
    for speculation in ({"method": "ar"}, {"method": "ddtree", "budget": 8, "topk": 4}):
        body = {"speculation": speculation, "return_stats": True, "return_token_ids": True}
        answer = client.completions.create(prompt="hello", extra_body=body, **FIELDS)
        stats = answer.ddtree
        assert stats["method"] == speculation["method"]
        assert answer.choices[0].token_ids == stats["token_ids"]
        texts.append(answer.choices[0].text)
    assert texts[0] == texts[1]


def test_stops():
    with scripted_server() as server, connect(OpenAI, server.url) as client:
        server.script.ids = list(b"one two three")
        ask = client.completions.create
        for stop in ("two", ["x", " two"]):
            answer = ask(model="tiny", prompt="x", stop=stop, max_tokens=50, temperature=0)
            assert answer.choices[0].text == ("one " if stop == "two" else "one")
            assert answer.choices[0].finish_reason == "stop"
        assert ask(model="tiny", prompt="x", temperature=0).choices[0].text == "one two three"


def test_errors(client):
    ask = client.chat.completions.create
    for fields, param in (
        ({"stop": ""}, "stop"),
        ({"temperature": -1}, "temperature"),
        ({"max_tokens": 1000}, "max_tokens"),
        ({"tools": [{"type": "function", "function": {"name": "f"}}]}, "tools"),
        ({"extra_body": {"speculation": {"budget": 65}}}, "speculation.budget"),
        ({"stream": True, "n": 0}, "n"),
    ):
        with pytest.raises(openai.BadRequestError) as caught:
            ask(messages=MESSAGES, **FIELDS | fields)
        assert caught.value.param == param
        assert caught.value.type == "invalid_request_error"
    with pytest.raises(openai.NotFoundError):
        ask(messages=MESSAGES, **FIELDS | {"model": "gpt"})


def test_keys_and_queues():
    """A stream that the queue has no room for is refused like any other call."""
    settings = {"max_queue": 0, "guards": Guards(api_keys=("secret",))}
    with served(tiny_engine(), byte_tokenizer(), **settings) as url:
        with connect(OpenAI, url, "wrong") as client, pytest.raises(openai.AuthenticationError):
            client.models.list()
        with connect(OpenAI, url, "secret", strict=False) as client:
            ask = client.completions.create
            fields = {"model": "tiny", "prompt": "x", "seed": 1, "stream": True}
            long = {"n": 4, "max_tokens": 120, "extra_body": {"ignore_eos": True}}
            with ask(**fields, **long) as stream:
                next(iter(stream))
                with pytest.raises(openai.RateLimitError) as caught:
                    ask(**fields)
            assert caught.value.response.headers["retry-after"] == "1"
            assert caught.value.type == "rate_limit_exceeded"
