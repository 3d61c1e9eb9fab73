"""A real SGLang on this CPU: what DDTREE servers answer is the target's own."""

import re

import pytest

from sglang_plugin.sglang_judging import Judged, judged, verdict
from sglang_plugin.sglang_server import Server, Shape

pytestmark = [pytest.mark.sglang, pytest.mark.model]

TOKENS = 24
Prompts = list[list[int]]


@pytest.fixture(scope="module")
def own(ar: Server, prompts: Prompts) -> Judged:
    """The target's own answers, scored as those of trees are."""
    return judged(ar, prompts, ar.ask_all(prompts, 1, max_new_tokens=TOKENS))


@pytest.mark.parametrize("at_once", [1, 4, 7])
def test_greedy_answers_are_the_targets(
    ar: Server, tree: Server, prompts: Prompts, own: Judged, at_once: int
) -> None:
    answers = tree.ask_all(prompts, at_once, max_new_tokens=TOKENS)
    problem = verdict(own, judged(ar, prompts, answers))
    assert problem is None, problem
    rounds = sum(answer.meta["spec_verify_ct"] for answer in answers)
    assert rounds < 0.8 * TOKENS * len(prompts)


def test_ranks_and_histogram_tell_of_the_trees(
    tree: Server, shape: Shape, prompts: Prompts
) -> None:
    answers = tree.ask_all(prompts, 7, max_new_tokens=TOKENS)
    every: list[int] = []
    for answer in answers:
        ranks, histogram = answer.meta["ddtree_ranks"], answer.meta["spec_correct_drafts_histogram"]
        assert len(ranks) == len(answer.ids) == TOKENS
        assert ranks[0] == -1
        assert sum(histogram) == answer.meta["spec_verify_ct"]
        assert sum(rank < 0 for rank in ranks) in (sum(histogram), sum(histogram) + 1)
        every += ranks
    assert max(every) == shape.topk - 1
    assert sum(rank > 0 for rank in every) > 5


def test_server_info_tells_the_shape(tree: Server, shape: Shape) -> None:
    told = tree.get("/server_info")
    trees = told["internal_states"][0]["ddtree"]
    assert trees["budget"] == shape.rows - 1
    assert trees["topk"] == shape.topk
    assert trees["window"] == shape.window
    assert told["speculative_num_draft_tokens"] == max(shape.rows, shape.block)


def test_limits_end_inside_an_accepted_run(tree: Server, prompts: Prompts) -> None:
    whole = tree.ask(prompts[6], max_new_tokens=12).ids
    for limit in range(1, 12):
        answer = tree.ask(prompts[6], max_new_tokens=limit)
        assert answer.ids == whole[:limit]
        assert answer.meta["finish_reason"] == {"type": "length", "length": limit}


def test_a_stop_token_ends_inside_an_accepted_run(tree: Server, prompts: Prompts) -> None:
    whole = tree.ask(prompts[6], max_new_tokens=12).ids
    for place in range(1, 12):
        stop = whole[place]
        answer = tree.ask(prompts[6], max_new_tokens=12, stop_token_ids=[stop], ignore_eos=False)
        assert answer.ids == whole[: whole.index(stop) + 1]
        assert answer.meta["finish_reason"]["type"] == "stop"


@pytest.mark.parametrize(
    ("fields", "sampling", "message"),
    [
        ({}, {"frequency_penalty": 0.5}, "DDTREE: frequency_penalty: got 0.5, expected 0.0"),
        ({}, {"presence_penalty": 0.5}, "DDTREE: presence_penalty: got 0.5"),
        ({}, {"repetition_penalty": 1.1}, "DDTREE: repetition_penalty: got 1.1, expected 1.0"),
        ({"return_logprob": True}, {}, "DDTREE .* return_logprob"),
        ({}, {"json_schema": "{}"}, "DDTREE .* grammar"),
    ],
)
def test_what_cannot_be_served_is_refused_by_name(
    tree: Server,
    prompts: Prompts,
    fields: dict[str, object],
    sampling: dict[str, object],
    message: str,
) -> None:
    answer = tree.ask(prompts[0], fields, max_new_tokens=4, **sampling)
    assert answer.status == 400
    assert re.search(message, answer.text), answer.text
    assert tree.ask(prompts[0], max_new_tokens=4).status == 200
