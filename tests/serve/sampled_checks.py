"""What sampling over HTTP promises, as checks of a running tiny server."""

from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import pytest
import torch
from serve_calls import post, stream

from ddtree.core import derived_seed

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
PROMPT = [104, 101, 108, 108, 111, 32, 119]
ARMS = [{"method": "ar"}, {"method": "chain"}, {"method": "ddtree", "budget": 8, "topk": 4}]
BASE = {"prompt": PROMPT, "max_tokens": 20, "temperature": 0.9, "return_token_ids": True}
# Letters and spaces, which are whole characters and whole words of one.
LETTERS = {str(token): 30 for token in (32, 97, 98, 99, 257, 258)}
E_ACUTE = {str(token): 30 for token in "é".encode()}


def choice(server, **fields):
    """The only choice of an answer."""
    (found,) = post(server.url, COMPLETIONS, BASE | fields)["choices"]
    return found


def learn(server, seed, ids):
    """From here on drafts propose `ids` to requests with this seed, so that some are accepted."""
    server.known[tuple(PROMPT), seed] = ids


def check_a_seed_repeats(server):
    """The same answer from every method, alone and among neighbours."""
    fields = {"seed": 5, "logprobs": 2, "top_p": 0.95, "frequency_penalty": 0.3}
    baseline = choice(server, speculation=ARMS[0], **fields)
    learn(server, 5, baseline["token_ids"])
    assert choice(server, seed=6)["token_ids"] != baseline["token_ids"]
    for arm in ARMS:
        answer = post(
            server.url, COMPLETIONS, BASE | fields | {"speculation": arm, "return_stats": True}
        )
        _assert_same(answer["choices"][0], baseline)
        assert (answer["ddtree"]["seed"], answer["ddtree"]["temperature"]) == (5, 0.9)
        accepted = answer["ddtree"]["acceptance_length"]
        assert accepted == 1 if arm["method"] == "ar" else accepted > 2

    def ask(number):
        seed = {"seed": 5} if number % 2 else {}
        return choice(server, **(fields | {"seed": number} | seed), speculation=ARMS[number % 3])

    with ThreadPoolExecutor(8) as pool:
        for number, found in enumerate(pool.map(ask, range(8))):
            if number % 2:
                _assert_same(found, baseline)


def _assert_same(found, expected):
    """Equal but for log-probabilities' last bits, which depend on the rows computed together."""
    assert {**found, "logprobs": None} == {**expected, "logprobs": None}
    mine, others = found["logprobs"], expected["logprobs"]
    assert mine["tokens"] == others["tokens"]
    assert mine["text_offset"] == others["text_offset"]
    assert mine["token_logprobs"] == pytest.approx(others["token_logprobs"], abs=1e-6)
    for one, other in zip(mine["top_logprobs"], others["top_logprobs"], strict=True):
        assert one == pytest.approx(other, abs=1e-6)


def check_choices_are_requests_of_their_own(server):
    answer = post(server.url, COMPLETIONS, BASE | {"seed": 7, "n": 3, "return_stats": True})
    assert [c["index"] for c in answer["choices"]] == [0, 1, 2]
    ids = [c["token_ids"] for c in answer["choices"]]
    assert len(set(map(tuple, ids))) == 3
    assert ids[0] == choice(server, seed=7)["token_ids"]
    for index in range(3):
        seed = derived_seed(7, index)
        assert answer["choices"][index]["ddtree"]["seed"] == seed
        alone = choice(server, seed=seed)
        assert (alone["token_ids"], alone["text"]) == (ids[index], answer["choices"][index]["text"])
    assert "ddtree" not in answer
    assert answer["usage"] == {
        "prompt_tokens": len(PROMPT),
        "completion_tokens": sum(map(len, ids)),
        "total_tokens": len(PROMPT) + sum(map(len, ids)),
    }


def check_a_drawn_seed_is_told(server):
    body = BASE | {"n": 2, "return_stats": True}
    answers = [post(server.url, COMPLETIONS, body)["choices"] for _ in range(2)]
    seeds = [[c["ddtree"]["seed"] for c in choices] for choices in answers]
    assert seeds[0][0] != seeds[1][0]
    assert seeds[0][1] == derived_seed(seeds[0][0], 1)
    again = choice(server, seed=seeds[0][1])
    assert again["token_ids"] == answers[0][1]["token_ids"]


