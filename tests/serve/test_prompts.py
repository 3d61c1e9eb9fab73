"""Prompts in all their forms, several in a call, echoed and scored."""

import pytest
from sampled_checks import BASE, COMPLETIONS, PROMPT, choice
from serve_calls import call, post, stream
from tiny_server import EOS

CHAT = "/v1/chat/completions"
SCORE = {"echo": True, "logprobs": 3, "max_tokens": 0}
TEXT = bytes(PROMPT).decode()


def ask(server, prompt, **fields):
    return post(server.url, COMPLETIONS, BASE | {"prompt": prompt, "seed": 3} | fields)


@pytest.mark.parametrize("prompt", [TEXT, [TEXT], PROMPT, [PROMPT]], ids=str)
def test_a_prompt_may_have_four_forms(tiny, prompt):
    expected = choice(tiny, seed=3)
    assert ask(tiny, prompt)["choices"] == [expected]


def test_every_prompt_gets_what_it_would_alone(tiny):
    prompts = [TEXT, "pq", "xyz"]
    together = ask(tiny, prompts, n=2)
    alone = [ask(tiny, prompt, n=2) for prompt in prompts]
    assert [c["index"] for c in together["choices"]] == list(range(6))
    found = [c | {"index": None} for c in together["choices"]]
    assert found == [c | {"index": None} for answer in alone for c in answer["choices"]]
    for name, value in together["usage"].items():
        assert value == sum(answer["usage"][name] for answer in alone)
    chunks = stream(
        tiny.url, COMPLETIONS, BASE | {"prompt": [list(p.encode()) for p in prompts[1:]], "seed": 3}
    )
    for index, answer in enumerate(alone[1:]):
        own = [e["choices"][0] for e in chunks if e["choices"][0]["index"] == index]
        assert "".join(c["text"] for c in own) == answer["choices"][0]["text"]


def test_the_prompt_at_fault_is_named(tiny):
    code, answer = call(tiny.url, COMPLETIONS, BASE | {"prompt": ["a", "", "b"]})
    assert (code, answer["error"]["param"]) == (400, "prompt")
    assert answer["error"]["message"].startswith("prompt[1]: is empty")


def test_a_call_has_so_many_answers_at_most(tiny):
    code, answer = call(tiny.url, COMPLETIONS, BASE | {"prompt": ["a"] * 43, "n": 3})
    assert (code, answer["error"]["param"]) == (400, "prompt")
    assert "makes 129; a call has at most 128" in answer["error"]["message"]
    found = post(
        tiny.url, COMPLETIONS, {"prompt": ["a"] * 64, "n": 2, "max_tokens": 1, "temperature": 1}
    )
    assert len(found["choices"]) == 128


def test_echo_opens_every_answer(tiny):
    plain = ask(tiny, [TEXT, "ab"])["choices"]
    for prompts in ([TEXT, "ab"], [PROMPT, [257]]):
        found = ask(tiny, prompts, echo=True)
        texts = [text + c["text"] for text, c in zip((TEXT, "ab"), plain, strict=True)]
        assert [c["text"] for c in found["choices"]] == texts
        assert [c["token_ids"] for c in found["choices"]] == [c["token_ids"] for c in plain]
    (found,) = ask(tiny, [*PROMPT, EOS], echo=True, max_tokens=1)["choices"]
    assert found["text"].startswith(TEXT)
    first, *rest = stream(tiny.url, COMPLETIONS, BASE | {"prompt": TEXT, "seed": 3, "echo": True})
    assert (first["choices"][0]["text"], first["choices"][0]["token_ids"]) == (TEXT, [])
    assert "".join(e["choices"][0]["text"] for e in rest) == plain[0]["text"]


def test_scores_have_the_standard_fields(tiny):
    text = "é ab!"
    found = ask(tiny, text, **SCORE, temperature=None, seed=None)["choices"][0]
    entries = found["logprobs"]
    ids = [0xC3, 0xA9, 32, 257, 33]
    assert (found["text"], entries["token_ids"]) == (text, ids)
    assert entries["tokens"] == ["\ufffd", "\ufffd", " ", "ab", "!"]
    assert entries["text_offset"] == [0, 0, 1, 2, 4]
    assert entries["top_logprobs"][0] is None
    for i in range(1, 5):
        own, best = entries["token_logprobs"][i], entries["top_logprobs"][i]
        assert best[entries["tokens"][i]] == pytest.approx(own)
        assert len(best) - (entries["token_ids"][i] not in entries["top_ids"][i]) == 3
        # The same distance from the chosen token in logits as in log-probabilities.
        highest = entries["top_logits"][i][0] - entries["token_logits"][i]
        assert max(best.values()) - own == pytest.approx(highest)


