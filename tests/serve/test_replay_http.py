"""POST /v1/replay: stats of requests that never ran, over HTTP and through our client."""

import asyncio
from concurrent.futures import ThreadPoolExecutor

import pytest
from operated import COMPLETIONS, PROMPT, ask, operated, wait_until
from serve_calls import call, post
from tiny_server import VOCABULARY, TinyServer, byte_tokenizer, served, tiny_engine

from ddtree.endpoint.client import ServerClient
from ddtree.endpoint.replay import replay
from ddtree.errors import EndpointError
from ddtree.records.arms import Arm
from ddtree.records.sampling import Sampling
from ddtree.serve.replay import MAX_ARMS, ReplayAnswer
from engine.replay_checks import Helped
from mutations.planting import Mutation, planted

REPLAY = "/v1/replay"
ARMS = [
    Arm("ar"),
    Arm("chain"),
    Arm("chain", draft_window=4),
    Arm("ddtree", 8, 4),
    Arm("ddtree", 8, 4, 3),
    Arm("ddtree", 33, 8, "full"),
    Arm("ddtree", 1, 1),
]
SAMPLINGS = [
    Sampling(seed=6),
    Sampling(temperature=0.8, seed=7),
    Sampling(temperature=1.1, top_p=0.97, frequency_penalty=0.5, seed=8),
]
UNTOLD = {"seed", "temperature", "stage_seconds", "decode_tokens_per_s", "token_ids"}


@pytest.fixture(scope="module")
def helped():
    """The tiny server with drafts that are partly right."""
    drafts = Helped(tiny_engine())
    with served(drafts.engine, byte_tokenizer()) as url:
        server = TinyServer(url, drafts.engine, byte_tokenizer(), drafts.known)
        for sampling in SAMPLINGS:
            ids, _, _ = answered(server, ARMS[0], sampling, 26)
            drafts.known[tuple(PROMPT), sampling.seed] = ids
        yield server


def answered(server, arm, sampling, count=20):
    """A request's ids, its end, and its stats."""
    body = {"prompt": PROMPT, "max_tokens": count, "return_stats": True, "return_token_ids": True}
    body |= {"speculation": arm.to_request(), **sampling.to_request()}
    answer = post(server.url, COMPLETIONS, body)
    (choice,) = answer["choices"]
    return choice["token_ids"], choice["finish_reason"], answer["ddtree"]


def asked(server, sampling):
    ids, reason, _ = answered(server, ARMS[0], sampling)
    arms = [arm.to_request() for arm in ARMS]
    body = {"prompt": PROMPT, "output": ids, "finish_reason": reason, "arms": arms}
    return body | sampling.to_request()


@pytest.mark.parametrize("sampling", SAMPLINGS, ids=lambda sampling: sampling.label)
def test_replayed_arms_are_those_of_requests(helped, sampling):
    answer = post(helped.url, REPLAY, asked(helped, sampling))
    ReplayAnswer.model_validate(answer, strict=True)
    for arm, told in zip(ARMS, answer["arms"], strict=True):
        real = answered(helped, arm, sampling)[2]
        assert set(told) - set(real) == {"truncated_rounds"}
        assert told == {name: real.get(name) for name in told} | {
            "truncated_rounds": int(real["cut_tokens"] > 0)
        }
        assert set(real) - set(told) <= UNTOLD | {"prompt_tokens", "completion_tokens"}
    assert max(len(told["accepted_histogram"]) for told in answer["arms"]) == 5
    assert any(told["truncated_rounds"] for told in answer["arms"])
    assert answer["positions"] > 0


def test_the_client_reads_what_the_server_says(helped):
    body = asked(helped, SAMPLINGS[1])
    told = post(helped.url, REPLAY, body)["arms"]

    async def run(sampling, arms):
        async with ServerClient(helped.url, "tiny") as client:
            return await replay(
                client, PROMPT, body["output"], body["finish_reason"], arms, sampling
            )

    found = asyncio.run(run(SAMPLINGS[1], ARMS))
    assert [arm.arm for arm in found] == ARMS
    for arm, one in zip(found, told, strict=True):
        for name in ("rounds", "tree_nodes", "truncated_rounds", "acceptance_length"):
            assert getattr(arm, name) == one[name]
        assert list(arm.accepted_histogram) == one["accepted_histogram"]
        assert [list(path) for path in arm.accepted_ranks] == one["accepted_ranks"]
        assert [list(path) for path in arm.accepted_nodes] == one["accepted_nodes"]
    with pytest.raises(EndpointError, match=r"400.*seed"):
        asyncio.run(run(Sampling(temperature=0.8), ARMS))
    with pytest.raises(EndpointError, match=r"400.*arms.1.draft_window"):
        asyncio.run(run(Sampling(), [ARMS[0], Arm("chain", draft_window=10**6)]))