def check_streams_are_the_whole(server):
    """Text, ids, log-probabilities and ends of every choice, whatever the order of chunks."""
    chat = {"messages": [{"role": "user", "content": "x"}], "logprobs": True, "top_logprobs": 2}
    plain = {"prompt": PROMPT, "logprobs": 2}
    for path, body in ((COMPLETIONS, plain), (CHAT, chat)):
        for count in (1, 3):
            fields = {"seed": 11, "n": count, "max_tokens": 16, "return_token_ids": True}
            fields |= {"return_stats": True}
            whole = post(server.url, path, body | fields)
            options = {"stream_options": {"include_usage": True}}
            *chunks, usage = stream(server.url, path, body | fields | options)
            assert {chunk["usage"] for chunk in chunks} == {None}
            assert usage["choices"] == []
            assert usage["usage"] == whole["usage"]
            assert [("ddtree" in c) for c in chunks[:-1]] == [False] * (len(chunks) - 1)
            assert ("ddtree" in chunks[-1]) == ("ddtree" in whole) == (count == 1)
            pieces = [piece for chunk in chunks for piece in chunk["choices"]]
            for expected in whole["choices"]:
                own = [p for p in pieces if p["index"] == expected["index"]]
                _assert_joined(own, expected, path == CHAT)


def _assert_joined(pieces, expected, is_chat):
    if is_chat:
        opening, *pieces = pieces
        assert opening["delta"] == {"role": "assistant", "content": ""}
        assert "".join(p["delta"]["content"] for p in pieces) == expected["message"]["content"]
        assert _joined(pieces, "content") == expected["logprobs"]["content"]
    else:
        assert "".join(p["text"] for p in pieces) == expected["text"]
        for name, values in expected["logprobs"].items():
            assert _joined(pieces, name) == values
    assert [i for p in pieces for i in p["token_ids"]] == expected["token_ids"]
    assert [p["finish_reason"] for p in pieces] == [None] * (len(pieces) - 1) + [
        expected["finish_reason"]
    ]
    stats = [p["ddtree"]["seed"] for p in pieces if "ddtree" in p]
    assert stats == ([expected["ddtree"]["seed"]] if "ddtree" in expected else [])


def _joined(pieces, name):
    return [value for piece in pieces for value in piece["logprobs"][name]]


def check_chunks_of_choices_interleave(server):
    events = stream(server.url, COMPLETIONS, BASE | {"seed": 3, "n": 3})
    indices = [event["choices"][0]["index"] for event in events]
    # All three hold slots, so each has chunks before another's last.
    assert all(
        indices.index(i) < len(indices) - 1 - indices[::-1].index(j)
        for i in range(3)
        for j in range(3)
    )


def check_logprobs_are_the_target_s_own(server):
    """One entry per id, the stop token's included, before temperature, filters and bias."""
    fields = {"seed": 3, "logit_bias": LETTERS | E_ACUTE, "top_k": 50, "max_tokens": 30}
    stop = choice(server, **fields)["token_ids"][-1]
    fields["stop_token_ids"] = [stop]
    answer = post(server.url, COMPLETIONS, BASE | fields | {"logprobs": 4})
    found = answer["choices"][0]
    ids, entries = found["token_ids"], found["logprobs"]
    assert (ids[-1], found["finish_reason"]) == (stop, "stop")
    assert {len(values) for values in entries.values()} == {len(ids)}
    assert answer["usage"]["completion_tokens"] == len(ids)
    logits = server.engine.target.reference_logits(torch.tensor(PROMPT + ids))
    rows = torch.log_softmax(logits[len(PROMPT) - 1 : -1].double(), -1)
    texts = [server.tokenizer.decode([i]) for i in range(rows.shape[1])]
    # Bytes of a character, a token of two characters, and the character itself are among them.
    assert {195, 169, 258} < set(ids)
    assert "é" in found["text"]
    for i, (token, row) in enumerate(zip(ids, rows, strict=True)):
        assert entries["tokens"][i] == texts[token]
        assert entries["token_logprobs"][i] == pytest.approx(float(row[token]), abs=1e-5)
        # What may be part of a character has no place of its own yet.
        before = server.tokenizer.decode(ids[:i]).rstrip("\ufffd")
        assert entries["text_offset"][i] == len(before)
        best = row.topk(4).indices.tolist()
        named = entries["top_logprobs"][i]
        expected = [row[t] for t in best] + ([] if token in best else [row[token]])
        assert list(named.values()) == pytest.approx([float(v) for v in expected], abs=1e-5)
        assert named[texts[token]] == pytest.approx(float(row[token]), abs=1e-5)


def check_banned_words_never_come(server):
    fields = {"logit_bias": LETTERS, "max_tokens": 40}
    free = [choice(server, seed=seed, **fields) for seed in range(4)]
    assert any(" a" in c["text"] for c in free)
    assert any(258 in c["token_ids"] for c in free)
    assert any((98, 98) in pairwise(c["token_ids"]) for c in free)
    for seed in range(4):
        found = choice(server, seed=seed, bad_words=["a", "bb"], **fields)
        # "ab" is another token than "a"; " a" is a token of its own.
        assert not {97, 258} & set(found["token_ids"])
        assert (98, 98) not in pairwise(found["token_ids"])


CHECKS = [
    check_a_seed_repeats,
    check_choices_are_requests_of_their_own,
    check_a_drawn_seed_is_told,
    check_streams_are_the_whole,
    check_chunks_of_choices_interleave,
    check_logprobs_are_the_target_s_own,
    check_banned_words_never_come,
]
