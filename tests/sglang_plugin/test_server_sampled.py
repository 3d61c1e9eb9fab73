"""Sampled requests on a real SGLang: drawn from the target's law, and by their seeds."""

import math
from collections import Counter

import pytest

from sglang_plugin.sglang_server import AT, Answer, Server
from support.law import assert_drawn_from

# One shape: a draw doesn't know what the tree around it holds.
pytestmark = [
    pytest.mark.sglang,
    pytest.mark.model,
    pytest.mark.parametrize("shape", [AT], indirect=True, scope="session"),
]

REQUESTS = 154
LISTED = 60
Prompts = list[list[int]]


@pytest.fixture(scope="module")
def drawn(tree: Server, prompts: Prompts) -> list[Answer]:
    """Two tokens each, at temperature 1."""
    asked = [prompts[4]] * REQUESTS
    return tree.ask_all(asked, 14, temperature=1.0, max_new_tokens=2, ignore_eos=True)


def law_after(ar: Server, context: list[int], temperature: float) -> dict[tuple[int, ...], float]:
    """The target's law of the next token: the LISTED most probable, the rest as token -1."""
    fields = {"return_logprob": True, "top_logprobs_num": LISTED}
    answer = ar.ask(context, fields, max_new_tokens=1)
    scores = {token: score for score, token, _ in answer.meta["output_top_logprobs"][0]}
    weights = {(token,): math.exp(score / temperature) for token, score in scores.items()}
    if temperature == 1:
        return weights | {(-1,): max(1 - sum(weights.values()), 1e-9)}
    total = sum(weights.values())
    return {token: weight / total for token, weight in weights.items()} | {(-1,): 1e-9}


def seconds(
    drawn: list[Answer], law: dict[tuple[int, ...], float]
) -> tuple[int, list[tuple[int, ...]]]:
    """The commonest first token, and the second tokens of the answers that begin with it."""
    first = Counter(answer.ids[0] for answer in drawn).most_common(1)[0][0]
    listed = [answer.ids[1] for answer in drawn if answer.ids[0] == first]
    return first, [(token,) if (token,) in law else (-1,) for token in listed]


def test_the_law_is_the_targets(ar: Server, drawn: list[Answer], prompts: Prompts) -> None:
    first, _ = seconds(drawn, {})
    law = law_after(ar, [*prompts[4], first], 1.0)
    _, samples = seconds(drawn, law)
    assert len(samples) > 40
    assert_drawn_from(samples, law, 1e-4)
    with pytest.raises(AssertionError):
        assert_drawn_from(samples, law_after(ar, [*prompts[4], first], 0.3), 1e-4)


def test_a_seed_gives_the_same_tokens_among_others(tree: Server, prompts: Prompts) -> None:
    """The first token is SGLang's own draw: answers that share it are compared."""
    prompt = prompts[4]
    sampling = {"temperature": 1.0, "top_p": 0.98, "sampling_seed": 5, "max_new_tokens": 9}
    alone = [tree.ask(prompt, **sampling).ids for _ in range(8)]
    among = [answer.ids for answer in tree.ask_all([prompt] * 12, 6, **sampling)]
    by_first: dict[int, set[tuple[int, ...]]] = {}
    for ids in alone + among:
        by_first.setdefault(ids[0], set()).add(ids)
    counts = Counter(ids[0] for ids in alone + among)
    assert counts.most_common(1)[0][1] > 2
    # Near ties of sums in bfloat16 may part two answers, as they do greedy ones.
    assert sum(len(texts) for texts in by_first.values()) <= len(by_first) + 2
    other = {tree.ask(prompt, **sampling | {"sampling_seed": seed}).ids for seed in range(9)}
    assert len(other) > 4


def test_a_bias_is_followed_on_every_row(tree: Server, prompts: Prompts) -> None:
    answer = tree.ask(prompts[0], max_new_tokens=6, logit_bias={"17": 100.0})
    assert answer.ids == (17,) * 6