def test_an_answer_that_lacks_something_is_no_answer():
    cut = Mutation(
        "no histogram",
        "ddtree.serve.replay",
        (("for name in ReplayedArm.model_fields}", "for name in ('rounds', 'tree_nodes')}"),),
        (),
    )

    async def run(url):
        async with ServerClient(url) as client:
            return await replay(client, PROMPT, [1, 2], "length", ARMS, Sampling())

    with planted(cut), operated() as server, pytest.raises(EndpointError, match="lacks"):
        asyncio.run(run(server.url))


GOOD = {
    "prompt": PROMPT,
    "output": [1, 2, 3],
    "finish_reason": "length",
    "arms": [{"method": "chain"}, {"budget": 4, "topk": 2}],
    "temperature": 0,
}
REFUSED = [
    ({"prompt": []}, "prompt"),
    ({"prompt": "text"}, "prompt"),
    ({"prompt": [VOCABULARY]}, "prompt"),
    ({"prompt": [True]}, "prompt"),
    ({"output": []}, "output"),
    ({"output": [-1]}, "output"),
    ({"output": [1, VOCABULARY]}, "output"),
    ({"output": [1] * 5000}, "output"),
    ({"finish_reason": "abort"}, "finish_reason"),
    ({"finish_reason": None}, "finish_reason"),
    ({"arms": []}, "arms"),
    ({"arms": None}, "arms"),
    ({"arms": [{"method": "ar"}] * (MAX_ARMS + 1)}, "arms"),
    ({"arms": [{"method": "greedy"}]}, "arms.0.method"),
    ({"arms": [{"method": "ar"}, {"budget": 10**6}]}, "arms.1.budget"),
    ({"arms": [{"topk": 0}]}, "arms.0.topk"),
    ({"arms": [{"method": "chain", "budget": 4}]}, "arms.0.budget"),
    ({"arms": [{"draft_window": 10**6}]}, "arms.0.draft_window"),
    ({"arms": [{"width": 4}]}, "arms.0.width"),
    ({"temperature": 0.7}, "seed"),
    ({"temperature": None}, "seed"),
    ({"temperature": -1}, "temperature"),
    ({"top_p": 0}, "top_p"),
    ({"max_tokens": 3}, "max_tokens"),
    ({"logit_bias": {"1": 1}}, "logit_bias"),
    ({"stream": True}, "stream"),
]


@pytest.mark.parametrize(("changes", "param"), REFUSED, ids=lambda value: str(value)[:40])
def test_refusals_name_the_field(tiny, changes, param):
    assert call(tiny.url, REPLAY, GOOD)[0] == 200
    code, answer = call(tiny.url, REPLAY, GOOD | changes)
    assert (code, answer["error"]["param"]) == (400, param), answer
    assert answer["error"]["message"].startswith(param.split(".")[0])


def test_another_model_is_refused(tiny):
    assert call(tiny.url, REPLAY, GOOD | {"model": "other"})[0] == 404


def test_replays_count_in_the_queue_and_in_metrics():
    """A slot and a place in the queue each; who leaves ends its own."""
    body = GOOD | {"output": list(range(40))}
    with operated(max_queue=1) as server, ThreadPoolExecutor(8) as pool:
        slots = server.worker.engine.config.slots
        server.gate.clear()
        waiting = [pool.submit(ask, server.url, REPLAY, body) for _ in range(slots + 1)]
        wait_until(lambda: server.worker.in_flight == slots + 1)
        assert ask(server.url, REPLAY, body).status == 429
        server.gate.set()
        assert {answer.result().status for answer in waiting} == {200}
        server.step_s = 0.05
        with pytest.raises(TimeoutError):
            _leave(server, body)
        server.wait_idle()
        found = server.metrics()
    assert found["ddtree_replay_jobs_total/ok"] == slots + 1
    assert found["ddtree_replay_jobs_total/abort"] == 1
    assert found["ddtree_score_jobs_total/ok"] == 0
    assert found["ddtree_slots_free"] == slots
    assert found["ddtree_kv_cache_tokens"] == 0


def _leave(server, body):
    """Ask, and be gone before the answer."""

    async def run():
        async with asyncio.timeout(0.3), ServerClient(server.url) as client:
            await client.call("POST", REPLAY, body)

    asyncio.run(run())