def test_several_prompts_are_scored(tiny):
    alone = [ask(tiny, p, **SCORE, temperature=None, seed=None) for p in ("abc", "xyz!")]
    both = ask(tiny, ["abc", "xyz!"], **SCORE, temperature=None, seed=None)
    for index, answer in enumerate(alone):
        assert both["choices"][index] == answer["choices"][0] | {"index": index}
    assert both["usage"]["prompt_tokens"] == sum(a["usage"]["prompt_tokens"] for a in alone)


def test_the_context_ends_an_answer(tiny):
    """Up to the limit; a request for more than it holds can never be served."""
    fields = {"ignore_eos": True, "return_token_ids": True}
    for length in (126, 127):  # two tokens fit, one fits
        found = ask(tiny, [97] * length, max_tokens=128, **fields)
        assert found["choices"][0]["finish_reason"] == "length"
        assert found["usage"]["total_tokens"] == 128
    code, answer = call(tiny.url, COMPLETIONS, BASE | {"prompt": [97] * 128})
    assert (code, answer["error"]["param"]) == (400, "prompt")
    code, answer = call(tiny.url, COMPLETIONS, BASE | {"max_tokens": 129})
    assert (code, answer["error"]["param"]) == (400, "max_tokens")


def chat(server, messages, **fields):
    body = {"messages": messages, "max_tokens": 8, "temperature": 1, "seed": 2} | fields
    return post(server.url, CHAT, body)


def test_content_may_come_in_parts(tiny):
    whole = chat(tiny, [{"role": "user", "content": "ab c"}])
    parts = [{"type": "text", "text": "ab"}, {"type": "text", "text": " c"}]
    for empty in ({}, {"name": None, "tool_calls": [], "refusal": None}):
        found = chat(tiny, [{"role": "user", "content": parts} | empty])
        assert found["choices"] == whole["choices"]
        assert found["usage"] == whole["usage"]


def test_a_developer_s_turn_is_a_system_s(tiny):
    turns = [
        [{"role": role, "content": "be brief"}, {"role": "user", "content": "x"}]
        for role in ("system", "developer", "user")
    ]
    system, developer, user = (chat(tiny, messages) for messages in turns)
    assert developer["choices"] == system["choices"] != user["choices"]


@pytest.mark.parametrize("name", ["max_tokens", "max_completion_tokens"])
def test_either_limit_holds_for_a_chat(tiny, name):
    messages = [{"role": "user", "content": "x"}]
    limits = {"max_tokens": None, "max_completion_tokens": None} | {name: 3}
    found = chat(tiny, messages, ignore_eos=True, **limits)
    assert found["usage"]["completion_tokens"] == 3


def test_a_chat_ends_with_the_context(tiny):
    found = chat(tiny, [{"role": "user", "content": "x"}], max_tokens=None, ignore_eos=True)
    assert found["usage"]["total_tokens"] == 128
    code, answer = call(tiny.url, CHAT, {"messages": [{"role": "user", "content": "x" * 200}]})
    assert (code, answer["error"]["param"]) == (400, "messages")
    assert answer["error"]["message"].startswith("messages: has ")


def test_variables_of_the_chat_template(tiny):
    messages = [{"role": "user", "content": "x"}]
    turns = tiny.tokenizer.chat_template
    tiny.tokenizer.chat_template = turns + "{% if enable_thinking %}hm{% endif %}"
    try:
        plain = chat(tiny, messages)
        off = chat(tiny, messages, chat_template_kwargs={"enable_thinking": False})
        on = chat(tiny, messages, chat_template_kwargs={"enable_thinking": True})
    finally:
        tiny.tokenizer.chat_template = turns
    assert plain["usage"]["prompt_tokens"] == off["usage"]["prompt_tokens"]
    assert on["usage"]["prompt_tokens"] == off["usage"]["prompt_tokens"] + 2


@pytest.mark.parametrize("name", ["enable_thinking", "messages", "tokenize"])
def test_a_variable_that_changes_nothing_is_refused(tiny, name):
    body = {"messages": [{"role": "user", "content": "x"}], "chat_template_kwargs": {name: True}}
    status, answer = call(tiny.url, CHAT, body)
    assert status == 400
    assert "chat_template_kwargs" in answer["error"]["message"]
    assert repr(name) in answer["error"]["message"]
